/* What DPUs print. */
#ifndef BRINGUP_UPMEM_DPU_LOG_H
#define BRINGUP_UPMEM_DPU_LOG_H

#include <dpu.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif
/* dpu_log_read (dpu.h) for one DPU. */
dpu_error_t dpulog_read_for_dpu(struct dpu_t *dpu, FILE *stream);
#ifdef __cplusplus
}
#endif

#endif
