/* What is linked with every DPU program: the heap, synchronisation, printf, sequential readers.
 *
 * Tasklets are coroutines, so nothing here needs an atomic instruction: a tasklet runs until it blocks.
 */
#include "services.h"

#include <alloc.h>
#include <atomic_bit.h>
#include <barrier.h>
#include <defs.h>
#include <handshake.h>
#include <mram_unaligned.h>
#include <perfcounter.h>
#include <sem.h>
#include <seqread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vmutex.h>

/* Lets another tasklet run; `again` says that what it waits for had not come when it was asked last. */
void __bringup_block(const char *what, int again);
void __bringup_exit(void) __attribute__((noreturn));
void __bringup_print(const char *format, void *arguments, void *caller);
void __bringup_fault(const char *words, void *caller) __attribute__((noreturn));
#define BU_FAULT_HERE(words) __bringup_fault(words, __builtin_return_address(0))

#ifdef __x86_64__
#define BU_TEXT_(x) #x
#define BU_TEXT(x) BU_TEXT_(x)
/* The simulator is 64-bit code above 4 GiB: a jump through a table of 8-byte addresses that the loader fills. */
#define BU_STUB(name, service)                                                                       \
  __asm__(".pushsection .text." #name ",\"ax\"\n.globl " #name "\n.type " #name ",@function\n" #name \
          ":\n  jmp *__bringup_services+8*" BU_TEXT(service) "(%rip)\n.popsection\n");
__asm__(
    ".equ BU_MRAM_READ,0\n.equ BU_MRAM_WRITE,1\n.equ BU_BLOCK,2\n.equ BU_EXIT,3\n.equ BU_PRINT,4\n"
    ".equ BU_FAULT,5\n.equ BU_PERF_CONFIG,6\n.equ BU_PERF_GET,7\n.equ BU_MEMCPY,8\n.equ BU_MEMMOVE,9\n"
    ".equ BU_MEMSET,10\n.equ BU_MEMCMP,11\n");
_Static_assert(BU_LOCKED == 12 && BU_MEMCMP == 11 && BU_SERVICES == 14, "the list above is that of services.h");
BU_STUB(mram_read, BU_MRAM_READ)
BU_STUB(mram_write, BU_MRAM_WRITE)
BU_STUB(__bringup_block, BU_BLOCK)
BU_STUB(__bringup_exit, BU_EXIT)
BU_STUB(__bringup_print, BU_PRINT)
BU_STUB(__bringup_fault, BU_FAULT)
BU_STUB(perfcounter_config, BU_PERF_CONFIG)
BU_STUB(perfcounter_get, BU_PERF_GET)
BU_STUB(memcpy, BU_MEMCPY)
BU_STUB(memmove, BU_MEMMOVE)
BU_STUB(memset, BU_MEMSET)
BU_STUB(memcmp, BU_MEMCMP)
/* What the compiler calls without an instruction for it, and libgcc is not there. */
int __popcountdi2(uint64_t bits) {
  int count = 0;
  for (; bits; bits &= bits - 1) count++;
  return count;
}
/* What belongs to the simulator and not to WRAM. */
#define BU_OUTSIDE __attribute__((section(".bringup"), used))
BU_OUTSIDE uint64_t __bringup_services[BU_SERVICES] = {0};
BU_OUTSIDE unsigned __bringup_me = 0;
BU_OUTSIDE uint64_t __bringup_counts[BU_NUMBERS] = {0};
#define BU_COUNT(kind) (__bringup_counts[kind]++, BU_SYNCED())
#define BU_SYNCED() (__bringup_counts[BU_SYNCED_AT + __bringup_me] = ++__bringup_counts[BU_CLOCK])
#define BU_TELL(service) ((void)0)
#define BU_AROUND(yes) (__bringup_counts[BU_UNCHECKED] = (yes))
#else
#include "rv32.h"
#define BU_COUNT(kind) ((void)0)
#define BU_SYNCED() ((void)0)
#define BU_AROUND(yes) ((void)0)
#define BU_TELL(service) __asm__ volatile("lui t0, 0x20000\n  sw zero, 4*(" BU_TEXT(service) ")(t0)" ::: "t0", "memory")
#endif

void __bringup_start(void) {
  extern int main(void);
  main();
  __bringup_exit();
}

