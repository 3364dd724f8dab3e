/* Device time: the wall clock, or the roofline of a described chip.
 *
 * With a described chip every stream has a cursor. Work moves it by what the chip would take; an event's time is the
 * cursor where it was recorded; a stream that waits for an event takes the later of the two. The host is taken as
 * infinitely fast, with one exception that cause and effect demand: what it submits after it has waited for an event
 * cannot start before that event (host_floor_ns).
 */
#include <time.h>

#include "sim.h"

uint64_t sim_wall_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void sim_raise(_Atomic double *time_ns, double at_least) {
  double now = atomic_load_explicit(time_ns, memory_order_relaxed);
  while (now < at_least && !atomic_compare_exchange_weak(time_ns, &now, at_least)) {
  }
}

double sim_stream_now(const sim_stream *stream) {
  const sim *s = stream->device->owner;
  if (s->options.roofline.enabled) return atomic_load_explicit(&stream->cursor_ns, memory_order_acquire);
  return (double)(sim_wall_ns() - s->start_ns);
}

double sim_host_floor(const sim *s) { return atomic_load_explicit(&s->host_floor_ns, memory_order_relaxed); }

double sim_cost_link(const sim *s, double bytes) {
  const sim_roofline *r = &s->options.roofline;
  return r->enabled ? r->link_latency_ns + bytes / r->link_bandwidth * 1e9 : 0;
}

double sim_cost_kernel(const sim *s, int32_t dtype, double flops, double bytes) {
  const sim_roofline *r = &s->options.roofline;
  if (!r->enabled) return 0;
  double peak = r->peak_flops[dtype] > 0 ? r->peak_flops[dtype] : r->peak_flops[BRINGUP_FLOAT32];
  double compute = flops / peak * 1e9, memory = bytes / r->bandwidth * 1e9;
  return r->launch_ns + (compute > memory ? compute : memory);
}

int32_t sim_clock(void *self, int32_t index, uint64_t *nanoseconds) {
  sim_device *d;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  if (!nanoseconds) return sim_fail(BRINGUP_INVALID, "clock: no place for the time");
  if (!d->owner->options.roofline.enabled) {
    *nanoseconds = sim_wall_ns() - d->owner->start_ns;
    return BRINGUP_OK;
  }
  pthread_mutex_lock(&d->stream_lock);
  double latest = d->retired_ns;
  for (uint32_t slot = 0; slot < SIM_MAX_STREAMS; slot++) {
    sim_stream *stream = atomic_load_explicit(&d->streams[slot], memory_order_acquire);
    if (!stream) break; /* slots fill from below */
    double cursor = atomic_load_explicit(&stream->cursor_ns, memory_order_acquire);
    if (cursor > latest) latest = cursor;
  }
  pthread_mutex_unlock(&d->stream_lock);
  *nanoseconds = (uint64_t)(latest + 0.5);
  return BRINGUP_OK;
}

static void run_nothing(sim_stream *stream, sim_work *work) {
  (void)stream;
  (void)work;
}

int32_t sim_charge(void *self, int32_t index, uint64_t handle, int32_t dtype, double flops, double bytes) {
  sim_device *d;
  sim_stream *stream;
  int32_t status = sim_find(self, index, &d);
  if (status == BRINGUP_OK) status = sim_stream_find(d, handle, &stream);
  if (status != BRINGUP_OK) return status;
  if (dtype < 0 || dtype >= SIM_DTYPES)
    return sim_fail(BRINGUP_INVALID, "charge: dtype %d does not exist; allowed is 0 to %d", dtype, SIM_DTYPES - 1);
  if (!(flops >= 0 && flops < 1e30) || !(bytes >= 0 && bytes < 1e30))
    return sim_fail(BRINGUP_INVALID, "charge: flops %g and bytes %g must be 0 or more", flops, bytes);
  if (!d->owner->options.roofline.enabled) return BRINGUP_OK;
  sim_work work = {
      .kind = SIM_WORK_OTHER, .run = run_nothing, .device_ns = sim_cost_kernel(d->owner, dtype, flops, bytes)};
  return sim_submit(stream, handle, &work);
}
