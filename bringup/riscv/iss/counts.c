/* Counting: every decoded instruction counts itself; here the counts are added up by function. */
#include <stdlib.h>
#include <string.h>

#include "iss.h"
#include "ops.h"

enum { PAGE = 4096, PER_PAGE = PAGE / 2 };

static const uint8_t classes[] = {
#define OP(name, counted) counted,
#include "ops.inc"
#undef OP
};

static void add(iss_counts *to, const iss_insn *insn, uint64_t beats) {
  uint64_t n = insn->count;
  uint8_t class = classes[insn->op];
  to->instructions += n;
  to->loads += class & ISS_LOADS ? n : 0;
  to->stores += class & ISS_STORES ? n : 0;
  to->vector += class & ISS_VECTOR ? n : 0;
  to->lane_beats += beats;
}

/* The first range that ends behind an address. */
static uint64_t find(const iss *m, uint64_t address) {
  uint64_t low = 0, high = m->range_count;
  while (low < high) {
    uint64_t middle = (low + high) / 2;
    if (m->ranges[middle].end <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static void collect_page(iss *m, uint64_t page) {
  uint64_t range = find(m, m->ram_base + page * PAGE);
  for (uint64_t i = page * PER_PAGE; i < (page + 1) * PER_PAGE; i++) {
    iss_insn *insn = &m->decoded[i];
    uint64_t address = m->ram_base + 2 * i;
    if (!insn->count) continue;
    while (range < m->range_count && m->ranges[range].end <= address) range++;
    uint64_t beats = classes[insn->op] & ISS_VECTOR ? m->beats[i] : 0;
    add(&m->total, insn, beats);
    if (range < m->range_count && m->ranges[range].start <= address) add(&m->ranges[range].counts, insn, beats);
    insn->count = 0;
    if (beats) m->beats[i] = 0;
  }
}

void iss_collect(iss *m) {
  for (uint64_t page = 0; page < m->ram_bytes / PAGE; page++)
    if (m->pages[page]) collect_page(m, page);
  m->uncollected = 0;
}

static void drop_page(iss *m, uint64_t page) {
  collect_page(m, page);
  memset(&m->decoded[page * PER_PAGE], 0, PER_PAGE * sizeof *m->decoded);
  m->pages[page] = 0;
}

void iss_drop_decoded(iss *m) {
  for (uint64_t page = 0; page < m->ram_bytes / PAGE; page++)
    if (m->pages[page]) drop_page(m, page);
}

void iss_code_changed(iss *m, uint64_t address, uint64_t size) {
  if (!size || !iss_in_ram(m, address, size)) return;
  uint64_t first = address - m->ram_base, last = (first + size - 1) / PAGE;
  first = first >= 2 ? first - 2 : 0; /* a long instruction may begin before the change */
  for (uint64_t page = first / PAGE; page <= last; page++)
    if (m->pages[page]) drop_page(m, page);
}

int iss_set_ranges(iss *m, const uint64_t *bounds, uint64_t count) {
  iss_range *ranges = calloc(count ? count : 1, sizeof *ranges);
  if (!ranges) return -1;
  iss_collect(m);
  for (uint64_t i = 0; i < count; i++) {
    ranges[i].start = bounds[2 * i];
    ranges[i].end = bounds[2 * i + 1];
  }
  free(m->ranges);
  m->ranges = ranges;
  m->range_count = count;
  return 0;
}

void iss_read_counts(iss *m, iss_counts *total, iss_counts *by_range) {
  iss_collect(m);
  *total = m->total;
  for (uint64_t i = 0; i < m->range_count; i++) by_range[i] = m->ranges[i].counts;
}

void iss_reset_counts(iss *m) {
  iss_collect(m);
  memset(&m->total, 0, sizeof m->total);
  for (uint64_t i = 0; i < m->range_count; i++) memset(&m->ranges[i].counts, 0, sizeof m->ranges[i].counts);
}
