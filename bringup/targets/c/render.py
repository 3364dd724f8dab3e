"""Kernels as C: one function that runs a range of work units, with everything it needs in one translation unit.

>>> from bringup.ir.parser import parse
>>> from bringup.targets.c.options import COptions
>>> kernel = parse("kernel double size n in x: float32[n] strides [1] out y: float32[n] strides [1] grid i < n "
...                "{ store y[i] = (x[i] + x[i]) }")
>>> source = render(kernel, COptions())
>>> source.entry
'bringup_double'
"""

from __future__ import annotations

from bringup.ir.index import Index, Int
from bringup.ir.kernel import Kernel, axes_of
from bringup.targets.c.access import Accesses
from bringup.targets.c.columns import Columns, side_by_side
from bringup.targets.c.contract import contraction
from bringup.targets.c.options import COptions
from bringup.targets.c.parts import Parts
from bringup.targets.c.plan import plan, widest_bits
from bringup.targets.c.unit import Part, declare_arguments, entry_head, entry_name, unit
from bringup.targets.c.value import storage_of
from bringup.targets.c.vector import Vectors
from bringup.targets.c.window import windowed
from bringup.targets.source import Source

#: Elements of the innermost axis in one work unit: a few microseconds of work, so that threads share it well.
_BLOCK = 16384
#: The same where each element is a loop of its own.
_BLOCK_OF_LOOPS = 128


def render(kernel: Kernel, target: COptions) -> Source:
    """The C source of a kernel that the verifier accepts."""
    part = contraction(kernel, target) or windowed(kernel, target) or general(kernel, target)
    return Source(unit([part], target), part.entry, part.units)


def general(kernel: Kernel, target: COptions) -> Part:
    """A kernel's function by the general emitter, whatever its shape."""
    return Function(kernel, target).part()


class Function:
    """The function of a kernel: arguments, work units, grid."""

    def __init__(self, kernel: Kernel, target: COptions, accesses: type[Accesses] = Accesses) -> None:
        self.kernel, self.plan = kernel, plan(kernel, target)
        self.parts = parts = Parts(kernel, target, accesses)
        self.w, self.loops, self.statements = parts.w, parts.loops, parts.statements
        both = (parts.w, parts.ops, parts.values, parts.loops, parts.statements)
        self.vectors, self.columns = Vectors(*both), Columns(*both)
        if self.plan.style == "rows":
            self.statements.others.append(self.vectors.rows)

    def part(self) -> Part:
        """The function with what it needs."""
        declare_arguments(self.parts, self.kernel)
        units = self.grid()
        text = f"{entry_head(self.kernel)}{self.w.text()}}}\n"
        return Part(entry_name(self.kernel), units, text, frozenset(self.w.needs), self.w.snippets)

    def locals(self) -> int:
        """Declares the kernel's Locals; returns how many steps of the innermost grid axis run side by side, each with
        Locals of its own."""
        lanes = 1
        if self.plan.style == "grid":
            lanes = self.w.target.vector_bytes * 8 // widest_bits(self.kernel.body, (), self.kernel.axes[-1].name)
        self.parts.lanes.count = lanes
        for local in self.kernel.locals:
            count = local.nbytes // local.dtype.size * lanes
            self.w.line(f"{storage_of(local.dtype)}_m b_{local.name}[{count}];")
        return lanes

    # the grid

    def grid(self) -> Index:
        """Emits the loops over the units, and gives their number."""
        w, axes, body = self.w, self.kernel.axes, self.kernel.body
        lanes = self.locals()
        if self.plan.one_unit or not axes:
            w.line("if (begin >= end) return;")
            self.whole_grid(lanes)
            return Int(1)
        outer, inner = (axes[:-1], axes[-1]) if self.plan.style == "grid" else (axes, None)
        units: Index = Int(1)
        for axis in outer:
            units = units * axis.extent
        extents = [self.loops.extent(axis) for axis in outer]
        size = _BLOCK_OF_LOOPS if any(axes_of(stmt) for stmt in body) else _BLOCK
        if inner is not None:
            units = units * ((inner.extent + (size - 1)) // size)
            extents.append(w.fresh("n"))
            w.line(f"const int64_t {extents[-1]} = ({self.loops.extent(inner)} + {size - 1}) / {size};")
        positions = self.first(extents)
        with self.loops.knowing(*axes), w.scope("for (int64_t unit = begin; unit < end; unit++) {") as scope:
            w.pin = w.depth
            for axis, at in zip(outer, positions):
                scope.axes[axis.name] = at
            if inner is None:
                self.statements.block(body)
            else:
                start, stop, extent = w.fresh("a"), w.fresh("a"), self.loops.extent(inner)
                w.line(f"const int64_t {start} = {positions[-1]} * {size};")
                w.line(f"const int64_t {stop} = {extent} - {start} < {size} ? {extent} : {start} + {size};")
                whole = self.columns.across if side_by_side(body) else None
                self.vectors.across(inner, lanes, start, stop, body, whole)
            self.next(extents, positions)
        return units

    def whole_grid(self, lanes: int) -> None:
        """All of the grid in one go."""
        axes, body = self.kernel.axes, self.kernel.body
        if lanes == 1:
            with self.loops.nest(axes):
                self.statements.block(body)
        else:
            with self.loops.nest(axes[:-1]), self.loops.around(axes[-1]) as extent:
                self.vectors.across(axes[-1], lanes, "0", extent, body)

    def first(self, extents: list[str]) -> list[str]:
        """Declares the position of the first unit on each axis (and its block); the last one runs fastest."""
        positions = [self.w.fresh("a") for _ in extents]
        self.w.line("if (begin >= end) return;")
        rest = "begin"
        for at in range(len(extents) - 1, 0, -1):
            left = self.w.fresh("u")
            self.w.line(f"int64_t {positions[at]} = {rest} % {extents[at]}, {left} = {rest} / {extents[at]};")
            rest = left
        self.w.line(f"int64_t {positions[0]} = {rest};")
        return positions

    def next(self, extents: list[str], positions: list[str]) -> None:
        """Moves the positions to the next unit."""
        text = f"{positions[0]}++;"
        for at in range(1, len(positions)):
            text = f"if (++{positions[at]} == {extents[at]}) {{ {positions[at]} = 0; {text} }}"
        self.w.line(text)
