// One call of a CPU kernel on device tensors: CPU stand-ins for the arguments, device tensors for the results.
#include "aten/host_call.h"

#include <ATen/EmptyTensor.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <c10/core/CPUAllocator.h>

namespace bringup {

namespace {

constexpr uint64_t kSpanAlignment = 16; // covers every item size, so that offsets stay whole elements

// The flags of a tensor that live in its keys and that a kernel must see (rule: flags of a stand-in).
c10::DispatchKeySet carried_keys(const c10::TensorImpl& from) {
  return from.key_set() & c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
}

at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, const c10::TensorImpl& like,
                       int64_t storage_offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(key) | carried_keys(like), like.dtype());
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), storage_offset);
  if (like.is_wrapped_number()) impl->set_wrapped_number(true);
  return tensor;
}

// Bytes of the storage that a tensor may touch: [begin, end).
std::pair<uint64_t, uint64_t> span(const c10::TensorImpl& tensor) {
  if (tensor.numel() == 0) return {0, 0};
  uint64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    last += static_cast<uint64_t>(tensor.size(dim) - 1) * tensor.stride(dim);
  const uint64_t itemsize = tensor.itemsize();
  const uint64_t first = static_cast<uint64_t>(tensor.storage_offset()) * itemsize;
  return {first, first + (last + 1) * itemsize};
}

} // namespace

at::Tensor device_tensor_like(const at::Tensor& cpu, c10::Storage storage, int64_t storage_offset) {
  return tensor_over(std::move(storage), c10::DispatchKey::PrivateUse1, *cpu.unsafeGetTensorImpl(), storage_offset);
}

// ---- pass 1 ----

void mixed_devices(const char* op, c10::DeviceIndex index, c10::Device other) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
              c10::Device(kDeviceType, index), " and ", other, "! (when calling ", op, ")");
}

void HostCall::set_device(c10::DeviceIndex index) {
  if (index_ == index) return;
  if (index_ >= 0) mixed_devices(c10::Device(kDeviceType, index));
  index_ = index;
  device_ = &device_at(index);
  zero_copy_ = translated([&] { return device_->spec().host_visible != 0; });
}

void HostCall::add(const at::Tensor& tensor, Accept accept) {
  if (!tensor.defined()) return;
  const c10::Device device = tensor.device();
  if (C10_UNLIKELY(device.type() != kDeviceType)) {
    if (device.is_cpu() && (accept == Accept::any || (accept == Accept::numbers && tensor.dim() == 0))) return;
    if (index_ < 0) set_device(current_device());
    mixed_devices(device);
  }
  set_device(device.index());
  if (C10_UNLIKELY(tensor.layout() != c10::kStrided)) {
    if (tensor.is_sparse()) {
      add(tensor._indices());
      add(tensor._values());
    } else if (at::sparse_csr::is_sparse_compressed(tensor)) {
      const auto* impl = at::sparse_csr::get_sparse_csr_impl(tensor);
      add(impl->compressed_indices());
      add(impl->plain_indices());
      add(impl->values());
    } else {
      TORCH_CHECK_NOT_IMPLEMENTED(false, op_, " on ", device, " got a tensor of layout ", tensor.layout(),
                                  ", which no route handles");
    }
    return;
  }
  if (zero_copy_ || !tensor.has_storage()) return;
  auto [begin, end] = span(*tensor.unsafeGetTensorImpl());
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  for (Shared& known : shared_) {
    if (known.device != storage) continue;
    if (end > begin) {
      known.low = known.high > known.low ? std::min(known.low, begin) : begin;
      known.high = std::max(known.high, end);
    }
    return;
  }
  shared_.push_back({storage, {}, begin, end});
}

void HostCall::prepare() {
  const NamedWork named(op_);
  translated([&] {
    device_->drain(current_stream(index_));
    if (zero_copy_) return;
    for (Shared& shared : shared_) copy_out(shared);
    device_->drain(current_stream(index_));
  });
}

void HostCall::copy_out(Shared& shared) {
  shared.low = shared.low / kSpanAlignment * kSpanAlignment;
  shared.high = std::min<uint64_t>(shared.high, shared.device->nbytes());
  const uint64_t nbytes = shared.high > shared.low ? shared.high - shared.low : 0;
  shared.host = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(nbytes),
                                                      c10::GetCPUAllocator(), /*resizable=*/true);
  move_bytes(*device_, shared.device, shared.low, shared.host->data(), nbytes, BRINGUP_DEVICE_TO_HOST);
  bytes_moved_ += nbytes;
}

// ---- pass 2 ----

HostCall::Shared& HostCall::shared_of(c10::StorageImpl* storage) {
  for (Shared& known : shared_)
    if (known.device == storage) return known;
  // Only zero-copy calls come here: the others met every storage in pass 1.
  const int64_t offset = device_->spec().host_offset;
  shared_.push_back({storage, may_be_kept_ ? holding_alias(storage, offset) : host_alias(storage, offset), 0, 0});
  return shared_.back();
}

