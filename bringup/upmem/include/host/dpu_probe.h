/* Measured sections of a host program: `bringup upmem run` reports the simulated time of what lies inside. */
#ifndef BRINGUP_UPMEM_DPU_PROBE_H
#define BRINGUP_UPMEM_DPU_PROBE_H

#include <dpu_error.h>

typedef struct dpu_probe_t {
  const char *name;
  unsigned count;
} DPU_PROBE;

typedef enum dpu_probe_metric_t { DPU_ENERGY, DPU_TIME } dpu_probe_metric_t;
typedef enum dpu_probe_mode_t { DPU_ACCUMULATE, DPU_AVERAGE } dpu_probe_mode_t;

#ifdef __cplusplus
extern "C" {
#endif
dpu_error_t dpu_probe_init(const char *name, DPU_PROBE *probe);
dpu_error_t dpu_probe_start(DPU_PROBE *probe);
dpu_error_t dpu_probe_stop(DPU_PROBE *probe);
/* Seconds or joules between starts and stops, in all or on average: NaN here, as the simulated time is known to the
 * report alone, and this machine's time is not the chip's. */
dpu_error_t dpu_probe_get(DPU_PROBE *probe, dpu_probe_metric_t metric, dpu_probe_mode_t mode, double *value);
dpu_error_t dpu_probe_deinit(DPU_PROBE *probe);
#ifdef __cplusplus
}
#endif

#endif
