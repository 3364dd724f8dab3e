// Writes to the UART, waiting for it as drivers do, and computes with every width of load and store.
#include <stdint.h>

#if __riscv_flen == 64
typedef double real;
#else
typedef float real;
#endif
#define UART ((volatile uint8_t *)0x10000000)

static void say(const char *text) {
  for (; *text; text++) {
    while (!(UART[5] & 0x20)) {
    }
    UART[0] = (uint8_t)*text;
  }
}

volatile uint64_t total;
static volatile union {
  uint8_t bytes[64];
  uint16_t halves[32];
  uint32_t words[16];
  uint64_t longs[8];
} memory;

int main(void) {
  say("hello\n");
  for (int i = 0; i < 64; i++) memory.bytes[i] = (uint8_t)(i * 37);
  for (int i = 0; i < 32; i++) memory.halves[i] += (uint16_t)i;
  for (int i = 0; i < 16; i++) memory.words[i] ^= (uint32_t)i << 20;
  for (int i = 0; i < 8; i++) total = total * 31 + memory.longs[i] + (uint64_t)(int8_t)memory.bytes[i];
  real grown = 1;
  for (int i = 1; i < 20; i++) grown = grown * (real)1.5 + (real)i / 3;
  total ^= (uint32_t)grown;
  say("bye\n");
  return 42;
}
