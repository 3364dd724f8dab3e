/* Counting semaphores. */
#ifndef BRINGUP_DPU_SEM_H
#define BRINGUP_DPU_SEM_H

#include <stdint.h>

typedef struct sem_t {
  int32_t count;
} sem_t;

#define SEMAPHORE_INIT(name, counter) sem_t name = {(counter)};

void sem_take(sem_t *semaphore);
void sem_give(sem_t *semaphore);

#endif
