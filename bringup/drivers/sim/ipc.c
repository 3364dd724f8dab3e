/* Device memory shared between processes: the memfd of the exporter, opened through /proc/<pid>/fd/<fd>.
 *
 * Handle: "pid:fd:device:offset:length:skip:partitions:partition_bytes:token". offset and length are the allocation
 * that holds the exported address, skip is how far inside it the address lies: import returns the very byte that was
 * exported. The token is random and part of the memfd's name: a number that another process got meanwhile does not pass
 * for it. When the exporter frees the allocation its pages are gone, and the importer reads zeros.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"

typedef struct shared_range {
  int pid, fd, device;
  uint64_t offset, length, skip, partition_bytes;
  uint32_t partitions;
  char token[33];
} shared_range;

int32_t sim_ipc_export(void *self, int32_t index, uint64_t address, char *handle, uint64_t size) {
  sim_device *d;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  if (!handle) return sim_fail(BRINGUP_INVALID, "ipc_export: no place for the handle");
  pthread_mutex_lock(&d->heap_lock);
  sim_block *block = sim_ranges_find(&d->heap, address);
  int length = 0;
  if (block)
    length = snprintf(handle, size, "%d:%d:%d:%" PRIu64 ":%" PRIu64 ":%" PRIu64 ":%u:%" PRIu64 ":%s", (int)getpid(),
                      d->fd, index, block->start - d->base, block->size, address - block->start,
                      d->owner->options.partitions, d->partition_bytes, d->token);
  pthread_mutex_unlock(&d->heap_lock);
  if (!block)
    return sim_fail(BRINGUP_INVALID, "ipc_export: 0x%" PRIx64 " is not in an allocation of device %d", address, index);
  if (length < 0 || (uint64_t)length >= size)
    return sim_fail(BRINGUP_INVALID, "ipc_export: the handle needs %d bytes, there are %" PRIu64, length + 1, size);
  return BRINGUP_OK;
}

static int parse(const char *handle, shared_range *r) {
  int end = 0;
  int fields =
      sscanf(handle, "%d:%d:%d:%" SCNu64 ":%" SCNu64 ":%" SCNu64 ":%u:%" SCNu64 ":%32[0-9a-f]%n", &r->pid, &r->fd,
             &r->device, &r->offset, &r->length, &r->skip, &r->partitions, &r->partition_bytes, r->token, &end);
  return fields == 9 && handle[end] == 0 && strlen(r->token) == 32 && r->pid > 0 && r->fd >= 0 && r->length > 0 &&
         r->skip < r->length && r->offset % SIM_PAGE == 0 && r->length % SIM_PAGE == 0 &&
         r->offset <= r->partition_bytes && r->length <= r->partition_bytes - r->offset;
}

/* Opens the exporter's memory; the name of what was opened is checked, not of what was there before. */
int32_t sim_open_shared(const char *what, int pid, int number, const char *token, int *fd, uint64_t *nbytes) {
  char path[64], name[128], expected[128];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, number);
  *fd = open(path, O_RDWR | O_CLOEXEC);
  if (*fd < 0)
    return sim_fail(BRINGUP_INVALID,
                    "%s: process %d does not offer this memory (%s: %s); it has ended, closed the "
                    "device, or may not be read by this user",
                    what, pid, path, strerror(errno));
  snprintf(path, sizeof path, "/proc/self/fd/%d", *fd);
  ssize_t length = readlink(path, name, sizeof name - 1);
  name[length > 0 ? length : 0] = 0;
  snprintf(expected, sizeof expected, "/memfd:bringup-sim-%s (deleted)", token);
  struct stat file;
  if (fstat(*fd, &file) == 0 && file.st_size > (off_t)SIM_SHARED_EVENT_BYTES && !strcmp(name, expected)) {
    *nbytes = (uint64_t)file.st_size;
    return BRINGUP_OK;
  }
  close(*fd);
  return sim_fail(BRINGUP_INVALID, "%s: file %d of process %d is no longer the exported memory", what, number, pid);
}

