// Handles its own traps: the handler uses a device, then goes on behind the instruction that trapped.
#include <stdint.h>

#define ECHO ((volatile uint32_t *)0x10200000)

volatile uint32_t traps, causes, status; // the host looks at them
volatile uintptr_t values[4];

__attribute__((interrupt("machine"), aligned(4))) static void handler(void) {
  uintptr_t cause, pc, value, before, after;
  __asm__ volatile("csrr %0, mcause\n csrr %1, mepc\n csrr %2, mtval" : "=r"(cause), "=r"(pc), "=r"(value));
  values[traps & 3] = value;
  ECHO[3] = 1;
  ECHO[0] = (uint32_t)cause;
  uint32_t bytes = (*(volatile uint16_t *)pc & 3) == 3 ? 4 : 2;
  __asm__ volatile("csrr %0, mstatus" : "=r"(before));
  __asm__ volatile("csrw mepc, %0" ::"r"(pc + bytes));
  while (ECHO[2] & 1) {
  }
  causes = causes * 16 + ECHO[1]; // an access between csrw mepc and mret
  __asm__ volatile("csrr %0, mstatus" : "=r"(after));
  if (before != after) causes = 0xbad;
  traps++;
}

int main(void) {
  __asm__ volatile("csrw mtvec, %0" ::"r"(handler));
  __asm__ volatile(".word 0xffffffff");                                       // 2: illegal
  __asm__ volatile("ebreak");                                                 // 3
  __asm__ volatile("ecall");                                                  // 11
  __asm__ volatile("lw t0, 0(%0)" ::"r"((uintptr_t)0x40) : "t0", "memory");   // 5: load
  __asm__ volatile("sw zero, 0(%0)" ::"r"((uintptr_t)0x40000000) : "memory"); // 7: store
  uintptr_t mstatus;
  __asm__ volatile("csrr %0, mstatus" : "=r"(mstatus));
  status = (uint32_t)(mstatus & 0x88);
  return traps == 5 ? 0 : 1;
}
