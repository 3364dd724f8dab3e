// Pinned host memory: torch's caching host allocator over the driver's own, or aligned pages.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include "runtime/device.h"

namespace bringup {

c10::Allocator* pinned_allocator();
bool is_pinned(const void* pointer);
// Host memory of the user's own, pinned by the device's driver until it is taken back. The caller keeps it alive.
void register_host_memory(Device& device, void* pointer, uint64_t nbytes, uint32_t flags);
void unregister_host_memory(void* pointer); // waits for all devices of the driver
// The pinned block is in use by work queued on the stream: it is not reused before that work is done. False if the
// memory is not a block of this allocator (a NumPy array over pinned memory): then the caller must wait. Registered
// memory stays until it is taken back.
bool record_pinned(const c10::DataPtr& data, const c10::Stream& stream);

} // namespace bringup
