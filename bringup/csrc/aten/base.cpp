// The ops a backend must write itself: factories, storages, reading one number (views: registration.cpp).
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <torch/library.h>

#include <deque>

#include "aten/host_call.h"
#include "aten/plan.h"
#include "pytorch/allocator.h"

namespace bringup {
namespace {

using at::IntArrayRef;
using at::Tensor;

struct Options {
  c10::ScalarType dtype;
  c10::DeviceIndex index;
};

Options check_options(std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                      std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  const Options options{c10::dtype_or_default(dtype), resolve(device.value_or(c10::Device(kDeviceType)))};
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == c10::kStrided, "a tensor of layout ",
                              c10::layout_or_default(layout), " cannot be created empty on ",
                              Registry::get().type_name);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isQIntType(options.dtype), "quantized tensors (", c10::toString(options.dtype),
                              ") cannot live on ", Registry::get().type_name, "; keep them on the CPU");
  check_dtype(device_at(options.index), options.dtype);
  return options;
}

Tensor finish(Tensor tensor) {
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory()))
    at::native::fill_empty_deterministic_(tensor);
  return tensor;
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

Tensor empty(IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
             std::optional<c10::Device> device, std::optional<bool> pin_memory,
             std::optional<c10::MemoryFormat> memory_format) {
  const Options options = check_options(dtype, layout, device, pin_memory);
  at::detail::check_size_nonnegative(size);
  const auto type = c10::scalarTypeToTypeMeta(options.dtype);
  const size_t nbytes = at::detail::computeStorageNbytesContiguous(size, type.itemsize());
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(new_storage(options.index, nbytes), kKeys, type);
  if (size.size() != 1 || size[0] != 0) tensor.unsafeGetTensorImpl()->generic_set_sizes_contiguous(size);
  if (memory_format && *memory_format != c10::MemoryFormat::Contiguous)
    tensor.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  return finish(std::move(tensor));
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                     std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                     std::optional<bool> pin_memory) {
  const Options options = check_options(dtype, layout, device, pin_memory);
  at::detail::check_size_nonnegative(size);
  TORCH_CHECK(size.size() == stride.size(), "mismatch in length of strides and shape: ", size.size(), " sizes, ",
              stride.size(), " strides");
  const auto type = c10::scalarTypeToTypeMeta(options.dtype);
  const size_t nbytes = at::detail::computeStorageNbytes(size, stride, type.itemsize());
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(new_storage(options.index, nbytes), kKeys, type);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return finish(std::move(tensor));
}

// A tensor of zeros that holds no memory: autograd's forward mode makes them.
Tensor efficient_zero_tensor(IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                             std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  const Options options = check_options(dtype, layout, device, pin_memory);
  static auto* allocators = [] { // one per device: the storage takes its device from the allocator
    auto* made = new std::deque<at::native::ZeroTensorAllocator>();
    for (int32_t i = 0; i < Registry::get().device_count(); ++i)
      made->emplace_back(c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(i)));
    return made;
  }();
  auto tensor =
      at::detail::empty_generic(size, &(*allocators)[options.index],
                                kKeys | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor), options.dtype, std::nullopt);
  return Tensor(std::move(tensor));
}

// ---- storages ----

void ensure_storage(c10::TensorImpl* impl, size_t nbytes) {
  if (impl->storage().nbytes() < nbytes) resize_storage(impl->storage(), nbytes);
}

const Tensor& resize_(const Tensor& self, IntArrayRef size, std::optional<c10::MemoryFormat> memory_format) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  const size_t old_nbytes = impl->storage().nbytes();
  if (impl->sizes() != size) {
    at::detail::check_size_nonnegative(size);
    impl->set_sizes_contiguous(size);
    ensure_storage(impl, at::detail::computeStorageNbytesContiguous(size, impl->itemsize(), impl->storage_offset()));
  }
  if (memory_format) {
    TORCH_CHECK(*memory_format != c10::MemoryFormat::Preserve, "Unsupported memory format", *memory_format);
    impl->empty_tensor_restride(*memory_format);
  }
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory()))
    at::native::fill_resize_deterministic_(self, static_cast<int64_t>(old_nbytes));
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  TORCH_CHECK(source.device().type() == kDeviceType, "set_: the storage is on ", source.device(), " and the tensor on ",
              self.device());
  TORCH_CHECK(size.size() == stride.size() || stride.empty(), "unequal size length (", size.size(),
              ") and stride length (", stride.size(), ")");
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (stride.data() == nullptr) {
    impl->set_sizes_contiguous(size);
    ensure_storage(impl, at::detail::computeStorageNbytesContiguous(size, impl->itemsize(), offset));
  } else {
    at::detail::check_size_nonnegative(size);
    impl->set_sizes_and_strides(size, stride);
    ensure_storage(impl, at::detail::computeStorageNbytes(size, stride, impl->itemsize(), offset));
  }
  return self;
}

Tensor& set_empty(Tensor& self) { return set_storage(self, new_storage(self.device().index(), 0), 0, {0}, {}); }

void record_tensor_stream(Tensor& self, at::Stream stream) { record_stream(self.storage().data_ptr(), stream); }

// Module.to() keeps a parameter's identity (ties, optimizers) where a tensor can take another's place: any two dense
// tensors of ours and the CPU can, both are plain TensorImpls.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  auto plain = [](const Tensor& tensor) {
    return tensor.layout() == c10::kStrided && !tensor.is_quantized() && !tensor.is_nested() &&
           (tensor.is_cpu() || tensor.device().type() == kDeviceType);
  };
  return plain(self) && plain(from);
}

// ---- one number ----

at::Scalar local_scalar_dense(const Tensor& self) {
  const NamedWork named("aten::_local_scalar_dense (item)");
  const c10::DeviceIndex index = self.device().index();
  Device& device = device_at(index);
  const c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  alignas(16) char bytes[16];
  translated([&] {
    const int32_t stream = current_stream(index);
    device.drain(stream);
    const Location from = locate(impl, device);
    if (device.spec().host_visible) {
      std::memcpy(bytes, reinterpret_cast<const void*>(from.address + device.spec().host_offset), impl.itemsize());
    } else {
      device.copy(reinterpret_cast<uint64_t>(bytes), from.address, impl.itemsize(), BRINGUP_DEVICE_TO_HOST, stream,
                  from.pointer());
      device.drain(stream);
    }
  });
  return scalar_at(bytes, self.scalar_type());
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("_efficientzerotensor", TORCH_FN(efficient_zero_tensor));
  library.impl("resize_", TORCH_FN(resize_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  library.impl("set_", TORCH_FN(set_empty));
  library.impl("record_stream", TORCH_FN(record_tensor_stream));
  // PyTorch shares memory until one of two writes, where the allocator is its own: here it is copied at once.
  library.impl("_lazy_clone", [](const Tensor& self) { return self.clone(); });
  library.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  library.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
}

} // namespace bringup
