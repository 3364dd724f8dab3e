"""A kernel of known sizes as one readable C function: pointers in, loops with numbers for bounds.

>>> from bringup.ir.parser import parse
>>> kernel = parse("kernel double in x: float32[3] strides [1] out y: float32[3] strides [1] grid i < 3 "
...                "{ store y[i] = (x[i] + x[i]) }")
>>> print(static_function(kernel, "double_it", COptions(vector_bytes=0)).function.splitlines()[0])
static __attribute__((noinline)) void double_it(const f32_m *const b_x, f32_m *const b_y, int64_t *const report) {
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from bringup.ir.index import Int
from bringup.ir.kernel import Contract, Kernel, Reduce, Stmt
from bringup.targets.c.options import COptions
from bringup.targets.c.parts import Parts
from bringup.targets.c.render import Function
from bringup.targets.c.scope import Scopes
from bringup.targets.c.unit import Part
from bringup.targets.c.value import Value, kind_of, storage_of
from bringup.targets.fold import Fold, fold_of

#: Partial results of a fold that are variables instead of an array.
_IN_REGISTERS = 8
#: Each step is a function of its own, so that a profile tells them apart.
FUNCTION = "static __attribute__((noinline)) void"


def parameters(kernel: Kernel) -> str:
    """The parameters of a kernel's C function: a pointer for each buffer, and where a bad index is reported."""
    words, written = [], kernel.written
    for buffer in kernel.buffers:
        const = "const " if buffer.name not in written else ""
        words.append(f"{const}{storage_of(buffer.dtype)}_m *const b_{buffer.name}")
    return ", ".join([*words, "int64_t *const report"])


def static_part(w: Scopes, kernel: Kernel, name: str) -> Part:
    """The function of the lines that were written; compilers find nothing in it that is not used."""
    body = "".join(f"  {line}\n" for line in only_used(w.stack[0].lines))
    known = ["report", *(f"b_{buffer.name}" for buffer in kernel.buffers)]
    unused = "".join(f"  (void){one};\n" for one in known if not re.search(rf"\b{one}\b", body))
    text = f"{FUNCTION} {name}({parameters(kernel)}) {{\n{unused}{body}}}\n"
    return Part(name, Int(1), text, frozenset(w.needs), w.snippets)


def only_used(lines: Sequence[str]) -> list[str]:
    """The lines without values that no later line names.

    >>> only_used(["const int v1 = 2;", "const int v2 = v1;", "y = 3;"])
    ['y = 3;']
    """
    uses = Counter(name for line in lines for name in _VALUES.findall(line))
    kept: list[str] = []
    for line in reversed(lines):
        declared = _DECLARED.match(line)
        if declared is not None and uses[declared[1]] == 1:
            uses.subtract(_VALUES.findall(line))
        else:
            kept.append(line)
    return kept[::-1]


_VALUES = re.compile(r"\b[av]\d+\b")
_DECLARED = re.compile(r"\s*const \w+ ([av]\d+) = .*;$")


def static_function(kernel: Kernel, name: str, target: COptions) -> Part:
    """The function, whatever the kernel's shape; the kernel has no dynamic sizes and no parameters."""
    assert not kernel.sizes, "all sizes are known"
    assert not kernel.params, "all parameters are known"
    function = Function(kernel, target)
    function.statements.others.append(Unrolled(function.parts).fold)
    function.whole_grid(function.locals())
    return static_part(function.w, kernel, name)


class Unrolled:
    """Emits folds with few partial sums: those are variables, and the steps of one round are written out."""

    def __init__(self, parts: Parts) -> None:
        self.w, self.values, self.loops, self.statements = parts.w, parts.values, parts.loops, parts.statements

    def fold(self, stmt: Stmt) -> bool:
        """Emits a fold of known length; returns whether it did."""
        if not isinstance(stmt, (Reduce, Contract)) or not 1 < stmt.lanes <= _IN_REGISTERS or self.w.vector is not None:
            return False
        extent = stmt.axes[-1].extent
        if not isinstance(extent, Int):
            return False
        w, fold = self.w, fold_of(stmt)
        kinds = [kind_of(init.dtype) for init in fold.inits]
        inits = [self.values.value(init) for init in fold.inits]
        states = [[self.statements.started(kind, init) for kind, init in zip(kinds, inits)] for _ in range(fold.lanes)]
        rounds, rest = divmod(extent.value, fold.lanes)
        with self.loops.nest(fold.axes[:-1]), self.loops.knowing(fold.axes[-1]):
            if rounds:
                at = w.fresh("a")
                end = rounds * fold.lanes
                with w.scope(f"for (int64_t {at} = 0; {at} < {end}; {at} += {fold.lanes}) {{"):
                    for lane in range(fold.lanes):
                        self._step(fold, kinds, states[lane], f"({at} + {lane})")
            for lane in range(rest):
                self._step(fold, kinds, states[lane], str(rounds * fold.lanes + lane))
        half = fold.lanes // 2
        while half:
            for lane in range(half):
                self.statements.join(fold, kinds, states[lane], states[lane + half], 1)
            half //= 2
        self.statements.bind(fold, [Value(name, kind) for name, kind in zip(states[0], kinds)])
        return True

    def _step(self, fold: Fold, kinds: list[str], state: list[str], place: str) -> None:
        with self.w.scope() as scope:
            scope.axes[fold.axes[-1].name] = place
            self.statements.step(fold, kinds, state)
