/* Device memory: a memfd in a reserved address range, handed out in pages.
 *
 * Reserved first (PROT_NONE), then the memfd is mapped over it: MAP_SHARED, so that another process can map the same
 * bytes; MAP_NORESERVE, so that a 4 GiB device costs only the pages that were written. A closed device keeps its
 * addresses mapped: a thread that still reads them at exit finds zeros instead of a crash.
 * `free` does not wait for queued work, as the allocator above has waited for its events.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "sim.h"

static uint64_t round_to_page(uint64_t n) { return (n + SIM_PAGE - 1) & ~(uint64_t)(SIM_PAGE - 1); }

static int32_t reserve(sim_device *d) {
  const sim_options *o = &d->owner->options;
  d->partition_bytes = round_to_page(o->memory / o->partitions);
  d->window_bytes = 2 * d->partition_bytes; /* address space only: what other processes share with us */
  d->stride = d->partition_bytes + d->window_bytes;
  d->side_bytes = d->stride * o->partitions;
  uint64_t whole = d->side_bytes * (o->trap ? 2 : 1);
  void *at = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return sim_fail(BRINGUP_ERROR,
                    "device %d: cannot reserve %llu bytes of address space: %s; use a smaller memory=", d->index,
                    (unsigned long long)whole, strerror(errno));
  d->base = (uint64_t)(uintptr_t)at;
  d->host_offset = o->trap ? (int64_t)d->side_bytes : 0;
  int32_t status = o->trap ? sim_trap_watch(d->base, d->base + d->side_bytes) : BRINGUP_OK;
  if (status != BRINGUP_OK) {
    munmap(at, whole);
    d->base = 0;
  }
  return status;
}

static int map_at(uint64_t address, uint64_t size, int protection, int fd, uint64_t file_offset) {
  return mmap((void *)(uintptr_t)address, size, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd,
              (off_t)file_offset) != MAP_FAILED;
}

static int map_partitions(sim_device *d) {
  for (uint32_t p = 0; p < d->owner->options.partitions; p++) {
    uint64_t address = d->base + p * d->stride, offset = p * d->partition_bytes;
    if (!map_at(address + (uint64_t)d->host_offset, d->partition_bytes, PROT_READ | PROT_WRITE, d->fd, offset))
      return 0;
    if (d->host_offset && !map_at(address, d->partition_bytes, PROT_NONE, d->fd, offset)) return 0;
  }
  return 1;
}

static int make_memfd(sim_device *d) {
  unsigned char random[16];
  char name[64];
  if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return 0;
  for (size_t i = 0; i < sizeof random; i++) snprintf(d->token + 2 * i, 3, "%02x", random[i]);
  snprintf(name, sizeof name, "bringup-sim-%s", d->token); /* ipc.c knows the file by this name */
  d->fd = memfd_create(name, MFD_CLOEXEC);
  uint64_t nbytes = d->partition_bytes * d->owner->options.partitions;
  return d->fd >= 0 && ftruncate(d->fd, (off_t)(nbytes + SIM_SHARED_EVENT_BYTES)) == 0 &&
         sim_shared_events_open(d, nbytes);
}

int32_t sim_heap_open(sim_device *d) {
  if (!d->base) {
    int32_t status = reserve(d);
    if (status != BRINGUP_OK) return status;
  }
  d->fd = -1;
  if (!make_memfd(d) || !map_partitions(d)) {
    int reason = errno;
    if (d->fd >= 0) close(d->fd);
    return sim_fail(BRINGUP_ERROR, "device %d: cannot map %llu bytes of memory: %s", d->index,
                    (unsigned long long)d->owner->options.memory, strerror(reason));
  }
  if (!sim_ranges_init(&d->heap, d->base, d->partition_bytes) ||
      !sim_ranges_init(&d->window, d->base + d->partition_bytes, d->window_bytes)) {
    sim_heap_close(d);
    return sim_fail(BRINGUP_ERROR, "device %d: no host memory", d->index);
  }
  return BRINGUP_OK;
}

