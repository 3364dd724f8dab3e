/* What a DPU program asks of the simulator, by number; the same for native code and for RV32. */
#ifndef BRINGUP_UPMEM_SERVICES_H
#define BRINGUP_UPMEM_SERVICES_H

enum bringup_service {
  BU_MRAM_READ,
  BU_MRAM_WRITE,
  BU_BLOCK,
  BU_EXIT,
  BU_PRINT,
  BU_FAULT,
  BU_PERF_CONFIG,
  BU_PERF_GET,
  BU_MEMCPY,
  BU_MEMMOVE,
  BU_MEMSET,
  BU_MEMCMP,
  BU_LOCKED, /* of the timing tier alone: a mutex is held, and no longer */
  BU_UNLOCKED,
  BU_SERVICES
};

/* How often each kind of synchronisation was used; the native tier's counters. */
enum bringup_count { BU_BARRIERS, BU_LOCKS, BU_HANDSHAKES, BU_SEMAPHORES, BU_COUNTS };
/* Behind them, for the checks of MRAM: the clock of synchronisation, when each tasklet synchronised last, and whether
 * the run-time reads more than is asked for. */
enum { BU_CLOCK = BU_COUNTS, BU_SYNCED_AT, BU_UNCHECKED = BU_SYNCED_AT + 24, BU_NUMBERS };

#endif
