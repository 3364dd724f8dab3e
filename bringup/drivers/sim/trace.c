/* The trace of a device: what its streams ran, in a buffer that is read from outside. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>

#include "sim.h"

#define MAX_RECORDS (1ull << 24)

static int32_t clocks(sim_device *d, bringup_clock_pair *now) {
  struct timespec host;
  int32_t status = sim_clock(d->owner, d->index, &now->device_ns);
  clock_gettime(CLOCK_REALTIME, &host);
  now->host_ns = (uint64_t)host.tv_sec * 1000000000u + (uint64_t)host.tv_nsec;
  return status;
}

/* Work that has run, on the thread that ran it. */
void sim_trace_add(sim_stream *stream, const sim_work *work, double start_ns) {
  sim_trace *trace = &stream->device->trace;
  bringup_trace_record record = {.start_ns = (uint64_t)(start_ns + 0.5),
                                 .end_ns = (uint64_t)(sim_stream_now(stream) + 0.5),
                                 .stream = atomic_load_explicit(&stream->handle, memory_order_relaxed)};
  switch (work->kind) {
    case SIM_WORK_KERNEL:
      record.kind = BRINGUP_TRACE_KERNEL;
      record.correlation = work->as.launch.correlation;
      record.bytes = (uint64_t)work->as.launch.bytes;
      record.name = work->as.launch.kernel->name;
      break;
    case SIM_WORK_COPY:
      record.kind = BRINGUP_TRACE_COPY;
      record.copy_kind = (uint32_t)work->as.copy.kind;
      record.bytes = work->as.copy.nbytes;
      record.name = "copy";
      break;
    case SIM_WORK_PLACED:
      record.kind = BRINGUP_TRACE_COPY;
      record.copy_kind = (uint32_t)work->as.placed.kind;
      record.bytes = work->as.placed.nbytes;
      record.name = "copy";
      break;
    case SIM_WORK_WAIT:
      record.kind = BRINGUP_TRACE_WAIT;
      record.name = "wait";
      break;
    case SIM_WORK_HOST:
      record.kind = BRINGUP_TRACE_HOST;
      record.name = "host function";
      break;
    case SIM_WORK_OTHER:
      record.kind = BRINGUP_TRACE_OTHER;
      break;
    default:
      return; /* an event takes no time */
  }
  pthread_mutex_lock(&trace->lock);
  if (trace->count < trace->capacity)
    trace->records[trace->count++] = record;
  else
    trace->dropped++;
  pthread_mutex_unlock(&trace->lock);
}

int32_t sim_trace_start(void *self, int32_t index, uint64_t capacity, bringup_clock_pair *now) {
  sim_device *d;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  if (!now || !capacity || capacity > MAX_RECORDS)
    return sim_fail(BRINGUP_INVALID,
                    "trace_start: room for %llu records; allowed is 1 to %llu, and a place for the clocks",
                    (unsigned long long)capacity, (unsigned long long)MAX_RECORDS);
  bringup_trace_record *records = malloc(capacity * sizeof *records);
  if (!records) return sim_fail(BRINGUP_OUT_OF_MEMORY, "trace_start: the host has no room for the records");
  pthread_mutex_lock(&d->trace.lock);
  int running = atomic_load(&d->trace.running);
  if (!running) {
    free(d->trace.records);
    d->trace.records = records;
    d->trace.capacity = capacity;
    d->trace.count = d->trace.dropped = 0;
    atomic_store(&d->trace.running, 1);
  }
  pthread_mutex_unlock(&d->trace.lock);
  if (!running) return clocks(d, now); /* which takes other locks */
  free(records);
  return sim_fail(BRINGUP_INVALID, "trace_start: device %d is being traced already", index);
}

int32_t sim_trace_stop(void *self, int32_t index, bringup_clock_pair *now) {
  sim_device *d;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  if (!now) return sim_fail(BRINGUP_INVALID, "trace_stop: no place for the clocks");
  if (!atomic_exchange(&d->trace.running, 0))
    return sim_fail(BRINGUP_INVALID, "trace_stop: device %d is not being traced", index);
  return clocks(d, now);
}

int32_t sim_trace_read(void *self, int32_t index, bringup_trace_record *records, uint64_t size, uint64_t *count,
                       uint64_t *dropped) {
  sim_device *d;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  if ((!records && size) || !count || !dropped)
    return sim_fail(BRINGUP_INVALID, "trace_read: no place for the records");
  pthread_mutex_lock(&d->trace.lock);
  uint64_t taken = size < d->trace.count ? size : d->trace.count;
  d->trace.count -= taken; /* the latest first: nothing moves */
  for (uint64_t i = 0; i < taken; i++) records[i] = d->trace.records[d->trace.count + i];
  *count = taken;
  *dropped = d->trace.dropped;
  pthread_mutex_unlock(&d->trace.lock);
  return BRINGUP_OK;
}

/* No stream of the device runs any more. */
void sim_trace_close(sim_device *d) {
  atomic_store(&d->trace.running, 0);
  free(d->trace.records);
  d->trace.records = NULL;
  d->trace.capacity = d->trace.count = 0;
}
