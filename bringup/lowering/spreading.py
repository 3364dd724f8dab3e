"""How kernels may be shared out over memory partitions: along which axes of the grid, and what each then touches.

A position on a grid axis, as a rule a row, goes to one partition. That is right where the axis's extent is a number of
its own among the kernel's arguments, its position occurs in addresses only, and every address is linear in it. What is
written must be *confined*: a position touches bytes of its own. The core chooses between the axes that are found here,
by what has to be moved for each (``csrc/placement/``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from bringup.compile.kernels import FilledLaunch, ForeignKernel, Launch
from bringup.compile.loader import Compiled, Measure
from bringup.ir.expr import Expr, Load
from bringup.ir.index import (
    AxisVar,
    Bounded,
    FloorDiv,
    Index,
    Int,
    Max,
    Min,
    Mod,
    OfTwo,
    Size,
    Sum,
    atoms,
    coefficient,
    evaluate_sizes,
)
from bringup.ir.kernel import Axis, Kernel, SizeRange, Store, axes_of, offset_of, statements
from bringup.ir.walk import axes_inside, indices_of, own_values, subexpressions

#: (is written, for each buffer; the axes: position of the extent among the arguments, extent, least, most, (bytes from
#: one position to the next, confined) for each buffer, work units of a number of positions), as the core takes it.
Spread: TypeAlias = "tuple[list[bool], list[tuple[int, int, int, int, list[tuple[int, bool]], Callable[[int], int]]]]"

_NO_LIMIT = 1 << 62


def spread_of(kernel: Kernel | ForeignKernel, sizes: Sequence[int], measure: Measure | None) -> Spread | None:
    """Returns the axes along which a launch with these sizes may be shared out; None for code that is not ours."""
    if isinstance(kernel, ForeignKernel) or measure is None:
        return None
    known = dict(zip((size.name for size in kernel.sizes), sizes))
    written = kernel.written
    axes = [found for axis in kernel.axes if (found := _axis(kernel, axis, known, sizes, measure)) is not None]
    return [buffer.name in written for buffer in kernel.buffers], axes


def opened(kernel: Kernel) -> tuple[Kernel, list[int]]:
    """Returns a kernel whose grid's constant extents are sizes, and these: only a size can differ by partition."""
    constant = [axis for axis in kernel.axes if isinstance(axis.extent, Int) and axis.extent.value > 1]
    names = {axis.name: f"share_{axis.name}" for axis in constant}
    axes = tuple(replace(axis, extent=Size(names[axis.name])) if axis in constant else axis for axis in kernel.axes)
    extents = [axis.extent.value for axis in constant if isinstance(axis.extent, Int)]
    sizes = tuple(SizeRange(names[axis.name], 0, extent) for axis, extent in zip(constant, extents))
    return replace(kernel, axes=axes, sizes=(*kernel.sizes, *sizes)), extents


def with_spread(filled: FilledLaunch, launch: Launch[Any, Any, Any], loaded: Compiled) -> tuple[Any, ...]:
    """Returns a launch as ``make_plan`` takes it, with how it may be shared out where that is known."""
    first = len(launch.buffers)
    sizes = [value for _, value, _ in filled.arguments[first : first + len(launch.kernel.sizes)]]
    spread = spread_of(launch.kernel, sizes, loaded.measure)
    return filled if spread is None else (*filled, spread)


def _axis(kernel: Kernel, axis: Axis, known: Mapping[str, int], sizes: Sequence[int], measure: Measure) -> Any:
    if not isinstance(axis.extent, Size):
        return None
    name = axis.extent.name
    extents = {one.name: one.extent for one in (*kernel.axes, *_inner_axes(kernel))}
    if any(_mentions(extent, name) for other, extent in extents.items() if other != axis.name):
        return None
    accesses = _accesses(kernel, axis, name)
    if accesses is None:
        return None
    touched = []
    for buffer in kernel.buffers:
        steps = set()
        confined = True
        for step, rest in accesses.get(buffer.name, []):
            number = evaluate_sizes(step, known)
            steps.add(number)
            low, high = _range(rest, extents, known)
            confined &= number > 0 and low >= 0 and high < number
        if len(steps) > 1 or (buffer.name in kernel.written and not confined):
            return None
        touched.append((steps.pop() * buffer.dtype.size if steps else 0, bool(confined and accesses.get(buffer.name))))
    place = [size.name for size in kernel.sizes].index(name)
    bounds = kernel.sizes[place]

    def units(rows: int) -> int:
        return measure(*sizes[:place], rows, *sizes[place + 1 :])[0]

    least, most = bounds.low or 0, _NO_LIMIT if bounds.high is None else bounds.high
    return len(kernel.buffers) + place, known[name], least, most, touched, units


