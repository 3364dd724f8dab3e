// Pinned host memory: torch's caching host allocator over the driver's own, or aligned pages.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

namespace bringup {

c10::Allocator* pinned_allocator();
bool is_pinned(const void* pointer);
// The pinned block is in use by work queued on the stream: it is not reused before that work is done. False if the
// memory is not a block of this allocator (a NumPy array over pinned memory): then the caller must wait.
bool record_pinned(const c10::DataPtr& data, const c10::Stream& stream);

} // namespace bringup
