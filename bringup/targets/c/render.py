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

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bringup.ir.index import Index, Int
from bringup.ir.index_proof import Facts
from bringup.ir.kernel import Axis, Block, Kernel, axes_of
from bringup.targets.c import contract as c_contract
from bringup.targets.c.columns import Columns, side_by_side
from bringup.targets.c.math_library import functions, typedefs
from bringup.targets.c.memory import memory_typedefs
from bringup.targets.c.options import COptions
from bringup.targets.c.plan import plan, widest_bits
from bringup.targets.c.value import Value, ctype, kind_of, storage_of
from bringup.targets.source import Source

#: Elements of the innermost axis in one work unit: a few microseconds of work, so that threads share it well.
_BLOCK = 16384
#: The same where each element is a loop of its own.
_BLOCK_OF_LOOPS = 128


def render(kernel: Kernel, target: COptions) -> Source:
    """The C source of a kernel that the verifier accepts.

    >>> render(Kernel("nothing"), COptions()).units
    Int(value=1)
    """
    packed = c_contract.render(kernel, target)
    if packed is not None:
        return packed
    part = general(kernel, target)
    return Source(unit([part], target), part.entry, part.units)


@dataclass(frozen=True)
class Part:
    """One kernel's function, and which library functions and snippets it calls."""

    entry: str
    units: Index
    function: str
    needs: frozenset[tuple[str, str, int]]
    snippets: Mapping[str, str]


def general(kernel: Kernel, target: COptions) -> Part:
    """A kernel's function by the general emitter, whatever its shape.

    >>> general(Kernel("nothing"), COptions()).entry
    'bringup_nothing'
    """
    return Function(kernel, target).part()


def unit(parts: Iterable[Part], target: COptions) -> str:
    """One translation unit of several kernels with different names; what they share is in it once.

    >>> unit([], COptions())
    '#include <stdint.h>\\n'
    """
    parts = list(parts)
    snippets: dict[str, str] = {}
    for part in parts:
        snippets.update(part.snippets)
    needs = {need for part in parts for need in part.needs}
    text = functions(needs, target) + "".join(snippets.values()) + "".join(part.function for part in parts)
    return "#include <stdint.h>\n" + typedefs(text) + memory_typedefs(text) + text


