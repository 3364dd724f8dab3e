"""Orthogonal polynomials, whose degree is data: a recurrence of few steps, then closed forms.

Legendre's and Laguerre's have neither a bound on the degree nor a closed form: the host reads the largest degree first
(orthogonal_degrees.py).
"""

from __future__ import annotations

from typing import Any

from bringup.ir.dtypes import float64
from bringup.ir.expr import Cast, Expr, IndexValue, const
from bringup.ir.index import AxisVar
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.formulas import absolute, binary, cos, is_zero, sin, trunc, unary, where
from bringup.lowering.registry import lowering, pointwise
from bringup.lowering.scalar_types import opmath

#: Up to this degree the recurrence is as exact as the closed form.
_SMALL = 8


def _recurrence(k: KernelBuilder, y: Expr, n: Expr, first: Expr) -> Expr:
    """The polynomial of a small degree from those of degrees 0 and 1."""
    p: Expr = const(1.0, y.dtype)
    q = first
    found: Expr = where(is_zero(n), p, q)
    twice = k.let(y + y)
    for degree in range(2, _SMALL + 1):
        p, q = q, k.let(twice * q - p)
        found = k.let(where(binary("eq", n, float(degree)), q, found))
    return found


def _chebyshev(kind: str, shifted: bool) -> Any:
    """Of the kinds t, u, v, w; shifted ones are those of 2x - 1."""

    def inside(k: KernelBuilder, y: Expr, n: Expr) -> Expr:
        angle = k.let(unary("acos", y))
        if kind == "t":
            return cos(n * angle)
        if kind == "u":
            return sin((n + 1.0) * angle) / sin(angle)
        wave = cos if kind == "v" else sin
        return wave((n + 0.5) * angle) / wave(angle * 0.5)

    def beyond(k: KernelBuilder, y: Expr, n: Expr) -> Expr:
        """In float64: an error of the exponent n × angle becomes one of the result."""
        y, n = convert(y, float64), convert(n, float64)
        angle = k.let(unary("acosh", absolute(y)))
        if kind == "t":
            return unary("cosh", n * angle)
        if kind == "u":
            return unary("sinh", (n + 1.0) * angle) / unary("sinh", angle)
        high = unary("cosh", (n + 0.5) * angle) / unary("cosh", angle * 0.5)
        low = unary("sinh", (n + 0.5) * angle) / unary("sinh", angle * 0.5)
        right, left = (high, low) if kind == "v" else (low, high)
        return where(y > 0, right, left)

    def at_the_ends(y: Expr, n: Expr) -> Expr:
        """At 1 and -1, without the sign of the latter."""
        one, many = const(1.0, y.dtype), n + n + 1.0
        if kind in "tu":
            return one if kind == "t" else n + 1.0
        return where(y > 0, one, many) if kind == "v" else where(y > 0, many, one)

    def formula(k: KernelBuilder, x: Expr, n: Expr) -> Expr:
        y: Expr = k.let(x + x - 1.0) if shifted else x
        n = k.let(trunc(n))
        first = {"t": y, "u": y + y, "v": y + y - 1.0, "w": y + y + 1.0}[kind]
        small = _recurrence(k, y, n, k.let(first))
        size = k.let(absolute(y))
        large: Expr = k.let(where(binary("eq", size, 1.0), at_the_ends(y, n), convert(beyond(k, y, n), y.dtype)))
        odd = binary("ne", binary("remainder", n, 2.0), 0.0)
        large = where(size < 1.0, inside(k, y, n), where((y < 0) & odd, -large, large))
        return where(n < 0, 0.0, where(n <= float(_SMALL), small, large))

    return formula


def _hermite(step: float) -> Any:
    """The physicists' (step 2) and the probabilists' (1): degrees beyond PyTorch's limit are NaN."""

    def formula(k: KernelBuilder, x: Expr, n: Expr) -> Expr:
        limit = 128 if x.dtype.size == 4 else 512
        n = k.let(trunc(n))
        slope = k.let(x * step)

        def degree(j: AxisVar, state: tuple[Expr, ...]) -> tuple[Expr, Expr]:
            p, q = state
            d = k.let(Cast(IndexValue(j + 1), x.dtype))
            more = d < n
            return where(more, q, p), where(more, slope * q - d * step * p, q)

        one = const(1.0, x.dtype)
        _, last = k.sequential(limit - 1, (one, slope), degree)
        found = where(is_zero(n), one, where(n > float(limit), float("nan"), last))
        return where(n < 0, 0.0, found)

    return formula


def _register(name: str, formula: Any) -> None:
    pointwise(f"aten::special_{name}", formula, to="float", builder=True)
    numbers = f"aten::special_{name}.n_scalar aten::special_{name}.x_scalar"
    pointwise(numbers, formula, to="float", promote=(0, 1), builder=True)


for _kind in "tuvw":
    _register(f"chebyshev_polynomial_{_kind}", _chebyshev(_kind, shifted=False))
    _register(f"shifted_chebyshev_polynomial_{_kind}", _chebyshev(_kind, shifted=True))
_register("hermite_polynomial_h", _hermite(2.0))
_register("hermite_polynomial_he", _hermite(1.0))


@lowering("bringup::polynomial_", outputs=lambda *_: ())
def polynomial(call: Call, self: Tensor, x: Tensor, n: Tensor, degrees: Tensor, kind: str) -> None:
    """Legendre's or Laguerre's; no degree is larger than ``degrees`` has elements."""
    wide = opmath(self.dtype)

    def formula(k: KernelBuilder, x: Expr, n: Expr) -> Expr:
        n = k.let(trunc(n))
        legendre = kind == "legendre"
        first = k.let(x if legendre else 1.0 - x)
        one = const(1.0, wide)

        def step(j: AxisVar, state: tuple[Expr, ...]) -> tuple[Expr, Expr]:
            p, q = state
            d = k.let(Cast(IndexValue(j + 1), wide))
            slope = (d + d + 1.0) * x if legendre else d + d + first
            more = k.let(d < n)
            return where(more, q, p), where(more, (slope * q - d * p) / (d + 1.0), q)

        found: Expr = k.sequential(degrees.shape[0], (one, first), step)[1]
        if legendre:
            odd = binary("ne", binary("remainder", n, 2.0), 0.0)
            found = where(binary("eq", absolute(x), 1.0), where((x < 0) & odd, -1.0, one), found)
        else:
            found = where(is_zero(x), one, found)
        return where(n < 0, 0.0, where(is_zero(n), one, found))

    elementwise(call, [self], [x, n], formula, wide, "polynomial", builder=True)
