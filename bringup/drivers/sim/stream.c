/* Streams: strict first-in first-out work, inline on the caller while the stream is idle and the work is short.
 *
 * Inline work runs under the stream's lock, so that two callers stay in order; uncontended that costs about 20 ns,
 * against 25–35 µs for a trip through the worker. Stream structs are never freed, only reused: a stale handle gives an
 * error.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim.h"

static _Thread_local sim_stream *stream_of_this_worker;

int sim_on_worker_of(const sim_device *d) { return stream_of_this_worker && stream_of_this_worker->device == d; }

static void run(sim_stream *stream, sim_work *work) {
  sim_device *d = stream->device;
  int described = d->owner->options.roofline.enabled;
  int traced = atomic_load_explicit(&d->trace.running, memory_order_relaxed);
  if (described) sim_raise(&stream->cursor_ns, work->floor_ns);
  double start = __builtin_expect(traced, 0) ? sim_stream_now(stream) : 0;
  work->run(stream, work);
  if (described) {
    double now = atomic_load_explicit(&stream->cursor_ns, memory_order_relaxed);
    atomic_store_explicit(&stream->cursor_ns, now + work->device_ns, memory_order_release);
  }
  if (__builtin_expect(traced, 0)) sim_trace_add(stream, work, start);
}

static void *serve(void *argument) {
  sim_stream *stream = argument;
  stream_of_this_worker = stream;
  pthread_mutex_lock(&stream->lock);
  for (;;) {
    while (stream->count == 0 && !stream->stopping) pthread_cond_wait(&stream->wake, &stream->lock);
    if (stream->count == 0) break;
    sim_work work = stream->ring[stream->head];
    stream->head = (stream->head + 1) % stream->capacity;
    stream->count--;
    if (stream->device->owner->options.jitter) {
      uint64_t ns = sim_jitter_ns(stream);
      pthread_mutex_unlock(&stream->lock); /* others queue behind it meanwhile */
      if (ns) nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
      pthread_mutex_lock(&stream->lock);
    }
    if (work.host_ns < SIM_INLINE_NS) {
      run(stream, &work); /* as inline work does, under the lock: whoever waited for this event finds the stream idle */
    } else {
      pthread_mutex_unlock(&stream->lock);
      run(stream, &work);
      pthread_mutex_lock(&stream->lock);
    }
    stream->pending--;
  }
  stream->finished = 1;
  pthread_mutex_unlock(&stream->lock);
  return NULL;
}

/* Python's signals belong to its main thread; faults stay with the thread that makes them. */
int sim_start_thread(pthread_t *thread, void *(*function)(void *), void *argument, const char *name) {
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  sigdelset(&all, SIGFPE);
  sigdelset(&all, SIGILL);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int status = pthread_create(thread, NULL, function, argument);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (status == 0) pthread_setname_np(*thread, name);
  return status;
}

static int start_worker(sim_stream *stream) {
  char name[16];
  snprintf(name, sizeof name, "sim%d.%u", stream->device->index % 100, stream->slot % 10000u);
  int status = sim_start_thread(&stream->worker, serve, stream, name);
  stream->has_worker = status == 0;
  return status;
}

static int grow(sim_stream *stream) {
  uint32_t capacity = stream->capacity ? stream->capacity * 2 : 16;
  sim_work *ring = malloc(capacity * sizeof *ring);
  if (!ring) return 0;
  for (uint32_t i = 0; i < stream->count; i++) ring[i] = stream->ring[(stream->head + i) % stream->capacity];
  free(stream->ring);
  stream->ring = ring;
  stream->head = 0;
  stream->capacity = capacity;
  return 1;
}

static int32_t unknown_stream(const sim_device *d, uint64_t handle) {
  return sim_fail(BRINGUP_INVALID, "stream %llu of device %d does not exist, or was destroyed",
                  (unsigned long long)handle, d->index);
}

