// Sends words through the Echo device; exits with the number of a failed step.
#include <stdint.h>

#define ECHO ((volatile uint32_t *)0x10200000)
enum { DATA_IN, DATA_OUT, STATUS, CONTROL };
enum { BUSY = 1, READY = 2 };

volatile uint32_t polls; // the host looks at it

int main(void) {
  if (ECHO[STATUS] != 0) return 1;
  for (uint32_t word = 1; word < 6; word++) {
    ECHO[DATA_IN] = word * 0x01010101u;
    if (ECHO[STATUS] != BUSY) return 2;
    while (ECHO[STATUS] & BUSY) polls++;
    if (ECHO[STATUS] != READY) return 3;
    if (ECHO[DATA_OUT] != word * 0x01010101u) return 4;
  }
  ECHO[DATA_IN] = 7;
  ECHO[CONTROL] = 1; // a reset while it is busy
  if (ECHO[STATUS] != 0 || ECHO[DATA_OUT] != 0) return 5;
  for (int i = 0; i < 100; i++)
    if (ECHO[STATUS] != 0) return 6;
  return 0;
}
