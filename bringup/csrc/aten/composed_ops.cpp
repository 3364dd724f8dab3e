// Ops of our own that bringup/lowering/composed.py is made of: kernels whose sizes the host has read back before.
#include <torch/library.h>

namespace bringup {

TORCH_LIBRARY_FRAGMENT(bringup, library) {
  // Row i of self: the indices of the i-th truth of a tensor, from its flat running count (lowering/compaction.py).
  library.def("nonzero_(Tensor(a!) self, Tensor running, Tensor tensor) -> ()");
  // The polynomial of degree n at x; `degrees` only says by its size how large n gets (lowering/orthogonal.py).
  library.def("polynomial_(Tensor(a!) self, Tensor x, Tensor n, Tensor degrees, str kind) -> ()");
}

} // namespace bringup
