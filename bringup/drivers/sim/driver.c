/* The table: what the simulated accelerator offers of the driver contract. */
#include <stdio.h>
#include <stdlib.h>

#include "sim.h"

sim *sim_all; /* never freed, but a leak checker can reach it */

static int32_t device_count(void *self) { return ((sim *)self)->options.devices; }

static sim *new_sim(const sim_options *options) {
  sim *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->options = *options;
  s->start_ns = sim_wall_ns();
  for (int32_t i = 0; i < options->devices; i++) {
    sim_device *d = &s->devices[i];
    d->owner = s;
    d->index = i;
    d->fd = -1;
    pthread_mutex_init(&d->heap_lock, NULL);
    pthread_mutex_init(&d->stream_lock, NULL);
    pthread_mutex_init(&d->event_lock, NULL);
    pthread_mutex_init(&d->kernel_lock, NULL);
    pthread_mutex_init(&d->trace.lock, NULL);
    sim_workers_init(&d->workers);
  }
  pthread_mutex_lock(&sim_process_lock);
  s->next = sim_all;
  sim_all = s;
  pthread_mutex_unlock(&sim_process_lock);
  return s;
}

static int32_t create(uint32_t abi_version, const char *text, bringup_driver *driver) {
  if (abi_version != BRINGUP_ABI_VERSION)
    return sim_fail(BRINGUP_INVALID,
                    "built for driver ABI version %u, the caller has version %u; build both from one tree",
                    BRINGUP_ABI_VERSION, abi_version);
  if (!driver) return sim_fail(BRINGUP_INVALID, "no place for the driver's table");
  sim_options options;
  int32_t status = sim_parse_options(text, &options);
  if (status != BRINGUP_OK) return status;
  sim_watch_forks();
  sim *s = new_sim(&options);
  if (!s) return sim_fail(BRINGUP_ERROR, "no host memory for the simulator");
  int kernels = !options.library;
  *driver = (bringup_driver){
      .abi_version = BRINGUP_ABI_VERSION,
      .struct_size = sizeof *driver,
      .self = s,
      .device_count = device_count,
      .open = sim_open,
      .alloc = sim_alloc,
      .free = sim_free,
      .copy = sim_copy,
      /* target and compile are Python's (__init__.py): the compiler is a process, and its results are cached there. */
      .load = kernels ? sim_load : NULL,
      .launch = kernels ? sim_launch : NULL,
      .stream_create = sim_stream_create,
      .stream_destroy = sim_stream_destroy,
      .event_record = sim_event_record,
      .event_query = sim_event_query,
      .event_wait = sim_event_wait,
      .event_elapsed = sim_event_elapsed,
      .event_destroy = sim_event_destroy,
      .event_export = sim_event_export,
      .event_import = sim_event_import,
      .clock = sim_clock,
      /* With wall time there is nothing to charge: not offering it saves a call per eager op. */
      .charge = options.roofline.enabled ? sim_charge : NULL,
      .trace_start = sim_trace_start,
      .trace_stop = sim_trace_stop,
      .trace_read = sim_trace_read,
      .memory_info = sim_memory_info,
      .copy_peer = sim_copy_peer,
      .relayout = sim_relayout,
      .host_alloc = sim_host_alloc,
      .host_free = sim_host_free,
      .host_register = sim_host_register,
      .host_unregister = sim_host_unregister,
      .ipc_export = sim_ipc_export,
      .ipc_import = sim_ipc_import,
      .ipc_close = sim_ipc_close,
      .host_function = sim_host_function,
      .close = sim_close,
      .last_error = sim_last_error,
  };
  return BRINGUP_OK;
}

int32_t bringup_driver_create(uint32_t abi_version, const char *options, bringup_driver *driver, char *error,
                              uint64_t error_size) {
  int32_t status = create(abi_version, options, driver);
  if (status != BRINGUP_OK) sim_last_error(NULL, error, error_size);
  return status;
}
