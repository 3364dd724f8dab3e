/* Sections of a program whose cycles are added up, for each tasklet. */
#ifndef BRINGUP_DPU_PROFILING_H
#define BRINGUP_DPU_PROFILING_H

#include <defs.h>
#include <perfcounter.h>

typedef struct profiling_t {
  perfcounter_t started[NR_TASKLETS], cycles[NR_TASKLETS];
} profiling_t;

#define PROFILING_INIT(name) profiling_t name;
static inline void profiling_start(profiling_t *section) { section->started[me()] = perfcounter_get(); }
static inline void profiling_stop(profiling_t *section) {
  section->cycles[me()] += perfcounter_get() - section->started[me()];
}

#endif