void exit(int status) {
  (void)status;
  __bringup_exit();
}
void abort(void) { BU_FAULT_HERE("abort()"); }
void halt(void) { BU_FAULT_HERE("halt()"); }
void __bringup_assert_failed(const char *condition, const char *file, int line) {
  printf("%s:%d: assertion failed: %s\n", file, line, condition);
  BU_FAULT_HERE("an assertion failed");
}

/* ---- heap ---- */
extern char __bringup_heap_start[], __bringup_wram_end[];
char *__bringup_heap_top = __bringup_heap_start;
char *__bringup_heap_high = __bringup_heap_start;

void *mem_alloc(size_t size) {
  size_t rounded = (size + 7) & ~(size_t)7;
  char *piece = __bringup_heap_top;
  if (rounded < size || rounded > (size_t)(__bringup_wram_end - piece)) BU_FAULT_HERE("mem_alloc: WRAM is used up");
  __bringup_heap_top = piece + rounded;
  if (__bringup_heap_top > __bringup_heap_high) __bringup_heap_high = __bringup_heap_top;
  return piece;
}

void *mem_reset(void) {
  __bringup_heap_top = __bringup_heap_start;
  return __bringup_heap_top;
}

fsb_allocator_t fsb_alloc(unsigned block_size, unsigned nb_of_blocks) {
  unsigned step = (block_size + 7) & ~7u;
  fsb_allocator_t allocator = mem_alloc(sizeof *allocator);
  char *blocks = mem_alloc((size_t)step * nb_of_blocks);
  allocator->free = 0;
  for (unsigned i = nb_of_blocks; i-- > 0;) fsb_free(allocator, blocks + (size_t)i * step);
  return allocator;
}
void *fsb_get(fsb_allocator_t allocator) {
  void *block = allocator->free;
  if (block) allocator->free = *(void **)block;
  return block;
}
void fsb_free(fsb_allocator_t allocator, void *block) {
  *(void **)block = allocator->free;
  allocator->free = block;
}

/* The tree of blocks, the whole at 1, the halves of n at 2n and 2n + 1: of each, 1 more than the order of the largest
 * free block in it; 0 where there is none. */
enum { SMALLEST = 32 };
static struct {
  uint8_t *tree;
  char *blocks;
  unsigned count;
} buddies;

static unsigned order_of(size_t size) {
  unsigned order = 0;
  while ((size_t)SMALLEST << order < size && order < 16) order++;
  return order;
}

void buddy_init(size_t size) {
  unsigned order = order_of(size < 2 * SMALLEST ? 2 * SMALLEST : size);
  buddies.count = 1u << order;
  buddies.tree = mem_alloc(2 * buddies.count);
  buddies.blocks = mem_alloc((size_t)SMALLEST << order);
  for (unsigned node = 1, level = order + 1; node < 2 * buddies.count; level--)
    for (unsigned last = 2 * node; node < last; node++) buddies.tree[node] = level;
}

static void buddies_changed(unsigned node) {
  while (node >>= 1) {
    uint8_t left = buddies.tree[2 * node], right = buddies.tree[2 * node + 1];
    unsigned whole = order_of((size_t)SMALLEST * (buddies.count >> (31 - __builtin_clz(node)))) + 1;
    buddies.tree[node] = left == whole - 1 && right == whole - 1 ? whole : left > right ? left : right;
  }
}

void *buddy_alloc(size_t size) {
  unsigned wanted = order_of(size) + 1, node = 1;
  if (!buddies.count || buddies.tree[1] < wanted || size > (size_t)SMALLEST << (wanted - 1)) return 0;
  unsigned level = order_of((size_t)SMALLEST * buddies.count) + 1;
  for (; level > wanted; level--) node = 2 * node + (buddies.tree[2 * node] < wanted);
  buddies.tree[node] = 0;
  buddies_changed(node);
  return buddies.blocks + ((node << (level - 1)) - buddies.count) * SMALLEST;
}

