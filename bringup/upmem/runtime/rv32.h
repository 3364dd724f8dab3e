/* The services as stores to a device of the interpreter: arguments stay in a0…a3, the result appears in a0 (and a1).
 *
 * What the chip computes by routines of its run-time (products, quotients, floats) is a service, too: the host computes
 * it, and it is charged what the routine takes on the chip. The order of the names is that of native/rv32_services.h.
 */
#ifndef BRINGUP_UPMEM_RV32_H
#define BRINGUP_UPMEM_RV32_H

#define BU_TEXT_(...) #__VA_ARGS__
#define BU_TEXT(...) BU_TEXT_(__VA_ARGS__)
#define BU_STUB(name, number)                                                                                \
  __asm__(".pushsection .text." #name ",\"ax\"\n.globl " #name "\n.type " #name ",@function\n" #name         \
          ":\n  lui t0, 0x20000\n  sw zero, 4*(" BU_TEXT(number) ")(t0)\n  ret\n.size " #name ", . - " #name \
                                                                 "\n.popsection\n");
BU_STUB(mram_read, 0)
BU_STUB(mram_write, 1)
BU_STUB(__bringup_block, 2)
BU_STUB(__bringup_exit, 3)
BU_STUB(__bringup_print, 4)
BU_STUB(__bringup_fault, 5)
BU_STUB(perfcounter_config, 6)
BU_STUB(perfcounter_get, 7)
#define BU_ROUTINE(name, number) BU_STUB(name, 16 + number)
#include "routines.h"

void *memcpy(void *to, const void *from, size_t bytes) {
  char *t = to;
  const char *f = from;
  if (!(((uintptr_t)t | (uintptr_t)f) & 3))
    for (; bytes >= 4; bytes -= 4, t += 4, f += 4) *(uint32_t *)t = *(const uint32_t *)f;
  while (bytes--) *t++ = *f++;
  return to;
}
void *memmove(void *to, const void *from, size_t bytes) {
  char *t = to;
  const char *f = from;
  if (t <= f || t >= f + bytes) return memcpy(to, from, bytes);
  while (bytes--) t[bytes] = f[bytes];
  return to;
}
void *memset(void *to, int value, size_t bytes) {
  char *t = to;
  uint32_t four = (uint8_t)value;
  four |= four << 8;
  four |= four << 16;
  if (!((uintptr_t)t & 3))
    for (; bytes >= 4; bytes -= 4, t += 4) *(uint32_t *)t = four;
  while (bytes--) *t++ = (char)value;
  return to;
}
int memcmp(const void *a, const void *b, size_t bytes) {
  const unsigned char *x = a, *y = b;
  for (; bytes--; x++, y++)
    if (*x != *y) return *x - *y;
  return 0;
}

#endif
