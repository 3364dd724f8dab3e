/* One bit that a tasklet can hold: what mutexes are made of. */
#ifndef BRINGUP_DPU_ATOMIC_BIT_H
#define BRINGUP_DPU_ATOMIC_BIT_H

#include <mutex.h>

#define ATOMIC_BIT_INIT(name) uint8_t __atomic_bit_##name
#define ATOMIC_BIT_EXTERN(name) extern uint8_t __atomic_bit_##name
#define ATOMIC_BIT_GET(name) __atomic_bit_##name
#define ATOMIC_BIT_ACQUIRE(name) mutex_lock(&__atomic_bit_##name)
#define ATOMIC_BIT_RELEASE(name) mutex_unlock(&__atomic_bit_##name)

#endif