/* The node that was given out as this block, and its level. */
static unsigned buddy_node(const void *block, unsigned *level) {
  size_t offset = (const char *)block - buddies.blocks;
  unsigned node = buddies.count + offset / SMALLEST;
  if (!buddies.count || offset % SMALLEST || node >= 2 * buddies.count)
    BU_FAULT_HERE("this block was not given out by buddy_alloc");
  for (*level = 1; node && buddies.tree[node]; node >>= 1) ++*level;
  if (!node) BU_FAULT_HERE("this block of buddy_alloc is free");
  return node;
}

void buddy_free(void *block) {
  unsigned level, node = buddy_node(block, &level);
  buddies.tree[node] = level;
  buddies_changed(node);
}

void *buddy_realloc(void *block, size_t size) {
  unsigned level;
  if (!block) return buddy_alloc(size);
  buddy_node(block, &level);
  size_t room = (size_t)SMALLEST << (level - 1);
  void *other = buddy_alloc(size);
  if (!other) return 0;
  memcpy(other, block, room < size ? room : size);
  buddy_free(block);
  return other;
}

/* ---- synchronisation ---- */
void barrier_wait(barrier_t *barrier) {
  volatile barrier_t *shared = barrier;
  uint8_t generation = shared->generation;
  BU_COUNT(BU_BARRIERS);
  if (++shared->waiting >= shared->count) {
    shared->waiting = 0;
    shared->generation = generation + 1;
    return;
  }
  for (int again = 0; shared->generation == generation; again = 1) __bringup_block("a barrier", again);
  BU_SYNCED();
}

void mutex_lock(mutex_id_t mutex) {
  volatile uint8_t *bit = mutex;
  BU_COUNT(BU_LOCKS);
  for (int again = 0; *bit; again = 1) __bringup_block("a mutex", again);
  BU_SYNCED();
  *bit = 1;
  BU_TELL(12);
}
bool mutex_trylock(mutex_id_t mutex) {
  BU_COUNT(BU_LOCKS);
  if (*mutex) return false;
  *mutex = 1;
  BU_TELL(12);
  return true;
}
void mutex_unlock(mutex_id_t mutex) {
  BU_SYNCED();
  BU_TELL(13);
  *mutex = 0;
}

void vmutex_lock(struct vmutex *mutexes, uint16_t id) {
  volatile uint8_t *byte = mutexes->held + id / 8;
  if (id >= mutexes->count) BU_FAULT_HERE("vmutex_lock: there is no such mutex");
  BU_COUNT(BU_LOCKS);
  for (int again = 0; *byte >> (id & 7) & 1; again = 1) __bringup_block("a virtual mutex", again);
  BU_SYNCED();
  *byte |= 1 << (id & 7);
}
void vmutex_unlock(struct vmutex *mutexes, uint16_t id) {
  if (id >= mutexes->count) BU_FAULT_HERE("vmutex_unlock: there is no such mutex");
  BU_SYNCED();
  mutexes->held[id / 8] &= ~(1 << (id & 7));
}

static volatile uint8_t notified[NR_TASKLETS];

void handshake_notify(void) {
  unsigned self = me();
  BU_COUNT(BU_HANDSHAKES);
  notified[self] = 1;
  for (int again = 0; notified[self]; again = 1) __bringup_block("a tasklet that takes its handshake", again);
  BU_SYNCED();
}
void handshake_wait_for(sysname_t notifier) {
  if (notifier >= NR_TASKLETS) BU_FAULT_HERE("handshake_wait_for: there is no such tasklet");
  BU_COUNT(BU_HANDSHAKES);
  for (int again = 0; !notified[notifier]; again = 1) __bringup_block("a handshake", again);
  BU_SYNCED();
  notified[notifier] = 0;
}

void sem_take(sem_t *semaphore) {
  volatile int32_t *count = &semaphore->count;
  BU_COUNT(BU_SEMAPHORES);
  for (int again = 0; *count <= 0; again = 1) __bringup_block("a semaphore", again);
  BU_SYNCED();
  *count = *count - 1;
}
void sem_give(sem_t *semaphore) {
  BU_COUNT(BU_SEMAPHORES);
  semaphore->count++;
}

/* ---- MRAM at any address ---- */
/* Reads words around what is wanted, which nobody may have written and others may write. */
static void read_around(uint32_t from, void *to, unsigned bytes) {
  BU_AROUND(1);
  mram_read((const __mram_ptr void *)from, to, bytes);
  BU_AROUND(0);
}
static uint8_t words_bit; /* one tasklet at a time changes a word that others may share */

