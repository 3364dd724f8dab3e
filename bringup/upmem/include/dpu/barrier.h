/* A barrier: the last of `count` tasklets lets all go on. */
#ifndef BRINGUP_DPU_BARRIER_H
#define BRINGUP_DPU_BARRIER_H

#include <stdint.h>

typedef struct barrier_t {
  uint8_t count, waiting, generation;
} barrier_t;

#define BARRIER_INIT(name, tasklets) barrier_t name = {.count = (tasklets)};

void barrier_wait(barrier_t *barrier);

#endif
