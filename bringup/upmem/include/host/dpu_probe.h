/* Measured sections of a host program: `bringup upmem run` reports the simulated time of what lies inside. */
#ifndef BRINGUP_UPMEM_DPU_PROBE_H
#define BRINGUP_UPMEM_DPU_PROBE_H

#include <dpu_error.h>

typedef struct dpu_probe {
  const char *name;
  unsigned count;
} DPU_PROBE;

#ifdef __cplusplus
extern "C" {
#endif
dpu_error_t dpu_probe_init(const char *name, DPU_PROBE *probe);
dpu_error_t dpu_probe_start(DPU_PROBE *probe);
dpu_error_t dpu_probe_stop(DPU_PROBE *probe);
dpu_error_t dpu_probe_deinit(DPU_PROBE *probe);
#ifdef __cplusplus
}
#endif

#endif
