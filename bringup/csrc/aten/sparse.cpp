// Sparse tensors on the device: members and constructors are ATen's own, which ask nothing of the device but memory.
//
// Everything else about sparse tensors takes the boxed route to the CPU's sparse kernels (see host_call.cpp).
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
  library.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  library.impl("_values", TORCH_FN(at::native::_values_sparse));
  library.impl("indices", TORCH_FN(at::native::indices_sparse));
  library.impl("values", TORCH_FN(at::native::values_sparse));
  library.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  library.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  library.impl("_dimI", TORCH_FN(at::native::sparse_dim_sparse));
  library.impl("_dimV", TORCH_FN(at::native::dense_dim_sparse));
  library.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  library.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  library.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  library.impl("sparse_resize_", TORCH_FN(at::native::sparse_resize_));
  library.impl("sparse_resize_and_clear_", TORCH_FN(at::native::sparse_resize_and_clear_));
  library.impl("copy_sparse_to_sparse_", TORCH_FN(at::native::copy_sparse_));
  library.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(OnItsDevice<&at::native::empty_sparse_compressed_symint>::call));
  library.impl("_sparse_compressed_tensor_with_dims", TORCH_FN(OnItsDevice<&compressed_with_dims>::call));
  library.impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
  library.impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
  library.impl("ccol_indices", TORCH_FN(at::native::ccol_indices_sparse_csr));
  library.impl("row_indices", TORCH_FN(at::native::row_indices_sparse_csr));
  library.impl("values", TORCH_FN(at::native::values_sparse_csr));
  library.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse_csr));
  library.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse_csr));
  library.impl("_nnz", TORCH_FN(at::native::_nnz_sparse_csr));
  library.impl("copy_", TORCH_FN(at::native::copy_sparse_compressed_));
}

} // namespace bringup
