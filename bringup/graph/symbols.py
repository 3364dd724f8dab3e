"""Sizes of a traced graph as numbers of a lowering: PyTorch's symbols (sympy) become formulas over named sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from bringup.lowering.symbolic import IntLike, Trace, larger, smaller

#: PyTorch's numbers that are expressions of sizes.
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class UnknownSize(Exception):
    """A size that only the data know, or a formula that kernels do not compute with."""


class Symbols:
    """The symbols of one graph: each gets its value, at every call, from an argument of the graph."""

    def __init__(self, trace: Trace, hints: Mapping[str, int] | None = None) -> None:
        self._trace = trace
        self._hints = hints or {}
        self._dims: dict[Any, IntLike] = {}
        #: Name of a symbol → (argument, None) for an integer argument, (argument, dimension) for a tensor's size.
        self.sources: dict[str, tuple[int, int | None]] = {}
        #: The smallest and largest value that PyTorch promises; None is not a limit.
        self.ranges: dict[str, tuple[int, int | None]] = {}
        #: What PyTorch's trace relies on, such as channels that the groups divide.
        self._relied_on: list[Any] = []

    def declare(self, number: Any, argument: int, dimension: int | None) -> None:
        """An argument of the graph shows a number: if that is a plain symbol, this is where its value comes from."""
        if not isinstance(number, torch.SymInt):
            return
        expression = number.node.expr
        if not expression.is_Symbol or expression in self._dims:
            return
        name = str(expression)
        hint = self._hints.get(name, number.node.hint)
        if hint is None:
            raise UnknownSize(f"{name} has no value at compile time")
        self._dims[expression] = self._trace.symbol(name, int(hint))
        self.sources[name] = (argument, dimension)
        self._relied_on = number.node.shape_env.guards
        bounds = number.node.shape_env.var_to_range.get(expression)
        low, high = (0, None) if bounds is None else (_finite(bounds.lower, 0), _finite(bounds.upper, None))
        self.ranges[name] = (low or 0, high)

    def possible(self, sizes: Sequence[int]) -> bool:
        """False if a graph that PyTorch traced as it did cannot be called with these sizes, one for each symbol."""
        known = dict(zip(self._dims, sizes))
        try:
            return all(guard.expr.subs(known) != sympy.false for guard in self._relied_on)
        except AssertionError:  # older PyTorch: a remainder of a negative number, which no size gives
            return False

    def dim(self, number: Any) -> IntLike:
        """A size, stride or offset of a traced tensor."""
        if not isinstance(number, torch.SymInt):
            return int(number)
        return self._formula(number.node.expr)

    def dims(self, numbers: Sequence[Any]) -> tuple[IntLike, ...]:
        """Several of them."""
        return tuple(self.dim(number) for number in numbers)

    def _formula(self, expression: Any) -> IntLike:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            if expression not in self._dims:
                raise UnknownSize(_unknown(expression))
            return self._dims[expression]
        kind = type(expression).__name__
        if kind == "Pow" and expression.args[1].is_Integer and int(expression.args[1]) > 0:
            parts = [self._formula(expression.args[0])] * int(expression.args[1])
            kind = "Mul"
        else:
            parts = [self._formula(part) for part in expression.args]
        total = parts[0]
        for part in parts[1:]:
            if kind == "Add":
                total = total + part
            elif kind == "Mul":
                total = total * part
            elif kind in ("FloorDiv", "CleanDiv"):
                total = total // part
            elif kind in ("Mod", "PythonMod"):
                total = total % part
            elif kind == "Max":
                total = larger(total, part)
            elif kind == "Min":
                total = smaller(total, part)
            else:
                raise UnknownSize(f"{expression}: kernels do not compute {kind}")
        return total


def evaluated(number: torch.SymInt | torch.SymFloat | torch.SymBool, sizes: Mapping[str, int]) -> int | float | bool:
    """A number of the graph for known sizes.

    Raises UnknownSize for one that other things than sizes decide, such as the data.
    """
    expression = number.node.expr
    missing = [str(symbol) for symbol in expression.free_symbols if str(symbol) not in sizes]
    if missing:
        raise UnknownSize(_unknown(missing[0]))
    value = expression.subs({symbol: sizes[str(symbol)] for symbol in expression.free_symbols})
    kind = int if isinstance(number, torch.SymInt) else float if isinstance(number, torch.SymFloat) else bool
    return kind(value)


def _finite(bound: Any, otherwise: int | None) -> int | None:
    """A bound of PyTorch's value ranges; its infinities are large numbers or objects of their own."""
    try:
        number = int(bound)
    except (TypeError, OverflowError, ValueError, AttributeError):
        return otherwise
    return number if abs(number) < 1 << 62 else otherwise


def _unknown(symbol: object) -> str:
    """Says why a number of a traced graph cannot be had; PyTorch names those that it read from tensors u0, zuf1 …"""
    if re.fullmatch(r"(u|zuf)\d+", str(symbol)):
        return f"{symbol} is read from the values of a tensor (.item(), or a 0-dim tensor in the place of a number)"
    return f"{symbol} is not the size of any argument"
