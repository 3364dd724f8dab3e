"""What a graph's nodes hold while it is lowered: tensors by their memory, numbers, and steps that are no kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from bringup.lowering.call import Memory as Memory
from bringup.lowering.call import Tensor
from bringup.lowering.symbolic import IntLike

#: PyTorch's numbers of its scalar types (c10::ScalarType), as lowerings get them for dtype arguments.
DTYPE_CODES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex32: 8,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.uint16: 27,
    torch.uint32: 28,
    torch.uint64: 29,
}
MEMORY_FORMAT_CODES = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


@dataclass(frozen=True, eq=False)
class Held:
    """A tensor of the graph: which memory, and how it lies there. Kernels see it as ``tensor``, if they can.

    Two of them are equal if they are the same object: comparing sizes would leave guards behind.
    """

    memory: Memory
    dtype: torch.dtype
    shape: tuple[IntLike, ...]
    strides: tuple[IntLike, ...]
    offset: IntLike
    on_device: bool
    tensor: Tensor | None


@dataclass(frozen=True)
class EagerCall:
    """A node that runs as an ordinary op: its arguments (with Held and sizes among them) and what it gives."""

    name: str
    target: Callable[..., Any]
    args: Any
    kwargs: Any
    results: tuple[Held | None, ...]
    #: Why it is no kernel.
    reason: str
    stack: str
    #: How many random calls of the graph come before it.
    draws: int = 0


@dataclass(frozen=True)
class NumberSource:
    """Where a number that is no constant comes from: a formula over sizes, the same with fractions (PyTorch's own
    expression), or a 0-dim tensor on the CPU."""

    formula: IntLike | None = None
    held: Held | None = None
    symbolic: torch.SymFloat | torch.SymBool | None = None


def traced_tensors(module: GraphModule) -> Iterator[torch.Tensor]:
    """What the nodes of a graph give, by Dynamo or by AOT Autograd, and those of the graphs inside it."""
    for graph in (inner.graph for inner in module.modules() if isinstance(inner, GraphModule)):
        for node in graph.nodes:
            found = tree_leaves(node.meta.get("example_value", node.meta.get("val")))
            yield from (value for value in found if isinstance(value, torch.Tensor))
