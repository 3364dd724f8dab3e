"""Images as one long row: vectors run over the ends of rows, and what they compute there is never looked at.

A row of 26 outputs fills less than half of a vector of 64. Over all rows at once, with the input's distance between
rows, 26 rows of 28 are 12 vectors instead of 26. The result keeps that distance; readers are adapted, or it is copied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bringup.graph.bare_metal.passes.joining import reach
from bringup.graph.bare_metal.static_program import Place, StaticProgram, Step
from bringup.ir.expr import Expr, Load
from bringup.ir.index import AxisVar, Int, axes_in
from bringup.ir.kernel import Axis, Buffer, Kernel, Store, offset_of
from bringup.ir.walk import Substitution, all_values
from bringup.targets.riscv.contraction import Contraction, contraction_of

#: Elements that a vector takes at once, to judge by: eight registers of 256 bits.
_LANES = 64


def flatten(program: StaticProgram) -> StaticProgram:
    """Makes one long row of the rows of an image, where that takes fewer vectors."""
    steps = list(program.steps)
    temporaries = list(program.temporaries)
    for name in [step.name for step in program.steps]:
        at = next(n for n, one in enumerate(steps) if one.name == name)
        step = steps[at]  # which may have been adapted to the rows before it
        found = _flattened(step)
        if found is None:
            continue
        place = step.buffers[found.result]
        users = [user for user in steps if user is not step and user.touches(place.memory)]
        adapted = [_adapted(user, place, found) for user in users]
        if place.kind == "temporary" and all(adapted):
            temporaries[place.number] = max(temporaries[place.number], found.nbytes)
            places = step.buffers
            for user, new in zip(users, adapted):
                assert new is not None
                steps[steps.index(user)] = new
        else:
            pitched = Place("temporary", len(temporaries))
            temporaries.append(found.nbytes)
            places = tuple(pitched if n == found.result else p for n, p in enumerate(step.buffers))
            steps.insert(at + 1, _compaction(step, found, pitched, place))
        steps[at] = replace(step, kernel=found.kernel, buffers=places)
    return replace(program, steps=tuple(steps), temporaries=tuple(temporaries))


@dataclass(frozen=True)
class _Flat:
    """A convolution over long rows, which of its buffers is the result, and how that lies now."""

    kernel: Kernel
    result: int
    old: Buffer
    strides: tuple[Int, ...]
    nbytes: int


def _flattened(step: Step) -> _Flat | None:
    kernel = step.kernel
    c = contraction_of(kernel)
    if c is None or len(c.columns) < 2:
        return None
    rows, inside = c.columns[-2:]
    if inside.column_step <= 0 or rows.column_step % inside.column_step:
        return None
    pitch = rows.column_step // inside.column_step
    long = (rows.extent - 1) * pitch + inside.extent
    fewer = math.ceil(long / _LANES) < rows.extent * math.ceil(inside.extent / _LANES)
    store = _only_store(c)
    if pitch < inside.extent or not fewer or store is None:
        return None
    result = next(n for n, buffer in enumerate(kernel.buffers) if buffer.name == store.buffer)
    old = kernel.buffers[result]
    order = [index.name if isinstance(index, AxisVar) else "" for index in store.indices]
    if "" in order or order[-2:] != [rows.axis.name, inside.axis.name] or not _dense(old):
        return None
    spatial = {rows.axis.name, inside.axis.name}
    for expr in all_values(c.after):
        if isinstance(expr, Load) and any(axes_in(index) & spatial for index in expr.indices):
            return None
    return _made(c, store, result, pitch, long)


def _made(c: Contraction, store: Store, result: int, pitch: int, long: int) -> _Flat:
    kernel, (rows, inside) = c.kernel, c.columns[-2:]
    old = kernel.buffers[result]
    axis = Axis("flat", Int(long))
    outer = [extent.value for extent in old.shape[:-2] if isinstance(extent, Int)]
    height = rows.extent * pitch
    shape = (*(Int(n) for n in outer), Int(height))
    strides = [Int(height * math.prod(outer[n + 1 :])) for n in range(len(outer))]
    new = Buffer(old.name, old.dtype, shape, (*strides, Int(1)), old.role)
    image = Buffer(c.column_buffer.name, c.column_buffer.dtype, (Int(reach(c.column_buffer)),), (Int(1),), "in")
    place = {rows.axis.name: Int(0), inside.axis.name: axis.var}

    def read(load: Load) -> Expr:
        if load.buffer != image.name:
            return load
        at = offset_of(c.column_buffer, load.indices)
        return Load(image.name, (at,), load.type)

    move = Substitution(axes=place, load=read)
    stored = replace(store, indices=(*store.indices[:-2], axis.var))
    body = tuple(replace(stored, value=move.value(s.value)) if s is store else move.stmt(s) for s in kernel.body)
    axes = tuple(a for a in kernel.axes if a.name not in place)
    buffers = tuple(new if b is old else image if b.name == image.name else b for b in kernel.buffers)
    flat = replace(kernel, axes=(*axes, axis), buffers=buffers, body=body)
    return _Flat(flat, result, old, (*strides, Int(pitch), Int(1)), math.prod(outer) * height * old.dtype.size)


def _only_store(c: Contraction) -> Store | None:
    stores = [stmt for stmt in c.after if isinstance(stmt, Store)]
    return stores[0] if len(stores) == 1 and stores[0] is c.after[-1] and stores[0].guard is None else None


def _dense(buffer: Buffer) -> bool:
    step = 1
    for extent, stride in zip(reversed(buffer.shape), reversed(buffer.strides)):
        if not isinstance(extent, Int) or stride != Int(step):
            return False
        step *= extent.value
    return True


def _adapted(user: Step, place: Place, flat: _Flat) -> Step | None:
    """A reader of the result with its new strides; None if it sees the memory in another way."""
    buffers = []
    for buffer, where in zip(user.kernel.buffers, user.buffers):
        if where.memory != place.memory:
            buffers.append(buffer)
            continue
        same = (buffer.shape, buffer.strides) == (flat.old.shape, flat.old.strides)
        if where != place or not same or buffer.role != "in":
            return None
        buffers.append(replace(buffer, strides=flat.strides))
    return replace(user, kernel=replace(user.kernel, buffers=tuple(buffers)))


def _compaction(step: Step, flat: _Flat, pitched: Place, place: Place) -> Step:
    """Copies the result to where others expect it."""
    axes = tuple(Axis(f"i{d}", extent) for d, extent in enumerate(flat.old.shape))
    source = Buffer("x", flat.old.dtype, flat.old.shape, flat.strides, "in")
    to = replace(flat.old, name="y", role="out")
    at = tuple(axis.var for axis in axes)
    kernel = Kernel("rows", buffers=(source, to), axes=axes, body=(Store("y", at, source.at(*at)),))
    return Step(kernel, (pitched, place), name=f"{step.name}_rows", note=step.note)
