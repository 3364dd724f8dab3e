/* Mutexes, and many of them under one name (mutex_pool.h). */
#ifndef BRINGUP_DPU_MUTEX_H
#define BRINGUP_DPU_MUTEX_H

#include <stdbool.h>
#include <stdint.h>

typedef uint8_t *mutex_id_t;

#define MUTEX_GET(name) (name)
#define MUTEX_INIT(name)             \
  static uint8_t __mutex_bit_##name; \
  const mutex_id_t name = &__mutex_bit_##name;

void mutex_lock(mutex_id_t mutex);
bool mutex_trylock(mutex_id_t mutex);
void mutex_unlock(mutex_id_t mutex);

#endif
