// Counts the blocks that unicorn runs: its hook is called before every one, far too often for Python.
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "iss.h"

typedef struct {
  uint64_t address;
  uint64_t runs;
  uint32_t bytes; // 0: the place in the table is free
  uint32_t instructions;
} Block;

typedef struct {
  const uint8_t *ram;
  uint64_t ram_base, ram_bytes;
  int (*stop)(void *engine); // uc_emu_stop
  uint64_t retired;          // with all of the current block
  uint64_t stop_at;          // unicorn stops before a block with which `retired` would pass this,
  uint64_t blocks_left;      // and when it has run that many
  Block *table;              // open addressing; its size is a power of two
  uint64_t places, used;
  uint64_t address; // of the current block
  uint32_t bytes;   // of the current block; 0: none
  uint32_t stopped; // by us, before a block
  uint32_t failed;  // out of memory
} Blocks;

ISS_API Blocks *bringup_blocks_new(const uint8_t *ram, uint64_t ram_base, uint64_t ram_bytes, int (*stop)(void *)) {
  Blocks *b = calloc(1, sizeof *b);
  if (!b) return NULL;
  *b = (Blocks){.ram = ram, .ram_base = ram_base, .ram_bytes = ram_bytes, .stop = stop, .places = 1 << 12};
  b->table = calloc(b->places, sizeof *b->table);
  if (b->table) return b;
  free(b);
  return NULL;
}

ISS_API void bringup_blocks_free(Blocks *b) {
  free(b->table);
  free(b);
}

static uint32_t count_instructions(const Blocks *b, uint64_t address, uint32_t bytes) {
  uint32_t count = 0;
  for (uint64_t at = address - b->ram_base, end = at + bytes; at < end && at < b->ram_bytes; count++)
    at += (b->ram[at] & 3) == 3 ? 4 : 2;
  return count;
}

static Block *place_of(const Blocks *b, uint64_t address, uint32_t bytes) {
  uint64_t at = (address ^ (uint64_t)bytes << 32) * 0x9E3779B97F4A7C15u >> 20;
  for (;; at++) {
    Block *block = &b->table[at & (b->places - 1)];
    if (!block->bytes || (block->address == address && block->bytes == bytes)) return block;
  }
}

static bool grow(Blocks *b) {
  Blocks bigger = *b;
  bigger.places *= 2;
  bigger.table = calloc(bigger.places, sizeof *bigger.table);
  if (!bigger.table) return false;
  for (uint64_t i = 0; i < b->places; i++)
    if (b->table[i].bytes) *place_of(&bigger, b->table[i].address, b->table[i].bytes) = b->table[i];
  free(b->table);
  *b = bigger;
  return true;
}

static Block *find(Blocks *b, uint64_t address, uint32_t bytes) {
  Block *block = place_of(b, address, bytes);
  if (block->bytes) return block;
  if (2 * b->used >= b->places) {
    if (!grow(b)) {
      b->failed = 1;
      return NULL;
    }
    block = place_of(b, address, bytes);
  }
  *block = (Block){.address = address, .bytes = bytes, .instructions = count_instructions(b, address, bytes)};
  b->used++;
  return block;
}

// unicorn's hook for UC_HOOK_BLOCK.
ISS_API void bringup_blocks_hook(void *engine, uint64_t address, uint32_t bytes, Blocks *b) {
  if (b->stopped) return;
  Block *block = find(b, address, bytes);
  if (!block || !b->blocks_left || b->retired + block->instructions > b->stop_at) {
    b->stopped = 1;
    b->bytes = 0;
    b->stop(engine);
    return;
  }
  block->runs++;
  b->blocks_left--;
  b->retired += block->instructions;
  b->address = address;
  b->bytes = bytes;
}

// Adds (or takes back, with -1) runs of some code.
ISS_API void bringup_blocks_add(Blocks *b, uint64_t address, uint32_t bytes, int64_t runs) {
  Block *block = find(b, address, bytes);
  if (!block) return;
  block->runs += (uint64_t)runs;
  b->retired += (uint64_t)runs * block->instructions;
}

// unicorn stopped at pc: if that is within the current block, only what is before it was run.
ISS_API void bringup_blocks_cut(Blocks *b, uint64_t pc) {
  uint64_t address = b->address;
  uint32_t bytes = b->bytes;
  b->bytes = 0;
  if (!bytes || pc < address || pc >= address + bytes) return;
  bringup_blocks_add(b, address, bytes, -1);
  if (pc > address) bringup_blocks_add(b, address, (uint32_t)(pc - address), 1);
}

// Forgets what ran (the code may have changed), but not how much.
ISS_API void bringup_blocks_forget(Blocks *b) {
  for (uint64_t i = 0; i < b->places; i++) b->table[i] = (Block){0};
  b->used = 0;
}
