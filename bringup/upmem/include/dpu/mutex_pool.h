/* Mutexes for many things: thing i is guarded by mutex i modulo their number. */
#ifndef BRINGUP_DPU_MUTEX_POOL_H
#define BRINGUP_DPU_MUTEX_POOL_H

#include <mutex.h>

typedef struct mutex_pool {
  uint8_t *bits;
  uint32_t count;
} mutex_pool;

#define MUTEX_POOL_INIT(name, nb_mutexes)              \
  static uint8_t __mutex_pool_bits_##name[nb_mutexes]; \
  mutex_pool name = {__mutex_pool_bits_##name, (nb_mutexes)};

static inline void mutex_pool_lock(mutex_pool *pool, uint32_t id) { mutex_lock(pool->bits + id % pool->count); }
static inline void mutex_pool_unlock(mutex_pool *pool, uint32_t id) { mutex_unlock(pool->bits + id % pool->count); }

#endif