at::Tensor HostCall::stand_in(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != kDeviceType) return tensor;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  for (const auto& [original, known] : stand_ins_)
    if (original == &impl) return known;
  if (C10_UNLIKELY(tensor.layout() != c10::kStrided)) {
    // Adds its members to the list.
    at::Tensor made = sparse_like(tensor, c10::kCPU, [&](const at::Tensor& member) { return stand_in(member); });
    stand_ins_.emplace_back(&impl, made);
    return made;
  }
  const Shared& shared = shared_of(tensor.storage().unsafeGetStorageImpl());
  const bool elsewhere = impl.numel() == 0 && !zero_copy_; // nothing was copied out for it
  const int64_t offset = impl.storage_offset() - static_cast<int64_t>(shared.low / impl.itemsize());
  stand_ins_.emplace_back(&impl,
                          tensor_over(c10::Storage(shared.host), c10::DispatchKey::CPU, impl, elsewhere ? 0 : offset));
  return stand_ins_.back().second;
}

// The members themselves: crow_indices() makes an alias, and at the address of one that is gone the next tensor's would
// find its stand-in.
template <class F>
at::Tensor HostCall::sparse_like(const at::Tensor& tensor, c10::Device device, F member) {
  if (tensor.is_sparse())
    return at::_sparse_coo_tensor_unsafe(member(tensor._indices()), member(tensor._values()), tensor.sizes(),
                                         tensor.scalar_type(), c10::kSparse, device, false, tensor.is_coalesced());
  TORCH_CHECK_NOT_IMPLEMENTED(at::sparse_csr::is_sparse_compressed(tensor), op_, " returned a tensor of layout ",
                              tensor.layout(), ", which cannot live on ", device);
  const auto* impl = at::sparse_csr::get_sparse_csr_impl(tensor);
  return at::_sparse_compressed_tensor_unsafe(member(impl->compressed_indices()), member(impl->plain_indices()),
                                              member(impl->values()), tensor.sizes(), tensor.scalar_type(),
                                              tensor.layout(), device, false);
}

// ---- after the call ----

void HostCall::write_back(const at::Tensor& original, const at::Tensor& stand_in) {
  if (!original.defined() || original.device().type() != kDeviceType) return;
  if (C10_UNLIKELY(original.layout() != c10::kStrided)) {
    write_back_sparse(original, stand_in);
    return;
  }
  const Shared& shared = shared_of(original.storage().unsafeGetStorageImpl());
  const c10::TensorImpl& now = *stand_in.unsafeGetTensorImpl();
  c10::TensorImpl* impl = original.unsafeGetTensorImpl();
  const bool same_storage = now.storage().unsafeGetStorageImpl() == shared.host.get();
  const bool same_memory =
      same_storage && (zero_copy_ ? !is_redirected(now.storage()) : shared.host->nbytes() == shared.high - shared.low);
  if (C10_UNLIKELY(!same_memory)) {
    adopt_resized(original, stand_in);
    return;
  }
  if (C10_UNLIKELY(impl->sizes() != now.sizes() || impl->strides() != now.strides()))
    impl->set_sizes_and_strides(now.sizes(), now.strides(),
                                now.storage_offset() + static_cast<int64_t>(shared.low / impl->itemsize()));
  if (!zero_copy_) copy_back(original, stand_in, shared);
}

void HostCall::write_back_sparse(const at::Tensor& original, const at::Tensor& stand_in) {
  if (original.is_sparse()) {
    auto* impl = at::sparse::get_sparse_impl(original);
    impl->raw_resize_(stand_in.sparse_dim(), stand_in.dense_dim(), stand_in.sizes());
    impl->set_indices_and_values_unsafe(result(stand_in._indices()), result(stand_in._values()));
    impl->set_coalesced(stand_in.is_coalesced());
  } else {
    const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(stand_in);
    at::sparse_csr::get_sparse_csr_impl(original)->set_member_tensors(result(compressed), result(plain),
                                                                      result(stand_in.values()), stand_in.sizes());
  }
  if (zero_copy_) return;
  translated([&] { // members that were changed in place
    for (const Shared& shared : shared_)
      move_bytes(*device_, shared.device, shared.low, shared.host->data(), shared.high - shared.low,
                 BRINGUP_HOST_TO_DEVICE);
    device_->drain(current_stream(index_));
  });
}

