"""Sums as steps of their own, and what follows them as others: for a matrix engine, and for vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bringup.graph.bare_metal.static_program import Place, StaticProgram, Step
from bringup.ir.dtypes import float32, int32
from bringup.ir.expr import Load, Name
from bringup.ir.kernel import Buffer, Kernel, Let, Store, dense
from bringup.ir.walk import all_values
from bringup.targets.riscv.contraction import Contraction, contraction_of
from bringup.targets.riscv.engine import is_product
from bringup.targets.riscv.vector_contract import vector_contract

#: Products below which starting the engine costs more than it saves.
_WORTH = 64
#: Products of a sum from which on it may be stored and loaded once more.
_DEEP = 4


def offload(program: StaticProgram) -> StaticProgram:
    """Sets apart the matrix products that an engine can do."""
    return _split_where(program, lambda c: c.macs >= _WORTH and is_product(c))


def apart(program: StaticProgram) -> StaticProgram:
    """Sets apart the sums that vectors can do where what follows them needs other instructions."""
    return _split_where(program, lambda c: c.contract.dtype is int32 or (c.depth >= _DEEP and _only_sums(c)))


def _only_sums(c: Contraction) -> bool:
    """True if vector assembly takes the sums of a contraction, and not what follows them: mish, gelu, a mask.

    Scalar code for both took 219,088 instructions for a depthwise 5 × 5 of 8 × 16 × 16 with mish; apart they take
    13,643.
    """
    if c.contract.dtype is not float32 or vector_contract(c.kernel, "whole", frozenset()) is not None:
        return False
    place = Place("temporary", 0)
    step = Step(c.kernel, (place,) * len(c.kernel.buffers))
    return vector_contract(_split(step, c, place)[0].kernel, "sums", frozenset()) is not None


def _split_where(program: StaticProgram, chosen: Callable[[Contraction], bool]) -> StaticProgram:
    steps: list[Step] = []
    temporaries = list(program.temporaries)
    for step in program.steps:
        c = contraction_of(step.kernel)
        if c is None or not chosen(c):
            steps.append(step)
            continue
        if len(c.after) == 1 and isinstance(c.after[0], Store) and c.after[0].value == _sum(c):
            steps.append(step)
            continue
        place = Place("temporary", len(temporaries))
        product, rest, nbytes = _split(step, c, place)
        temporaries.append(nbytes)
        steps += [product, rest]
    return replace(program, steps=tuple(steps), temporaries=tuple(temporaries))


def _sum(c: Contraction) -> Name:
    return Name(c.contract.name, c.contract.dtype)


def _split(step: Step, c: Contraction, place: Place) -> tuple[Step, Step, int]:
    """The sums into memory, and the epilogue that reads them there."""
    kernel = step.kernel
    axes = tuple(span.axis for span in (*c.batch, *c.rows, *c.columns))
    sums = dense("sums", c.contract.dtype, tuple(axis.extent for axis in axes), "out")
    at = tuple(axis.var for axis in axes)
    factors = {c.row_buffer.name, c.column_buffer.name}
    kept = [(b, p) for b, p in zip(kernel.buffers, step.buffers) if b.name in factors]
    product = Kernel(
        kernel.name,
        buffers=(*(replace(b, role="in") for b, _ in kept), sums),
        axes=axes,
        body=(c.contract, Store("sums", at, _sum(c))),
    )
    read: Buffer = replace(sums, role="in")
    used = _used(c)
    others = [(b, p) for b, p in zip(kernel.buffers, step.buffers) if b.name in used]
    epilogue = Kernel(
        f"{kernel.name}_rest",
        buffers=(*(b for b, _ in others), read),
        axes=kernel.axes,
        body=(Let(c.contract.name, read.at(*at)), *c.after),
    )
    nbytes = c.contract.dtype.size
    for span in (*c.batch, *c.rows, *c.columns):
        nbytes *= span.extent
    first = replace(step, kernel=product, buffers=(*(p for _, p in kept), place))
    rest = Step(epilogue, (*(p for _, p in others), place), name=f"{step.name}_rest", note=step.note)
    return first, rest, nbytes


def _used(c: Contraction) -> set[str]:
    loaded = {part.buffer for part in all_values(c.after) if isinstance(part, Load)}
    return loaded | {stmt.buffer for stmt in c.after if isinstance(stmt, Store)}
