/* Events: slots in a table with generations, so that a stale handle is an error and never a use after free.
 *
 * A waiter sleeps on a futex in the slot: completing an event without waiters makes no system call, and recording
 * on an idle stream completes at once (no thread wakes up).
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sim.h"

static sim_event *slot_of(sim_device *d, uint32_t slot) {
  return &d->event_chunks[slot / SIM_EVENT_CHUNK][slot % SIM_EVENT_CHUNK];
}

static uint64_t handle_of(const sim_event *event) { return (uint64_t)event->generation << 32 | (event->slot + 1); }

/* Makes the next chunk of slots; the caller holds event_lock. */
static int grow(sim_device *d) {
  uint32_t chunk = d->event_count / SIM_EVENT_CHUNK;
  if (chunk == SIM_EVENT_CHUNKS) return 0;
  sim_event *events = calloc(SIM_EVENT_CHUNK, sizeof *events);
  if (!events) return 0;
  d->event_chunks[chunk] = events;
  for (uint32_t i = SIM_EVENT_CHUNK; i-- > 0;) {
    events[i].slot = d->event_count + i;
    events[i].generation = 1;
    events[i].next_free = d->event_free;
    d->event_free = events[i].slot + 1;
  }
  d->event_count += SIM_EVENT_CHUNK;
  return 1;
}

sim_event *sim_event_take(sim_device *d, uint32_t references, uint64_t *handle) {
  sim_event *event = NULL;
  pthread_mutex_lock(&d->event_lock);
  if (d->event_free || grow(d)) {
    event = slot_of(d, d->event_free - 1);
    d->event_free = event->next_free;
    event->references = references;
    atomic_store_explicit(&event->done, 0, memory_order_relaxed);
    *handle = handle_of(event);
  }
  pthread_mutex_unlock(&d->event_lock);
  return event;
}

/* The user's handle is stale from now on; 31 bits, never 0. */
static void outdate(sim_event *event) { event->generation = event->generation % 0x7fffffffu + 1; }

static void drop_locked(sim_device *d, sim_event *event, uint32_t references) {
  event->references -= references;
  if (event->references) return;
  if (event->shared) sim_event_unshare(d, event);
  event->next_free = d->event_free;
  d->event_free = event->slot + 1;
}

void sim_event_drop(sim_device *d, sim_event *event) {
  pthread_mutex_lock(&d->event_lock);
  drop_locked(d, event, 1);
  pthread_mutex_unlock(&d->event_lock);
}

static sim_event *find_locked(sim_device *d, uint64_t handle) {
  uint64_t number = handle & 0xffffffffu;
  if (number == 0 || number > d->event_count) return NULL;
  sim_event *event = slot_of(d, (uint32_t)number - 1);
  return event->references && handle_of(event) == handle ? event : NULL;
}

/* The event with one more reference, or an error. */
int32_t sim_event_hold(sim_device *d, uint64_t handle, sim_event **event) {
  pthread_mutex_lock(&d->event_lock);
  *event = find_locked(d, handle);
  if (*event) (*event)->references++;
  pthread_mutex_unlock(&d->event_lock);
  if (*event) return BRINGUP_OK;
  return sim_fail(BRINGUP_INVALID, "event %llu of device %d does not exist, or was destroyed",
                  (unsigned long long)handle, d->index);
}

