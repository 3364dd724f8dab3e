"""A kernel of known sizes as one readable C function: pointers in, loops with numbers for bounds.

>>> from bringup.ir.parser import parse
>>> kernel = parse("kernel double in x: float32[3] strides [1] out y: float32[3] strides [1] grid i < 3 "
...                "{ store y[i] = (x[i] + x[i]) }")
>>> print(static_function(kernel, "double_it", Target(vector_bytes=0)).function.splitlines()[0])
static __attribute__((noinline)) void double_it(const f32_m *const b_x, f32_m *const b_y, int64_t *const report) {
"""

from __future__ import annotations

from dataclasses import replace

from bringup.ir.index import Int
from bringup.ir.kernel import Kernel
from bringup.targets.c import Function, Part
from bringup.targets.c_access import Accesses
from bringup.targets.c_value import storage_of
from bringup.targets.target import Target

#: Each step is a function of its own, so that a profile tells them apart.
FUNCTION = "static __attribute__((noinline)) void"


def parameters(writer: Accesses, kernel: Kernel) -> str:
    """The parameters of a kernel's C function: a pointer for each buffer, and where a bad index is reported.

    >>> parameters(Accesses(Kernel("k"), Target()), Kernel("k"))
    'int64_t *const report'
    """
    words = []
    for buffer in kernel.buffers:
        const = "const " if buffer.name not in writer.written else ""
        words.append(f"{const}{storage_of(buffer.dtype)}_m *const b_{buffer.name}")
    return ", ".join([*words, "int64_t *const report"])


def static_function(kernel: Kernel, name: str, target: Target) -> Part:
    """The function, whatever the kernel's shape; the kernel has no open sizes and no parameters."""
    assert not kernel.sizes, "all sizes are known"
    assert not kernel.params, "all parameters are known"
    return _StaticFunction(kernel, name, target).part()


class _StaticFunction(Function):
    def __init__(self, kernel: Kernel, name: str, target: Target) -> None:
        super().__init__(kernel, target)
        self.entry = name
        self.plan = replace(self.plan, one_unit=True)

    def part(self) -> Part:
        lanes = self.grid_lanes()
        self.locals(lanes)
        self.whole_grid(self.kernel.axes, lanes)
        body = "".join(f"  {line}\n" for line in self.stack[0].lines)
        unused = "" if "report" in body else "  (void)report;\n"
        head = f"{FUNCTION} {self.entry}({parameters(self, self.kernel)}) {{\n"
        return Part(self.entry, Int(1), head + unused + body + "}\n", frozenset(self.needs), self.snippets)
