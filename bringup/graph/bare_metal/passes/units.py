"""Axes and dimensions of one element left out: a grouped convolution of one image then looks like any other.

Fusion leaves them out of the kernels that it joins; a convolution that nothing was fused with still has them, and the
passes after this one would not find its rows (a depthwise layer of 8 × 8 × 8: 2,373 vector
instructions instead of 506).
"""

from __future__ import annotations

from dataclasses import replace

from bringup.graph.bare_metal.static_program import StaticProgram
from bringup.ir.index import Index, Int
from bringup.ir.kernel import Kernel
from bringup.ir.walk import Substitution, accesses


def without_units(program: StaticProgram) -> StaticProgram:
    """Leaves out axes and dimensions of one element."""
    return program.with_kernels(squeezed)


def squeezed(kernel: Kernel) -> Kernel:
    """A kernel without grid axes of one step, and without dimensions that are always read and written at 0.

    >>> from bringup.ir.parser import parse
    >>> kernel = parse("kernel k in x: float32[1, 3] strides [3, 1] out y: float32[3] strides [1] "
    ...                "grid i < 1, j < 3 { store y[j] = x[i, j] }")
    >>> [len(buffer.shape) for buffer in squeezed(kernel).buffers], len(squeezed(kernel).axes)
    ([1, 1], 1)
    """
    single = {axis.name: Int(0) for axis in kernel.axes if axis.extent == Int(1)}
    body = Substitution(axes=single).block(kernel.body) if single else kernel.body
    touched: dict[str, list[tuple[Index, ...]]] = {}
    for name, indices in accesses(body):
        touched.setdefault(name, []).append(indices)
    kept: dict[str, list[int]] = {}
    for buffer in kernel.buffers:
        still = [all(at[d] == Int(0) for at in touched.get(buffer.name, ())) for d in range(len(buffer.shape))]
        kept[buffer.name] = [d for d, extent in enumerate(buffer.shape) if extent != Int(1) or not still[d]]

    def access(name: str, indices: tuple[Index, ...]) -> tuple[str, tuple[Index, ...]]:
        inside = tuple(change.index(index) for index in indices)  # an index may be a value that is read
        return name, tuple(inside[d] for d in kept[name]) if name in kept else inside

    change = Substitution(access=access)
    buffers = tuple(
        replace(b, shape=tuple(b.shape[d] for d in kept[b.name]), strides=tuple(b.strides[d] for d in kept[b.name]))
        for b in kernel.buffers
    )
    axes = tuple(axis for axis in kernel.axes if axis.name not in single)
    return replace(kernel, axes=axes, buffers=buffers, body=change.block(body))
