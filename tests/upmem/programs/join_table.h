/* The hash table: chains of rows in WRAM, one for each bucket. */
#ifndef JOIN_TABLE_H
#define JOIN_TABLE_H

#include <stdint.h>

#define BUCKETS 64

/* The first row of a chain, from 1 on; 0: the bucket is empty. */
struct bucket {
  uint16_t first;
};
extern struct bucket table[BUCKETS];

uint16_t bucket_of(uint32_t key);
void insert(uint16_t bucket, uint32_t row, uint32_t key);
int count(uint32_t key);

#endif
