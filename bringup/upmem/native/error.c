/* What went wrong in this thread's last call, in words. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "upmem.h"

static __thread char words[1024];

static const char *const names[] = {
    [DPU_OK] = "success",
    [DPU_ERR_SYSTEM] = "system error",
    [DPU_ERR_ALLOCATION] = "allocation failed",
    [DPU_ERR_INVALID_DPU_SET] = "invalid DPU set",
    [DPU_ERR_INVALID_MEMORY_TRANSFER] = "invalid memory transfer",
    [DPU_ERR_INVALID_LAUNCH_POLICY] = "invalid launch policy",
    [DPU_ERR_DPU_FAULT] = "a DPU is in fault",
    [DPU_ERR_INVALID_WRAM_ACCESS] = "invalid WRAM access",
    [DPU_ERR_INVALID_MRAM_ACCESS] = "invalid MRAM access",
    [DPU_ERR_INVALID_SYMBOL_ACCESS] = "invalid access of a symbol",
    [DPU_ERR_UNKNOWN_SYMBOL] = "unknown symbol",
    [DPU_ERR_ELF_INVALID_FILE] = "not a DPU program",
    [DPU_ERR_ELF_NO_SUCH_FILE] = "no such file",
    [DPU_ERR_NO_PROGRAM_LOADED] = "no program is loaded",
    [DPU_ERR_NONBLOCKING_SYNC_CALLBACK] = "a callback that does not block has to be asynchronous",
    [DPU_ERR_SG_LENGTH_MISMATCH] = "blocks of another length",
    [DPU_ERR_SG_NOT_MRAM_SYMBOL] = "blocks go to MRAM only",
};

dpu_error_t failed(dpu_error_t error, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(words, sizeof words, format, arguments);
  va_end(arguments);
  return error;
}

const char *failure_words(void) { return words; }

UPMEM_API char *dpu_error_to_string(dpu_error_t error) {
  char text[1200];
  const char *name = error == DPU_ERR_ASYNC_JOBS                      ? "an asynchronous job failed"
                     : (unsigned)error < sizeof names / sizeof *names ? names[error]
                                                                      : NULL;
  bool plain = error == DPU_OK || !words[0];
  snprintf(text, sizeof text, "%s%s%s", name ? name : "unknown error", plain ? "" : ": ", plain ? "" : words);
  return strdup(text);
}
