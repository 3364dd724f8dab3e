"""Folds side by side: the columns of several vectors at once, so that each row of memory is read in one long piece.

A sum over the rows of a matrix that took one vector of columns at a time would touch one cache line of each row, and
each row is another page: 2.2 times as slow as this on 1024 x 1024.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bringup.ir.kernel import Axis, Block, Contract, Let, Reduce, Store
from bringup.targets.c.fold import Fold, fold_of
from bringup.targets.c.plan import cheap
from bringup.targets.c.scope import Vector
from bringup.targets.c.value import Value, ctype, kind_of
from bringup.targets.c.vector import Vectors

#: Vectors of columns: with 32 lanes of float32 their states take half of a first-level cache of 32 KiB.
_WIDTH = 8


def side_by_side(block: Block) -> bool:
    """True for a body of which all folds are cheap and all else is straight: it runs for several vectors at once.

    >>> side_by_side(())
    False
    """
    folds = [fold_of(stmt) for stmt in block if isinstance(stmt, (Reduce, Contract))]
    straight = all(isinstance(stmt, (Let, Store, Reduce, Contract)) for stmt in block)
    return straight and bool(folds) and all(cheap(fold.body, (*fold.values, *fold.step.results)) for fold in folds)


class Columns(Vectors):
    """Emits a body for several vectors of the grid's innermost axis, one statement after the other."""

    def columns(self, axis: Axis, lanes: int, at: str, stop: str, block: Block) -> None:
        """Runs a body from position ``at`` as long as whole groups of vectors are left before ``stop``."""
        wide = _WIDTH * lanes
        with self.scope(f"for (; {at} + {wide} <= {stop}; {at} += {wide}) {{"):
            before, self.pin = self.pin, self.depth
            known: dict[str, Value] = {}  # names to C arrays, one element for each vector
            for stmt in block:
                if isinstance(stmt, (Reduce, Contract)):
                    self._fold(fold_of(stmt), axis, lanes, at, known)
                    continue
                target = ""
                if isinstance(stmt, Let):
                    kind, target = kind_of(stmt.value.dtype), self.fresh("s")
                    self.line(f"{ctype(kind, lanes)} {target}[{_WIDTH}];")
                with self._each(axis, lanes, at, known) as place:
                    if isinstance(stmt, Let):
                        self.line(f"{target}[{place}] = {self.spread(self.value(stmt.value), lanes).text};")
                    else:
                        self.stmt(stmt)
                if isinstance(stmt, Let):
                    known[stmt.name] = Value(target, kind, lanes)
            self.pin = before

    @contextmanager
    def _each(self, axis: Axis, lanes: int, at: str, known: dict[str, Value]) -> Iterator[str]:
        """A loop over the vectors, with the names known so far."""
        place, position = self.fresh("w"), self.fresh("a")
        with self.scope(f"for (int64_t {place} = 0; {place} < {_WIDTH}; {place}++) {{") as inner:
            self.line(f"const int64_t {position} = {at} + {place} * {lanes};")
            inner.axes[axis.name] = position
            for name, array in known.items():
                inner.names[name] = self.declare(f"{array.text}[{place}]", array.kind, lanes, self.depth)
            with self.along(Vector(axis.name, lanes)):
                yield place

    def _fold(self, fold: Fold, axis: Axis, lanes: int, at: str, known: dict[str, Value]) -> None:
        kinds = [kind_of(init.dtype) for init in fold.inits]
        states = [self.fresh("s") for _ in kinds]
        for state, kind in zip(states, kinds):
            self.line(f"{ctype(kind, lanes)} {state}[{fold.lanes}][{_WIDTH}];")
        with self._each(axis, lanes, at, known) as place:
            for state, init in zip(states, fold.inits):
                start = self.spread(self.value(init), lanes).text
                self.line(f"for (int l = 0; l < {fold.lanes}; l++) {state}[l][{place}] = {start};")
        with self.nest(fold.axes) as row, self._each(axis, lanes, at, known) as place:
            self.block(fold.body)
            values = [self.value(value) for value in fold.values]
            lane = f"{row} & {fold.lanes - 1}" if fold.lanes > 1 else "0"
            targets = [f"{state}[{lane}][{place}]" for state in states]
            self.combined(fold.step, self._read(targets, kinds), values, targets)
        if fold.lanes > 1:
            half, one = self.fresh("h"), self.fresh("l")
            header = f"for (int {half} = {fold.lanes // 2}; {half}; {half} /= 2)"
            header += f" for (int {one} = 0; {one} < {half}; {one}++) {{"
            with self.scope(header), self._each(axis, lanes, at, {}) as place:
                targets = [f"{state}[{one}][{place}]" for state in states]
                others = self._read([f"{state}[{one} + {half}][{place}]" for state in states], kinds)
                self.combined(fold.join, self._read(targets, kinds), others, targets)
        results = [Value(f"{state}[0]", kind, lanes) for state, kind in zip(states, kinds)]
        if fold.last is not None:
            with self._each(axis, lanes, at, known) as place:
                total = self.declare(f"{results[0].text}[{place}]", kinds[0], lanes, self.depth)
                added = self.binary("add", self.value(fold.last), total, fold.last.dtype)
                self.line(f"{results[0].text}[{place}] = {self.spread(added, lanes).text};")
        known.update(zip(fold.names, results))

    def _read(self, places: list[str], kinds: list[str]) -> list[Value]:
        return [self.declare(place, kind, self.width, self.depth) for place, kind in zip(places, kinds)]
