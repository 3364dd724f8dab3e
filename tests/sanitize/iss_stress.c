/* Stress of the RISC-V interpreter alone, for the sanitizers: random instructions, on machines of all kinds, in
 * threads.
 *
 * Whatever the words are, the guest may touch only its RAM and its devices; two machines with the same words must come
 * to the same state. Built and run by `make sanitize`.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../bringup/riscv/iss/iss.h"

enum { THREADS = 8, ROUNDS = 6000, WORDS = 48, RAM_BYTES = 1 << 20 };
#define RAM_BASE 0x80000000u
#define DEVICE_BASE 0x10200000u

static void check(int condition, const char *what) {
  if (condition) return;
  fprintf(stderr, "iss_stress: %s\n", what);
  exit(1);
}

static uint64_t draw(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

typedef struct worker {
  uint32_t kind;
  uint64_t accesses, digest, trapped, retired;
} worker;

static int device_read(void *user, uint64_t address, uint32_t size, uint64_t *value) {
  worker *w = user;
  check(address >= DEVICE_BASE && address < DEVICE_BASE + 4096, "a device got the access of another");
  w->accesses++;
  *value = address * size;
  return address % 64 == 60; /* sometimes it refuses */
}

static int device_write(void *user, uint64_t address, uint32_t size, uint64_t value) {
  uint64_t ignored;
  (void)value;
  return device_read(user, address, size, &ignored);
}

/* An instruction of a chosen kind, with random fields. */
static uint32_t word(uint64_t *state, uint32_t kind) {
  static const uint32_t scalar[] = {0x03, 0x07, 0x0f, 0x13, 0x1b, 0x23, 0x27, 0x2f, 0x33, 0x3b, 0x43, 0x47, 0x53, 0x73};
  uint32_t bits = (uint32_t)draw(state), choice = (uint32_t)(draw(state) >> 20) % 16;
  if (choice < 4) return bits; /* anything, compressed ones too */
  if (choice < 8 || !kind) return (bits & ~0x7fu) | scalar[draw(state) % 14];
  if (choice < 9) return (bits & 0x0fffffffu & ~0x7fffu) | 0x7057u | (bits & 0xf80u); /* vsetvli */
  if (choice < 11) return (bits & ~0x7fu) | (bits & 0x100000u ? 0x07u : 0x27u);
  return (bits & ~0x7fu) | 0x57u;
}

static void mix(uint64_t *digest, const void *data, size_t n) {
  const uint8_t *bytes = data;
  for (size_t i = 0; i < n; i++) *digest = (*digest ^ bytes[i]) * 0x100000001b3u;
}

/* Floats and vectors, which the random instructions of another round may have switched off, and no trap handler. */
static void switch_on(iss *m) {
  static const uint32_t program[] = {0x3002a073, 0x30501073, 0x10500073}; /* csrs mstatus, x5; csrw mtvec, x0; wfi */
  iss_stop stop;
  memcpy(iss_ram(m), program, sizeof program);
  iss_code_changed(m, RAM_BASE, sizeof program);
  iss_set_interrupt(m, 0);
  iss_register_file(m)->x[5] = 0x6600;
  iss_register_file(m)->pc = RAM_BASE;
  iss_run(m, 3, &stop);
  check(stop.reason == ISS_IDLE, "the first instructions do not run");
}

static void prepare(iss *m, uint64_t *state, uint32_t kind) {
  iss_registers *r = iss_register_file(m);
  uint8_t *ram = iss_ram(m);
  uint64_t place = (draw(state) % (RAM_BYTES - 8 * WORDS)) & ~(uint64_t)1;
  if (draw(state) % 8 == 0) place = RAM_BYTES - 4 * WORDS; /* the end of memory is near */
  for (uint64_t i = 0; i < WORDS; i++) {
    uint32_t bits = word(state, kind);
    memcpy(ram + place + 4 * i, &bits, 4);
  }
  iss_code_changed(m, RAM_BASE + place, 4 * WORDS);
  for (int i = 1; i < 32; i++) {
    uint64_t value = draw(state);
    if (i % 3 == 1) value = RAM_BASE + value % RAM_BYTES;
    if (i % 8 == 2) value = DEVICE_BASE + value % 4096;
    if (i % 5 == 0) value = value % 300;
    r->x[i] = kind ? value : (uint64_t)(int64_t)(int32_t)value;
    r->f[i] = draw(state);
  }
  r->pc = RAM_BASE + place;
}

static void *work(void *argument) {
  static const uint32_t vlens[4] = {0, 128, 256, 1024};
  worker *w = argument;
  uint32_t all = ISS_M | ISS_A | ISS_F | ISS_D | ISS_C | ISS_V | ISS_ZFHMIN | ISS_ZFH | ISS_ZVFH;
  iss_config config = {.ram_base = RAM_BASE,
                       .ram_bytes = RAM_BYTES,
                       .xlen = w->kind ? 64 : 32,
                       .vlen = vlens[w->kind],
                       .extensions = w->kind ? all : (uint32_t)(ISS_M | ISS_F | ISS_C),
                       .read = device_read,
                       .write = device_write,
                       .user = w};
  iss *m = iss_create(&config);
  uint64_t state = 88172645463325252u + w->kind,
           bounds[4] = {RAM_BASE, RAM_BASE + 4096, RAM_BASE + 8192, RAM_BASE + 65536};
  iss_counts total, each[2];
  check(m && !iss_add_device(m, DEVICE_BASE, 4096) && !iss_set_ranges(m, bounds, 2), "no machine");
  iss_stop stop;
  for (int round = 0; round < ROUNDS; round++) {
    switch_on(m);
    prepare(m, &state, w->kind);
    for (int turn = 0; turn < WORDS; turn++) {
      iss_set_interrupt(m, draw(&state) % 4 == 0);
      iss_run(m, 1 + draw(&state) % 40, &stop);
      if (stop.reason == ISS_BUDGET) continue;
      w->trapped += stop.reason == ISS_TRAPPED;
      if (stop.reason == ISS_TRAPPED && stop.code == 1) break; /* it jumped out of memory */
      iss_register_file(m)->pc += 4;                           /* over what trapped, or was refused */
    }
    w->retired = iss_retired(m);
    mix(&w->digest, iss_register_file(m), sizeof(iss_registers));
    mix(&w->digest, iss_vector_file(m), 4 * config.vlen);
  }
  mix(&w->digest, iss_ram(m), RAM_BYTES);
  iss_read_counts(m, &total, each);
  check(total.instructions == w->retired, "counts do not add up to what retired");
  check(each[0].instructions + each[1].instructions <= total.instructions, "functions count more than all");
  iss_destroy(m);
  return NULL;
}

int main(void) {
  pthread_t threads[THREADS];
  worker workers[THREADS];
  memset(workers, 0, sizeof workers);
  for (uint32_t i = 0; i < THREADS; i++) {
    workers[i].kind = i % 4;
    check(!pthread_create(&threads[i], NULL, work, &workers[i]), "no thread");
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < THREADS; i++) {
    const worker *w = &workers[i];
    check(w->digest == workers[i % 4].digest && w->accesses == workers[i % 4].accesses, "two equal machines differ");
    check(w->retired > 10000 && w->trapped > 1000 && w->accesses > 100, "too little happened");
  }
  printf("iss_stress: %llu instructions, %llu traps, %llu device accesses on the last machine\n",
         (unsigned long long)workers[THREADS - 1].retired, (unsigned long long)workers[THREADS - 1].trapped,
         (unsigned long long)workers[THREADS - 1].accesses);
  return 0;
}