void *mram_read_unaligned(const __mram_ptr void *from, void *buffer, unsigned bytes) {
  uint32_t address = (uint32_t)from, offset = address & 7;
  read_around(address - offset, buffer, (bytes + offset + 7) & ~7u);
  return (char *)buffer + offset;
}

void __bringup_take_word(uint32_t address, uint8_t *word) {
  mutex_lock(&words_bit);
  read_around(address & ~7u, word, 8);
}
void __bringup_give_word(uint32_t address, const uint8_t *word) {
  mram_write(word, (__mram_ptr void *)(address & ~7u), 8);
  mutex_unlock(&words_bit);
}

static void change_word(uint32_t address, const char *from, unsigned bytes) {
  __dma_aligned uint8_t word[8];
  __bringup_take_word(address, word);
  for (unsigned i = 0; i < bytes; i++) word[(address & 7) + i] = from[i];
  __bringup_give_word(address, word);
}

void mram_write_unaligned(const void *from, __mram_ptr void *to, unsigned bytes) {
  const char *source = from;
  uint32_t address = (uint32_t)to;
  if (((uintptr_t)source & 7) == (address & 7) && bytes >= 16) {
    unsigned head = (8 - (address & 7)) & 7, whole = (bytes - head) & ~7u;
    if (head) change_word(address, source, head);
    mram_write(source + head, (__mram_ptr void *)(address + head), whole);
    source += head + whole;
    address += head + whole;
    bytes -= head + whole;
  }
  while (bytes) {
    unsigned now = 8 - (address & 7) < bytes ? 8 - (address & 7) : bytes;
    change_word(address, source, now);
    source += now;
    address += now;
    bytes -= now;
  }
}

void __bringup_write_atomic(uint32_t address, uint32_t value, unsigned bytes) {
  change_word(address, (char *)&value, bytes);
}

/* ---- sequential readers: a window of two pages that starts at a multiple of 8 ---- */
seqreader_buffer_t __bringup_seqread_alloc(uint32_t page) { return (uintptr_t)mem_alloc(2 * page); }

void *__bringup_seqread_init(seqreader_buffer_t buffer, uint32_t from, seqreader_t *reader, uint32_t page) {
  reader->window = buffer;
  reader->mram_addr = from & ~7u;
  read_around(reader->mram_addr, (void *)buffer, 2 * page);
  return (char *)buffer + (from & 7);
}

void *__bringup_seqread_turn(void *at, seqreader_t *reader, uint32_t page) {
  uint32_t gone = ((uintptr_t)at - reader->window) & ~(page - 1);
  reader->mram_addr += gone;
  read_around(reader->mram_addr, (void *)reader->window, 2 * page);
  return (char *)at - gone;
}

/* ---- text ---- */
int printf(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  __bringup_print(format, &arguments, __builtin_return_address(0));
  va_end(arguments);
  return 0;
}
int puts(const char *text) { return printf("%s\n", text); }
int putchar(int character) { return printf("%c", character); }

size_t strlen(const char *text) {
  const char *end = text;
  while (*end) end++;
  return end - text;
}
int strcmp(const char *a, const char *b) {
  while (*a && *a == *b) a++, b++;
  return (unsigned char)*a - (unsigned char)*b;
}
int strncmp(const char *a, const char *b, size_t most) {
  for (; most && *a && *a == *b; most--) a++, b++;
  return most ? (unsigned char)*a - (unsigned char)*b : 0;
}
char *strncpy(char *to, const char *from, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) to[i] = *from ? *from++ : 0;
  return to;
}
char *strcat(char *to, const char *from) {
  strcpy(to + strlen(to), from);
  return to;
}
char *strchr(const char *text, int wanted) {
  for (; *text != (char)wanted; text++)
    if (!*text) return 0;
  return (char *)text;
}
int atoi(const char *text) {
  while (*text == ' ') text++;
  int negative = *text == '-', value = 0;
  for (text += *text == '-' || *text == '+'; *text >= '0' && *text <= '9'; text++) value = 10 * value + (*text - '0');
  return negative ? -value : value;
}
char *strcpy(char *to, const char *from) {
  for (char *at = to; (*at = *from); at++, from++) {
  }
  return to;
}
