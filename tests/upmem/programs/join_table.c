#include "join_table.h"

#include "join.h"

struct bucket table[BUCKETS];
static uint32_t keys[ROWS + 1];
static uint16_t next[ROWS + 1];

uint16_t bucket_of(uint32_t key) { return key * 2654435761u >> 26; }

void insert(uint16_t bucket, uint32_t row, uint32_t key) {
  keys[row + 1] = key;
  next[row + 1] = table[bucket].first;
  table[bucket].first = row + 1;
}

int count(uint32_t key) {
  int found = 0;
  for (uint16_t at = table[bucket_of(key)].first; at; at = next[at]) found += keys[at] == key;
  return found;
}
