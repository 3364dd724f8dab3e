"""Integers and truth values: bits, shifts, logic, common divisors."""

from __future__ import annotations

import math
from typing import Any

from bringup.ir.dtypes import int32
from bringup.ir.expr import Expr
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import NoKernel
from bringup.lowering.formulas import absolute, binary, binary_op, is_zero, unary, where
from bringup.lowering.output_layout import promoted_output
from bringup.lowering.registry import pointwise

_BOTH = (0, 1)

pointwise("aten::bitwise_not", lambda x: unary("not", x))
for _op in ("and", "or", "xor"):
    pointwise(f"aten::bitwise_{_op}.Tensor", binary_op(_op))
    pointwise(f"aten::bitwise_{_op}.Scalar aten::bitwise_{_op}.Scalar_Tensor", binary_op(_op), promote=_BOTH)
    pointwise(f"aten::logical_{_op}", binary_op(_op), to="bool")
pointwise("aten::logical_not", lambda x: unary("not", x), to="bool")

for _op, _way in (("shl", "left"), ("shr", "right")):
    _base, _sign = f"aten::bitwise_{_way}_shift", f"aten::__{_way[0]}shift__"
    pointwise(f"{_base}.Tensor", binary_op(_op))
    pointwise(f"{_base}.Tensor_Scalar {_base}.Scalar_Tensor", binary_op(_op), promote=_BOTH)
    # PyTorch's meta kernel refuses bool << 1, which the CPU takes as integers.
    pointwise(f"{_sign}.Tensor", binary_op(_op), outputs=promoted_output)
    pointwise(f"{_sign}.Scalar", binary_op(_op), promote=_BOTH, outputs=promoted_output)


def _gcd(k: KernelBuilder, x: Expr, y: Expr) -> Expr:
    """Euclid's algorithm, as many steps as the longest run of the type takes (Fibonacci numbers)."""
    if not x.dtype.is_integer:
        raise NoKernel(f"gcd of {x.dtype}")
    steps = math.ceil(1.4405 * x.dtype.bits) + 1

    def step(_: Any, state: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        a, b = state
        done = is_zero(b)
        return where(done, a, b), where(done, b, binary("fmod", a, b))

    return k.sequential(steps, (absolute(x), absolute(y)), step)[0]


def _lcm(k: KernelBuilder, x: Expr, y: Expr) -> Expr:
    """|x / gcd × y|; the product of small types in int32, as C has it."""
    divisor = _gcd(k, x, y)
    wide = int32 if x.dtype.size < 4 else x.dtype
    multiple = absolute(convert(binary("truncdiv", x, divisor), wide) * convert(y, wide))
    return where(is_zero(divisor), 0, convert(multiple, x.dtype))


pointwise("aten::gcd", _gcd, builder=True)
pointwise("aten::lcm", _lcm, builder=True)
