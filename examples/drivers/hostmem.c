/* A chip in one C file: one device whose memory is malloc. Only the required functions, a clock and error texts.
 *
 *   cc -shared -fPIC -I$(python -m bringup include) -o libhostmem.so hostmem.c
 *   BRINGUP_DRIVERS=./libhostmem.so python -c "import torch; print(torch.ones(3, device='hostmem') + 1)"
 *
 * Every call is synchronous, so streams and events are left out. The CPU can read the memory (host_visible), so
 * ops run on it without copies.
 */
#define _POSIX_C_SOURCE 200809L
#include <bringup/driver.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MEMORY ((uint64_t)1 << 30)
#define ALIGNMENT 64 /* also the room in front of each block, where its size is kept */

static _Atomic uint64_t used;
static _Thread_local char reason[256];

/* Remembers why a call failed: the core asks last_error on the same thread. */
#define FAIL(status, ...) (snprintf(reason, sizeof reason, __VA_ARGS__), (status))

static int32_t device_count(void *self) {
  (void)self;
  return 1;
}

static int32_t open_device(void *self, int32_t device, bringup_device_spec *spec) {
  (void)self;
  if (device != 0) return FAIL(BRINGUP_INVALID, "there is no device %d", device);
  memset(spec, 0, sizeof *spec);
  snprintf(spec->name, sizeof spec->name, "Host memory");
  spec->memory_bytes = MEMORY;
  spec->alignment = ALIGNMENT;
  spec->host_visible = 1; /* at the same address: host_offset stays 0 */
  return BRINGUP_OK;
}

static int32_t alloc(void *self, int32_t device, uint64_t nbytes, uint64_t *address) {
  (void)self;
  if (device != 0) return FAIL(BRINGUP_INVALID, "there is no device %d", device);
  uint64_t before = atomic_load(&used);
  do {
    if (nbytes > MEMORY - before)
      return FAIL(BRINGUP_OUT_OF_MEMORY, "no room for %" PRIu64 " bytes, %" PRIu64 " are in use", nbytes, before);
  } while (!atomic_compare_exchange_weak(&used, &before, before + nbytes));
  void *block = NULL;
  if (posix_memalign(&block, ALIGNMENT, nbytes + ALIGNMENT) != 0) {
    atomic_fetch_sub(&used, nbytes);
    return FAIL(BRINGUP_OUT_OF_MEMORY, "the host has no room for %" PRIu64 " bytes", nbytes);
  }
  memcpy(block, &nbytes, sizeof nbytes);
  *address = (uint64_t)(uintptr_t)block + ALIGNMENT;
  return BRINGUP_OK;
}

static int32_t free_block(void *self, int32_t device, uint64_t address) {
  (void)self;
  if (device != 0) return FAIL(BRINGUP_INVALID, "there is no device %d", device);
  void *block = (void *)(uintptr_t)(address - ALIGNMENT);
  uint64_t nbytes;
  memcpy(&nbytes, block, sizeof nbytes);
  atomic_fetch_sub(&used, nbytes);
  free(block);
  return BRINGUP_OK;
}

static int32_t copy(void *self, int32_t device, uint64_t dst, uint64_t src, uint64_t nbytes, int32_t kind,
                    uint64_t stream, const bringup_placement *placement) {
  (void)self, (void)kind, (void)stream, (void)placement; /* device memory is host memory: every kind is the same */
  if (device != 0) return FAIL(BRINGUP_INVALID, "there is no device %d", device);
  memmove((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, nbytes);
  return BRINGUP_OK;
}

static int32_t clock_now(void *self, int32_t device, uint64_t *nanoseconds) {
  (void)self, (void)device;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *nanoseconds = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  return BRINGUP_OK;
}

static void last_error(void *self, char *message, uint64_t size) {
  (void)self;
  snprintf(message, size, "%s", reason);
}

int32_t bringup_driver_create(uint32_t abi_version, const char *options, bringup_driver *driver, char *error,
                              uint64_t error_size) {
  (void)options;
  if (abi_version != BRINGUP_ABI_VERSION) {
    snprintf(error, error_size, "this library was built for ABI version %u, not %u", BRINGUP_ABI_VERSION, abi_version);
    return BRINGUP_INVALID;
  }
  *driver = (bringup_driver){
      .abi_version = BRINGUP_ABI_VERSION,
      .struct_size = sizeof *driver,
      .device_count = device_count,
      .open = open_device,
      .alloc = alloc,
      .free = free_block,
      .copy = copy,
      .clock = clock_now,
      .last_error = last_error,
  };
  return BRINGUP_OK;
}
