"""Folds side by side: the columns of several vectors at once, so that each row of memory is read in one long piece.

A sum over the rows of a matrix that took one vector of columns at a time would touch one cache line of each row, and
each row is another page: 2.2 times as slow as this on 1024 x 1024.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bringup.ir.expr import Expr
from bringup.ir.kernel import Axis, Block, Contract, Let, Reduce, Store
from bringup.targets.c.expr import Values
from bringup.targets.c.loops import Loops
from bringup.targets.c.operations import Operations
from bringup.targets.c.plan import cheap
from bringup.targets.c.scope import Scopes, Vector
from bringup.targets.c.statements import Statements
from bringup.targets.c.value import Value, ctype, kind_of
from bringup.targets.fold import Fold, fold_of

#: Vectors of columns: with 32 lanes of float32 their states take half of a first-level cache of 32 KiB.
_WIDTH = 8


def side_by_side(block: Block) -> bool:
    """True for a body of which all folds are cheap and all else is straight: it runs for several vectors at once."""
    folds = [fold_of(stmt) for stmt in block if isinstance(stmt, (Reduce, Contract))]
    straight = all(isinstance(stmt, (Let, Store, Reduce, Contract)) for stmt in block)
    return straight and bool(folds) and all(cheap(fold.body, (*fold.values, *fold.step.results)) for fold in folds)


@dataclass
class Columns:
    """Emits a body for several vectors of the grid's innermost axis, one statement after the other."""

    w: Scopes
    ops: Operations
    values: Values
    loops: Loops
    statements: Statements

    def across(self, axis: Axis, lanes: int, at: str, stop: str, block: Block) -> None:
        """Runs a body from position ``at`` as long as whole groups of vectors are left before ``stop``."""
        w, wide = self.w, _WIDTH * lanes
        with w.scope(f"for (; {at} + {wide} <= {stop}; {at} += {wide}) {{"), w.pinned():
            known: dict[str, Value] = {}  # names to C arrays, one element for each vector
            for stmt in block:
                if isinstance(stmt, (Reduce, Contract)):
                    self._fold(fold_of(stmt), axis, lanes, at, known)
                elif isinstance(stmt, Let):
                    kind, target = kind_of(stmt.value.dtype), w.fresh("s")
                    w.line(f"{ctype(kind, lanes)} {target}[{_WIDTH}];")
                    with self._each(axis, lanes, at, known) as place:
                        w.line(f"{target}[{place}] = {self._spread(stmt.value, lanes)};")
                    known[stmt.name] = Value(target, kind, lanes)
                else:
                    with self._each(axis, lanes, at, known):
                        self.statements.block((stmt,))

    def _spread(self, expr: Expr, lanes: int) -> str:
        return self.ops.spread(self.values.value(expr), lanes).text

    @contextmanager
    def _each(self, axis: Axis, lanes: int, at: str, known: dict[str, Value]) -> Iterator[str]:
        """A loop over the vectors, with the names known so far."""
        w = self.w
        place, position = w.fresh("w"), w.fresh("a")
        with w.scope(f"for (int64_t {place} = 0; {place} < {_WIDTH}; {place}++) {{") as inner:
            w.line(f"const int64_t {position} = {at} + {place} * {lanes};")
            inner.axes[axis.name] = position
            for name, array in known.items():
                inner.names[name] = w.declare(f"{array.text}[{place}]", array.kind, lanes, w.depth)
            with w.along(Vector(axis.name, lanes)):
                yield place

    def _fold(self, fold: Fold, axis: Axis, lanes: int, at: str, known: dict[str, Value]) -> None:
        w = self.w
        kinds = [kind_of(init.dtype) for init in fold.inits]
        states = [w.fresh("s") for _ in kinds]
        for state, kind in zip(states, kinds):
            w.line(f"{ctype(kind, lanes)} {state}[{fold.lanes}][{_WIDTH}];")
        with self._each(axis, lanes, at, known) as place:
            for state, init in zip(states, fold.inits):
                start = self._spread(init, lanes)
                w.line(f"for (int l = 0; l < {fold.lanes}; l++) {state}[l][{place}] = {start};")
        with self.loops.nest(fold.axes) as row, self._each(axis, lanes, at, known) as place:
            lane = f"{row} & {fold.lanes - 1}" if fold.lanes > 1 else "0"
            self.statements.step(fold, kinds, [f"{state}[{lane}][{place}]" for state in states])
        if fold.lanes > 1:
            half, one = w.fresh("h"), w.fresh("l")
            header = f"for (int {half} = {fold.lanes // 2}; {half}; {half} /= 2)"
            header += f" for (int {one} = 0; {one} < {half}; {one}++) {{"
            with w.scope(header), self._each(axis, lanes, at, {}) as place:
                left, right = ([f"{state}[{lane}][{place}]" for state in states] for lane in (one, f"{one} + {half}"))
                others = w.read(right, kinds, lanes)
                self.statements.combined(fold.join, w.read(left, kinds, lanes), others, left)
        results = [Value(f"{state}[0]", kind, lanes) for state, kind in zip(states, kinds)]
        if fold.last is not None:
            with self._each(axis, lanes, at, known) as place:
                total = w.declare(f"{results[0].text}[{place}]", kinds[0], lanes, w.depth)
                added = self.ops.binary("add", self.values.value(fold.last), total, fold.last.dtype)
                w.line(f"{results[0].text}[{place}] = {self.ops.spread(added, lanes).text};")
        known.update(zip(fold.names, results))
