/* Launches: checked, costed, then the kernel's units in stream order: inline up to a millisecond, split over threads
 * from SIM_SPLIT_NS.
 *
 * A launch is what every eager op does: nothing here allocates, and nothing is copied, unless the work is queued.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

int32_t sim_report_status(const sim_report *report) {
  if (!report->kernel) return BRINGUP_OK;
  return sim_fail(BRINGUP_INDEX_ERROR, "index %lld is out of range for a dimension of %lld (kernel %s)",
                  (long long)report->index, (long long)report->extent, report->kernel->name);
}

/* Each partition's share, on its own memory; the first failed check counts. */
static void run_in_partitions(sim_device *d, const sim_work *work, sim_report *report) {
  uint64_t args[SIM_MAX_ARGS];
  uint32_t count = work->as.launch.arg_count;
  for (uint64_t p = 0; p < work->as.launch.partitions; p++) {
    int64_t words[3] = {0, 0, 0};
    if (!work->as.launch.partition_grid[p]) continue;
    memcpy(args, work->as.launch.args + p * count, count * sizeof *args);
    for (uint32_t i = 0; i < work->as.launch.address_count; i++)
      if (args[i]) args[i] += (uint64_t)d->host_offset + p * d->stride;
    work->as.launch.kernel->function(args, 0, (int64_t)work->as.launch.partition_grid[p], words);
    if (words[0] && !report->kernel) *report = (sim_report){work->as.launch.kernel, words[1], words[2]};
  }
}

static void run_launch(sim_stream *stream, sim_work *work) {
  const sim_kernel *kernel = work->as.launch.kernel;
  sim_report *report = &work->as.launch.report;
  int64_t grid = work->as.launch.grid;
  report->kernel = NULL;
  if (work->as.launch.partitions) {
    run_in_partitions(stream->device, work, report);
  } else if (work->host_ns >= SIM_SPLIT_NS && grid > 1 && stream->device->owner->options.threads > 1) {
    sim_workers_run(stream->device, kernel, work->as.launch.args, grid, work->host_ns, report);
  } else if (grid > 0) {
    int64_t words[3] = {0, 0, 0};
    kernel->function(work->as.launch.args, 0, grid, words);
    if (words[0]) *report = (sim_report){kernel, words[1], words[2]};
  }
  if (work->ran_inline) return; /* the caller looks at the report and owns the arguments */
  free((void *)(uintptr_t)work->as.launch.args);
  if (report->kernel) sim_stream_fail(stream, report);
}

static int keep_args(sim_work *work) {
  size_t parts = work->as.launch.partitions, size = work->as.launch.arg_count * sizeof(uint64_t) * (parts ? parts : 1);
  uint64_t *copy = malloc(size + parts * sizeof(uint64_t) + 1);
  if (!copy) return 0;
  if (size) memcpy(copy, work->as.launch.args, size);
  if (parts) {
    memcpy((char *)copy + size, work->as.launch.partition_grid, parts * sizeof(uint64_t));
    work->as.launch.partition_grid = (uint64_t *)((char *)copy + size);
  }
  work->as.launch.args = copy;
  return 1;
}

static int32_t submit(sim_stream *stream, const sim_kernel *kernel, const bringup_launch *launch,
                      const uint64_t *args) {
  sim_work work; /* not cleared: most of it belongs to other kinds of work */
  double compute = launch->flops * SIM_KERNEL_NS_PER_FLOP, memory = launch->bytes * SIM_KERNEL_NS_PER_BYTE;
  work.kind = SIM_WORK_KERNEL;
  work.run = run_launch;
  work.keep = keep_args;
  work.ran_inline = 0;
  work.host_ns = compute > memory ? compute : memory;
  work.inline_ns = SIM_WORK_INLINE_NS;
  work.device_ns = sim_cost_kernel(stream->device->owner, BRINGUP_FLOAT32, launch->flops, launch->bytes);
  work.as.launch.kernel = kernel;
  work.as.launch.args = args;
  work.as.launch.arg_count = launch->arg_count;
  work.as.launch.address_count = launch->address_count;
  work.as.launch.partitions = launch->partition_count;
  work.as.launch.partition_grid = launch->partition_grid;
  work.as.launch.grid = (int64_t)launch->grid;
  work.as.launch.correlation = launch->correlation;
  work.as.launch.bytes = launch->bytes;
  int32_t status = sim_submit(stream, launch->stream, &work);
  if (launch->finished) *launch->finished = (uint32_t)(status == BRINGUP_OK && work.ran_inline);
  return status == BRINGUP_OK && work.ran_inline ? sim_report_status(&work.as.launch.report) : status;
}