void sim_heap_close(sim_device *d) {
  pthread_mutex_lock(&d->heap_lock);
  for (uint32_t p = 0; p < d->owner->options.partitions; p++)
    madvise(sim_host_side(d, d->base + p * d->stride), d->partition_bytes, MADV_REMOVE);
  close(d->fd);
  d->fd = -1;
  for (sim_block *block = d->window.first; block; block = block->next)
    if (block->used) sim_ipc_forget(d, block);
  sim_ranges_clear(&d->heap);
  sim_ranges_clear(&d->window);
  pthread_mutex_unlock(&d->heap_lock);
}

/* One comparison for the heap, which is what every copy meets; a look at the imported ranges otherwise. */
int32_t sim_check_range(sim_device *d, const char *what, uint64_t address, uint64_t nbytes) {
  uint64_t offset = address - d->base;
  if (__builtin_expect(offset <= d->partition_bytes && nbytes <= d->partition_bytes - offset, 1)) return BRINGUP_OK;
  if (offset >= d->partition_bytes && offset < d->stride) {
    pthread_mutex_lock(&d->heap_lock);
    sim_block *block = sim_ranges_find(&d->window, address);
    int inside = block && nbytes <= block->start + block->size - address;
    pthread_mutex_unlock(&d->heap_lock);
    if (inside) return BRINGUP_OK;
  }
  return sim_fail(BRINGUP_INVALID,
                  "%s: %llu bytes at 0x%llx are not in the memory of device %d, which is 0x%llx to 0x%llx", what,
                  (unsigned long long)nbytes, (unsigned long long)address, d->index, (unsigned long long)d->base,
                  (unsigned long long)(d->base + d->partition_bytes));
}

int32_t sim_alloc(void *self, int32_t index, uint64_t nbytes, uint64_t *address) {
  sim_device *d;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  if (!address) return sim_fail(BRINGUP_INVALID, "alloc: no place for the address");
  status = sim_inject(self, SIM_FAULT_ALLOC, index);
  if (status != BRINGUP_OK) return status;
  sim_block *block = NULL;
  pthread_mutex_lock(&d->heap_lock);
  if (nbytes <= d->partition_bytes) block = sim_ranges_take(&d->heap, round_to_page(nbytes ? nbytes : 1));
  if (block) *address = block->start;
  uint64_t used = d->heap.used_bytes, largest = block ? 0 : sim_ranges_largest(&d->heap);
  pthread_mutex_unlock(&d->heap_lock);
  if (block) return BRINGUP_OK;
  return sim_fail(
      BRINGUP_OUT_OF_MEMORY,
      "device %d is out of memory: %llu bytes asked, %llu of %llu bytes in use, largest free piece %llu bytes", index,
      (unsigned long long)nbytes, (unsigned long long)used, (unsigned long long)d->partition_bytes,
      (unsigned long long)largest);
}

int32_t sim_memory_info(void *self, int32_t index, uint64_t *free, uint64_t *total) {
  sim_device *d;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  if (!free || !total) return sim_fail(BRINGUP_INVALID, "memory_info: no place for the numbers");
  uint64_t partitions = d->owner->options.partitions;
  pthread_mutex_lock(&d->heap_lock);
  *free = (d->partition_bytes - d->heap.used_bytes) * partitions;
  pthread_mutex_unlock(&d->heap_lock);
  *total = d->partition_bytes * partitions;
  return BRINGUP_OK;
}

int32_t sim_free(void *self, int32_t index, uint64_t address) {
  if (sim_release_is_noop(self, index)) return BRINGUP_OK;
  sim_device *d;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  pthread_mutex_lock(&d->heap_lock);
  sim_block *block = sim_ranges_find(&d->heap, address);
  if (!block || block->start != address) {
    pthread_mutex_unlock(&d->heap_lock);
    return sim_fail(BRINGUP_INVALID, "free: 0x%llx is not an allocation of device %d, or was freed before",
                    (unsigned long long)address, index);
  }
  for (uint32_t p = 0; p < d->owner->options.partitions; p++) /* the pages go back to the host */
    fallocate(d->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(p * d->partition_bytes + (address - d->base)),
              (off_t)block->size);
  if (d->host_offset) mprotect((void *)(uintptr_t)address, block->size, PROT_NONE); /* the trap is armed again */
  sim_ranges_give(&d->heap, block);
  pthread_mutex_unlock(&d->heap_lock);
  return BRINGUP_OK;
}