static void complete(sim_event *event, double time_ns) {
  event->time_ns = time_ns;
  atomic_store(&event->done, 1);
  if (event->shared) sim_event_tell_others(event);
  if (atomic_load(&event->waiters)) syscall(SYS_futex, &event->done, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* `shared` and `mapping` do not change while the event is held. */
static int is_done(sim_event *event) {
  if (event->mapping) return sim_imported_done(event);
  return (int)atomic_load_explicit(&event->done, memory_order_acquire);
}

static void block_until_done(sim_event *event) {
  if (is_done(event)) return;
  if (event->mapping) {
    sim_imported_wait(event);
    return;
  }
  atomic_fetch_add(&event->waiters, 1);
  while (!atomic_load(&event->done)) syscall(SYS_futex, &event->done, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
  atomic_fetch_sub(&event->waiters, 1);
}

static void run_record(sim_stream *stream, sim_work *work) {
  complete(work->as.event.event, sim_stream_now(stream));
  sim_event_drop(work->as.event.device, work->as.event.event);
}

static void run_wait(sim_stream *stream, sim_work *work) {
  block_until_done(work->as.event.event);
  if (stream->device->owner->options.roofline.enabled) sim_raise(&stream->cursor_ns, work->as.event.event->time_ns);
  sim_event_drop(work->as.event.device, work->as.event.event);
}

int32_t sim_event_record(void *self, int32_t index, uint64_t handle, uint32_t flags, uint64_t *event_handle) {
  sim_device *d;
  sim_stream *stream;
  int32_t status = sim_find(self, index, &d);
  if (status == BRINGUP_OK) status = sim_stream_find(d, handle, &stream);
  if (status != BRINGUP_OK) return status;
  if (!event_handle) return sim_fail(BRINGUP_INVALID, "event_record: no place for the handle");
  if (flags & ~(uint32_t)(BRINGUP_EVENT_TIMING | BRINGUP_EVENT_INTERPROCESS))
    return sim_fail(BRINGUP_UNSUPPORTED, "event_record: flags %#x are not offered", flags);
  status = sim_inject(self, SIM_FAULT_EVENT, index);
  if (status != BRINGUP_OK) return status;
  sim_event *event = sim_event_take(d, 2, event_handle); /* the user's reference and the queue's */
  if (!event)
    return sim_fail(BRINGUP_ERROR, "device %d has no room for another event: %u are in use", index, d->event_count);
  if (flags & BRINGUP_EVENT_INTERPROCESS) {
    pthread_mutex_lock(&d->event_lock);
    int shared = sim_event_share(d, event);
    if (!shared) {
      outdate(event);
      drop_locked(d, event, 2);
    }
    pthread_mutex_unlock(&d->event_lock);
    if (!shared) return sim_fail(BRINGUP_ERROR, "device %d has no room for another INTERPROCESS event", index);
  }
  event->stream = stream;
  event->stream_handle = handle;
  sim_work work = {.run = run_record};
  work.as.event.device = d;
  work.as.event.event = event;
  status = sim_submit(stream, handle, &work);
  if (status == BRINGUP_OK) return BRINGUP_OK;
  pthread_mutex_lock(&d->event_lock);
  outdate(event);
  drop_locked(d, event, 2);
  pthread_mutex_unlock(&d->event_lock);
  return status;
}

int32_t sim_event_query(void *self, int32_t index, uint64_t handle, int32_t *done) {
  sim_device *d;
  sim_event *event;
  int32_t status = sim_find(self, index, &d);
  if (status == BRINGUP_OK && !done) status = sim_fail(BRINGUP_INVALID, "event_query: no place for the answer");
  if (status == BRINGUP_OK) status = sim_event_hold(d, handle, &event);
  if (status != BRINGUP_OK) return status;
  *done = is_done(event);
  if (*done && d->owner->options.roofline.enabled) sim_raise(&d->owner->host_floor_ns, event->time_ns);
  sim_event_drop(d, event);
  return BRINGUP_OK;
}

static int32_t wait_on_host(sim_device *d, sim_event *event) {
  /* As in CUDA a host function may not wait for its device: the work it waits for may stand behind it. */
  if (sim_on_worker_of(d) && !is_done(event)) {
    sim_event_drop(d, event);
    return sim_fail(BRINGUP_INVALID, "a host function of device %d waits for unfinished work of that device", d->index);
  }
  block_until_done(event);
  if (d->owner->options.roofline.enabled) sim_raise(&d->owner->host_floor_ns, event->time_ns);
  sim_stream *stream = event->stream; /* NULL: of another process */
  uint64_t now = stream ? atomic_load_explicit(&stream->handle, memory_order_relaxed) : 0;
  int same = stream && (now == event->stream_handle || now == SIM_DEAD); /* not another stream in the same slot */
  sim_event_drop(d, event);
  return same ? sim_stream_report(stream) : BRINGUP_OK;
}

int32_t sim_event_wait(void *self, int32_t index, uint64_t handle, int32_t wait_index, int64_t wait_stream) {
  sim_device *d, *waiting;
  sim_event *event;
  sim_stream *stream;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  if (wait_stream == -1) {
    status = sim_event_hold(d, handle, &event);
    return status == BRINGUP_OK ? wait_on_host(d, event) : status;
  }
  status = sim_find(self, wait_index, &waiting);
  if (status == BRINGUP_OK) status = sim_stream_find(waiting, (uint64_t)wait_stream, &stream);
  if (status == BRINGUP_OK) status = sim_event_hold(d, handle, &event);
  if (status != BRINGUP_OK) return status;
  int done = is_done(event);
  if (done && !d->owner->options.roofline.enabled) {
    sim_event_drop(d, event); /* nothing to wait for, and no cursor to move */
    return BRINGUP_OK;
  }
  sim_work work = {.kind = SIM_WORK_WAIT, .run = run_wait, .host_ns = done ? 0 : SIM_NEVER_INLINE};
  work.as.event.device = d;
  work.as.event.event = event;
  status = sim_submit(stream, (uint64_t)wait_stream, &work);
  if (status != BRINGUP_OK) sim_event_drop(d, event);
  return status;
}

int32_t sim_event_elapsed(void *self, int32_t index, uint64_t start, uint64_t end, double *milliseconds) {
  sim_device *d;
  sim_event *events[2];
  int32_t status = sim_find(self, index, &d);
  if (status == BRINGUP_OK && !milliseconds) status = sim_fail(BRINGUP_INVALID, "event_elapsed: no place for the time");
  if (status != BRINGUP_OK) return status;
  status = sim_event_hold(d, start, &events[0]);
  if (status != BRINGUP_OK) return status;
  status = sim_event_hold(d, end, &events[1]);
  if (status == BRINGUP_OK) {
    if (atomic_load(&events[0]->done) && atomic_load(&events[1]->done))
      *milliseconds = (events[1]->time_ns - events[0]->time_ns) * 1e-6;
    else
      status = sim_fail(BRINGUP_INVALID, "event_elapsed: event %llu of device %d has not completed; wait for it first",
                        (unsigned long long)(atomic_load(&events[0]->done) ? end : start), index);
    sim_event_drop(d, events[1]);
  }
  sim_event_drop(d, events[0]);
  return status;
}

int32_t sim_event_destroy(void *self, int32_t index, uint64_t handle) {
  if (sim_release_is_noop(self, index)) return BRINGUP_OK;
  sim_device *d;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  pthread_mutex_lock(&d->event_lock);
  sim_event *event = find_locked(d, handle);
  if (event) {
    outdate(event);
    drop_locked(d, event, 1);
  }
  pthread_mutex_unlock(&d->event_lock);
  if (event) return BRINGUP_OK;
  return sim_fail(BRINGUP_INVALID, "event %llu of device %d does not exist, or was destroyed",
                  (unsigned long long)handle, index);
}
