/* Partitioned memory: where a storage's logical bytes lie, and how to read, write, move and rewrite them (rules:
 * sim.h). */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

typedef enum direction { WRITE, READ, MOVE } direction;

static void transfer(direction way, char *device, char *other, uint64_t nbytes) {
  if (way == WRITE)
    memcpy(device, other, nbytes);
  else if (way == READ)
    memcpy(other, device, nbytes);
  else
    memmove(device, other, nbytes);
}

/* WRITE, READ: `other` is host memory at logical byte p->offset. MOVE: `other` is the base of a second storage. */
static void shard(const sim_device *d, direction way, char *base, char *other, uint64_t nbytes,
                  const bringup_placement *p) {
  uint64_t partitions = d->owner->options.partitions, block = p->block;
  for (uint64_t i = 0, run; i < nbytes; i += run) {
    uint64_t x = p->offset + i, inside = x % block;
    run = block - inside < nbytes - i ? block - inside : nbytes - i;
    uint64_t place = x / block % partitions * d->stride + x / (block * partitions) * block + inside;
    transfer(way, base + place, way == MOVE ? other + place : other + i, run);
  }
}

static void add_partitions(const sim_device *d, const char *base, char *host, uint64_t nbytes, uint64_t offset) {
  for (uint64_t i = 0; i < nbytes; i += sizeof(float)) {
    float sum, summand;
    memcpy(&sum, base + offset + i, sizeof sum);
    for (uint32_t p = 1; p < d->owner->options.partitions; p++) {
      memcpy(&summand, base + p * d->stride + offset + i, sizeof summand);
      sum += summand;
    }
    memcpy(host + i, &sum, sizeof sum);
  }
}

static void write_placed(const sim_device *d, char *base, char *host, uint64_t nbytes, const bringup_placement *p) {
  if (p->kind == BRINGUP_SHARD) {
    shard(d, WRITE, base, host, nbytes, p);
    return;
  }
  memcpy(base + p->offset, host, nbytes);
  for (uint32_t i = 1; i < d->owner->options.partitions; i++) {
    char *there = base + i * d->stride + p->offset;
    if (p->kind == BRINGUP_REPLICATE) memcpy(there, host, nbytes);
    if (p->kind == BRINGUP_PARTIAL) memset(there, 0, nbytes);
  }
}

static void read_placed(const sim_device *d, char *base, char *host, uint64_t nbytes, const bringup_placement *p) {
  if (p->kind == BRINGUP_SHARD)
    shard(d, READ, base, host, nbytes, p);
  else if (p->kind == BRINGUP_PARTIAL)
    add_partitions(d, base, host, nbytes, p->offset);
  else
    memcpy(host, base + p->offset, nbytes);
}

/* Both storages lie the same way, so that no byte changes its partition and summands stay apart. */
static void move_placed(const sim_device *d, char *dst, char *src, uint64_t nbytes, const bringup_placement *p) {
  if (p->kind == BRINGUP_SHARD) {
    shard(d, MOVE, dst, src, nbytes, p);
    return;
  }
  uint32_t touched = p->kind == BRINGUP_SINGLE ? 1 : d->owner->options.partitions;
  for (uint32_t i = 0; i < touched; i++)
    memmove(dst + i * d->stride + p->offset, src + i * d->stride + p->offset, nbytes);
}

static void run_placed(sim_stream *stream, sim_work *work) {
  (void)stream;
  const sim_device *d = work->as.placed.device;
  char *dst = work->as.placed.dst, *src = work->as.placed.src;
  uint64_t nbytes = work->as.placed.nbytes;
  const bringup_placement *p = &work->as.placed.placement;
  switch (work->as.placed.kind) {
    case BRINGUP_HOST_TO_DEVICE:
      write_placed(d, dst, src, nbytes, p);
      break;
    case BRINGUP_DEVICE_TO_HOST:
      read_placed(d, src, dst, nbytes, p);
      break;
    default:
      move_placed(d, dst, src, nbytes, p);
      break;
  }
}

static void run_relayout(sim_stream *stream, sim_work *work) {
  (void)stream;
  const sim_device *d = work->as.relayout.device;
  uint64_t nbytes = work->as.relayout.nbytes;
  char *buffer = work->as.relayout.buffer; /* all is read before anything is written: dst and src may be one storage */
  read_placed(d, work->as.relayout.src, buffer, nbytes, &work->as.relayout.src_placement);
  write_placed(d, work->as.relayout.dst, buffer, nbytes, &work->as.relayout.dst_placement);
  free(buffer);
}

static int32_t check_placement(const char *what, const bringup_placement *p, uint64_t nbytes) {
  const uint64_t limit = 1ull << 62;
  if (p->kind > BRINGUP_PARTIAL)
    return sim_fail(BRINGUP_INVALID, "%s: placement kind %u does not exist; allowed is 0 to 3", what, p->kind);
  if (p->offset > limit || nbytes > limit)
    return sim_fail(BRINGUP_INVALID, "%s: %llu bytes at logical offset %llu are too many", what,
                    (unsigned long long)nbytes, (unsigned long long)p->offset);
  if (p->kind == BRINGUP_SHARD && (p->block == 0 || p->block % 8 || p->block > 1ull << 40))
    return sim_fail(BRINGUP_INVALID, "%s: a shard block of %llu bytes; allowed is a multiple of 8", what,
                    (unsigned long long)p->block);
  if (p->kind == BRINGUP_PARTIAL && (p->offset % 4 || nbytes % 4))
    return sim_fail(BRINGUP_INVALID, "%s: %llu bytes at logical offset %llu of a PARTIAL storage cut a float32", what,
                    (unsigned long long)nbytes, (unsigned long long)p->offset);
  return BRINGUP_OK;
}

