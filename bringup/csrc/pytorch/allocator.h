// Memory as torch sees it: the c10 allocator, our StorageImpl, CPU aliases of host-visible storages, pinned memory.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <optional>
#include <string>
#include <typeinfo>

#include "pytorch/context.h"

namespace bringup {

// Bit number of bringup_device_spec.dtypes.
int dtype_code(c10::ScalarType type);
// NotImplementedError that names dtype and device, unless the device has that dtype.
void check_dtype(Device& device, c10::ScalarType type);

// Every storage of our device is one of these: what must outlive views lives here (rule: metadata on storages).
struct StorageImpl final : c10::StorageImpl {
  using c10::StorageImpl::StorageImpl;
  ~StorageImpl() override;

  bringup_placement placement{};
  std::optional<std::string> metadata; // bytes of the driver or user, in hexadecimal: layout, quantisation …

  // The same bytes as a CPU storage that owns nothing; made once, checked on every use (see host_alias).
  std::atomic<c10::StorageImpl*> alias{nullptr};
};

// nullptr for a storage that somebody else made over device memory (from_blob, DLPack): it has no extras.
inline StorageImpl* extras_of(c10::StorageImpl* storage) {
  return typeid(*storage) == typeid(StorageImpl) ? static_cast<StorageImpl*>(storage) : nullptr;
}
// Also for storages of others, by their address; an error where that cannot be known.
bringup_placement placement_of(c10::StorageImpl* storage);
c10::intrusive_ptr<c10::StorageImpl> host_alias(c10::StorageImpl* storage, int64_t host_offset);
// One that may outlive the call: it keeps the device's storage, and so the memory.
c10::intrusive_ptr<c10::StorageImpl> holding_alias(c10::StorageImpl* storage, int64_t host_offset);
// A new storage on a device, of its default placement.
c10::Storage new_storage(c10::DeviceIndex index, size_t nbytes);

c10::Allocator* device_allocator();
// Memory of one device on its current stream; without a placement, with the device's default one.
c10::DataPtr allocate_on(c10::DeviceIndex index, size_t nbytes, const bringup_placement* placement = nullptr);
void record_stream(const c10::DataPtr& data, const c10::Stream& stream);
// Keeps the bytes that fit; the new memory comes from the storage's own device.
void resize_storage(const c10::Storage& storage, size_t nbytes);
// A tensor's base address and, on partitioned devices, where its bytes lie.
struct Location {
  uint64_t address;
  bringup_placement placement;
  bool partitioned;
  const bringup_placement* pointer() const { return partitioned ? &placement : nullptr; }
};
Location locate(const c10::TensorImpl& tensor, Device& device);
// Bytes of a storage, from a logical offset on, to or from host memory, on the device's current stream.
void move_bytes(Device& device, c10::StorageImpl* storage, uint64_t offset, const void* host, uint64_t nbytes,
                bringup_copy_kind kind);

// While one lives, the CPU allocator of this thread hands out device memory (rule: outputs in device memory): what a
// CPU kernel returns can then become a device tensor without a copy, and counts against the device's limit and
// statistics.
class RedirectCpuAllocator {
 public:
  explicit RedirectCpuAllocator(c10::DeviceIndex index) noexcept;
  ~RedirectCpuAllocator();
  RedirectCpuAllocator(const RedirectCpuAllocator&) = delete;
  RedirectCpuAllocator& operator=(const RedirectCpuAllocator&) = delete;

 private:
  c10::DeviceIndex previous_;
};
// If the storage was allocated under a redirection: its memory as a device storage (the CPU storage is left empty).
c10::Storage adopt(const c10::Storage& cpu_storage, c10::DeviceIndex index);
bool is_redirected(const c10::Storage& cpu_storage);

// ---- pinned host memory ----
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
