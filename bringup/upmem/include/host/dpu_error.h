/* What a call of the host interface may answer. */
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
  DPU_ERR_INVALID_MEMORY_TRANSFER,
  DPU_ERR_INVALID_LAUNCH_POLICY,
  DPU_ERR_DPU_ALREADY_RUNNING,
  DPU_ERR_DPU_FAULT,
  DPU_ERR_INVALID_WRAM_ACCESS,
  DPU_ERR_INVALID_MRAM_ACCESS,
  DPU_ERR_INVALID_SYMBOL_ACCESS,
  DPU_ERR_ELF_INVALID_FILE,
  DPU_ERR_ELF_NO_SUCH_FILE,
  DPU_ERR_NO_PROGRAM_LOADED,
  DPU_ERR_INVALID_PROFILE,
  DPU_ERR_ASYNC_JOBS,
  DPU_ERR_INVALID_PARAMETER,
} dpu_error_t;

#ifdef __cplusplus
extern "C" {
#endif
/* The error's words; with what this thread's last failed call had to say. The text lives until the thread's next. */
const char *dpu_error_to_string(dpu_error_t error);
#ifdef __cplusplus
}
#endif

/* Ends the program when the call fails. */
#define DPU_ASSERT(statement)                                                                                 \
  do {                                                                                                        \
    dpu_error_t bringup_status = (statement);                                                                 \
    if (bringup_status != DPU_OK) {                                                                           \
      fprintf(stderr, "%s:%d (%s): %s\n", __FILE__, __LINE__, __func__, dpu_error_to_string(bringup_status)); \
      exit(EXIT_FAILURE);                                                                                     \
    }                                                                                                         \
  } while (0)

#endif
