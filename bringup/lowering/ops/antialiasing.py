"""Resizing with antialiasing: a filter as wide as the reduction, one dimension after the other, last one first."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from bringup.ir.dtypes import DType, int64
from bringup.ir.expr import AsIndex, Binary, Cast, Expr, IndexValue, Where, binary, const, unary
from bringup.ir.index import AxisVar
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, NoKernel, Number, Tensor
from bringup.lowering.ops.image_loops import grid_by_memory
from bringup.lowering.ops.resampling import source_scale
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike, larger


def triangle(x: Expr) -> Expr:
    """1 - |x|, at least 0."""
    return binary("max", 1.0 - unary("abs", x), 0.0)


def cubic(x: Expr) -> Expr:
    """Cubic convolution with A = -0.5, as PIL."""
    a, x = -0.5, unary("abs", x)
    near = (x * (a + 2) - (a + 3)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return Where(x < 1.0, near, Where(x < 2.0, far, const(0.0, x.dtype)))


def lanczos(x: Expr) -> Expr:
    """sinc(x)·sinc(x / 3) for -3 ≤ x < 3."""

    def sinc(y: Expr) -> Expr:
        turned = y * math.pi
        return Where(Binary("eq", y, const(0.0, y.dtype)), const(1.0, y.dtype), unary("sin", turned) / turned)

    inside = Binary("and", x >= -3.0, x < 3.0)
    return Where(inside, sinc(x) * sinc(x / 3.0), const(0.0, x.dtype))


@dataclass(frozen=True)
class Filter:
    """A filter and half its width, in elements of the input where that is not reduced."""

    value: Callable[[Expr], Expr]
    half: int


class Line:
    """One dimension: for output u the first input element, how many there are, and their weights before scaling."""

    def __init__(
        self,
        k: KernelBuilder,
        form: Filter,
        source: IntLike,
        result: IntLike,
        align: bool,
        scale: Number | None,
        wide: DType,
    ) -> None:
        self.k, self.form, self.wide, self.inputs = k, form, wide, k.size(source)
        self.scale = k.let(source_scale(k, source, result, align, scale, wide))
        reduced = self.scale >= 1.0
        self.support = k.let(Where(reduced, self.scale * float(form.half), const(float(form.half), wide)))
        self.inverse = k.let(Where(reduced, const(1.0, wide) / self.scale, const(1.0, wide)))

    def center(self, u: Expr) -> Expr:
        """Where the filter is centred."""
        return self.scale * (Cast(u, self.wide) + 0.5)

    def range(self, u: Expr) -> tuple[Expr, Expr]:
        """The first input element, and the one after the last."""
        center = self.center(u)
        first = Cast(center - self.support + 0.5, int64)
        end = Cast(center + self.support + 0.5, int64)
        return binary("max", first, 0), binary("min", end, IndexValue(self.inputs))

    def weight(self, u: Expr, at: Expr) -> Expr:
        """The filter at an input element."""
        return self.form.value(self.k.let((Cast(at, self.wide) - self.center(u) + 0.5) * self.inverse))


def most_taps(form: Filter, source: IntLike, result: IntLike, align: bool, scale: Number | None) -> IntLike:
    """No output needs more input elements than this."""
    if scale is not None and not align:
        return max(math.ceil(form.half / scale.known()), form.half) * 2 + 2
    if align:
        source, result = source - 1, larger(result - 1, 1)
    return larger((form.half * source + result - 1) // result, form.half) * 2 + 2


def totals_of(
    call: Call, form: Filter, source: IntLike, result: IntLike, align: bool, scale: Number | None, wide: DType
) -> Tensor:
    """The sum of the weights of every output along one dimension."""
    totals = call.temporary(wide, [result])
    k = call.kernel()
    line = Line(k, form, source, result, align, scale, wide)
    u = k.grid(result)
    first, end = (k.let(part) for part in line.range(IndexValue(u)))

    def body(r: AxisVar) -> Expr:
        at = first + IndexValue(r)
        return Where(Binary("lt", at, end), line.weight(IndexValue(u), at), const(0.0, wide))

    k.store(k.write(totals), (u,), k.reduce(most_taps(form, source, result, align, scale), body, lanes=1))
    k.launch()
    return totals


def stretch(call: Call, out: Tensor, x: Tensor, dim: int, form: Filter, align: bool, scale: Number | None) -> None:
    """Resizes one dimension."""
    source, result, wide = x.shape[dim], out.shape[dim], opmath(x.dtype)
    totals = totals_of(call, form, source, result, align, scale, wide)
    k = call.kernel()
    line = Line(k, form, source, result, align, scale, wide)
    axes = grid_by_memory(k, out)
    shape = (*out.shape[:dim], source, *out.shape[dim + 1 :])
    values, total, y = k.read(x, shape), k.read(totals, (result,)), k.write(out)
    u = axes[dim]
    first, end = (k.let(part) for part in line.range(IndexValue(u)))

    def body(r: AxisVar) -> Expr:
        at = first + IndexValue(r)
        inside = Binary("lt", at, end)
        place = AsIndex(Where(inside, at, const(-1, int64)), line.inputs, "skip")
        value = convert(values.at(*axes[:dim], place, *axes[dim + 1 :]), wide)
        return Where(inside, line.weight(IndexValue(u), at), const(0.0, wide)) * value

    found = k.reduce(most_taps(form, source, result, align, scale), body, lanes=1)
    k.store(y, axes, found / total[u])
    k.launch()


def shrink_back(
    call: Call, out: Tensor, grad: Tensor, dim: int, form: Filter, align: bool, scale: Number | None
) -> None:
    """The gradient along one dimension: every input element looks up the outputs whose filter reaches it."""
    source, result, wide = out.shape[dim], grad.shape[dim], opmath(out.dtype)
    totals = totals_of(call, form, source, result, align, scale, wide)
    most_taps(form, source, result, align, scale)
    k = call.kernel()
    line = Line(k, form, source, result, align, scale, wide)
    axes = grid_by_memory(k, out)
    outputs = k.size(result)
    shape = (*out.shape[:dim], result, *out.shape[dim + 1 :])
    values, total, y = k.read(grad, shape), k.read(totals, (result,)), k.write(out)
    h = axes[dim]
    # One element of slack on either side: the exact ends are asked below.
    lowest = (Cast(IndexValue(h), wide) - line.support - 1.0) / line.scale - 1.0
    first = k.let(binary("min", binary("max", Cast(unary("floor", lowest), int64), 0), IndexValue(outputs)))
    reach = 2 * form.half + 2
    count = reach + 6 + (reach * result) // source

    def body(t: AxisVar) -> Expr:
        at = k.let(first + IndexValue(t))
        u = AsIndex(at, outputs, "skip")
        begin, end = line.range(at)
        here = IndexValue(h)
        reached = Binary("and", Binary("ge", here, begin), Binary("lt", here, end))
        reached = Binary("and", reached, Binary("lt", at, IndexValue(outputs)))
        value = convert(values.at(*axes[:dim], u, *axes[dim + 1 :]), wide)
        return Where(reached, line.weight(at, here) / total[u] * value, const(0.0, wide))

    k.store(y, axes, k.reduce(count, body, lanes=1))
    k.launch()


def _register(name: str, form: Filter) -> None:
    def forward(call: Call, self: Tensor, output_size: list[int], align: bool, *scales: Number | None) -> None:
        if not self.dtype.is_float:
            raise NoKernel(f"{call.op} has no kernel for {self.dtype}")
        (out,) = call.outs
        wide = call.temporary(opmath(self.dtype), (*out.shape[:2], self.shape[2], out.shape[3]))
        stretch(call, wide, self, 3, form, align, scales[1])
        stretch(call, out, wide, 2, form, align, scales[0])

    def backward(call: Call, grad: Tensor, to: list[int], of: list[int], align: bool, *scales: Number | None) -> None:
        (out,) = call.outs
        wide = call.temporary(opmath(out.dtype), (*out.shape[:3], grad.shape[3]))
        shrink_back(call, wide, grad, 2, form, align, scales[0])
        shrink_back(call, out, wide, 3, form, align, scales[1])

    lowering(f"aten::{name}")(forward)
    lowering(f"aten::{name}_backward")(backward)


_register("_upsample_bilinear2d_aa", Filter(triangle, 1))
_register("_upsample_bicubic2d_aa", Filter(cubic, 2))
_register("_upsample_lanczos2d_aa", Filter(lanczos, 3))
