"""The flops of an op on a described chip: by formula for the expensive ones, one per element otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

#: Sizes of each tensor; None for one that is undefined or sparse.
Sizes: TypeAlias = Sequence[Sequence[int] | None]


class _Products(NamedTuple):
    """Multiply-adds: the elements of one tensor, each with so many terms.

    Of convolutions that tensor is the side with a filter per channel: the output, or the input if transposed.
    """

    terms: Literal["last", "second to last", "filter"]
    #: Which input has that dimension, or is the weight.
    factor: int
    #: Which input is counted; -1: the output.
    counted: int = -1
    flops: float = 2.0
    #: Whether a bias is added to the output.
    bias: bool = False


_EXPENSIVE = {
    **dict.fromkeys(("aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::linear"), _Products("last", 0)),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm", "aten::addmv"), _Products("last", 1, bias=True)),
    "aten::convolution": _Products("filter", 1),
    "aten::convolution_backward": _Products("filter", 2, 0, 4.0),  # gradients of input and weight
    "aten::_scaled_dot_product_fused_attention_overrideable": _Products("second to last", 1, 0, 4.0),  # q·kᵀ and p·v
}


def flops_of(op: str, inputs: Sizes, outputs: Sizes, transposed: bool) -> float:
    """Returns the flops of one call; ``transposed`` is that argument of a convolution.

    >>> flops_of("aten::mm", [(2, 3), (3, 4)], [(2, 4)], False), flops_of("aten::exp", [(2, 3)], [(2, 3)], False)
    (48.0, 6.0)
    """
    found = _EXPENSIVE.get(op)
    if found is None:
        return float(max(sum(math.prod(sizes) for sizes in side if sizes is not None) for side in (inputs, outputs)))
    factor = inputs[found.factor]
    place = found.counted + (found.terms == "filter" and transposed)
    counted = outputs[0] if place < 0 else inputs[place]
    if factor is None or counted is None:
        return 0.0
    terms: float = factor[-2] if found.terms == "second to last" else factor[-1]
    if found.terms == "filter":  # of one channel
        terms = math.prod(factor[1:])
    elements = math.prod(counted)
    return float(found.flops * elements * terms + (elements if found.bias else 0))
