// One call of a CPU kernel on device tensors: CPU stand-ins for the arguments, device tensors for the results.
//
// Where the host can see device memory a stand-in aliases it (no copy, also for what the kernel allocates). Otherwise
// the bytes that the arguments span are copied out, and those of mutated arguments back. Either way arguments that
// share a storage share it as stand-ins too, so aliasing means the same to the kernel as it did to the caller.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "pytorch/allocator.h"
#include "pytorch/context.h"

namespace bringup {

// PyTorch's own error for arguments that live in different places.
[[noreturn]] void mixed_devices(const char* op, c10::DeviceIndex index, c10::Device other);

class HostCall {
 public:
  // may_be_kept: the kernel is a user's, who may keep an argument: its stand-in then holds the device's storage.
  explicit HostCall(const char* op_name, bool may_be_kept = false) : op_(op_name), may_be_kept_(may_be_kept) {}

  // Pass 1: every tensor argument, and which CPU tensors the op takes in its place: none, numbers (0-dim), or any.
  enum class Accept { device, numbers, any };
  void add(const at::Tensor& tensor, Accept accept = Accept::numbers);
  void set_device(c10::DeviceIndex index);
  bool has_device() const { return index_ >= 0; }
  c10::DeviceIndex index() const { return index_; }
  Device& device() const { return *device_; }
  bool zero_copy() const { return zero_copy_; }

  // Waits for the stream, then makes the bytes of all arguments reachable.
  void prepare();
  // Pass 2: the stand-in of an argument of pass 1.
  at::Tensor stand_in(const at::Tensor& tensor);

  // After the call.
  void write_back(const at::Tensor& original, const at::Tensor& stand_in);
  at::Tensor result(const at::Tensor& cpu);

  uint64_t bytes_moved() const { return bytes_moved_; }

 private:
  struct Shared { // a device storage and the CPU storage that stands in for it
    c10::StorageImpl* device;
    c10::intrusive_ptr<c10::StorageImpl> host;
    uint64_t low, high; // bytes of the device storage that the host storage holds
  };
  struct Adopted { // a CPU storage made by the kernel that became a device storage
    c10::StorageImpl* host;
    c10::Storage device;
  };

  Shared& shared_of(c10::StorageImpl* storage);
  void write_back_sparse(const at::Tensor& original, const at::Tensor& stand_in);
  template <class F>
  at::Tensor sparse_like(const at::Tensor& tensor, c10::Device device, F member);
  at::Tensor fresh_result(const at::Tensor& cpu); // of memory that no argument shares
  void copy_out(Shared& shared);
  void copy_back(const at::Tensor& original, const at::Tensor& stand_in, const Shared& shared);
  void adopt_resized(const at::Tensor& original, const at::Tensor& stand_in);
  [[noreturn]] void mixed_devices(c10::Device other) const { bringup::mixed_devices(op_, index_, other); }

  const char* op_;
  const bool may_be_kept_;
  c10::DeviceIndex index_ = -1;
  Device* device_ = nullptr;
  bool zero_copy_ = false;
  uint64_t bytes_moved_ = 0;
  c10::SmallVector<Shared, 6> shared_;
  c10::SmallVector<Adopted, 2> adopted_;
  // A tensor given twice is one stand-in: kernels tell in-place use by the tensor's identity.
  c10::SmallVector<std::pair<const c10::TensorImpl*, at::Tensor>, 4> stand_ins_;
};

// A device tensor over a storage, with the metadata of a CPU one.
at::Tensor device_tensor_like(const at::Tensor& cpu, c10::Storage storage, int64_t storage_offset);

} // namespace bringup