static int map_shared(const sim_device *d, const shared_range *r, uint64_t address, int fd) {
  for (uint32_t p = 0; p < r->partitions; p++) {
    off_t offset = (off_t)(p * r->partition_bytes + r->offset);
    uint64_t at = address + p * d->stride;
    if (mmap(sim_host_side(d, at), r->length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd,
             offset) == MAP_FAILED)
      return 0;
    if (d->host_offset && mmap((void *)(uintptr_t)at, r->length, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd,
                               offset) == MAP_FAILED)
      return 0;
  }
  return 1;
}

/* Private memory takes the place of the shared: a copy that is still queued lands there instead of in a fault. */
void sim_ipc_forget(sim_device *d, const sim_block *block) {
  for (uint32_t p = 0; p < d->owner->options.partitions; p++) {
    uint64_t at = block->start + p * d->stride;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    mmap(sim_host_side(d, at), block->size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (d->host_offset) mmap((void *)(uintptr_t)at, block->size, PROT_NONE, flags, -1, 0);
  }
}

static sim_block *imported_before(const sim_device *d, const shared_range *r) {
  for (sim_block *block = d->window.first; block; block = block->next)
    if (block->used && block->size == r->length && block->file_offset == r->offset && !strcmp(block->token, r->token))
      return block;
  return NULL;
}

int32_t sim_ipc_import(void *self, int32_t index, const char *handle, uint64_t *address) {
  sim_device *d;
  shared_range r;
  int fd;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  if (!handle || !address || !parse(handle, &r))
    return sim_fail(BRINGUP_INVALID, "ipc_import: \"%.80s\" is not a handle from ipc_export", handle ? handle : "");
  if (r.partitions != d->owner->options.partitions)
    return sim_fail(BRINGUP_INVALID, "ipc_import: the memory has %u partitions, device %d has %u", r.partitions, index,
                    d->owner->options.partitions);
  uint64_t nbytes;
  status = sim_open_shared("ipc_import", r.pid, r.fd, r.token, &fd, &nbytes);
  if (status != BRINGUP_OK) return status;
  if (nbytes != r.partition_bytes * r.partitions + SIM_SHARED_EVENT_BYTES) {
    close(fd);
    return sim_fail(BRINGUP_INVALID, "ipc_import: the memory of process %d has another size than its handle says",
                    r.pid);
  }
  pthread_mutex_lock(&d->heap_lock);
  sim_block *block = imported_before(d, &r);
  int mapped = block != NULL;
  if (!mapped && (block = sim_ranges_take(&d->window, r.length))) {
    mapped = map_shared(d, &r, block->start, fd);
    block->imports = 0;
    block->file_offset = r.offset;
    memcpy(block->token, r.token, sizeof r.token);
  }
  if (mapped) {
    block->imports++;
    *address = block->start + r.skip;
  } else if (block) {
    status = BRINGUP_ERROR;
    sim_ipc_forget(d, block);
    sim_ranges_give(&d->window, block);
  } else {
    status = BRINGUP_OUT_OF_MEMORY;
  }
  pthread_mutex_unlock(&d->heap_lock);
  close(fd);
  if (status == BRINGUP_OK) return BRINGUP_OK;
  return sim_fail(status, "ipc_import: no room for %" PRIu64 " shared bytes on device %d; close others with ipc_close",
                  r.length, index);
}

int32_t sim_ipc_close(void *self, int32_t index, uint64_t address) {
  if (sim_release_is_noop(self, index)) return BRINGUP_OK;
  sim_device *d;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  pthread_mutex_lock(&d->heap_lock);
  sim_block *block = sim_ranges_find(&d->window, address);
  if (block && --block->imports == 0) {
    sim_ipc_forget(d, block);
    sim_ranges_give(&d->window, block);
  }
  pthread_mutex_unlock(&d->heap_lock);
  if (block) return BRINGUP_OK;
  return sim_fail(BRINGUP_INVALID, "ipc_close: 0x%" PRIx64 " of device %d was not imported, or was closed before",
                  address, index);
}
