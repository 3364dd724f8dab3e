"""Loops whose steps run side by side: whole vectors first, then what is left, never outside of memory.

A cheap body is written out twice: for whole vectors, unrolled, and once more with a count of lanes. Other bodies are
written once, with the count: beside their work it costs nothing, and the compiler has half as much to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bringup.ir.kernel import Axis, Block, Contract, Loop, Reduce, Stmt
from bringup.targets.c.expr import Values
from bringup.targets.c.loops import Loops
from bringup.targets.c.operations import Operations
from bringup.targets.c.plan import cheap, vectorisable, widest_bits
from bringup.targets.c.scope import Scopes, Vector
from bringup.targets.c.statements import Statements
from bringup.targets.c.value import Value, bits_of, ctype, kind_of
from bringup.targets.fold import Fold, fold_of

_UNROLLED = 2


@dataclass
class Vectors:
    """Emits parallel steps in vectors."""

    w: Scopes
    ops: Operations
    values: Values
    loops: Loops
    statements: Statements

    def rows(self, stmt: Stmt) -> bool:
        """Emits a reduction or a parallel loop in vectors, if it can run so; returns whether it did."""
        if self.w.vector is not None or not vectorisable(stmt):
            return False
        if isinstance(stmt, (Reduce, Contract)):
            self._fold(fold_of(stmt))
            return True
        assert isinstance(stmt, Loop)
        lanes = self.w.target.vector_bytes * 8 // widest_bits(stmt.body, (), stmt.axis.name)
        with self.loops.around(stmt.axis) as extent:
            self.across(stmt.axis, lanes, "0", extent, stmt.body)
        return True

    # parallel steps

    def across(
        self,
        axis: Axis,
        lanes: int,
        start: str,
        stop: str,
        block: Block,
        whole: Callable[[Axis, int, str, str, Block], None] | None = None,
    ) -> None:
        """Runs a body for start … stop - 1 of an axis, ``lanes`` steps at a time; ``whole`` does so first, as long as
        there are whole vectors."""
        at = self.w.fresh("a")
        self.w.line(f"int64_t {at} = {start};")
        (whole or self._whole_vectors)(axis, lanes, at, stop, block)
        with self.w.scope(f"for (; {at} < {stop}; {at} += {lanes}) {{") as inner:
            count = self.loops.counted(stop, at, lanes)
            inner.axes[axis.name] = at
            with self.w.along(Vector(axis.name, lanes, count)):
                self.statements.block(block)

    def _whole_vectors(self, axis: Axis, lanes: int, at: str, stop: str, block: Block) -> None:
        """Runs a body from position ``at`` as long as whole vectors are left, if that is worth a copy of its own."""
        if not cheap(block, ()):
            return
        step = _UNROLLED * lanes
        with self.w.scope(f"for (; {at} + {step} <= {stop}; {at} += {step}) {{"):
            for part in range(_UNROLLED):
                with self.w.scope() as inner, self.w.along(Vector(axis.name, lanes)):
                    inner.axes[axis.name] = self.loops.shifted(at, part * lanes)
                    self.statements.block(block)

    # folds

    def _fold(self, fold: Fold) -> None:
        """A fold in vectors along its innermost axis: the lanes of the fold are those of one or more vectors."""
        w, axis = self.w, fold.axes[-1]
        inits = [self.values.value(init) for init in fold.inits]
        kinds = [kind_of(init.dtype) for init in fold.inits]
        bits = widest_bits(fold.body, (*fold.values, *fold.inits), axis.name)
        bits = max([bits, *(bits_of(kind) for kind in kinds)])
        lanes = min(w.target.vector_bytes * 8 // bits, fold.lanes)
        groups = fold.lanes // lanes
        arrays = [w.fresh("s") for _ in kinds]
        for name, kind, init in zip(arrays, kinds, inits):
            start = ", ".join([self.ops.spread(init, lanes).text] * groups)
            w.line(f"{ctype(kind, lanes)} {name}[{groups}] = {{{start}}};")
        with self.loops.nest(fold.axes[:-1]), self.loops.around(axis) as extent:
            at = w.fresh("a")
            w.line(f"int64_t {at} = 0;")
            if cheap(fold.body, (*fold.values, *fold.step.results)):
                self._whole(fold, kinds, arrays, at, extent, lanes)
            with w.scope(f"for (; {at} < {extent}; {at} += {lanes}) {{") as inner:
                count = self.loops.counted(extent, at, lanes)
                inner.axes[axis.name] = at
                targets = [f"{name}[{at} / {lanes} & {groups - 1}]" if groups > 1 else f"{name}[0]" for name in arrays]
                with w.along(Vector(axis.name, lanes, count)):
                    self.statements.step(fold, kinds, targets, count)
        self._tree(fold, kinds, arrays, lanes, groups)

    def _whole(self, fold: Fold, kinds: list[str], arrays: list[str], at: str, extent: str, lanes: int) -> None:
        """The positions up to a multiple of the fold's lanes, with the states in registers."""
        w, name, groups = self.w, fold.axes[-1].name, range(fold.lanes // lanes)
        with w.scope(f"if ({at} + {fold.lanes} <= {extent}) {{"), w.pinned():
            states = [[w.variable(k, lanes, f"{a}[{g}]") for a, k in zip(arrays, kinds)] for g in groups]
            with w.scope(f"for (; {at} + {fold.lanes} <= {extent}; {at} += {fold.lanes}) {{"):
                for group in groups:
                    with w.scope() as inner:
                        inner.axes[name] = self.loops.shifted(at, group * lanes)
                        with w.along(Vector(name, lanes)):
                            self.statements.step(fold, kinds, states[group])
            for group in groups:
                for array, state in zip(arrays, states[group]):
                    w.line(f"{array}[{group}] = {state};")

    def _tree(self, fold: Fold, kinds: list[str], arrays: list[str], lanes: int, groups: int) -> None:
        """Halves the lanes until one is left: first whole vectors, then the parts of one."""
        half = groups // 2
        while half:
            for group in range(half):
                left, right = ([f"{a}[{g}]" for a in arrays] for g in (group, group + half))
                self.statements.join(fold, kinds, left, right, lanes)
            half //= 2
        half = lanes // 2
        while half:
            order = ", ".join(str((k + half) % lanes) for k in range(lanes))
            moved = self.w.read((f"__builtin_shufflevector({a}[0], {a}[0], {order})" for a in arrays), kinds, lanes)
            self.statements.join(fold, kinds, [f"{a}[0]" for a in arrays], [one.text for one in moved], lanes)
            half //= 2
        results = [f"({a}[0][0] != 0)" if k == "bool" else f"{a}[0][0]" for a, k in zip(arrays, kinds)]
        self.statements.bind(fold, [Value(text, kind) for text, kind in zip(results, kinds)])
