"""Padded copies: a convolution reads zeros around its input instead of asking at every element whether it is inside.

The copy (fill all of it, then write the inside) costs a few instructions an element; the convolution reads each element
once for every output channel and tap. Quantised inputs are filled with what stands for zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bringup.graph.bare_metal.static_program import Place, StaticProgram, Step
from bringup.ir.contraction_form import recognise
from bringup.ir.expr import Binary, Cast, Const, Expr, Load, const
from bringup.ir.guards import guard_facts
from bringup.ir.index import Index, Int
from bringup.ir.index_proof import Facts
from bringup.ir.kernel import Axis, Buffer, Contract, Kernel, Store, dense
from bringup.targets.riscv.contraction import SUMS


def pad(program: StaticProgram) -> StaticProgram:
    """Gives inputs padded copies, so that contractions read without conditions."""
    steps: list[Step] = []
    temporaries = list(program.temporaries)
    for step in program.steps:
        form = recognise(step.kernel, SUMS)
        for load in [] if form is None else [form.contract.a, form.contract.b]:
            place = Place("temporary", len(temporaries))
            made = _padded(step, load, place)
            if made is not None:
                *before, step = made.steps
                steps += before
                temporaries.append(made.nbytes)
        steps.append(step)
    return replace(program, steps=tuple(steps), temporaries=tuple(temporaries))


@dataclass(frozen=True)
class _Padded:
    """What takes the place of a step: the fill, the copy, and the step that reads it."""

    steps: tuple[Step, ...]
    nbytes: int


def _padded(step: Step, load: Expr, place: Place) -> _Padded | None:
    """The step with a padded copy; None if its guard is of another kind."""
    kernel = step.kernel
    if not isinstance(load, Load) or load.guard is None or not isinstance(load.other, (Const, type(None))):
        return None
    buffer = kernel.buffer(load.buffer)
    contract = next(stmt for stmt in kernel.body if isinstance(stmt, Contract))
    facts = Facts().with_axes({axis.name: axis.extent for axis in (*kernel.axes, *contract.axes)})
    if not isinstance(buffer, Buffer) or not _only_bounds(load, buffer, facts):
        return None
    lows = [facts.constant_bound(index, upper=False) for index in load.indices]
    highs = [facts.constant_bound(index, upper=True) for index in load.indices]
    low, high = [n for n in lows if n is not None], [n for n in highs if n is not None]
    if len(low) != len(lows) or len(high) != len(highs):
        return None
    shape = tuple(Int(last - first + 1) for first, last in zip(low, high))
    name = f"{load.buffer}_padded"
    new = dense(name, buffer.dtype, shape, "in")
    moved = Load(name, tuple(index - first for index, first in zip(load.indices, low)), load.type)
    body = tuple(
        replace(stmt, a=_put(stmt.a, load, moved), b=_put(stmt.b, load, moved)) if stmt is contract else stmt
        for stmt in kernel.body
    )
    total = math.prod(extent.value for extent in shape)
    other = load.other if isinstance(load.other, Const) else const(0, buffer.dtype)
    fill = Step(_fill(buffer, total, other), (place,), name=f"{step.name}_fill", note=step.note)
    source = step.buffers[kernel.buffers.index(buffer)]
    copy, inside = _copy(buffer, new, low, high)
    copies = Step(copy, (source, replace(place, offset=inside)), name=f"{step.name}_pad", note=step.note)
    used = replace(kernel, body=body, buffers=(*kernel.buffers, new))
    reader = replace(step, kernel=used, buffers=(*step.buffers, place))
    return _Padded((fill, copies, reader), total * buffer.dtype.size)


def _put(expr: Expr, old: Load, new: Load) -> Expr:
    return new if expr == old else Cast(_put(expr.x, old, new), expr.type) if isinstance(expr, Cast) else expr


def _only_bounds(load: Load, buffer: Buffer, facts: Facts) -> bool:
    """True if the guard says just that every index is inside the buffer."""
    assert load.guard is not None
    said = set(guard_facts(load.guard))
    if _comparisons(load.guard) != len(guard_facts(load.guard)):
        return False
    wanted: set[Index] = set()
    for index, extent in zip(load.indices, buffer.shape):
        wanted |= {index, extent - index - 1}
    return said <= wanted and all(facts.non_negative(index) for index in wanted - said)


def _comparisons(guard: Expr) -> int:
    if isinstance(guard, Binary) and guard.op in ("and", "mul"):
        return _comparisons(guard.a) + _comparisons(guard.b)
    return 1


def _fill(buffer: Buffer, total: int, other: Const) -> Kernel:
    """Writes one number everywhere."""
    axis = Axis("i", Int(total))
    to = dense("padded", buffer.dtype, (axis.extent,), "out")
    return Kernel("fill", buffers=(to,), axes=(axis,), body=(Store("padded", (axis.var,), other),))


def _copy(buffer: Buffer, padded: Buffer, low: list[int], high: list[int]) -> tuple[Kernel, int]:
    """Writes the part of the buffer that is read into the middle; and how far into the padded copy that is."""
    sizes = [extent.value for extent in buffer.shape if isinstance(extent, Int)]
    first = [max(start, 0) for start in low]
    last = [min(end, size - 1) for end, size in zip(high, sizes)]
    shape = tuple(Int(max(end - start + 1, 0)) for start, end in zip(first, last))
    axes = tuple(Axis(f"i{d}", extent) for d, extent in enumerate(shape))
    source = replace(buffer, name="x", role="in")
    to = Buffer("padded", buffer.dtype, shape, padded.strides, "out")
    value = source.at(*(axis.var + start for axis, start in zip(axes, first)))
    kernel = Kernel(
        "pad", buffers=(source, to), axes=axes, body=(Store("padded", tuple(axis.var for axis in axes), value),)
    )
    steps = [stride.value for stride in padded.strides if isinstance(stride, Int)]
    return kernel, sum((start - begin) * step for start, begin, step in zip(first, low, steps))
