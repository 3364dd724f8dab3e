/* What a call of the host interface may answer. The numbers are the SDK's, as programs may run on its library, too. */
#ifndef BRINGUP_UPMEM_DPU_ERROR_H
#define BRINGUP_UPMEM_DPU_ERROR_H

#include <stdio.h>
#include <stdlib.h>

typedef enum dpu_error_t {
  DPU_OK,
  DPU_ERR_INTERNAL,
  DPU_ERR_SYSTEM,
  DPU_ERR_DRIVER,
  DPU_ERR_ALLOCATION,
  DPU_ERR_INVALID_DPU_SET,
  DPU_ERR_INVALID_THREAD_ID,
  DPU_ERR_INVALID_NOTIFY_ID,
  DPU_ERR_INVALID_WRAM_ACCESS,
  DPU_ERR_INVALID_IRAM_ACCESS,
  DPU_ERR_INVALID_MRAM_ACCESS,
  DPU_ERR_INVALID_SYMBOL_ACCESS,
  DPU_ERR_MRAM_BUSY,
  DPU_ERR_TRANSFER_ALREADY_SET,
  DPU_ERR_INVALID_PARALLEL_MEMORY_TRANSFER,
  DPU_ERR_WRAM_FIFO_FULL,
  DPU_ERR_NO_PROGRAM_LOADED,
  DPU_ERR_DIFFERENT_DPU_PROGRAMS,
  DPU_ERR_CORRUPTED_MEMORY,
  DPU_ERR_DPU_DISABLED,
  DPU_ERR_DPU_ALREADY_RUNNING,
  DPU_ERR_INVALID_MEMORY_TRANSFER,
  DPU_ERR_INVALID_LAUNCH_POLICY,
  DPU_ERR_DPU_FAULT,
  DPU_ERR_ELF_INVALID_FILE,
  DPU_ERR_ELF_NO_SUCH_FILE,
  DPU_ERR_ELF_NO_SUCH_SECTION,
  DPU_ERR_TIMEOUT,
  DPU_ERR_INVALID_PROFILE,
  DPU_ERR_UNKNOWN_SYMBOL,
  DPU_ERR_LOG_FORMAT,
  DPU_ERR_LOG_CONTEXT_MISSING,
  DPU_ERR_LOG_BUFFER_TOO_SMALL,
  DPU_ERR_VPD_INVALID_FILE,
  DPU_ERR_VPD_NO_REPAIR,
  DPU_ERR_NO_THREAD_PER_RANK,
  DPU_ERR_INVALID_BUFFER_SIZE,
  DPU_ERR_NONBLOCKING_SYNC_CALLBACK,
  DPU_ERR_TOO_MANY_TASKLETS,
  DPU_ERR_SG_TOO_MANY_BLOCKS,
  DPU_ERR_SG_LENGTH_MISMATCH,
  DPU_ERR_SG_NOT_ACTIVATED,
  DPU_ERR_SG_NOT_MRAM_SYMBOL,
  DPU_ERR_ASYNC_JOBS = (int)(1U << 31),
} dpu_error_t;

#ifdef __cplusplus
extern "C" {
#endif
/* The error's words, with what this thread's last failed call had to say; the caller frees them. */
char *dpu_error_to_string(dpu_error_t error);
#ifdef __cplusplus
}
#endif

/* Says what failed on standard error, then does `on_error`. */
#define DPU_CHECK(statement, on_error)                                                  \
  do {                                                                                  \
    dpu_error_t bringup_status = (statement);                                           \
    if (bringup_status != DPU_OK) {                                                     \
      char *bringup_words = dpu_error_to_string(bringup_status);                        \
      fprintf(stderr, "%s:%d (%s): %s\n", __FILE__, __LINE__, __func__, bringup_words); \
      free(bringup_words);                                                              \
      on_error;                                                                         \
    }                                                                                   \
  } while (0)

/* Ends the program when the call fails. */
#define DPU_ASSERT(statement) DPU_CHECK(statement, exit(EXIT_FAILURE))

#endif
