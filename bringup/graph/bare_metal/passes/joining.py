"""Neighbouring grid axes as one, where every access sees them as one: longer loops, fewer of them."""

from __future__ import annotations

from dataclasses import replace

from bringup.graph.bare_metal.static_program import StaticProgram
from bringup.graph.program import span
from bringup.ir.expr import Load
from bringup.ir.index import Index, Int
from bringup.ir.kernel import Buffer, Kernel, Store, offset_of, statements
from bringup.ir.walk import Substitution, all_values, bridges
from bringup.targets.c.contract_tile import merged_axes


def join(program: StaticProgram) -> StaticProgram:
    """Makes one axis of neighbouring ones."""
    return program.with_kernels(joined)


def joined(kernel: Kernel) -> Kernel:
    """A kernel with as few grid axes as its accesses allow.

    >>> from bringup.ir.parser import parse
    >>> kernel = parse("kernel k in x: float32[2, 3] strides [3, 1] out y: float32[2, 3] strides [3, 1] "
    ...                "grid i < 2, j < 3 { store y[i, j] = x[i, j] }")
    >>> [axis.extent.value for axis in joined(kernel).axes]
    [6]
    """
    inner = [stmt for stmt in statements(kernel.body) if isinstance(stmt, Store) and stmt not in kernel.body]
    if inner or kernel.locals:  # those stores are not looked at
        return kernel
    axes, body = merged_axes(kernel, kernel.axes, kernel.body)
    if axes == kernel.axes:
        return kernel
    # A joined axis runs beyond the rows of a buffer: from here on buffers are plain memory.
    places = {buffer.name: buffer for buffer in kernel.buffers}
    if any(_checks_only(places[load.buffer], load) for load in all_values(body) if isinstance(load, Load)):
        return kernel

    def flat(name: str, indices: tuple[Index, ...]) -> tuple[str, tuple[Index, ...]]:
        return name, (offset_of(places[name], indices),)

    buffers = tuple(replace(b, shape=(Int(reach(b)),), strides=(Int(1),)) for b in kernel.buffers)
    return replace(kernel, axes=axes, buffers=buffers, body=Substitution(access=flat).block(body))


def _checks_only(buffer: Buffer, load: Load) -> bool:
    """Whether an index moves nothing (its dimension repeats one element), and must be checked all the same."""
    return any(bridges(index) and stride == Int(0) for index, stride in zip(load.indices, buffer.strides))


def reach(buffer: Buffer) -> int:
    """How many elements of memory a buffer of known shape spans."""
    sizes = [extent.value for extent in buffer.shape if isinstance(extent, Int)]
    steps = [stride.value for stride in buffer.strides if isinstance(stride, Int)]
    return span(sizes, steps)