int32_t sim_submit(sim_stream *stream, uint64_t handle, sim_work *work) {
  work->floor_ns = sim_host_floor(stream->device->owner);
  pthread_mutex_lock(&stream->lock);
  int32_t status = BRINGUP_OK;
  if (__builtin_expect(atomic_load_explicit(&stream->handle, memory_order_relaxed) != handle, 0)) {
    status = unknown_stream(stream->device, handle); /* destroyed since it was looked up */
  } else if (stream->pending == 0 && work->host_ns < (work->inline_ns > 0 ? work->inline_ns : SIM_INLINE_NS) &&
             (__builtin_expect(!stream->device->owner->options.jitter, 1) || !sim_jitter_queues(stream))) {
    work->ran_inline = 1;
    run(stream, work);
  } else if (stream->count == stream->capacity && !grow(stream)) {
    status = sim_fail(BRINGUP_ERROR, "no host memory to queue work on stream %llu of device %d",
                      (unsigned long long)handle, stream->device->index);
  } else {
    int error = stream->has_worker ? 0 : start_worker(stream);
    if (error) {
      status = sim_fail(BRINGUP_ERROR, "cannot start a worker thread for stream %llu of device %d: %s",
                        (unsigned long long)handle, stream->device->index, strerror(error));
    } else if (work->keep && !work->keep(work)) {
      status = sim_fail(BRINGUP_ERROR, "no host memory to queue work on stream %llu of device %d",
                        (unsigned long long)handle, stream->device->index);
    } else {
      stream->ring[(stream->head + stream->count) % stream->capacity] = *work;
      stream->count++;
      stream->pending++;
      pthread_cond_signal(&stream->wake);
    }
  }
  pthread_mutex_unlock(&stream->lock);
  return status;
}

int32_t sim_stream_find(sim_device *d, uint64_t handle, sim_stream **stream) {
  uint64_t slot = handle & 0xffff;
  if (slot < SIM_MAX_STREAMS) {
    sim_stream *found = atomic_load_explicit(&d->streams[slot], memory_order_acquire);
    if (found && atomic_load_explicit(&found->handle, memory_order_relaxed) == handle) {
      *stream = found;
      return BRINGUP_OK;
    }
  }
  return unknown_stream(d, handle);
}

/* ---- a failure of queued work: kept until the next call on the stream, which reports it once ---- */
typedef enum report_state { NONE, WRITING, KEPT, TAKING } report_state;

/* Called by the stream's worker only. The first failure is the one that counts: later ones may follow from it. */
void sim_stream_fail(sim_stream *stream, const sim_report *report) {
  int state = NONE;
  while (!atomic_compare_exchange_weak(&stream->failed, &state, WRITING)) {
    if (state == KEPT) return;
    state = NONE;
    sched_yield();
  }
  stream->report = *report;
  atomic_store_explicit(&stream->failed, KEPT, memory_order_release);
}

int32_t sim_stream_report(sim_stream *stream) {
  /* Acquire: who finds the failure taken sees what the taker did before it asked. */
  if (__builtin_expect(atomic_load_explicit(&stream->failed, memory_order_acquire) == NONE, 1)) return BRINGUP_OK;
  int state = KEPT;
  if (!atomic_compare_exchange_strong(&stream->failed, &state, TAKING)) return BRINGUP_OK; /* another caller has it */
  sim_report report = stream->report;
  atomic_store_explicit(&stream->failed, NONE, memory_order_release);
  return sim_report_status(&report);
}

/* A stream for new work, which fails here if earlier work of the stream has. */
int32_t sim_stream_ready(sim_device *d, uint64_t handle, sim_stream **stream) {
  int32_t status = sim_stream_find(d, handle, stream);
  return status == BRINGUP_OK ? sim_stream_report(*stream) : status;
}

/* Whether a slot can serve a new stream; a worker that has ended by itself is joined here. The caller holds
 * stream_lock. */
static int reusable(sim_stream *stream) {
  if (atomic_load(&stream->handle) != SIM_DEAD) return 0;
  pthread_mutex_lock(&stream->lock);
  int free_now = !stream->has_worker || stream->finished;
  int join = stream->has_worker && stream->finished;
  pthread_mutex_unlock(&stream->lock);
  if (join) pthread_join(stream->worker, NULL);
  if (free_now) stream->has_worker = 0;
  return free_now;
}

static sim_stream *new_slot(sim_device *d, uint32_t slot) {
  sim_stream *stream = calloc(1, sizeof *stream);
  if (!stream) return NULL;
  stream->device = d;
  stream->slot = slot;
  atomic_init(&stream->handle, SIM_DEAD);
  pthread_mutex_init(&stream->lock, NULL);
  pthread_cond_init(&stream->wake, NULL);
  atomic_store_explicit(&d->streams[slot], stream, memory_order_release);
  return stream;
}

/* Brings a free slot to life; the caller holds stream_lock. */
static uint64_t revive(sim_device *d, sim_stream *stream) {
  double before = atomic_load(&stream->cursor_ns);
  if (before > d->retired_ns) d->retired_ns = before; /* the device's clock never goes back */
  pthread_mutex_lock(&stream->lock);
  stream->stopping = stream->finished = 0;
  atomic_store(&stream->failed, NONE); /* a failure that was never asked about ends with its stream */
  stream->generation++;
  stream->jitter_draws = 0;
  atomic_store(&stream->cursor_ns, sim_host_floor(d->owner));
  uint64_t handle = stream->slot ? ((uint64_t)(stream->generation & 0x7fffffff) << 16 | stream->slot) : 0;
  atomic_store(&stream->handle, handle);
  pthread_mutex_unlock(&stream->lock);
  return handle;
}