/* With trap=1 the addresses of the caller are closed to the host: kernels get those of the runtime's side. */
static __attribute__((noinline)) int32_t submit_on_host_side(sim_stream *stream, const sim_kernel *kernel,
                                                             const bringup_launch *launch) {
  uint64_t args[SIM_MAX_ARGS];
  for (uint32_t i = 0; i < launch->arg_count; i++) {
    args[i] = launch->args[i];
    if (i < launch->address_count && args[i]) args[i] += (uint64_t)stream->device->host_offset;
  }
  return submit(stream, kernel, launch, args);
}

static int32_t check(sim_device *d, const sim_kernel *kernel, const bringup_launch *l) {
  if (l->arg_count > SIM_MAX_ARGS || (l->arg_count && !l->args) || l->address_count > l->arg_count)
    return sim_fail(BRINGUP_INVALID, "launch: %u addresses among %u arguments%s; allowed is up to %d arguments",
                    l->address_count, l->arg_count, l->args ? "" : " at NULL", SIM_MAX_ARGS);
  if (kernel->arg_count != SIM_ANY_COUNT && kernel->arg_count != l->arg_count)
    return sim_fail(BRINGUP_INVALID, "launch: kernel %s takes %u arguments, not %u", kernel->name, kernel->arg_count,
                    l->arg_count);
  if (l->grid > 1ull << 48) /* leaves room for the counting of chunks */
    return sim_fail(BRINGUP_INVALID, "launch: a grid of %llu units is too large", (unsigned long long)l->grid);
  if (!(l->flops >= 0 && l->flops < 1e30) || !(l->bytes >= 0 && l->bytes < 1e30))
    return sim_fail(BRINGUP_INVALID, "launch: flops %g and bytes %g must be 0 or more", l->flops, l->bytes);
  for (uint32_t i = 0; i < l->address_count; i++) {
    int32_t status = l->args[i] ? sim_check_range(d, "launch argument", l->args[i], 0) : BRINGUP_OK;
    if (status != BRINGUP_OK) return status;
  }
  for (uint32_t i = 0; l->placements && i < l->address_count; i++)
    if (l->placements[i].kind != BRINGUP_SINGLE)
      return sim_fail(BRINGUP_UNSUPPORTED, "launch: argument %u lies in several partitions; kernels need it in one", i);
  if (l->partition_count > d->owner->options.partitions ||
      (l->partition_count && !(l->partition_args && l->partition_grid)))
    return sim_fail(BRINGUP_INVALID, "launch: shares of %llu partitions%s; the device has %u",
                    (unsigned long long)l->partition_count, l->partition_args ? "" : " at NULL",
                    d->owner->options.partitions);
  for (uint64_t p = 0; p < l->partition_count; p++)
    for (uint32_t i = 0; i < l->address_count; i++) {
      uint64_t address = l->partition_grid[p] ? l->partition_args[p * l->arg_count + i] : 0;
      int32_t status = address ? sim_check_range(d, "launch argument", address, 0) : BRINGUP_OK;
      if (status != BRINGUP_OK) return status;
    }
  return BRINGUP_OK;
}

int32_t sim_launch(void *self, int32_t index, uint64_t handle, const bringup_launch *launch) {
  sim_device *d;
  sim_stream *stream;
  const sim_kernel *kernel;
  int32_t status = sim_find(self, index, &d);
  if (status != BRINGUP_OK) return status;
  if (!launch) return sim_fail(BRINGUP_INVALID, "launch: no description of the launch");
  status = sim_kernel_find(d, handle, &kernel);
  if (status == BRINGUP_OK) status = sim_inject(self, SIM_FAULT_LAUNCH, index);
  if (status == BRINGUP_OK) status = check(d, kernel, launch);
  if (status == BRINGUP_OK) status = sim_stream_ready(d, launch->stream, &stream);
  if (status != BRINGUP_OK) return status;
  if (launch->partition_count) return submit(stream, kernel, launch, launch->partition_args);
  if (__builtin_expect(d->host_offset != 0, 0)) return submit_on_host_side(stream, kernel, launch);
  return submit(stream, kernel, launch, launch->args);
}
