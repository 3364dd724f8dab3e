"""Kernels written by hand after the ABI in driver.h, for tests of a driver's launches."""

from __future__ import annotations

#: c[i] = a[i] + b[i] on float32, 256 elements per unit.
ADD = """
#include <stdint.h>
const uint32_t add_args = 4;
void add(const uint64_t *args, int64_t begin, int64_t end, int64_t *report) {
  const float *a = (const float *)args[0], *b = (const float *)args[1];
  float *c = (float *)args[2];
  int64_t n = (int64_t)args[3];
  for (int64_t i = begin * 256; i < end * 256 && i < n; i++) c[i] = a[i] + b[i];
}
"""

#: out[u] = table[index[u]], one element per unit, the index checked against the number of rows.
GATHER = """
#include <stdint.h>
void gather(const uint64_t *args, int64_t begin, int64_t end, int64_t *report) {
  const int64_t *table = (const int64_t *)args[0], *index = (const int64_t *)args[1];
  int64_t *out = (int64_t *)args[2], rows = (int64_t)args[3];
  for (int64_t u = begin; u < end; u++) {
    int64_t at = index[u];
    if (at < 0 || at >= rows) {
      if (!report[0]) report[0] = 1, report[1] = at, report[2] = rows;
      at = 0;
    }
    out[u] = table[at];
  }
}
"""

#: Every unit counts itself, waits until units[0] says that so many have begun, and gives up after about a second:
#: finished[0] counts the units that met the others. One thread alone can never let two meet.
MEET = """
#include <stdint.h>
void meet(const uint64_t *args, int64_t begin, int64_t end, int64_t *report) {
  int64_t *begun = (int64_t *)args[0], *met = (int64_t *)args[1], needed = (int64_t)args[2];
  for (int64_t u = begin; u < end; u++) {
    __atomic_add_fetch(begun, 1, __ATOMIC_SEQ_CST);
    for (int64_t spin = 0; spin < 200000000; spin++)
      if (__atomic_load_n(begun, __ATOMIC_SEQ_CST) >= needed) {
        __atomic_add_fetch(met, 1, __ATOMIC_SEQ_CST);
        break;
      }
  }
}
"""

#: Every unit reports its own number; unit 0 does so long after the others.
LATE = """
#include <stdint.h>
void late(const uint64_t *args, int64_t begin, int64_t end, int64_t *report) {
  if (begin == 0)
    for (volatile int64_t i = 0; i < 20000000; i++) {}
  report[0] = 1, report[1] = begin, report[2] = -1;
}
"""

#: Adds 1 to every unit's cell after a busy wait of args[1] rounds.
SLOW = """
#include <stdint.h>
void slow(const uint64_t *args, int64_t begin, int64_t end, int64_t *report) {
  int64_t *cells = (int64_t *)args[0];
  for (int64_t u = begin; u < end; u++) {
    for (volatile int64_t i = 0; i < (int64_t)args[1]; i++) {}
    cells[u]++;
  }
}
"""
