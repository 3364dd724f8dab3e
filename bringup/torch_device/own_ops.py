"""Ops of bringup's own: the parts of PyTorch's ops that compiled kernels serve, under names that lowerings have."""

from __future__ import annotations

import torch

_libraries: list[torch.library.Library] = []


def define() -> None:
    """Defines them, once per process."""
    library = torch.library.Library("bringup", "FRAGMENT")
    library.define("copy_elements_(Tensor(a!) self, Tensor src) -> ()")
    # Row i: the indices of the i-th truth of a tensor, from its flat running count (lowering/ops/compaction.py).
    library.define("nonzero_(Tensor(a!) self, Tensor running, Tensor tensor) -> ()")
    # The polynomial of degree n at x; `degrees` only says by its size how large n gets (lowering/ops/orthogonal.py).
    library.define("polynomial_(Tensor(a!) self, Tensor x, Tensor n, Tensor degrees, str kind) -> ()")
    library.define(
        "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float dropout, bool causal, float scale) -> "
        "(Tensor out, Tensor logsumexp, Tensor drawn)"
    )
    library.define(
        "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor out, "
        "Tensor logsumexp, Tensor drawn, float dropout, bool causal, float scale, bool mask_gradient) -> "
        "(Tensor, Tensor, Tensor, Tensor)"
    )
    _libraries.append(library)