static int32_t make(sim_device *d, uint32_t from, uint32_t to, uint64_t *handle) {
  for (uint32_t slot = from; slot < to; slot++) {
    sim_stream *stream = atomic_load(&d->streams[slot]);
    if (!stream) stream = new_slot(d, slot);
    if (!stream) return sim_fail(BRINGUP_ERROR, "device %d: no host memory for a stream", d->index);
    if (!reusable(stream)) continue;
    *handle = revive(d, stream);
    return BRINGUP_OK;
  }
  return sim_fail(BRINGUP_ERROR, "device %d has all of its %d streams in use", d->index, SIM_MAX_STREAMS);
}

int32_t sim_streams_open(sim_device *d) {
  uint64_t handle;
  pthread_mutex_lock(&d->stream_lock);
  int32_t status = make(d, 0, 1, &handle);
  pthread_mutex_unlock(&d->stream_lock);
  return status;
}

/* No new work from here on; what is queued still runs, then the worker ends. */
static void retire(sim_stream *stream) {
  pthread_mutex_lock(&stream->lock);
  atomic_store(&stream->handle, SIM_DEAD);
  stream->stopping = 1;
  pthread_cond_signal(&stream->wake);
  pthread_mutex_unlock(&stream->lock);
}

/* The joins hold no lock, as the last host functions may still call the driver; nothing revives a stream meanwhile,
 * because the device is no longer open. */
void sim_streams_close(sim_device *d) {
  pthread_mutex_lock(&d->stream_lock);
  for (uint32_t slot = 0; slot < SIM_MAX_STREAMS; slot++) {
    sim_stream *stream = atomic_load(&d->streams[slot]);
    if (stream) retire(stream);
  }
  pthread_mutex_unlock(&d->stream_lock);
  for (uint32_t slot = 0; slot < SIM_MAX_STREAMS; slot++) {
    sim_stream *stream = atomic_load(&d->streams[slot]);
    if (!stream || !stream->has_worker) continue;
    pthread_join(stream->worker, NULL);
    stream->has_worker = 0;
  }
}

int32_t sim_stream_create(void *self, int32_t index, int32_t priority, uint64_t *handle) {
  (void)priority; /* every stream has a thread of its own: there is nothing to prefer */
  sim_device *d;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  if (!handle) return sim_fail(BRINGUP_INVALID, "stream_create: no place for the handle");
  pthread_mutex_lock(&d->stream_lock);
  status = sim_find(self, index, &d); /* again: it may be closing since */
  if (status == BRINGUP_OK) status = make(d, 1, SIM_MAX_STREAMS, handle);
  pthread_mutex_unlock(&d->stream_lock);
  return status;
}

int32_t sim_stream_destroy(void *self, int32_t index, uint64_t handle) {
  if (sim_release_is_noop(self, index)) return BRINGUP_OK;
  sim_device *d;
  sim_stream *stream;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  if (handle == 0) return sim_fail(BRINGUP_INVALID, "stream 0 of device %d is the default stream and stays", index);
  pthread_mutex_lock(&d->stream_lock);
  status = sim_stream_find(d, handle, &stream);
  if (status == BRINGUP_OK) retire(stream);
  pthread_mutex_unlock(&d->stream_lock);
  return status;
}

static void run_host_function(sim_stream *stream, sim_work *work) {
  (void)stream;
  uint64_t start = sim_wall_ns();
  work->as.host.function(work->as.host.argument);
  work->device_ns = (double)(sim_wall_ns() - start);
}

int32_t sim_host_function(void *self, int32_t index, uint64_t handle, void (*function)(void *), void *argument) {
  sim_device *d;
  sim_stream *stream;
  int32_t status = sim_find(self, index, &d);
  if (status == BRINGUP_OK) status = sim_stream_find(d, handle, &stream);
  if (status != BRINGUP_OK) return status;
  if (!function) return sim_fail(BRINGUP_INVALID, "host_function: no function");
  sim_work work = {.kind = SIM_WORK_HOST, .run = run_host_function, .host_ns = SIM_NEVER_INLINE};
  work.as.host.function = function;
  work.as.host.argument = argument;
  return sim_submit(stream, handle, &work);
}
