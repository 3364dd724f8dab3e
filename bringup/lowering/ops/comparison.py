"""Questions about elements: comparisons, tests for NaN and infinity, choices by a condition."""

from __future__ import annotations

import math
from typing import Any

from bringup.ir.dtypes import Kind, boolean
from bringup.ir.expr import Expr, const
from bringup.lowering.builder import convert
from bringup.lowering.call import Call, NoKernel, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.formulas import binary, binary_op, false, is_nan, unary, where
from bringup.lowering.output_layout import broadcast, is_tensor
from bringup.lowering.registry import compute_type, lowering, new_output, pointwise
from bringup.lowering.scalar_types import overflow_error

for _op in ("eq", "ne", "lt", "le", "gt", "ge"):
    pointwise(f"aten::{_op}.Tensor", binary_op(_op), to="common")
    pointwise(f"aten::{_op}.Scalar", binary_op(_op), to="common", promote=(0, 1))


def _is(value: float) -> Any:
    return lambda x: binary("eq", x, value) if x.dtype.is_float else false()


pointwise("aten::isnan", is_nan)
pointwise("aten::isinf", lambda x: unary("isinf", x) if x.dtype.is_float else false())
pointwise("aten::isposinf", _is(math.inf))
pointwise("aten::isneginf", _is(-math.inf))
pointwise("aten::signbit", lambda x: unary("signbit", x) if x.dtype.kind in (Kind.FLOAT, Kind.INT) else false())


def _choose(condition: Expr, yes: Expr, no: Expr) -> Expr:
    return where(convert(condition, boolean), yes, no)


@lowering("aten::where.self")
def where_self(call: Call, condition: Any, self: Any, other: Any) -> None:
    """One of two tensors, element by element."""
    call.pointwise = True
    kind = compute_type((self, other))
    elementwise(call, call.outs, (condition, self, other), _choose, (None, kind, kind))


def _filled_outputs(self: Any, mask: Any, value: Any) -> list[Any]:
    """Contiguous, as on the CPU; PyTorch's meta kernel refuses values on the CPU and has other words for bad ones."""
    shapes = [argument[3] for argument in (mask, self) if is_tensor(argument)]
    return [new_output(self[2], broadcast(*shapes))]


@lowering("aten::masked_fill.Scalar", "aten::masked_fill.Tensor", outputs=_filled_outputs)
def masked_fill(call: Call, self: Tensor, mask: Any, value: Any) -> None:
    """A value where the mask holds."""
    if mask.dtype is not boolean or (isinstance(value, Tensor) and value.ndim != 0):
        raise NoKernel("masked_fill takes a mask of truth values and one number")
    if isinstance(value, Number) and value.tensor_dtype is not None and self.dtype.is_integer:
        high = (1 << (self.dtype.bits - (self.dtype.kind is Kind.INT))) - 1
        low = min(self.dtype.low, -high)  # a negative number wraps around in an unsigned type
        if not value > -math.inf or value < low or value > high:  # the first also of NaN
            raise overflow_error(self.dtype)
    call.pointwise = True
    kinds = (self.dtype, None, self.dtype)
    elementwise(call, call.outs, (self, mask, value), lambda x, m, fill: _choose(m, fill, x), kinds)


@lowering("aten::nan_to_num")
def nan_to_num(call: Call, self: Tensor, nan: Any, posinf: Any, neginf: Any) -> None:
    """Numbers in place of NaN and the infinities: 0 and the largest of the type by default."""
    largest = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}.get(
        self.dtype.name, 1.7976931348623157e308
    )

    def replaced(x: Expr, nan: Expr | None, high: Expr | None, low: Expr | None) -> Expr:
        if not x.dtype.is_float:
            return x
        for value, given, default in ((math.inf, high, largest), (-math.inf, low, -largest)):
            x = where(binary("eq", x, value), const(default, x.dtype) if given is None else given, x)
        return where(is_nan(x), const(0.0, x.dtype) if nan is None else nan, x)

    call.pointwise = True
    elementwise(call, call.outs, (self, nan, posinf, neginf), replaced, self.dtype)
