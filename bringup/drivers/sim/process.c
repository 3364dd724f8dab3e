/* The life of a device in a process: opened, closed, and unusable in a forked child.
 *
 * A child has the parent's memory mapping (shared!) but none of its worker threads. So what the parent opened is an
 * error in the child, never a hang and never a write into the parent's device; a device that was not opened yet
 * opens there as usual.
 */
#include <stdio.h>
#include <string.h>

#include "sim.h"

pthread_mutex_t sim_process_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t fork_generation; /* changes in a child only, which has one thread at that time */

static void before_fork(void) { pthread_mutex_lock(&sim_process_lock); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&sim_process_lock); }
static void after_fork_in_child(void) {
  fork_generation++;
  pthread_mutex_unlock(&sim_process_lock);
}

static void watch_forks_once(void) { pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); }

void sim_watch_forks(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks_once);
}

static int32_t check_index(sim *s, int32_t index) {
  if (index >= 0 && index < s->options.devices) return BRINGUP_OK;
  return sim_fail(BRINGUP_INVALID, "device %d does not exist: there are %d devices", index, s->options.devices);
}

static int32_t check_fork(const sim_device *d) {
  if (d->fork_generation == fork_generation) return BRINGUP_OK;
  return sim_fail(BRINGUP_ERROR,
                  "device %d was opened before a fork and cannot be used in a forked child: its worker threads are not "
                  "there; start the child with the spawn or forkserver method",
                  d->index);
}

int32_t sim_find(sim *s, int32_t index, sim_device **device) {
  if (__builtin_expect(index < 0 || index >= s->options.devices, 0)) return check_index(s, index);
  sim_device *d = &s->devices[index];
  int state = atomic_load_explicit(&d->state, memory_order_acquire);
  if (__builtin_expect(state != SIM_OPEN, 0))
    return sim_fail(BRINGUP_INVALID, "device %d is %s", index, state == SIM_CLOSED ? "not open" : "being closed");
  if (__builtin_expect(d->fork_generation != fork_generation, 0)) return check_fork(d);
  *device = d;
  return BRINGUP_OK;
}

/* Giving something back in a forked child is nothing to do: the parent still owns it. */
int sim_release_is_noop(sim *s, int32_t index) {
  if (index < 0 || index >= s->options.devices) return 0;
  sim_device *d = &s->devices[index];
  return atomic_load_explicit(&d->state, memory_order_acquire) != SIM_CLOSED && d->fork_generation != fork_generation;
}

static void describe(const sim_device *d, bringup_device_spec *spec) {
  const sim_options *o = &d->owner->options;
  /* Sharded bytes do not lie in the order the CPU expects: neither aliasing nor ATen's kernels can work on them. */
  int in_order = o->partitions == 1 || o->placement.kind == BRINGUP_SINGLE;
  memset(spec, 0, sizeof *spec);
  spec->struct_size = sizeof *spec;
  snprintf(spec->name, sizeof spec->name, "%s", o->name);
  spec->host_flags = SIM_HOST_FLAGS;
  spec->memory_bytes = d->partition_bytes;
  spec->alignment = 512;
  spec->host_offset = in_order ? d->host_offset : 0;
  spec->host_visible = (uint32_t)in_order;
  spec->host_library = (uint32_t)(in_order && o->library);
  spec->partitions = o->partitions;
  spec->peer_copy = (uint32_t)in_order;
  spec->default_placement = o->placement;
  if (o->partitions == 1) spec->default_placement.kind = BRINGUP_SINGLE;
  if (spec->default_placement.kind != BRINGUP_SHARD) spec->default_placement.block = 0;
  spec->capability_major = 1;
  spec->peak_flops = o->roofline.peak_flops[BRINGUP_FLOAT32];
  spec->peak_bandwidth = o->roofline.bandwidth;
}

static int32_t open_locked(sim_device *d) {
  int state = atomic_load(&d->state);
  if (state != SIM_CLOSED) {
    int32_t status = check_fork(d);
    if (status != BRINGUP_OK) return status;
    return state == SIM_OPEN ? BRINGUP_OK : sim_fail(BRINGUP_INVALID, "device %d is being closed", d->index);
  }
  int32_t status = sim_heap_open(d);
  if (status != BRINGUP_OK) return status;
  status = sim_streams_open(d);
  if (status != BRINGUP_OK) {
    sim_heap_close(d);
    return status;
  }
  d->fork_generation = fork_generation;
  atomic_store_explicit(&d->state, SIM_OPEN, memory_order_release);
  return BRINGUP_OK;
}

int32_t sim_open(void *self, int32_t index, bringup_device_spec *spec) {
  sim *s = self;
  int32_t status = check_index(s, index);
  if (status != BRINGUP_OK) return status;
  pthread_mutex_lock(&sim_process_lock);
  status = open_locked(&s->devices[index]);
  pthread_mutex_unlock(&sim_process_lock);
  if (status == BRINGUP_OK && spec) describe(&s->devices[index], spec);
  return status;
}

int32_t sim_close(void *self, int32_t index) {
  sim *s = self;
  if (sim_release_is_noop(s, index)) return BRINGUP_OK;
  int32_t status = check_index(s, index);
  if (status != BRINGUP_OK) return status;
  sim_device *d = &s->devices[index];
  if (sim_on_worker_of(d))
    return sim_fail(BRINGUP_INVALID, "device %d cannot be closed from a host function on one of its streams", index);
  int open = SIM_OPEN;
  if (!atomic_compare_exchange_strong(&d->state, &open, SIM_CLOSING))
    return open == SIM_CLOSED ? BRINGUP_OK : sim_fail(BRINGUP_INVALID, "device %d is being closed already", index);
  sim_streams_close(d);
  sim_workers_stop(&d->workers);
  sim_trace_close(d);
  sim_kernels_close(d); /* no stream takes work any more: nothing runs in them */
  pthread_mutex_lock(&sim_process_lock);
  sim_heap_close(d);
  atomic_store_explicit(&d->state, SIM_CLOSED, memory_order_release);
  pthread_mutex_unlock(&sim_process_lock);
  return BRINGUP_OK;
}