class Function(Columns):
    """The function of a kernel: arguments, work units, grid."""

    def __init__(self, kernel: Kernel, target: COptions) -> None:
        super().__init__(kernel, target, plan(kernel, target))
        self.entry = "bringup_" + re.sub(r"\W", "_", kernel.name)

    def part(self) -> Part:
        """The function with what it needs."""
        kernel = self.kernel
        self.facts = Facts(sizes={size.name: (size.low, size.high) for size in kernel.sizes})
        self._arguments()
        units = self._grid()
        body = "".join(f"  {line}\n" for line in self.stack[0].lines)
        head = f"void {self.entry}(const uint64_t *args, int64_t begin, int64_t end, int64_t *report) {{\n"
        return Part(self.entry, units, head + body + "}\n", frozenset(self.needs), self.snippets)

    def _arguments(self) -> None:
        kernel = self.kernel
        for at, buffer in enumerate(kernel.buffers):
            const = "const " if buffer.name not in self.written else ""
            storage = storage_of(buffer.dtype)
            self.line(f"{const}{storage}_m *const b_{buffer.name} = ({const}{storage}_m *)(uintptr_t)args[{at}];")
        at = len(kernel.buffers)
        for size in kernel.sizes:
            self.line(f"const int64_t n_{size.name} = (int64_t)args[{at}];")
            at += 1
        for param in kernel.params:
            kind = kind_of(param.dtype)
            if kind[0] == "f":
                self.line(f"union {{ uint{kind[1:]}_t bits; {'float' if kind == 'f32' else 'double'} value; }}")
                self.line(f"    u_{param.name} = {{(uint{kind[1:]}_t)args[{at}]}};")
                text = f"u_{param.name}.value"
            else:
                text = f"args[{at}] != 0" if kind == "bool" else f"({ctype(kind)})args[{at}]"
            self.stack[0].names[param.name] = self.narrowed(Value("", kind), param.dtype, text, 1, 0)
            at += 1

    def grid_lanes(self) -> int:
        """How many steps of the innermost grid axis run side by side."""
        if self.plan.style != "grid":
            return 1
        return self.target.vector_bytes * 8 // widest_bits(self.kernel.body, (), self.kernel.axes[-1].name)

    def locals(self, lanes: int) -> None:
        """Declares the kernel's Locals, for each lane its own."""
        self.private_lanes = lanes
        for local in self.kernel.locals:
            count = local.nbytes // local.dtype.size * lanes
            self.line(f"{storage_of(local.dtype)}_m b_{local.name}[{count}];")

    # the grid

    def _grid(self) -> Index:
        """Emits the loops over the units, and gives their number."""
        axes, body = self.kernel.axes, self.kernel.body
        vectors = self.plan.style == "grid"
        lanes = self.grid_lanes()
        self.locals(lanes)
        if self.plan.one_unit or not axes:
            self.line("if (begin >= end) return;")
            self.whole_grid(axes, lanes)
            return Int(1)
        outer, inner = (axes[:-1], axes[-1]) if vectors else (axes, None)
        units: Index = Int(1)
        for axis in outer:
            units = units * axis.extent
        extents = [self.extent(axis) for axis in outer]
        size = _BLOCK_OF_LOOPS if any(axes_of(stmt) for stmt in body) else _BLOCK
        if inner is not None:
            units = units * ((inner.extent + (size - 1)) // size)
            extents.append(self.fresh("n"))
            self.line(f"const int64_t {extents[-1]} = ({self.extent(inner)} + {size - 1}) / {size};")
        positions = self._first(extents)
        with self.knowing(*axes), self.scope("for (int64_t unit = begin; unit < end; unit++) {") as scope:
            self.pin = self.depth
            for axis, at in zip(outer, positions):
                scope.axes[axis.name] = at
            if inner is None:
                self.block(body)
            else:
                start, stop, extent = self.fresh("a"), self.fresh("a"), self.extent(inner)
                self.line(f"const int64_t {start} = {positions[-1]} * {size};")
                self.line(f"const int64_t {stop} = {extent} - {start} < {size} ? {extent} : {start} + {size};")
                self.across(inner, lanes, start, stop, body)
            self._next(extents, positions)
        return units

    def whole_grid(self, axes: tuple[Axis, ...], lanes: int) -> None:
        """All of the grid in one go."""
        if lanes == 1:
            with self.nest(axes):
                self.block(self.kernel.body)
        else:
            with self.nest(axes[:-1]), self.around(axes[-1]) as extent:
                self.across(axes[-1], lanes, "0", extent, self.kernel.body)

    def whole(self, axis: Axis, lanes: int, at: str, stop: str, block: Block) -> None:
        """Whole vectors of the grid's innermost axis; several at once where each is a fold."""
        if self.plan.style == "grid" and not self.plan.one_unit and side_by_side(block):
            self.columns(axis, lanes, at, stop, block)
        else:
            super().whole(axis, lanes, at, stop, block)

    def _first(self, extents: list[str]) -> list[str]:
        """Declares the position of the first unit on each axis (and its block); the last one runs fastest."""
        positions = [self.fresh("a") for _ in extents]
        self.line("if (begin >= end) return;")
        rest = "begin"
        for at in range(len(extents) - 1, 0, -1):
            left = self.fresh("u")
            self.line(f"int64_t {positions[at]} = {rest} % {extents[at]}, {left} = {rest} / {extents[at]};")
            rest = left
        self.line(f"int64_t {positions[0]} = {rest};")
        return positions

    def _next(self, extents: list[str], positions: list[str]) -> None:
        """Moves the positions to the next unit."""
        text = f"{positions[0]}++;"
        for at in range(1, len(positions)):
            text = f"if (++{positions[at]} == {extents[at]}) {{ {positions[at]} = 0; {text} }}"
        self.line(text)
