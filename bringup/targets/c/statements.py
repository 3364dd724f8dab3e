"""Statements in C, in the context they stand in: scalar code, or code where the lanes of an outer axis run together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bringup.ir.index import Int
from bringup.ir.kernel import Axis, Block, Combine, Contract, Let, Loop, Reduce, Scan, Stmt, Store
from bringup.targets.c.access import Accesses
from bringup.targets.c.fold import Fold, fold_of
from bringup.targets.c.value import Value, ctype, kind_of


class Statements(Accesses):
    """Emits blocks of statements."""

    def extent(self, axis: Axis) -> str:
        """The extent of an axis in C, computed once."""
        if isinstance(axis.extent, Int):
            return str(axis.extent.value)
        found = self.find(("extent", axis.extent))
        if found is None:
            text, _ = self.index(axis.extent)
            found = self.declare(text, "i64", 1, 0)
            self.stack[0].memo[("extent", axis.extent)] = found
        return found.text

    @contextmanager
    def knowing(self, *axes: Axis) -> Iterator[None]:
        """Code inside axes, for proofs about indices."""
        before = self.facts
        self.facts = before.with_axes({axis.name: axis.extent for axis in axes})
        try:
            yield
        finally:
            self.facts = before

    @contextmanager
    def around(self, axis: Axis) -> Iterator[str]:
        """The scope around a loop over an axis: it runs only if the axis has a step. Gives the extent."""
        extent = self.extent(axis)
        with self.knowing(axis):
            if isinstance(axis.extent, Int) and axis.extent.value > 0:
                yield extent
            else:
                with self.at_least_one(extent):
                    yield extent

    @contextmanager
    def steps(self, axis: Axis) -> Iterator[str]:
        """A plain loop over an axis. Gives the C variable of the position."""
        with self.around(axis) as extent:
            at = self.fresh("a")
            with self.scope(f"for (int64_t {at} = 0; {at} < {extent}; {at}++) {{") as inner:
                inner.axes[axis.name] = at
                yield at

    @contextmanager
    def nest(self, axes: tuple[Axis, ...]) -> Iterator[str]:
        """Plain loops over several axes. Gives the C variable of the innermost position."""
        if not axes:
            yield ""
        elif len(axes) == 1:
            with self.steps(axes[0]) as at:
                yield at
        else:
            with self.steps(axes[0]), self.nest(axes[1:]) as at:
                yield at

    # statements

    def block(self, block: Block) -> None:
        """Statements, in order."""
        for stmt in block:
            self.stmt(stmt)

    def stmt(self, stmt: Stmt) -> None:
        """One statement."""
        if isinstance(stmt, Let):
            self.stack[-1].names[stmt.name] = self.value(stmt.value)
        elif isinstance(stmt, Store):
            self.store(stmt)
        elif isinstance(stmt, (Reduce, Contract)):
            self.fold_in_order(fold_of(stmt))
        elif isinstance(stmt, Scan):
            self.scan(stmt)
        else:
            self.loop_in_order(stmt)

    @property
    def width(self) -> int:
        """The lanes of a variable here."""
        return 1 if self.vector is None else self.vector.lanes

    def loop_in_order(self, stmt: Loop) -> None:
        """A Loop, one step after the other."""
        kinds = [kind_of(init.dtype) for init in stmt.inits]
        states = [self.started(kind, self.value(init)) for kind, init in zip(kinds, stmt.inits)]
        with self.steps(stmt.axis):
            for name, kind, state in zip(stmt.carried, kinds, states):
                self.stack[-1].names[name] = self.declare(state, kind, self.width, self.depth)
            self.block(stmt.body)
            self.assign(states, [self.value(update) for update in stmt.updates])
        for name, kind, state in zip(stmt.carried, kinds, states):
            self.stack[-1].names[name] = Value(state, kind, self.width, self.depth)

    def scan(self, stmt: Scan) -> None:
        """A Scan: always in order."""
        kinds = [kind_of(init.dtype) for init in stmt.inits]
        states = [self.started(kind, self.value(init)) for kind, init in zip(kinds, stmt.inits)]
        with self.steps(stmt.axis):
            before = [self.declare(state, kind, self.width, self.depth) for state, kind in zip(states, kinds)]
            self.block(stmt.body)
            self.combined(stmt.combine, before, [self.value(value) for value in stmt.values], states)
            after = [self.declare(state, kind, self.width, self.depth) for state, kind in zip(states, kinds)]
            self.stack[-1].names.update(zip(stmt.names, before if stmt.exclusive else after))
            self.block(stmt.then)

    # state

    def started(self, kind: str, init: Value) -> str:
        """A C variable that holds an init."""
        return self.variable(kind, self.width, self.spread(init, self.width).text)

    def assign(self, targets: list[str], values: list[Value], lanes: int | None = None) -> None:
        """Changes C variables to new values."""
        lanes = self.width if lanes is None else lanes
        for target, value in zip(targets, values):
            self.line(f"{target} = {self.spread(value, lanes).text};")

    def combined(
        self,
        combine: Combine,
        left: list[Value],
        right: list[Value],
        targets: list[str],
        lanes: int | None = None,
        live: Value | None = None,
    ) -> None:
        """Changes C variables to what a combine gives, in the lanes that are ``live``; left is what they hold."""
        with self.scope() as inner:
            inner.names.update(zip(combine.left, [self.here(value) for value in left]))
            inner.names.update(zip(combine.right, [self.here(value) for value in right]))
            results = [self.here(self.value(result)) for result in combine.results]
            if live is not None:
                results = [self.where(live, result, old) for result, old in zip(results, left)]
            self.assign(targets, results, lanes)

    def here(self, value: Value) -> Value:
        """The same value, said to belong to the innermost scope: names that are bound again and again."""
        return Value(value.text, value.kind, value.lanes, self.depth, value.mask_bits)

    # folds

    def fold_in_order(self, fold: Fold) -> None:
        """A fold whose positions come one after the other, each lane of it a C variable."""
        kinds = [kind_of(init.dtype) for init in fold.inits]
        inits = [self.value(init) for init in fold.inits]
        many = fold.lanes > 1
        states = []
        for kind, init in zip(kinds, inits):
            if many:
                states.append(self.fresh("s"))
                start = self.spread(init, self.width).text
                self.line(f"{ctype(kind, self.width)} {states[-1]}[{fold.lanes}];")
                self.line(f"for (int l = 0; l < {fold.lanes}; l++) {states[-1]}[l] = {start};")
            else:
                states.append(self.started(kind, init))
        with self.nest(fold.axes) as at:
            self.block(fold.body)
            values = [self.value(value) for value in fold.values]
            targets = [f"{state}[{at} & {fold.lanes - 1}]" if many else state for state in states]
            old = [self.declare(target, kind, self.width, self.depth) for target, kind in zip(targets, kinds)]
            self.combined(fold.step, old, values, targets)
        if many:
            half, lane = self.fresh("h"), self.fresh("l")
            header = f"for (int {half} = {fold.lanes // 2}; {half}; {half} /= 2)"
            with self.scope(f"{header} for (int {lane} = 0; {lane} < {half}; {lane}++) {{"):
                places = (lane, f"{lane} + {half}")
                left, right = (
                    [self.declare(f"{s}[{place}]", k, self.width, self.depth) for s, k in zip(states, kinds)]
                    for place in places
                )
                self.combined(fold.join, left, right, [f"{state}[{lane}]" for state in states])
            states = [f"{state}[0]" for state in states]
        self.bind_fold(fold, [Value(s, kind, self.width, self.depth) for s, kind in zip(states, kinds)])

    def bind_fold(self, fold: Fold, results: list[Value]) -> None:
        """Binds the results of a fold to its names."""
        made = [self.declare(r.text, r.kind, r.lanes, self.depth) for r in results]
        if fold.last is not None:
            made = [self.binary("add", self.value(fold.last), made[0], fold.last.dtype)]
        self.stack[-1].names.update(zip(fold.names, made))
