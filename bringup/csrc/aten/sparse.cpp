// Sparse tensors on the device: their constructors are ATen's own, which ask nothing of the device but memory. Members
// are the CPU's kernels (registration.cpp); everything else takes the boxed route to them (host_call.cpp).
#include <ATen/NativeFunctions.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace bringup {
namespace {

// A constructor that runs with its device argument as the current device: members are made on that.
template <auto constructor>
struct OnItsDevice;
template <class... Args, at::Tensor (*constructor)(Args...)>
struct OnItsDevice<constructor> {
  static at::Tensor call(Args... args) {
    c10::OptionalDeviceGuard guard;
    auto look = [&](const auto& argument) {
      if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, std::optional<c10::Device>>)
        if (argument) guard.reset_device(*argument);
    };
    (look(args), ...);
    return constructor(std::forward<Args>(args)...);
  }
};

// ATen leaves the indices as the allocator gives them, and its kernels read and write wherever they say: to_dense() of
// such a tensor ends the process. Zeros are in bounds, and say that every row is empty.
at::Tensor compressed_with_dims(int64_t nnz, int64_t dense_dim, at::IntArrayRef size, at::IntArrayRef blocksize,
                                c10::ScalarType index_dtype, std::optional<c10::ScalarType> dtype,
                                std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                                std::optional<bool> pin_memory) {
  at::Tensor made = at::native::sparse_compressed_tensor_with_dims(nnz, dense_dim, size, blocksize, index_dtype, dtype,
                                                                   layout, device, pin_memory);
  const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(made);
  compressed.zero_();
  plain.zero_();
  return made;
}

} // namespace

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, library) {
  library.impl("_sparse_coo_tensor_with_dims", TORCH_FN(OnItsDevice<&at::native::new_with_dims_sparse>::call));
  library.impl("_sparse_coo_tensor_with_dims_and_tensors",
               TORCH_FN(OnItsDevice<&at::native::new_with_dims_and_tensor_sparse_symint>::call));
  library.impl("empty.memory_format", TORCH_FN(OnItsDevice<&at::native::empty_sparse_symint>::call));
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(OnItsDevice<&at::native::empty_sparse_compressed_symint>::call));
  library.impl("_sparse_compressed_tensor_with_dims", TORCH_FN(OnItsDevice<&compressed_with_dims>::call));
}

} // namespace bringup