def _inner_axes(kernel: Kernel) -> Iterator[Axis]:
    for stmt in statements(kernel.body):
        yield from axes_of(stmt)


def _accesses(kernel: Kernel, axis: Axis, size: str) -> dict[str, list[tuple[Index, Index]]] | None:
    """The (step, rest) of every access by buffer; None if the axis or its extent is used for anything else."""
    found: dict[str, list[tuple[Index, Index]]] = {}
    local = {one.name for one in kernel.locals}

    def access(buffer: str, indices: tuple[Index, ...]) -> bool:
        memory = kernel.buffer(buffer)
        assert memory is not None
        offset = offset_of(memory, indices)
        step, rest = coefficient(offset, axis.var)
        if _mentions(offset, size) or axis.name in axes_inside(rest) or any(_names(step, AxisVar)):
            return False
        if any(isinstance(atom, Bounded) for atom in atoms(step)):
            return False
        if buffer in local:
            return step == Int(0)
        found.setdefault(buffer, []).append((step, rest))
        return True

    for stmt in statements(kernel.body):
        if isinstance(stmt, Store) and not access(stmt.buffer, stmt.indices):
            return None
        for value in own_values(stmt):
            for part in subexpressions(value):
                if isinstance(part, Load):
                    if not access(part.buffer, part.indices):
                        return None
                elif not _is_free(part, axis.name, size):
                    return None
        if isinstance(stmt, Store) and any(not _is_free_index(index, size) for index in stmt.indices):
            return None
    return found


def _is_free(value: Expr, axis: str, size: str) -> bool:
    """Whether a value that is not a Load mentions neither the axis nor its extent."""
    return all(axis not in axes_inside(index) and not _mentions(index, size) for index in indices_of(value))


def _is_free_index(index: Index, size: str) -> bool:
    """Whether values taken as indices are checked against other sizes only."""
    return not any(_mentions(atom.extent, size) for atom in atoms(index) if isinstance(atom, Bounded))


def _mentions(index: Index, size: str) -> bool:
    found = list(atoms(index))
    return any(isinstance(atom, Size) and atom.name == size for atom in found) or any(
        _mentions(atom.extent, size) for atom in found if isinstance(atom, Bounded)
    )


def _names(index: Index, kind: type[Index]) -> Iterator[Index]:
    return (atom for atom in atoms(index) if isinstance(atom, kind))


def _range(index: Index, extents: Mapping[str, Index], sizes: Mapping[str, int]) -> tuple[int, int]:
    """The smallest and the largest value of an index, or wider: by intervals."""
    if isinstance(index, Int):
        return index.value, index.value
    if isinstance(index, Size):
        return sizes[index.name], sizes[index.name]
    if isinstance(index, AxisVar):
        return 0, max(0, _range(extents[index.name], extents, sizes)[1] - 1)
    if isinstance(index, Bounded):
        return 0, max(0, _range(index.extent, extents, sizes)[1] - 1)
    if isinstance(index, Sum):
        low = high = 0
        for factors, value in index.terms:
            span = (value, value)
            for factor in factors:
                span = _product(span, _range(factor, extents, sizes))
            low, high = low + span[0], high + span[1]
        return low, high
    assert isinstance(index, OfTwo)
    a, b = _range(index.a, extents, sizes), _range(index.b, extents, sizes)
    if isinstance(index, Mod):
        return a if a[0] >= 0 and a[1] < b[0] else (0, max(0, b[1] - 1))
    if isinstance(index, FloorDiv):
        corners = [x // y for x in a for y in b if y > 0]
        return min(corners, default=0), max(corners, default=0)
    if isinstance(index, Min):
        return min(a[0], b[0]), min(a[1], b[1])
    assert isinstance(index, Max)
    return max(a[0], b[0]), max(a[1], b[1])


def _product(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)
