/* The chip's counter of cycles or instructions.
 *
 * Under the native tier no instruction is counted: a program that reads it there gets the cycles of its DMA alone.
 */
#ifndef BRINGUP_DPU_PERFCOUNTER_H
#define BRINGUP_DPU_PERFCOUNTER_H

#include <stdbool.h>
#include <stdint.h>

typedef uint64_t perfcounter_t;
typedef enum perfcounter_config_t {
  COUNT_SAME = 0,
  COUNT_CYCLES = 1,
  COUNT_INSTRUCTIONS = 2,
  COUNT_NOTHING = 3,
  COUNT_DISABLE_BOTH = 6,
  COUNT_ENABLE_BOTH = 7
} perfcounter_config_t;

#define CLOCKS_PER_SEC 350000000

perfcounter_t perfcounter_config(perfcounter_config_t config, bool reset);
perfcounter_t perfcounter_get(void);

typedef struct perfcounter_pair_t {
  perfcounter_t cycles, instructions;
} perfcounter_pair_t;
/* The instructions are 0 here. */
static inline perfcounter_pair_t perfcounter_get_both(bool reset) {
  perfcounter_pair_t both = {perfcounter_get(), 0};
  if (reset) perfcounter_config(COUNT_SAME, true);
  return both;
}

#endif
