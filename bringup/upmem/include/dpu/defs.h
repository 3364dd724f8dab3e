/* Who runs: me(), NR_TASKLETS, halt. */
#ifndef BRINGUP_DPU_DEFS_H
#define BRINGUP_DPU_DEFS_H

#include <attributes.h>
#include <stddef.h>
#include <stdint.h>
#include <sysdef.h>

#ifdef __x86_64__
extern unsigned __bringup_me;
static inline sysname_t me(void) { return __bringup_me; }
#else
static inline sysname_t me(void) {
  sysname_t id;
  __asm__("mv %0, tp" : "=r"(id));
  return id;
}
#endif

/* Ends the program with a fault, as the chip's fault instruction does. */
void halt(void) __attribute__((noreturn));
#define __nop() __asm__ volatile("" ::: "memory")

#include <dpuruntime_builtins.h>

#endif
