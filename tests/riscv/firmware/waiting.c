// Serves the host: waits, adds what it finds in memory, and waits again.
#include <stdint.h>

volatile uint32_t request, answer, served;

int main(void) {
  for (;;) {
    __asm__ volatile("wfi" ::: "memory");
    if (request == 0) return 3;
    uint32_t sum = 0;
    for (uint32_t i = 0; i <= request; i++) {
      sum += i;
      __asm__ volatile("" : "+r"(sum));
    }
    answer = sum;
    served++;
  }
}
