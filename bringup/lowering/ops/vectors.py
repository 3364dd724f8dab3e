"""Ops on vectors inside a tensor: renorm, weight norm, cross product; and histc, which counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bringup.ir.dtypes import boolean, int64
from bringup.ir.expr import AsIndex, Binary, Cast, Expr, IndexValue, Where, binary, const
from bringup.lowering.builder import convert
from bringup.lowering.call import Call, NoKernel, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.ops.folding import Elements, Reduction, fold
from bringup.lowering.ops.statistics import norm_of
from bringup.lowering.registry import lowering, new_output
from bringup.lowering.scalar_types import BY_CODE, CODE_OF, opmath
from bringup.lowering.symbolic import IntLike

States = tuple[Expr, ...]


def _others(x: Tensor, dim: int) -> tuple[int, list[int]]:
    """A dimension, and all the others."""
    dim = dim % x.ndim
    return dim, [d for d in range(x.ndim) if d != dim]


def _kept(shape: Sequence[IntLike], dim: int) -> list[IntLike]:
    return [extent if d == dim else 1 for d, extent in enumerate(shape)]


@lowering("aten::renorm")
def renorm(call: Call, self: Tensor, p: Number, dim: int, maxnorm: Number) -> None:
    """Slices along a dimension whose norm is above the limit are scaled down to it."""
    wide = opmath(self.dtype)
    if not -self.ndim <= dim < self.ndim:  # the meta kernel takes it
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-self.ndim}, {self.ndim - 1}], but got {dim})"
        )
    dim, others = _others(self, dim)
    norms = call.temporary(wide, _kept(self.shape, dim))
    norm_of(call, [self], lambda x: convert(x, wide), p, others, True, [norms])

    def formula(x: Expr, norm: Expr, limit: Expr) -> Expr:
        return Where(norm > limit, x * (limit / (norm + 1e-7)), x)

    elementwise(call, call.outs, [self, norms, maxnorm], formula, wide)


def _outputs_of_weight_norm(v: Any, g: Any, *_: object) -> list[Any]:
    """The outputs of the CPU: norms of halves are float32, where the meta kernel says so of bfloat16 alone."""
    _, _, code, sizes, strides, _ = g
    return [new_output(v[2], v[3]), ("new", CODE_OF[opmath(BY_CODE[code])], sizes, strides)]


@lowering("aten::_weight_norm_interface", outputs=_outputs_of_weight_norm)
def weight_norm(call: Call, v: Tensor, g: Tensor, dim: int) -> None:
    """v g / |v|, and |v|, the norm over all other dimensions."""
    w, norms = call.outs
    wide = opmath(v.dtype)
    dim, others = _others(v, dim)
    norm_of(call, [v], lambda x: convert(x, wide), None, others, True, [norms])
    elementwise(call, [w], [v, g, norms], lambda x, size, norm: x * (size / norm), wide)


@lowering("aten::_weight_norm_interface_backward")
def weight_norm_backward(
    call: Call, grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> None:
    """grad_g = s / |v| and grad_v = g / |v| (grad - v s / |v|²), where s = sum of grad v."""
    grad_v, grad_g = call.outs
    wide = opmath(saved_v.dtype)
    dim, others = _others(saved_v, dim)
    sums = call.temporary(wide, _kept(saved_v.shape, dim))

    def part(piece: Elements) -> States:
        return (piece.reduce(lambda *j: convert(piece(*j), wide) * convert(piece.of(1, *j), wide)),)

    fold(call, [grad_w, saved_v], others, True, Reduction(part, "add"), [sums])
    elementwise(call, [grad_g], [sums, saved_norms], lambda s, norm: s / norm, wide)

    def formula(grad: Expr, v: Expr, g: Expr, norm: Expr, s: Expr) -> Expr:
        return g / norm * (grad - v * (s / (norm * norm)))

    elementwise(call, [grad_v], [grad_w, saved_v, saved_g, saved_norms, sums], formula, wide)


@lowering("aten::linalg_cross")
def cross(call: Call, self: Tensor, other: Tensor, dim: int) -> None:
    """The cross product along a dimension of 3: a kernel for each component."""
    (out,) = call.outs
    dim = dim % out.ndim
    a, b = self.expand(out.shape), other.expand(out.shape)
    for c in range(3):
        first, second = (c + 1) % 3, (c + 2) % 3
        parts = [a.select(dim, first), b.select(dim, second), a.select(dim, second), b.select(dim, first)]
        elementwise(call, [out.select(dim, c)], parts, lambda p, q, r, s: p * q - r * s, opmath(out.dtype))


@lowering("aten::histc")
def histc(call: Call, self: Tensor, bins: int, min: Number, max: Number) -> None:
    """How many elements fall into each of some equal bins; an empty range is that of the elements."""
    (out,) = call.outs
    x = self
    if x.dtype is boolean:
        raise NoKernel("histc has no kernel for bool")
    wide = opmath(x.dtype) if x.dtype.is_float else int64  # integers are CUDA's: the CPU has none
    given = min.known(), max.known()
    if not all(map(math.isfinite, given)):
        raise RuntimeError("torch.histc: range of [{:g}, {:g}] is not finite".format(*given))
    own_range = given[0] == given[1]
    low, high = call.temporary(wide, []), call.temporary(wide, [])
    if own_range:
        for op, memory in (("min", low), ("max", high)):

            def part(piece: Elements, op: str = op) -> States:
                return (piece.reduce(lambda *j: convert(piece(*j), wide), op),)

            fold(call, [x], range(x.ndim), False, Reduction(part, op), [memory])
    # Counted in float32 and rounded once: a bfloat16 that holds 256 stays 256 when one is added.
    counts = out if wide is out.dtype else call.temporary(wide, out.shape)
    elementwise(call, [counts], [], lambda: const(0, wide), [])
    k = call.kernel()
    i = [k.grid(extent) for extent in x.shape]
    value = k.let(convert(k.read(x).at(*i), wide))
    ends: States = (k.number(min, wide), k.number(max, wide))
    if own_range:
        ends = (k.read(low).at(), k.read(high).at())
        flat = Binary("eq", *ends)
        ends = (Where(flat, ends[0] - 1, ends[0]), Where(flat, ends[1] + 1, ends[1]))
    start, stop = (k.let(end) for end in ends)
    count = Cast(IndexValue(k.size(bins)), wide)
    divided = binary("div" if wide.is_float else "floordiv", (value - start) * count, stop - start)
    place = binary("min", convert(divided, int64), bins - 1)
    inside = (value >= start) & (value <= stop)
    k.store(
        k.update(counts, [bins]), (AsIndex(place, k.size(bins), "check"),), const(1, wide), "ordered", "add", inside
    )
    k.launch()
    if counts is not out:
        elementwise(call, [out], [counts], lambda count: count, wide)