/* How many bytes of a partition, counted from the storage's base, the logical bytes below offset + nbytes take. */
static uint64_t local_end(const sim_device *d, const bringup_placement *p, uint64_t nbytes) {
  if (nbytes == 0) return 0;
  if (p->kind != BRINGUP_SHARD) return p->offset + nbytes;
  uint64_t row = p->block * d->owner->options.partitions, last = p->offset + nbytes - 1;
  return last / row * p->block + (last % row < p->block ? last % row + 1 : p->block);
}

static int32_t check_storage(sim_device *d, const char *what, uint64_t base, const bringup_placement *p,
                             uint64_t nbytes) {
  int32_t status = check_placement(what, p, nbytes);
  return status == BRINGUP_OK ? sim_check_range(d, what, base, local_end(d, p, nbytes)) : status;
}

static double host_cost(const sim_device *d, const bringup_placement *p, uint64_t nbytes) {
  int everywhere = p->kind == BRINGUP_REPLICATE || p->kind == BRINGUP_PARTIAL;
  return (double)nbytes * SIM_COPY_NS_PER_BYTE * (everywhere ? d->owner->options.partitions : 1);
}

int32_t sim_copy_placed(sim_device *d, uint64_t dst, uint64_t src, uint64_t nbytes, int32_t kind, uint64_t handle,
                        const bringup_placement *placement) {
  sim_stream *stream;
  int32_t status = BRINGUP_OK;
  if (kind != BRINGUP_DEVICE_TO_HOST) status = check_storage(d, "copy destination", dst, placement, nbytes);
  if (status == BRINGUP_OK && kind != BRINGUP_HOST_TO_DEVICE)
    status = check_storage(d, "copy source", src, placement, nbytes);
  if (status == BRINGUP_OK) status = sim_stream_ready(d, handle, &stream);
  if (status != BRINGUP_OK) return status;
  sim_work work = {.kind = SIM_WORK_PLACED, .run = run_placed, .host_ns = host_cost(d, placement, nbytes)};
  work.device_ns = kind == BRINGUP_DEVICE_TO_DEVICE ? sim_cost_kernel(d->owner, BRINGUP_UINT8, 0, 2.0 * (double)nbytes)
                                                    : sim_cost_link(d->owner, (double)nbytes);
  work.as.placed.device = d;
  work.as.placed.dst = kind == BRINGUP_DEVICE_TO_HOST ? (char *)(uintptr_t)dst : sim_host_side(d, dst);
  work.as.placed.src = kind == BRINGUP_HOST_TO_DEVICE ? (char *)(uintptr_t)src : sim_host_side(d, src);
  work.as.placed.nbytes = nbytes;
  work.as.placed.kind = kind;
  work.as.placed.placement = *placement;
  return sim_submit(stream, handle, &work);
}

int32_t sim_relayout(void *self, int32_t index, uint64_t dst, const bringup_placement *dst_placement, uint64_t src,
                     const bringup_placement *src_placement, uint64_t nbytes, uint64_t handle) {
  sim_device *d;
  sim_stream *stream;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  if (!dst_placement || !src_placement) return sim_fail(BRINGUP_INVALID, "relayout: both placements are needed");
  status = check_storage(d, "relayout destination", dst, dst_placement, nbytes);
  if (status == BRINGUP_OK) status = check_storage(d, "relayout source", src, src_placement, nbytes);
  if (status == BRINGUP_OK) status = sim_stream_ready(d, handle, &stream);
  if (status != BRINGUP_OK) return status;
  sim_work work = {.kind = SIM_WORK_OTHER, .run = run_relayout};
  work.host_ns = host_cost(d, dst_placement, nbytes) + host_cost(d, src_placement, nbytes);
  work.device_ns = sim_cost_kernel(self, BRINGUP_UINT8, 0, 2.0 * (double)nbytes);
  work.as.relayout.device = d;
  work.as.relayout.dst = sim_host_side(d, dst);
  work.as.relayout.src = sim_host_side(d, src);
  work.as.relayout.nbytes = nbytes;
  work.as.relayout.dst_placement = *dst_placement;
  work.as.relayout.src_placement = *src_placement;
  work.as.relayout.buffer = malloc(nbytes ? nbytes : 1);
  if (!work.as.relayout.buffer)
    return sim_fail(BRINGUP_ERROR, "relayout: the host has no %llu bytes for the rewrite", (unsigned long long)nbytes);
  status = sim_submit(stream, handle, &work);
  if (status != BRINGUP_OK) free(work.as.relayout.buffer);
  return status;
}
