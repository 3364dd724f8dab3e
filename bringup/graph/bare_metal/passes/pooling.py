"""A convolution and the pooling after it as one kernel: the sums of a window never reach memory.

Sums that no window needs are not computed, and relu moves behind the maximum, where it is done once a window: it keeps
the order of numbers, so the largest stays the largest.
"""

from __future__ import annotations

import math
from dataclasses import replace

from bringup.graph.bare_metal.static_program import Place, StaticProgram, Step
from bringup.ir.expr import Binary, Const, Expr, Load, Name
from bringup.ir.index import AxisVar, Index, Int, coefficient
from bringup.ir.kernel import Axis, Block, Buffer, Kernel, Let, Local, Loop, Reduce, Store, binds
from bringup.ir.walk import Substitution, all_values
from bringup.targets.riscv.contraction import contraction_of
from bringup.targets.riscv.windows import windowed_of

#: The sums of a window must fit into registers beside those of other rows.
_LARGEST = 9


def fuse_pooling(program: StaticProgram) -> StaticProgram:
    """Joins a convolution with the pooling that alone reads it."""
    steps = list(program.steps)
    for pool in list(steps):
        at = steps.index(pool)
        for place, buffer in zip(pool.buffers, pool.kernel.buffers):
            if place.kind != "temporary" or buffer.role != "in":
                continue
            users = [step for step in steps if step.touches(place.memory)]
            if len(users) == 2 and users[1] is pool and users[0].writes(place.memory):
                fused = fused_step(users[0], pool, place)
                if fused is not None:
                    steps[at] = fused
                    steps.remove(users[0])
                    break
    return replace(program, steps=tuple(steps))


def fused_step(conv: Step, pool: Step, place: Place) -> Step | None:
    """Both as one step; None if they do not fit together."""
    made = conv.buffers.index(next(p for p in conv.buffers if p.memory == place.memory))
    read = pool.buffers.index(place)
    if conv.buffers[made] != place or pool.buffers.count(place) != 1:
        return None
    kernel = _fused(conv.kernel, conv.kernel.buffers[made], pool.kernel, pool.kernel.buffers[read])
    window = None if kernel is None else windowed_of(kernel)
    if kernel is None or window is None:
        return None
    places = [p for n, p in enumerate(conv.buffers) if n != made] + [p for n, p in enumerate(pool.buffers) if n != read]
    name = f"{conv.name}_{pool.kernel.name.removesuffix('_with_indices')}"
    note = "; ".join(one for one in (conv.note, pool.note) if one)
    return Step(kernel, tuple(places), name=name, macs=window.contraction.macs, note=note)


def _fused(conv: Kernel, made: Buffer, pool: Kernel, read: Buffer) -> Kernel | None:
    if contraction_of(conv) is None or _layout(made) != _layout(read):
        return None
    store, fold, *rest = conv.body[-1], *pool.body
    if not isinstance(store, Store) or store.buffer != made.name or not isinstance(fold, Reduce):
        return None
    value = fold.values[0]
    plain = len(fold.names) == 1 and fold.lanes == 1 and not fold.body
    if not plain or not isinstance(value, Load) or value.buffer != read.name or value.guard is not None:
        return None
    if any(isinstance(part, Load) and part.buffer == read.name for part in all_values(tuple(rest))):
        return None
    if not all(isinstance(index, AxisVar) for index in store.indices) or not _disjoint(value, fold, pool):
        return None
    window = [axis.extent for axis in fold.axes]
    shape = tuple(extent.value for extent in window if isinstance(extent, Int))
    if len(shape) != len(window) or math.prod(shape) > _LARGEST:
        return None
    # Names of the two kernels must not meet; the convolution's axes become places of the window.
    inner = tuple(Axis(f"w{n}", extent) for n, extent in enumerate(window))
    in_window = Substitution(axes={axis.name: own.var for axis, own in zip(fold.axes, inner)})
    outputs, taps = _long(made, store.indices), [in_window.index(index) for index in _long(read, value.indices)]
    places: dict[str, Index] = {index.name: Int(0) for index in store.indices if isinstance(index, AxisVar)}
    places |= {axis.name: index for axis, index in zip(outputs, taps) if isinstance(axis, AxisVar)}
    places |= {axis.name: AxisVar(f"c_{axis.name}") for stmt in conv.body for axis in getattr(stmt, "axes", ())}
    binders = {name: f"c_{name}" for stmt in conv.body for name in binds(stmt)}
    rename = Substitution(axes=places, binders=binders, buffers={b.name: f"c_{b.name}" for b in conv.buffers})
    body: Block = tuple(rename.stmt(stmt) for stmt in conv.body[:-1])
    stored: Expr = rename.value(store.value)
    late: Const | None = None
    last = body[-1]
    if isinstance(last, Let) and stored == Name(last.name, last.value.dtype):
        body, stored = body[:-1], last.value
    if _is_max(fold) and isinstance(stored, Binary) and stored.op == "max":
        without, bound = stored.a, stored.b
        if isinstance(bound, Const):
            stored, late = without, bound
    body = (*body, Store("window", tuple(axis.var for axis in inner), stored))
    for axis in reversed(inner):
        body = (Loop(axis, body),)
    raw = fold.names[0] if late is None else f"{fold.names[0]}_raw"
    folded = replace(fold, names=(raw,), values=(Load("window", tuple(a.var for a in fold.axes), value.type),))
    after: list[Let] = [] if late is None else [Let(fold.names[0], Binary("max", Name(raw, late.dtype), late))]
    buffers = [replace(b, name=f"c_{b.name}") for b in conv.buffers if b is not made]
    return Kernel(
        f"{conv.name}_{pool.name}",
        buffers=(*buffers, *(b for b in pool.buffers if b is not read)),
        locals=(Local("window", value.type, shape),),
        axes=pool.axes,
        body=(*body, folded, *after, *rest),
    )


def _layout(buffer: Buffer) -> list[tuple[Index, Index]]:
    """Extents and strides, without dimensions of one element."""
    return [(extent, stride) for extent, stride in zip(buffer.shape, buffer.strides) if extent != Int(1)]


def _long(buffer: Buffer, indices: tuple[Index, ...]) -> list[Index]:
    """Indices of the other dimensions."""
    return [index for index, extent in zip(indices, buffer.shape) if extent != Int(1)]


def _is_max(fold: Reduce) -> bool:
    result = fold.combine.results[0]
    return isinstance(result, Binary) and result.op == "max"


def _disjoint(value: Load, fold: Reduce, pool: Kernel) -> bool:
    """True if no element is in two windows, so that nothing is computed twice."""
    for index in value.indices:
        taps, strides = 0, []
        for axis in fold.axes:
            step, _ = coefficient(index, axis.var)
            if isinstance(step, Int) and isinstance(axis.extent, Int):
                taps += step.value * (axis.extent.value - 1)
        for axis in pool.axes:
            step, _ = coefficient(index, axis.var)
            if isinstance(step, Int) and step != Int(0):
                strides.append(step.value)
        if taps and (not strides or min(strides) <= taps):
            return False
    return True
