/* Many mutexes of one bit each. */
#ifndef BRINGUP_DPU_VMUTEX_H
#define BRINGUP_DPU_VMUTEX_H

#include <assert.h>
#include <mutex.h>

struct vmutex {
  uint8_t *held;
  uint32_t count;
};

/* On the chip nb_mutexes of hardware guard their bits; here a tasklet runs until it waits, so none is needed. */
#define VMUTEX_INIT(name, nb_vmutexes, nb_mutexes)                                                        \
  static_assert((nb_mutexes) > 0 && ((nb_mutexes) & ((nb_mutexes) - 1)) == 0, "a power of 2 of mutexes"); \
  static_assert(((nb_vmutexes) & 7) == 0, "virtual mutexes come in eights");                              \
  uint8_t __vmutex_bits_##name[(nb_vmutexes) / 8];                                                        \
  struct vmutex name = {__vmutex_bits_##name, (nb_vmutexes)};

void vmutex_lock(struct vmutex *mutexes, uint16_t id);
void vmutex_unlock(struct vmutex *mutexes, uint16_t id);

#endif
