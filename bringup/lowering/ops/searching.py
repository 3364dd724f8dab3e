"""Where a value belongs in a sorted sequence (searchsorted, bucketize), and whether it is among some (isin)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bringup.ir.dtypes import DType, boolean, int32, int64
from bringup.ir.expr import AsIndex, Expr, IndexValue, Load, const
from bringup.ir.index import AxisVar
from bringup.ir.kernel import Buffer
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, Number, Tensor
from bringup.lowering.elementwise import common_loops
from bringup.lowering.formulas import binary, false, minimum, unary, where
from bringup.lowering.ops.movement import dense
from bringup.lowering.ops.radix import ordered
from bringup.lowering.output_layout import is_tensor
from bringup.lowering.registry import compute_type, lowering, new_output
from bringup.lowering.scalar_types import CODE_OF
from bringup.lowering.symbolic import IntLike

#: From so many test elements on, isin looks among them by bisection: 1,000 comparisons of 16 lanes take as long.
_MANY = 1024


def _bits(extent: IntLike) -> int:
    """Steps of a bisection: one of a few numbers, so that few kernels serve all lengths."""
    return next(bits for bits in (4, 8, 12, 16, 20, 24, 32, 40, 63) if extent < 1 << bits)


def bisected(
    k: KernelBuilder,
    sequence: Buffer,
    row: tuple[AxisVar, ...],
    extent: IntLike,
    value: Expr,
    right: bool,
    order: Buffer | None,
    numbers: bool = False,
) -> Expr:
    """How many elements come before the value: binary digits of the answer, the highest first.

    As ATen's, that passes a NaN among the elements; with ``numbers`` it stops there, as they are last in order.
    """
    bits, length = _bits(extent), k.size(extent)
    before = "gt" if right else "ge"

    def step(j: AxisVar, state: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        position, stride = state
        candidate = k.let(position + stride)
        place = AsIndex(candidate - 1, length, "skip")
        if order is not None:
            place = AsIndex(k.let(Load(order.name, (*row, place), int64)), length, "skip")
        element = convert(Load(sequence.name, (*row, place), sequence.dtype), value.dtype)
        inside = candidate <= IndexValue(length)
        passed = binary("lt", element, value) if numbers else unary("not", binary(before, element, value))
        taken = inside & passed
        return where(taken, candidate, position), binary("shr", stride, 1)

    zero, half = const(0, int64), const(1 << (bits - 1), int64)
    return k.sequential(bits, (zero, half), step)[0]


def _search(call: Call, sequence: Tensor, values: Any, right: bool, order: Tensor | None = None) -> None:
    kind: DType = compute_type((sequence, values), (0, 1))
    extent = sequence.shape[-1]
    k = call.kernel()
    row: tuple[AxisVar, ...] = ()
    shape = sequence.shape
    if isinstance(values, Number) or sequence.ndim == 1:
        axes, views = common_loops(k, [*call.outs, *([values] if isinstance(values, Tensor) else [])])
    else:
        views = [call.outs[0].view(values.shape, call.outs[0].strides), values]
        axes = tuple(k.grid(size) for size in values.shape)
        row, shape = axes[:-1], (*values.shape[:-1], extent)
    y = k.write(views[0])
    value = _value(k, values, axes, views, kind)
    sorter = k.read(order, shape) if order is not None else None
    k.store(y, axes, bisected(k, k.read(sequence, shape), row, extent, value, right, sorter))
    k.launch()


def _value(k: KernelBuilder, operand: Any, axes: tuple[AxisVar, ...], views: list[Tensor], kind: DType) -> Expr:
    if isinstance(operand, Number):
        return k.number(operand, kind)
    return k.let(convert(k.read(views[1]).at(*axes), kind))


@lowering("aten::searchsorted.Tensor", "aten::searchsorted.Scalar")
def searchsorted(
    call: Call,
    sorted_sequence: Tensor,
    values: Any,
    out_int32: bool,
    right: bool,
    side: str | None,
    sorter: Tensor | None,
) -> None:
    """Along the last dimension; rows of values have their own sequence unless there is only one."""
    _search(call, sorted_sequence, values, right or side == "right", sorter)


def _bucketize_outputs(values: Any, boundaries: Any, out_int32: bool, right: bool) -> list[Any]:
    """As the CPU does; PyTorch's meta kernel is Python, and its complaint is an AssertionError without words."""
    if len(boundaries[3]) != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({len(boundaries[3])})")
    return [new_output(CODE_OF[int32 if out_int32 else int64], values[3] if values[0] == "t" else ())]


@lowering("aten::bucketize.Tensor", "aten::bucketize.Scalar", outputs=_bucketize_outputs)
def bucketize(call: Call, self: Any, boundaries: Tensor, out_int32: bool, right: bool) -> None:
    """Searchsorted with the values first."""
    _search(call, boundaries, self, right)


def _isin_outputs(elements: Any, *_: Any) -> list[Any]:
    """Truth values in the shape of the elements; of one number PyTorch's meta kernel says that there are none."""
    return [new_output(CODE_OF[boolean], elements[3] if is_tensor(elements) else ())]


@lowering("aten::isin.Tensor_Tensor", "aten::isin.Tensor_Scalar", "aten::isin.Scalar_Tensor", outputs=_isin_outputs)
def isin(call: Call, elements: Any, tests: Any, assume_unique: bool, invert: bool) -> None:
    """Compares every element with every test element, in vectors of elements; many test elements are sorted first."""
    for given in (elements, tests):
        if given.dtype is boolean:
            raise RuntimeError("Unsupported input type encountered for isin(): Bool")
    kind = compute_type((elements, tests), (0, 1))
    # The CPU makes a tensor of a number: 300 is 44 among uint8.
    elements, tests = (replace(x, wraps=True) if isinstance(x, Number) else x for x in (elements, tests))
    in_order: Tensor | None = None
    if isinstance(tests, Tensor) and tests.numel >= _MANY:
        line = dense(call, tests).view((1, tests.numel), (tests.numel, 1))
        in_order = ordered(call, line, False, line.shape[1])[0].view((tests.numel,), (1,))
    k = call.kernel()
    axes, views = common_loops(k, [*call.outs, *([elements] if isinstance(elements, Tensor) else [])])
    y = k.write(views[0])
    value = _value(k, elements, axes, views, kind)
    if isinstance(tests, Number):
        found = binary("eq", value, k.number(tests, kind))
    elif in_order is not None:
        sequence, size = k.read(in_order), k.size(tests.numel, low=1)
        place = k.let(minimum(bisected(k, sequence, (), tests.numel, value, False, None, True), IndexValue(size) - 1))
        found = binary("eq", value, convert(sequence[AsIndex(place, size, "skip")], kind))
    else:
        among = k.read(tests)
        found = k.reduce(
            tests.shape or [1],
            lambda *j: binary("eq", value, convert(among.at(*(j if tests.ndim else ())), kind)),
            "or",
            false(),
            lanes=1,
        )
    k.store(y, axes, unary("not", found) if invert else found)
    k.launch()
