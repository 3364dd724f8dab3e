/* What DPUs print. */
#ifndef BRINGUP_UPMEM_DPU_LOG_H
#define BRINGUP_UPMEM_DPU_LOG_H

#include <dpu.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif
/* Writes what the DPUs of the set have printed since the last call. */
dpu_error_t dpu_log_read(struct dpu_set_t dpu_set, FILE *stream);
#ifdef __cplusplus
}
#endif

#endif
