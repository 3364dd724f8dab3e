"""Variances, norms, distances and logsumexp: reductions with a state that is more than a sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bringup.ir.dtypes import DType, boolean
from bringup.ir.expr import Binary, Expr, Where, binary, const, unary
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, Number, Tensor
from bringup.lowering.ops.folding import Elements, Reduction, fold
from bringup.lowering.reduction import normalized_dims
from bringup.lowering.registry import Lowering, lowering
from bringup.lowering.scalar_types import opmath

States = tuple[Expr, ...]

# ---- variance ----


def moments(piece: Elements, wide: DType, sums: DType | None = None) -> States:
    """(count, mean, sum of squared deviations): two passes, the second over deviations from the mean of the first.

    The sum for the mean is of the type ``sums``, the wide one by default.
    """
    count = piece.k.let(piece.number(wide))
    total = piece.reduce(lambda *j: convert(piece(*j), sums or wide))
    mean = piece.k.let(convert(total / piece.number(sums or wide), wide))

    def squared(*j: Any) -> Expr:
        deviation = convert(piece(*j), wide) - mean
        return deviation * deviation

    return count, mean, piece.reduce(squared)


def merge_moments(left: States, right: States) -> States:
    """The moments of two sets together (Chan, Golub, LeVeque); a set may be empty, its mean is then any number."""
    (n, mean, squares), (m, other, more) = left, right
    total = n + m
    share = Where(Binary("eq", m, const(0, m.dtype)), const(0, m.dtype), m / total)
    apart = Where(Binary("eq", m, const(0, m.dtype)), const(0, m.dtype), other - mean)
    return (
        total,
        Where(Binary("eq", n, const(0, n.dtype)), other, mean + apart * share),
        Where(Binary("eq", n, const(0, n.dtype)), more, squares + more + apart * apart * share * n),
    )


def _variance(root: bool, mean: bool) -> Lowering:
    def lower(call: Call, self: Tensor, dim: Any, correction: Number | None, keepdim: bool) -> None:
        wide = opmath(self.dtype)

        def finish(k: KernelBuilder, states: States) -> States:
            count, middle, squares = states
            less = const(1, wide) if correction is None else k.number(correction, wide)
            divisor = binary("max", count - less, 0)
            variance = squares / divisor
            value = unary("sqrt", variance) if root else variance
            return (value, middle) if mean else (value,)

        definition = Reduction(lambda piece: moments(piece, wide), merge_moments, (0, 0, 0), finish)
        fold(call, [self], normalized_dims(dim, self.ndim), keepdim, definition)

    return lower


lowering("aten::var.correction")(_variance(root=False, mean=False))
lowering("aten::std.correction")(_variance(root=True, mean=False))
lowering("aten::var_mean.correction")(_variance(root=False, mean=True))
lowering("aten::std_mean.correction")(_variance(root=True, mean=True))

# ---- norms ----


def norm_of(
    call: Call,
    inputs: Sequence[Tensor],
    element: Callable[..., Expr],
    p: Number | None,
    dims: Sequence[int],
    keepdim: bool,
    outs: Sequence[Tensor] | None = None,
) -> None:
    """The p-norm of ``element(inputs…)``, values of the wide type, over some dimensions; no p is 2."""
    of, op, root = norm_parts(p)

    def part(piece: Elements) -> States:
        def size(*j: Any) -> Expr:
            return of(piece.k, unary("abs", element(*(piece.of(n, *j) for n in range(len(inputs))))))

        return (piece.reduce(size, op, 0.0 if op == "max" else None),)

    fold(
        call,
        inputs,
        dims,
        keepdim,
        Reduction(part, op, (0,) if op == "max" else None, lambda k, s: (root(k, s[0]),)),
        outs,
    )


InKernel = Callable[[KernelBuilder, Expr], Expr]


def norm_parts(p: Number | None) -> tuple[InKernel, str, InKernel]:
    """A p-norm in parts: what each |x| adds, how those combine, and the root of the result."""

    def itself(k: KernelBuilder, x: Expr) -> Expr:
        return x

    if p is None or p.equals(2):
        return lambda k, x: x * x, "add", lambda k, x: unary("sqrt", x)
    if p.equals(1):
        return itself, "add", itself
    if p.equals(0):
        return lambda k, x: convert(convert(x, boolean), x.dtype), "add", itself
    if p.equals(float("inf")):
        return itself, "max", itself
    if p.equals(float("-inf")):
        return itself, "min", itself
    return (
        lambda k, x: binary("pow", x, k.number(p, x.dtype)),
        "add",
        lambda k, x: binary("pow", x, const(1, x.dtype) / k.number(p, x.dtype)),
    )


@lowering("aten::linalg_vector_norm", "aten::norm.ScalarOpt_dim", "aten::norm.ScalarOpt_dim_dtype")
def vector_norm(call: Call, self: Tensor, p: Number | None, dim: Any, keepdim: bool, dtype: int | None = None) -> None:
    """The norm of everything, or over some dimensions."""
    wide = opmath(call.outs[0].dtype)
    norm_of(call, [self], lambda value: convert(value, wide), p, normalized_dims(dim, self.ndim), keepdim)


@lowering("aten::norm.Scalar", "aten::norm.ScalarOpt_dtype")
def norm_all(call: Call, self: Tensor, p: Number | None, dtype: int | None = None) -> None:
    """The norm of everything."""
    vector_norm(call, self, p, None, False)


@lowering("aten::dist")
def dist(call: Call, self: Tensor, other: Tensor, p: Number) -> None:
    """The norm of a difference."""
    wide = opmath(call.outs[0].dtype)
    a, b = broadcast_pair(self, other)
    norm_of(call, [a, b], lambda x, y: convert(x, wide) - convert(y, wide), p, range(a.ndim), False)


def broadcast_pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors expanded to one shape."""
    ndim = max(a.ndim, b.ndim)
    left = (*(1 for _ in range(ndim - a.ndim)), *a.shape)
    right = (*(1 for _ in range(ndim - b.ndim)), *b.shape)
    shape = [y if x == 1 else x for x, y in zip(left, right)]
    return a.expand(shape), b.expand(shape)


# ---- logsumexp ----


def finite_or_zero(x: Expr) -> Expr:
    """What a maximum may be subtracted as: infinities would make NaN of inf - inf."""
    return Where(unary("isinf", x), const(0, x.dtype), x)


def merge_log_sums(left: States, right: States) -> States:
    """(maximum, sum of exp(x - maximum)) of two sets together."""
    (a, total), (b, more) = left, right
    peak = binary("max", a, b)
    shift = finite_or_zero(peak)
    return peak, total * unary("exp", a - shift) + more * unary("exp", b - shift)


@lowering("aten::logsumexp")
def logsumexp(call: Call, self: Tensor, dim: Any, keepdim: bool) -> None:
    """log(sum(exp(x))), with the maximum taken out."""
    wide = opmath(call.outs[0].dtype)

    def part(piece: Elements) -> States:
        peak = piece.reduce(lambda *j: convert(piece(*j), wide), "max")
        shift = piece.k.let(finite_or_zero(peak))
        return peak, piece.reduce(lambda *j: unary("exp", convert(piece(*j), wide) - shift))

    def finish(k: KernelBuilder, states: States) -> States:
        peak, total = states
        return (unary("log", total) + finite_or_zero(peak),)

    definition = Reduction(part, merge_log_sums, (float("-inf"), 0), finish)
    fold(call, [self], normalized_dims(dim, self.ndim), keepdim, definition)
