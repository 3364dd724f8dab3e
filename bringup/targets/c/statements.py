"""Statements in C, in the context they stand in: scalar code, or code where the lanes of an outer axis run together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bringup.ir.kernel import Block, Combine, Contract, Let, Loop, Reduce, Scan, Stmt, Store
from bringup.targets.c.access import Accesses
from bringup.targets.c.expr import Values
from bringup.targets.c.loops import Loops
from bringup.targets.c.operations import Operations
from bringup.targets.c.scope import Scopes
from bringup.targets.c.value import Value, ctype, first_lanes, kind_of
from bringup.targets.fold import Fold, fold_of


@dataclass
class Statements:
    """Emits blocks of statements, one step after the other."""

    w: Scopes
    ops: Operations
    values: Values
    accesses: Accesses
    loops: Loops
    others: list[Callable[[Stmt], bool]] = field(default_factory=list)
    """Other ways to emit a statement, asked in turn: each returns whether it did."""

    def block(self, block: Block) -> None:
        """Statements, in order."""
        for stmt in block:
            if not any(other(stmt) for other in self.others):
                self.in_order(stmt)

    def in_order(self, stmt: Stmt) -> None:
        """One statement; its steps run one after the other."""
        if isinstance(stmt, Let):
            self.w.stack[-1].names[stmt.name] = self.values.value(stmt.value)
        elif isinstance(stmt, Store):
            self.accesses.store(stmt)
        elif isinstance(stmt, (Reduce, Contract)):
            self._fold(fold_of(stmt))
        elif isinstance(stmt, Scan):
            self._scan(stmt)
        else:
            self._loop(stmt)

    @property
    def width(self) -> int:
        """The lanes of a variable here."""
        return 1 if self.w.vector is None else self.w.vector.lanes

    def _loop(self, stmt: Loop) -> None:
        kinds = [kind_of(init.dtype) for init in stmt.inits]
        states = [self.started(kind, self.values.value(init)) for kind, init in zip(kinds, stmt.inits)]
        count = None if stmt.count is None else self.values.value(stmt.count).text
        with self.loops.nest((stmt.axis,), count):
            for name, held in zip(stmt.carried, self.w.read(states, kinds, self.width)):
                self.w.stack[-1].names[name] = held
            self.block(stmt.body)
            self._assign(states, [self.values.value(update) for update in stmt.updates], self.width)
        for name, kind, state in zip(stmt.carried, kinds, states):
            self.w.stack[-1].names[name] = Value(state, kind, self.width, self.w.depth)

    def _scan(self, stmt: Scan) -> None:
        kinds = [kind_of(init.dtype) for init in stmt.inits]
        states = [self.started(kind, self.values.value(init)) for kind, init in zip(kinds, stmt.inits)]
        with self.loops.nest((stmt.axis,)):
            before = self.w.read(states, kinds, self.width)
            self.block(stmt.body)
            self.combined(stmt.combine, before, [self.values.value(value) for value in stmt.values], states)
            after = self.w.read(states, kinds, self.width)
            self.w.stack[-1].names.update(zip(stmt.names, before if stmt.exclusive else after))
            self.block(stmt.then)

    # state

    def started(self, kind: str, init: Value) -> str:
        """A C variable that holds an init."""
        return self.w.variable(kind, self.width, self.ops.spread(init, self.width).text)

    def _assign(self, targets: list[str], values: list[Value], lanes: int) -> None:
        for target, value in zip(targets, values):
            self.w.line(f"{target} = {self.ops.spread(value, lanes).text};")

    def combined(
        self,
        combine: Combine,
        left: Sequence[Value],
        right: Sequence[Value],
        targets: list[str],
        lanes: int | None = None,
        live: Value | None = None,
    ) -> None:
        """Changes C variables to what a combine gives, in the lanes that are ``live``; left is what they hold."""
        with self.w.scope() as inner:
            inner.names.update(zip(combine.left, map(self._here, left)))
            inner.names.update(zip(combine.right, map(self._here, right)))
            results = [self._here(self.values.value(result)) for result in combine.results]
            if live is not None:
                results = [self.ops.where(live, result, old) for result, old in zip(results, left)]
            self._assign(targets, results, self.width if lanes is None else lanes)

    def _here(self, value: Value) -> Value:
        """The same value, said to belong to the innermost scope: names that are bound again and again."""
        return Value(value.text, value.kind, value.lanes, self.w.depth, value.mask_bits)

    # folds

    def step(self, fold: Fold, kinds: list[str], targets: list[str], count: str | None = None) -> None:
        """One position of a fold: its body, and the values into the state; lanes from ``count`` on keep theirs."""
        self.block(fold.body)
        values = [self.values.value(value) for value in fold.values]
        old, live = self.w.read(targets, kinds, self.width), None
        if count is not None:
            live = self.w.declare(first_lanes(self.width, count), "bool", self.width, self.w.depth)
        self.combined(fold.step, old, values, targets, live=live)

    def _fold(self, fold: Fold) -> None:
        """A fold whose positions come one after the other, each lane of it a C variable."""
        w, width = self.w, self.width
        kinds = [kind_of(init.dtype) for init in fold.inits]
        inits = [self.values.value(init) for init in fold.inits]
        many = fold.lanes > 1
        states = []
        for kind, init in zip(kinds, inits):
            if many:
                states.append(w.fresh("s"))
                start = self.ops.spread(init, width).text
                w.line(f"{ctype(kind, width)} {states[-1]}[{fold.lanes}];")
                w.line(f"for (int l = 0; l < {fold.lanes}; l++) {states[-1]}[l] = {start};")
            else:
                states.append(self.started(kind, init))
        with self.loops.nest(fold.axes) as at:
            self.step(fold, kinds, [f"{state}[{at} & {fold.lanes - 1}]" if many else state for state in states])
        if many:
            half, lane = w.fresh("h"), w.fresh("l")
            header = f"for (int {half} = {fold.lanes // 2}; {half}; {half} /= 2)"
            with w.scope(f"{header} for (int {lane} = 0; {lane} < {half}; {lane}++) {{"):
                left = [f"{state}[{lane}]" for state in states]
                self.join(fold, kinds, left, [f"{state}[{lane} + {half}]" for state in states], width)
            states = [f"{state}[0]" for state in states]
        self.bind(fold, [Value(s, kind, width) for s, kind in zip(states, kinds)])

    def join(self, fold: Fold, kinds: list[str], left: list[str], right: list[str], lanes: int) -> None:
        """Two states of a fold into the one on the left."""
        one, two = (self.w.read(side, kinds, lanes) for side in (left, right))
        self.combined(fold.join, one, two, left, lanes)

    def bind(self, fold: Fold, results: list[Value]) -> None:
        """Binds the results of a fold to its names."""
        made = [self.w.declare(r.text, r.kind, r.lanes, self.w.depth) for r in results]
        if fold.last is not None:
            made = [self.ops.binary("add", self.values.value(fold.last), made[0], fold.last.dtype)]
        self.w.stack[-1].names.update(zip(fold.names, made))