// The kernel grew an `out=` tensor (rule: growing `out=`): its new memory becomes the memory of the original storage.
void HostCall::adopt_resized(const at::Tensor& original, const at::Tensor& stand_in) {
  if (!zero_copy_) { // the stand-in was only a part of the storage: grow the whole, then fill in the part
    c10::TensorImpl* impl = original.unsafeGetTensorImpl();
    const int64_t offset = impl->storage_offset();
    const size_t needed =
        at::detail::computeStorageNbytes(stand_in.sizes(), stand_in.strides(), impl->itemsize(), offset);
    if (original.storage().nbytes() < needed) resize_storage(original.storage(), needed);
    impl->set_sizes_and_strides(stand_in.sizes(), stand_in.strides(), offset);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const_cast<at::Tensor&>(original).copy_(stand_in);
    bytes_moved_ += stand_in.nbytes();
    return;
  }
  const at::Tensor fresh = fresh_result(stand_in);
  c10::StorageImpl* storage = original.storage().unsafeGetStorageImpl();
  c10::StorageImpl* from = fresh.storage().unsafeGetStorageImpl();
  storage->set_nbytes(from->nbytes());
  storage->set_data_ptr_noswap(from->set_data_ptr(c10::DataPtr(nullptr, from->device())));
  // The cached alias was the stand-in's storage: let it point at the new memory.
  c10::StorageImpl* alias = stand_in.storage().unsafeGetStorageImpl();
  void* bytes = storage->mutable_data();
  if (bytes) bytes = static_cast<char*>(bytes) + device_->spec().host_offset;
  alias->set_data_ptr_noswap(c10::DataPtr(bytes, c10::Device(c10::kCPU)));
  alias->set_nbytes(storage->nbytes());
  original.unsafeGetTensorImpl()->set_sizes_and_strides(fresh.sizes(), fresh.strides(), fresh.storage_offset());
}

void HostCall::copy_back(const at::Tensor& original, const at::Tensor& stand_in, const Shared& shared) {
  // Only bytes of the tensor itself go back, run by run: what lies between may belong to another thread's tensor.
  const c10::TensorImpl& impl = *original.unsafeGetTensorImpl();
  if (impl.numel() == 0) return;
  c10::SmallVector<int64_t, 8> dims; // outer dimensions, widest stride first, after peeling the dense inner ones
  for (int64_t dim = 0; dim < impl.dim(); ++dim)
    if (impl.size(dim) > 1) dims.push_back(dim);
  std::stable_sort(dims.begin(), dims.end(), [&](int64_t a, int64_t b) { return impl.stride(a) > impl.stride(b); });
  int64_t run = 1;
  while (!dims.empty() && impl.stride(dims.back()) == run) {
    run *= impl.size(dims.back());
    dims.pop_back();
  }
  const uint64_t itemsize = impl.itemsize();
  const char* host = static_cast<const char*>(shared.host->data());
  auto send = [&](auto& inside, size_t dim, int64_t element) -> void {
    if (dim < dims.size()) {
      for (int64_t i = 0; i < impl.size(dims[dim]); ++i) inside(inside, dim + 1, element + i * impl.stride(dims[dim]));
      return;
    }
    const uint64_t offset = static_cast<uint64_t>(element) * itemsize, nbytes = static_cast<uint64_t>(run) * itemsize;
    move_bytes(*device_, shared.device, offset, host + (offset - shared.low), nbytes, BRINGUP_HOST_TO_DEVICE);
    bytes_moved_ += nbytes;
  };
  translated([&] {
    send(send, 0, impl.storage_offset());
    device_->drain(current_stream(index_)); // the host buffer ends with this call
  });
}

at::Tensor HostCall::result(const at::Tensor& cpu) {
  if (!cpu.defined() || !cpu.device().is_cpu()) return cpu;
  if (C10_UNLIKELY(cpu.layout() != c10::kStrided))
    return sparse_like(cpu, c10::Device(kDeviceType, index_), [&](const at::Tensor& part) { return result(part); });
  TORCH_CHECK_NOT_IMPLEMENTED(cpu.has_storage() && !cpu.is_quantized(), op_, ": its result is a ",
                              cpu.is_quantized() ? "quantized tensor" : "tensor without storage",
                              ", which cannot live on ", device_->label(), "; keep it on the CPU");
  c10::StorageImpl* host = cpu.storage().unsafeGetStorageImpl();
  for (const Shared& shared : shared_) // the kernel handed an argument, or a view of one, through
    if (shared.host.get() == host && !(zero_copy_ && is_redirected(cpu.storage())))
      return device_tensor_like(cpu, c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(shared.device)),
                                cpu.storage_offset() + static_cast<int64_t>(shared.low / cpu.itemsize()));
  return fresh_result(cpu);
}

at::Tensor HostCall::fresh_result(const at::Tensor& cpu) {
  c10::StorageImpl* host = cpu.storage().unsafeGetStorageImpl();
  for (const Adopted& known : adopted_) // several results may share one storage
    if (known.host == host) return device_tensor_like(cpu, known.device, cpu.storage_offset());
  if (C10_LIKELY(zero_copy_ && is_redirected(cpu.storage()))) {
    adopted_.push_back({host, adopt(cpu.storage(), index_)});
    return device_tensor_like(cpu, adopted_.back().device, cpu.storage_offset());
  }
  const uint64_t nbytes = host->nbytes();
  c10::Storage storage = new_storage(index_, nbytes);
  translated([&] {
    move_bytes(*device_, storage.unsafeGetStorageImpl(), 0, host->data(), nbytes, BRINGUP_HOST_TO_DEVICE);
    device_->drain(current_stream(index_));
  });
  bytes_moved_ += nbytes;
  adopted_.push_back({host, storage});
  return device_tensor_like(cpu, storage, cpu.storage_offset());
}

} // namespace bringup
