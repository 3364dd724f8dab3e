"""Random float32 values of the kind that vectors make: arithmetic, extremes, comparisons, selections."""

from __future__ import annotations

import random
from collections.abc import Sequence

from bringup.ir.dtypes import float32
from bringup.ir.expr import Binary, Expr, Fma, Unary, Where, const

_CONSTANTS = (0.0, -0.0, 1.0, 0.5, -2.25, 6.0, float("inf"), float("nan"))


def random_value(rng: random.Random, leaves: Sequence[Expr], depth: int) -> Expr:
    """A value over some leaves."""
    if depth == 0 or rng.random() < 0.1:
        return rng.choice(leaves) if rng.random() < 0.8 else const(rng.choice(_CONSTANTS), float32)
    form = rng.choice("binary binary binary extreme extreme unary fma where".split())
    if form == "unary":
        return Unary(rng.choice(["neg", "abs", "sqrt", "reciprocal"]), random_value(rng, leaves, depth - 1))
    if form == "fma":
        return Fma(*(random_value(rng, leaves, depth - 1) for _ in range(3)))
    a, b = random_value(rng, leaves, depth - 1), random_value(rng, leaves, depth - 1)
    if form == "where":
        return Where(random_condition(rng, leaves, depth - 1), a, b)
    return Binary(rng.choice(["max", "min"] if form == "extreme" else ["add", "sub", "mul", "div"]), a, b)


def random_condition(rng: random.Random, leaves: Sequence[Expr], depth: int) -> Expr:
    """A truth value over some leaves."""
    form = rng.choice("compare compare isnan not both".split())
    if form == "both" and depth > 0:
        a, b = random_condition(rng, leaves, depth - 1), random_condition(rng, leaves, depth - 1)
        return Binary(rng.choice(["and", "or"]), a, b)
    if form == "not" and depth > 0:
        return Unary("not", random_condition(rng, leaves, depth - 1))
    a, b = random_value(rng, leaves, depth), random_value(rng, leaves, depth)
    if form == "isnan":
        return Unary("isnan", a)
    return Binary(rng.choice(["lt", "le", "gt", "ge", "eq", "ne"]), a, b)
