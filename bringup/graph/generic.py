"""Kernels that serve every size, for ops whose kernels are long to compile: matrix products, convolutions, attention.

A graph knows its sizes, and writing them into a kernel helps fusion to see through it. A packed matrix product gains
nothing from them, and compiling it once instead of once per shape does: of ResNet-18's 94 kernels for training 46 were
convolutions that differed in sizes alone. So these ops are lowered as eager calls are, with dynamic sizes; if fusion
finds a neighbour for one of them, the sizes are written in after all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bringup.compile.kernels import ForeignKernel
from bringup.ir.index import Int, evaluate_sizes
from bringup.lowering.call import Call, Launch, Tensor, dense_strides
from bringup.lowering.symbolic import Dim, IntLike, Trace, hint_of

#: Ops that are lowered with dynamic sizes.
GENERIC = frozenset(
    f"aten::{name}"
    for name in (
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "convolution",
        "convolution_backward",
        "_scaled_dot_product_fused_attention_overrideable",
        "_scaled_dot_product_fused_attention_overrideable_backward",
    )
)


def opened(tensor: Tensor, trace: Trace, number: int) -> Tensor:
    """A tensor of the graph as an eager call would show it: every size and stride a symbol."""
    shape = tuple(trace.symbol(f"t{number}_n{d}", hint_of(size)) for d, size in enumerate(tensor.shape))
    if tensor.contiguous:
        return replace(tensor, shape=shape, strides=dense_strides(shape))
    strides = tuple(trace.symbol(f"t{number}_s{d}", hint_of(step)) for d, step in enumerate(tensor.strides))
    return replace(tensor, shape=shape, strides=strides)


def is_open(tensor: Tensor) -> bool:
    """True if the graph itself does not know a size: then guards on it would be the graph's, and it stays as it is."""
    return any(isinstance(number, Dim) for number in (*tensor.shape, *tensor.strides, tensor.offset))


def lowered_for_all_sizes(call: Call, arguments: Sequence[Any], define: Callable[[Call, Sequence[Any]], None]) -> Call:
    """Runs a lowering with dynamic sizes; its launches get the graph's numbers again."""
    trace = Trace()
    seen: dict[int, Tensor] = {}

    def open_one(value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in seen:
                seen[id(value)] = opened(value, trace, len(seen))
            return seen[id(value)]
        return [open_one(part) for part in value] if isinstance(value, list) else value

    known = len(call.temporaries)
    outs = tuple(open_one(out) for out in call.outs)
    part = Call(call.op, trace, outs, [], call.temporaries, device=call.device)
    define(part, [open_one(argument) for argument in arguments])
    call.temporaries[known:] = [_closed(tensor) for tensor in call.temporaries[known:]]
    for launch in part.launches:
        kernel = launch.kernel
        if isinstance(kernel, ForeignKernel):  # its cost is a formula over the sizes of the call
            units, flops, nbytes = (
                Int(evaluate_sizes(formula, trace.symbols)) for formula in (kernel.units, kernel.flops, kernel.bytes)
            )
            kernel = replace(kernel, units=units, flops=flops, bytes=nbytes)
        sizes = tuple(map(hint_of, launch.sizes))
        call.launches.append(Launch(kernel, tuple(map(_closed, launch.buffers)), sizes, launch.params))
    return call


def _closed(tensor: Tensor) -> Tensor:
    numbers: Callable[[Sequence[IntLike]], tuple[int, ...]] = lambda values: tuple(map(hint_of, values))  # noqa: E731
    return replace(tensor, shape=numbers(tensor.shape), strides=numbers(tensor.strides), offset=hint_of(tensor.offset))
