/* Copies: checked, costed, then one memmove in stream order. Tiny ones are on the path of every eager op. */
#include <string.h>

#include "sim.h"

static void run_copy(sim_stream *stream, sim_work *work) {
  (void)stream;
  memmove(work->as.copy.dst, work->as.copy.src, work->as.copy.nbytes); /* the two sides may overlap on one device */
}

static int32_t submit_copy(sim_stream *stream, uint64_t handle, char *dst, const char *src, uint64_t nbytes,
                           int32_t kind, double device_ns) {
  sim_work work;
  work.kind = SIM_WORK_COPY;
  work.run = run_copy;
  work.keep = NULL;
  work.inline_ns = SIM_WORK_INLINE_NS;
  work.host_ns = (double)nbytes * SIM_COPY_NS_PER_BYTE;
  work.device_ns = device_ns;
  work.as.copy.dst = dst;
  work.as.copy.src = src;
  work.as.copy.nbytes = nbytes;
  work.as.copy.kind = kind;
  return sim_submit(stream, handle, &work);
}

static int32_t check_host(const char *what, uint64_t pointer, uint64_t nbytes) {
  if (pointer || !nbytes) return BRINGUP_OK;
  return sim_fail(BRINGUP_INVALID, "%s: the host pointer is NULL", what);
}

int32_t sim_copy(void *self, int32_t index, uint64_t dst, uint64_t src, uint64_t nbytes, int32_t kind, uint64_t handle,
                 const bringup_placement *placement) {
  sim_device *d;
  sim_stream *stream;
  int32_t status = sim_find(self, index, &d);
  if (status == BRINGUP_OK) status = sim_inject(self, SIM_FAULT_COPY, index);
  if (status != BRINGUP_OK) return status;
  if (kind < BRINGUP_HOST_TO_DEVICE || kind > BRINGUP_DEVICE_TO_DEVICE)
    return sim_fail(BRINGUP_INVALID, "copy: kind %d does not exist; allowed is 0 to 2", kind);
  int dst_on_device = kind != BRINGUP_DEVICE_TO_HOST, src_on_device = kind != BRINGUP_HOST_TO_DEVICE;
  if (!dst_on_device) status = check_host("copy to the host", dst, nbytes);
  if (!src_on_device) status = check_host("copy from the host", src, nbytes);
  if (status != BRINGUP_OK) return status;
  if (placement) return sim_copy_placed(d, dst, src, nbytes, kind, handle, placement);
  if (dst_on_device) status = sim_check_range(d, "copy destination", dst, nbytes);
  if (status == BRINGUP_OK && src_on_device) status = sim_check_range(d, "copy source", src, nbytes);
  if (status == BRINGUP_OK) status = sim_stream_ready(d, handle, &stream);
  if (status != BRINGUP_OK) return status;
  double cost = kind == BRINGUP_DEVICE_TO_DEVICE ? sim_cost_kernel(self, BRINGUP_UINT8, 0, 2.0 * (double)nbytes)
                                                 : sim_cost_link(self, (double)nbytes);
  return submit_copy(stream, handle, dst_on_device ? sim_host_side(d, dst) : (char *)(uintptr_t)dst,
                     src_on_device ? sim_host_side(d, src) : (char *)(uintptr_t)src, nbytes, kind, cost);
}

/* Ordered on a stream of the destination device: the core makes that one wait for the source. */
int32_t sim_copy_peer(void *self, int32_t dst_index, uint64_t dst, int32_t src_index, uint64_t src, uint64_t nbytes,
                      uint64_t handle) {
  sim_device *to, *from;
  sim_stream *stream;
  int32_t status = sim_find(self, dst_index, &to);
  if (status == BRINGUP_OK) status = sim_find(self, src_index, &from);
  if (status == BRINGUP_OK) status = sim_inject(self, SIM_FAULT_COPY, dst_index);
  if (status != BRINGUP_OK) return status;
  const sim_options *o = &from->owner->options;
  if (o->partitions > 1 && o->placement.kind != BRINGUP_SINGLE)
    return sim_fail(BRINGUP_UNSUPPORTED,
                    "copy_peer: memory in %u partitions has no order of bytes; copy through the host", o->partitions);
  status = sim_check_range(to, "peer copy destination", dst, nbytes);
  if (status == BRINGUP_OK) status = sim_check_range(from, "peer copy source", src, nbytes);
  if (status == BRINGUP_OK) status = sim_stream_ready(to, handle, &stream);
  if (status != BRINGUP_OK) return status;
  return submit_copy(stream, handle, sim_host_side(to, dst), sim_host_side(from, src), nbytes, BRINGUP_DEVICE_TO_DEVICE,
                     sim_cost_link(self, (double)nbytes));
}
