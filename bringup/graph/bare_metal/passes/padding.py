"""Padded copies: a convolution reads zeros around its input instead of asking at every element whether it is inside.

The copy costs a few instructions an element; the convolution reads each element once for every output channel and tap.
"""

from __future__ import annotations

from dataclasses import replace

from bringup.graph.bare_metal.static_program import Place, StaticProgram, Step
from bringup.ir.expr import Binary, Cast, Const, Expr, Load, const
from bringup.ir.guards import guard_facts, within
from bringup.ir.index import Index, Int
from bringup.ir.index_proof import Facts
from bringup.ir.kernel import Axis, Buffer, Contract, Kernel, Store, dense
from bringup.targets.c_contract_form import recognise


def pad(program: StaticProgram) -> StaticProgram:
    """The program with padded copies where contractions read under a guard."""
    steps: list[Step] = []
    temporaries = list(program.temporaries)
    for step in program.steps:
        form = recognise(step.kernel)
        for load in [] if form is None else [form.contract.a, form.contract.b]:
            made = _padded(step, load)
            if made is not None:
                copy, step, nbytes = made
                place = Place("temporary", len(temporaries))
                temporaries.append(nbytes)
                steps.append(replace(copy, places=(copy.places[0], place)))
                step = replace(step, places=(*step.places, place))
        steps.append(step)
    return replace(program, steps=tuple(steps), temporaries=tuple(temporaries))


def _padded(step: Step, load: Expr) -> tuple[Step, Step, int] | None:
    """(the copy without its second place, the step that reads it, its bytes); None if the guard is of another kind."""
    kernel = step.kernel
    if not isinstance(load, Load) or load.guard is None or not _zero(load.other):
        return None
    buffer = kernel.buffer(load.buffer)
    contract = next(stmt for stmt in kernel.body if isinstance(stmt, Contract))
    axes = (*kernel.axes, *contract.axes)
    facts = Facts().with_axes({axis.name: axis.extent for axis in axes})
    if not isinstance(buffer, Buffer) or not _only_bounds(load, buffer, facts):
        return None
    lows = [facts.constant_bound(index, upper=False) for index in load.indices]
    highs = [facts.constant_bound(index, upper=True) for index in load.indices]
    if None in lows or None in highs:
        return None
    low, high = [n for n in lows if n is not None], [n for n in highs if n is not None]
    shape = tuple(Int(h - start + 1) for start, h in zip(low, high))
    name = f"{load.buffer}_padded"
    new = dense(name, buffer.dtype, shape, "in")
    moved = Load(name, tuple(index - start for index, start in zip(load.indices, low)), load.type)
    body = tuple(
        replace(stmt, a=_put(stmt.a, load, moved), b=_put(stmt.b, load, moved)) if stmt is contract else stmt
        for stmt in kernel.body
    )
    total = buffer.dtype.size
    for extent in shape:
        total *= extent.value
    copy = Step(f"{step.name}_pad", _copy(buffer, shape, low), (step.places[kernel.buffers.index(buffer)],))
    used = replace(kernel, body=body, buffers=(*kernel.buffers, new))
    return copy, replace(step, kernel=used), total


def _put(expr: Expr, old: Load, new: Load) -> Expr:
    return new if expr == old else Cast(_put(expr.x, old, new), expr.type) if isinstance(expr, Cast) else expr


def _zero(other: Expr | None) -> bool:
    return other is None or (isinstance(other, Const) and other.bits == 0)


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


def _copy(buffer: Buffer, shape: tuple[Int, ...], low: list[int]) -> Kernel:
    """Writes the buffer into the middle of zeros."""
    axes = tuple(Axis(f"i{d}", extent) for d, extent in enumerate(shape))
    at = [axis.var + start for axis, start in zip(axes, low)]
    guard: Expr | None = None
    for index, extent, start, wide in zip(at, buffer.shape, low, shape):
        if start < 0 or extent != wide:
            inside = within(index, extent)
            guard = inside if guard is None else Binary("and", guard, inside)
    source = replace(buffer, role="in")
    value = Load(source.name, tuple(at), source.dtype, guard, None if guard is None else const(0, source.dtype))
    to = dense("padded", buffer.dtype, shape, "out")
    store = Store("padded", tuple(axis.var for axis in axes), value)
    return Kernel("pad", buffers=(source, to), axes=axes, body=(store,))
