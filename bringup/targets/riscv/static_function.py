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
from dataclasses import replace

from bringup.ir.index import Int
from bringup.ir.kernel import Kernel
from bringup.targets.c.access import Accesses
from bringup.targets.c.fold import Fold
from bringup.targets.c.options import COptions
from bringup.targets.c.render import Function, Part
from bringup.targets.c.value import Value, kind_of, storage_of

#: Partial results of a fold that are variables instead of an array.
_IN_REGISTERS = 8
#: Each step is a function of its own, so that a profile tells them apart.
FUNCTION = "static __attribute__((noinline)) void"


def parameters(writer: Accesses, kernel: Kernel) -> str:
    """The parameters of a kernel's C function: a pointer for each buffer, and where a bad index is reported.

    >>> parameters(Accesses(Kernel("k"), COptions()), Kernel("k"))
    'int64_t *const report'
    """
    words = []
    for buffer in kernel.buffers:
        const = "const " if buffer.name not in writer.written else ""
        words.append(f"{const}{storage_of(buffer.dtype)}_m *const b_{buffer.name}")
    return ", ".join([*words, "int64_t *const report"])


def function_text(writer: Accesses, kernel: Kernel, name: str) -> str:
    """The function of the lines that were written; compilers find nothing in it that is not used."""
    body = "".join(f"  {line}\n" for line in only_used(writer.stack[0].lines))
    known = ["report", *(f"b_{buffer.name}" for buffer in kernel.buffers)]
    unused = "".join(f"  (void){one};\n" for one in known if not re.search(rf"\b{one}\b", body))
    return f"{FUNCTION} {name}({parameters(writer, kernel)}) {{\n{unused}{body}}}\n"


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
    return _StaticFunction(kernel, name, target).part()


class _StaticFunction(Function):
    def __init__(self, kernel: Kernel, name: str, target: COptions) -> None:
        super().__init__(kernel, target)
        self.entry = name
        self.plan = replace(self.plan, one_unit=True)

    def fold_in_order(self, fold: Fold) -> None:
        """Few partial sums are variables, and the steps of one round are written out."""
        inner = fold.axes[-1]
        known = isinstance(inner.extent, Int)
        if not 1 < fold.lanes <= _IN_REGISTERS or self.vector is not None or not known:
            super().fold_in_order(fold)
            return
        assert isinstance(inner.extent, Int)
        kinds = [kind_of(init.dtype) for init in fold.inits]
        inits = [self.value(init) for init in fold.inits]
        states = [[self.started(kind, init) for kind, init in zip(kinds, inits)] for _ in range(fold.lanes)]
        rounds, rest = divmod(inner.extent.value, fold.lanes)
        with self.nest(fold.axes[:-1]), self.knowing(inner):
            if rounds:
                at = self.fresh("a")
                end = rounds * fold.lanes
                with self.scope(f"for (int64_t {at} = 0; {at} < {end}; {at} += {fold.lanes}) {{"):
                    for lane in range(fold.lanes):
                        self._step_of(fold, kinds, states[lane], f"({at} + {lane})")
            for lane in range(rest):
                self._step_of(fold, kinds, states[lane], str(rounds * fold.lanes + lane))
        half = fold.lanes // 2
        while half:
            for lane in range(half):
                left, right = (
                    [self.declare(name, kind, 1, self.depth) for name, kind in zip(states[one], kinds)]
                    for one in (lane, lane + half)
                )
                self.combined(fold.join, left, right, states[lane])
            half //= 2
        self.bind_fold(fold, [Value(name, kind, 1, self.depth) for name, kind in zip(states[0], kinds)])

    def _step_of(self, fold: Fold, kinds: list[str], state: list[str], place: str) -> None:
        with self.scope() as scope:
            scope.axes[fold.axes[-1].name] = place
            self.block(fold.body)
            values = [self.value(value) for value in fold.values]
            old = [self.declare(name, kind, 1, self.depth) for name, kind in zip(state, kinds)]
            self.combined(fold.step, old, values, state)

    def part(self) -> Part:
        lanes = self.grid_lanes()
        self.locals(lanes)
        self.whole_grid(self.kernel.axes, lanes)
        text = function_text(self, self.kernel, self.entry)
        return Part(self.entry, Int(1), text, frozenset(self.needs), self.snippets)
