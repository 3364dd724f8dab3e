"""What differs between steps that run side by side, and a loop over them where vectors have no form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bringup.ir.expr import AsIndex, Expr, Load, Name
from bringup.ir.index import AxisVar, Index, Int, atoms, coefficient
from bringup.ir.walk import indices_of, operands
from bringup.targets.c.scope import Scopes
from bringup.targets.c.value import Value


@dataclass
class Lanes:
    """The lanes of the vector axis. ``locals`` names the memory of which each lane may have its own."""

    w: Scopes
    locals: frozenset[str]
    count: int = 1
    """How many lanes have Locals of their own."""

    def private(self, buffer: str) -> bool:
        """True for a Local of which each lane has its own."""
        return self.count > 1 and buffer in self.locals

    def varies(self, expr: Expr) -> bool:
        """True if a value differs between the lanes."""
        if self.w.vector is None:
            return False
        if isinstance(expr, Name):
            return self.w.name(expr.name).lanes > 1
        if isinstance(expr, Load) and self.private(expr.buffer):
            return True
        return any(self.varies(part) for part in operands(expr)) or any(self.moves(i) for i in indices_of(expr))

    def moves(self, index: Index) -> bool:
        """True if an index differs between the lanes."""
        if self.w.vector is None:
            return False
        for atom in atoms(index):
            if atom == AxisVar(self.w.vector.axis) or (isinstance(atom, AsIndex) and self.varies(atom.value)):
                return True
        return False

    def stride(self, index: Index) -> Index | None:
        """By how much an index grows from lane to lane; None if that is not one number."""
        if self.w.vector is None:
            return Int(0)
        scale, rest = coefficient(index, AxisVar(self.w.vector.axis))
        return None if self.moves(scale) or self.moves(rest) else scale

    def fit(self, value: Value) -> Value:
        """A value for use here: inside a loop over lanes, the lane of a vector."""
        w = self.w
        if w.lane is None or value.lanes == 1:
            return value
        key = ("lane", value.text, w.lane)
        found = w.find(key)
        if found is None:
            text = f"{value.text}[{w.lane}]"
            text = f"({text} != 0)" if value.kind == "bool" else text
            found = w.remember(key, w.declare(text, value.kind, 1, w.depth))
        return found

    @contextmanager
    def each(self) -> Iterator[str]:
        """A loop over the lanes that count: inside, everything is scalar."""
        w, vector = self.w, self.w.vector
        assert vector is not None
        lane, position = w.fresh("k"), w.fresh("a")
        base, _ = w.axis(vector.axis)
        with w.scope(f"for (int64_t {lane} = 0; {lane} < {vector.live}; {lane}++) {{") as inner:
            w.line(f"const int64_t {position} = {base} + {lane};")
            inner.axes[vector.axis] = position
            active = w.active
            with w.along(None, lane), w.having(active=None if active is None else self.fit(active)):
                yield lane
