"""Fills, copies, sequences of numbers and triangles: what is stored depends on the place, or on nothing."""

from __future__ import annotations

from typing import Any

from bringup.ir.dtypes import DType, boolean, float64, int64
from bringup.ir.expr import Cast, Expr, IndexValue, const
from bringup.ir.index import AxisVar
from bringup.lowering.builder import KernelBuilder
from bringup.lowering.call import Call, NoKernel, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.formulas import binary, where
from bringup.lowering.loops import in_memory_order, merged
from bringup.lowering.registry import lowering, pointwise
from bringup.lowering.scalar_types import opmath

pointwise("aten::clone", lambda x, memory_format: x, to="common")

# ---- one number everywhere ----


def _constant(value: int) -> Any:
    def lower(call: Call, *_: Any) -> None:
        call.pointwise = True
        elementwise(call, call.outs, (), lambda: const(value, call.outs[0].dtype), call.outs[0].dtype)

    return lower


lowering("aten::zero", "aten::zeros_like")(_constant(0))
lowering("aten::ones_like")(_constant(1))


@lowering("aten::fill.Scalar", "aten::fill.Tensor", "aten::full_like")
def fill(call: Call, self: Tensor, value: Number | Tensor, *_: Any) -> None:
    """The value at every place, in the type of the result."""
    call.pointwise = not isinstance(value, Tensor)
    elementwise(call, call.outs, (value,), lambda fill: fill, call.outs[0].dtype)


# ---- numbers that follow from the place ----


def _sequence(call: Call, formula: Any) -> None:
    """out[i] = formula(k, i)."""
    (out,) = call.outs
    if out.ndim != 1:
        raise NoKernel(f"{call.op} into {out.ndim} dimensions")
    k = call.kernel()
    y = k.write(out)
    i = k.grid(out.shape[0])
    k.store(y, (i,), formula(k, i))
    k.launch()


def _position(index: Any, dtype: DType) -> Expr:
    return Cast(IndexValue(index), dtype)


def _arange(call: Call, start: Number | int, end: Number, step: Number | int, *_: Any) -> None:
    # How many there are is known only with the numbers: this plan serves no others.
    for number in (start, end, step):
        if isinstance(number, Number):
            number.known()
    arange_elements(call, start, step)


def arange_elements(call: Call, start: Number | int, step: Number | int) -> None:
    """The numbers of an arange whose output says how many there are."""
    dtype = call.outs[0].dtype
    if dtype is boolean:
        raise NoKernel(f"{call.op} has no kernel for bool")
    wide = opmath(dtype) if dtype.is_half else float64 if dtype.is_float else int64

    def formula(k: KernelBuilder, i: AxisVar) -> Expr:
        first = k.number(start, wide) if isinstance(start, Number) else const(start, wide)
        by = k.number(step, wide) if isinstance(step, Number) else const(step, wide)
        return first + by * _position(i, wide)

    _sequence(call, formula)


@lowering("aten::arange", "aten::arange.out")
def arange(call: Call, end: Number, *_: Any) -> None:
    """0, 1, … below the end."""
    _arange(call, 0, end, 1)


@lowering("aten::arange.start")
def arange_start(call: Call, start: Number, end: Number, *_: Any) -> None:
    """From a start."""
    _arange(call, start, end, 1)


lowering("aten::arange.start_step", "aten::arange.start_out")(_arange)


@lowering("aten::linspace", "aten::linspace.out")
def linspace(call: Call, start: Number, end: Number, steps: int, *_: Any) -> None:
    """Evenly from the start to the end; the second half counts from the end, so that both ends are exact."""
    _sequence(call, lambda k, i: _even_steps(k, i, call.outs[0], start, end))


@lowering("aten::logspace", "aten::logspace.out")
def logspace(call: Call, start: Number, end: Number, steps: int, base: Number, *_: Any) -> None:
    """The base to the power of even steps."""
    dtype = call.outs[0].dtype
    if not dtype.is_float:
        raise NoKernel(f"logspace of {dtype}: PyTorch rounds each power its own way")
    _sequence(
        call,
        lambda k, i: binary("pow", k.number(base, opmath(dtype)), _even_steps(k, i, call.outs[0], start, end)),
    )


def _even_steps(k: KernelBuilder, i: AxisVar, out: Tensor, start: Number, end: Number) -> Expr:
    wide = opmath(out.dtype) if out.dtype.is_float else float64
    extent = k.size(out.shape[0])
    first, last = k.number(start, wide), k.number(end, wide)
    if out.shape[0] == 1:
        return first
    step = k.let((last - first) / _position(extent - 1, wide))
    early = binary("lt", IndexValue(i), IndexValue(k.size(out.shape[0] // 2)))
    return where(early, first + step * _position(i, wide), last - step * _position(extent - 1 - i, wide))


@lowering("aten::eye.out", "aten::eye.m_out")
def eye(call: Call, *_: Any) -> None:
    """1 on the diagonal."""
    (out,) = call.outs
    k = call.kernel()
    y = k.write(out)
    i, j = k.grid(out.shape[0]), k.grid(out.shape[1])
    k.store(y, (i, j), Cast(binary("eq", IndexValue(i), IndexValue(j)), out.dtype))
    k.launch()


# ---- triangles ----


def _triangle(relation: str) -> Any:
    def lower(call: Call, self: Tensor, diagonal: int) -> None:
        (out,) = call.outs
        k = call.kernel()
        batch = merged(
            in_memory_order([(out.shape[d], (out.strides[d], self.strides[d])) for d in range(out.ndim - 2)])
        )
        shape = [*(extent for extent, _ in batch), *out.shape[-2:]]
        y = k.write(out.view(shape, [*(s[0] for _, s in batch), *out.strides[-2:]]))
        x = k.read(self.view(shape, [*(s[1] for _, s in batch), *self.strides[-2:]]))
        axes = tuple(k.grid(extent) for extent in shape)
        kept = binary(relation, IndexValue(axes[-1] - axes[-2]), diagonal)
        k.store(y, axes, where(kept, x.at(*axes), const(0, x.dtype)))
        k.launch()
        call.pointwise = True

    return lower


lowering("aten::tril")(_triangle("le"))
lowering("aten::triu")(_triangle("ge"))
