"""Loops whose steps run side by side: whole vectors first, then what is left, never outside of memory.

A cheap body is written out twice: for whole vectors, unrolled, and once more with a count of lanes. Other bodies are
written once, with the count: beside their work it costs nothing, and the compiler has half as much to do.
"""

from __future__ import annotations

from bringup.ir.kernel import Axis, Block, Contract, Kernel, Loop, Reduce, Stmt
from bringup.targets.c.fold import Fold, fold_of
from bringup.targets.c.options import COptions
from bringup.targets.c.plan import Plan, cheap, vectorisable, widest_bits
from bringup.targets.c.scope import Vector
from bringup.targets.c.statements import Statements
from bringup.targets.c.value import Value, bits_of, ctype, first_lanes, kind_of


class Vectors(Statements):
    """Emits reductions and parallel loops in vectors, where the plan says so."""

    def __init__(self, kernel: Kernel, target: COptions, plan: Plan) -> None:
        super().__init__(kernel, target)
        self.plan = plan

    def stmt(self, stmt: Stmt) -> None:
        """One statement."""
        if self.plan.style == "rows" and self.vector is None and vectorisable(stmt):
            if isinstance(stmt, (Reduce, Contract)):
                self.fold_across(fold_of(stmt))
                return
            assert isinstance(stmt, Loop)
            lanes = self.target.vector_bytes * 8 // widest_bits(stmt.body, (), stmt.axis.name)
            with self.around(stmt.axis) as extent:
                self.across(stmt.axis, lanes, "0", extent, stmt.body)
            return
        super().stmt(stmt)

    # parallel steps

    def across(self, axis: Axis, lanes: int, start: str, stop: str, block: Block) -> None:
        """Runs a body for start … stop - 1 of an axis, ``lanes`` steps at a time."""
        at = self.fresh("a")
        self.line(f"int64_t {at} = {start};")
        self.whole(axis, lanes, at, stop, block)
        with self.scope(f"for (; {at} < {stop}; {at} += {lanes}) {{") as inner:
            count = self.counted(stop, at, lanes)
            inner.axes[axis.name] = at
            with self.along(Vector(axis.name, lanes, count)):
                self.block(block)

    def whole(self, axis: Axis, lanes: int, at: str, stop: str, block: Block) -> None:
        """Runs a body from position ``at`` as long as whole vectors are left, if that is worth a copy of its own."""
        if cheap(block, ()):
            unroll = 2
            step = unroll * lanes
            with self.scope(f"for (; {at} + {step} <= {stop}; {at} += {step}) {{"):
                for part in range(unroll):
                    with self.scope() as inner, self.along(Vector(axis.name, lanes)):
                        inner.axes[axis.name] = self.shifted(at, part * lanes)
                        self.block(block)

    def shifted(self, at: str, by: int) -> str:
        """A position some steps further, as a C name."""
        if by == 0:
            return at
        name = self.fresh("a")
        self.line(f"const int64_t {name} = {at} + {by};")
        return name

    def counted(self, stop: str, at: str, lanes: int) -> str:
        """How many lanes are left, at most all."""
        count = self.fresh("c")
        self.line(f"const int64_t {count} = {stop} - {at} < {lanes} ? {stop} - {at} : {lanes};")
        return count

    # folds

    def fold_across(self, fold: Fold) -> None:
        """A fold in vectors along its innermost axis: the lanes of the fold are those of one or more vectors."""
        axis = fold.axes[-1]
        inits = [self.value(init) for init in fold.inits]
        kinds = [kind_of(init.dtype) for init in fold.inits]
        bits = widest_bits(fold.body, (*fold.values, *fold.inits), axis.name)
        bits = max([bits, *(bits_of(kind) for kind in kinds)])
        lanes = min(self.target.vector_bytes * 8 // bits, fold.lanes)
        if lanes == 1:
            self.fold_in_order(fold)
            return
        groups = fold.lanes // lanes
        short = cheap(fold.body, (*fold.values, *fold.step.results))
        arrays = [self.fresh("s") for _ in kinds]
        for name, kind, init in zip(arrays, kinds, inits):
            start = ", ".join([self.spread(init, lanes).text] * groups)
            self.line(f"{ctype(kind, lanes)} {name}[{groups}] = {{{start}}};")
        with self.nest(fold.axes[:-1]), self.around(axis) as extent:
            at = self.fresh("a")
            self.line(f"int64_t {at} = 0;")
            if short:
                self._whole(fold, kinds, arrays, axis, at, extent, lanes, groups)
            with self.scope(f"for (; {at} < {extent}; {at} += {lanes}) {{") as inner:
                count = self.counted(extent, at, lanes)
                inner.axes[axis.name] = at
                targets = [f"{name}[{at} / {lanes} & {groups - 1}]" if groups > 1 else f"{name}[0]" for name in arrays]
                self._step(fold, kinds, targets, Vector(axis.name, lanes, count))
        self._tree(fold, kinds, arrays, lanes, groups)

    def _whole(
        self, fold: Fold, kinds: list[str], arrays: list[str], axis: Axis, at: str, extent: str, lanes: int, groups: int
    ) -> None:
        """The positions up to a multiple of the fold's lanes, with the states in registers."""
        with self.scope(f"if ({at} + {fold.lanes} <= {extent}) {{"):
            before = self.pin
            self.pin = self.depth
            states = [[self.variable(k, lanes, f"{a}[{g}]") for a, k in zip(arrays, kinds)] for g in range(groups)]
            with self.scope(f"for (; {at} + {fold.lanes} <= {extent}; {at} += {fold.lanes}) {{"):
                for group in range(groups):
                    with self.scope() as inner:
                        inner.axes[axis.name] = self.shifted(at, group * lanes)
                        self._step(fold, kinds, states[group], Vector(axis.name, lanes))
            for group in range(groups):
                for name, state in zip(arrays, states[group]):
                    self.line(f"{name}[{group}] = {state};")
            self.pin = before

    def _step(self, fold: Fold, kinds: list[str], targets: list[str], vector: Vector) -> None:
        with self.along(vector):
            self.block(fold.body)
            values = [self.value(value) for value in fold.values]
            old = [self.declare(target, k, vector.lanes, self.depth) for target, k in zip(targets, kinds)]
            live = None
            if vector.count is not None:  # lanes behind the end keep their state
                live = self.declare(first_lanes(vector.lanes, vector.count), "bool", vector.lanes, self.depth)
            self.combined(fold.step, old, values, targets, vector.lanes, live)

    def _tree(self, fold: Fold, kinds: list[str], arrays: list[str], lanes: int, groups: int) -> None:
        """Halves the lanes until one is left: first whole vectors, then the parts of one."""
        half = groups // 2
        while half:
            for group in range(half):
                left, right = ([f"{a}[{g}]" for a in arrays] for g in (group, group + half))
                self._join(fold, kinds, left, right, lanes)
            half //= 2
        half = lanes // 2
        while half:
            order = ", ".join(str((k + half) % lanes) for k in range(lanes))
            moved = [
                self.declare(f"__builtin_shufflevector({a}[0], {a}[0], {order})", k, lanes, self.depth).text
                for a, k in zip(arrays, kinds)
            ]
            self._join(fold, kinds, [f"{a}[0]" for a in arrays], moved, lanes)
            half //= 2
        results = [f"({a}[0][0] != 0)" if k == "bool" else f"{a}[0][0]" for a, k in zip(arrays, kinds)]
        self.bind_fold(fold, [Value(text, kind, 1, self.depth) for text, kind in zip(results, kinds)])

    def _join(self, fold: Fold, kinds: list[str], left: list[str], right: list[str], lanes: int) -> None:
        one, two = (
            [self.declare(text, kind, lanes, self.depth) for text, kind in zip(side, kinds)] for side in (left, right)
        )
        self.combined(fold.join, one, two, left, lanes)
