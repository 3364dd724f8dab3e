"""Sums in order: a contraction with many partial sums becomes one with a single sum, and other folds keep a few.

Partial sums suit vectors along k. Here vectors and tiles of registers run along the outputs, and a constant factor is
packed for that, so one sum in order is both simpler and quicker. It is another rounding, equally good. Folds of scalar
code (softmax, norms, means) keep as many partial results as registers hold: 32 of them would live in memory.
"""

from __future__ import annotations

import math
from dataclasses import replace

from bringup.graph.bare_metal.static_program import StaticProgram, Step
from bringup.ir.contraction_form import recognise
from bringup.ir.expr import Name
from bringup.ir.index import Int
from bringup.ir.kernel import Block, Contract, Kernel, Let, Loop, Reduce, Scan, Stmt
from bringup.targets.riscv.contraction import SUMS, contraction_of

#: Partial results that scalar code keeps in registers.
_FEW = 4


def in_order(program: StaticProgram) -> StaticProgram:
    """Runs sums one after the other, as tiles of registers take them, and counts their products."""
    return replace(program, steps=tuple(_rewritten(step) for step in program.steps))


def _rewritten(step: Step) -> Step:
    kernel = kernel_in_order(step.kernel)
    form = recognise(kernel, SUMS)
    if form is None:
        return replace(step, kernel=kernel)
    extents = [axis.extent for axis in (*kernel.axes, *form.k)]
    return replace(step, kernel=kernel, macs=math.prod(extent.value for extent in extents if isinstance(extent, Int)))


def kernel_in_order(kernel: Kernel) -> Kernel:
    """A kernel that is one contraction, with a single sum; other kernels stay.

    >>> kernel_in_order(Kernel("nothing")) == Kernel("nothing")
    True
    """
    form = recognise(kernel, SUMS)
    if form is None or form.contract.lanes == 1:
        return kernel
    contract = form.contract
    body: tuple[Stmt, ...] = (replace(contract, lanes=1, init=None),)
    if contract.init is not None:  # with partial sums it is added last
        sums = replace(contract, name=f"{contract.name}_sum", lanes=1, init=None)
        body = (sums, Let(contract.name, contract.init + Name(sums.name, contract.dtype)))
    new = replace(kernel, body=(*form.before, *body, *form.after))
    return new if any(isinstance(s, Contract) for s in new.body) and contraction_of(new) is not None else kernel


def few_partials(program: StaticProgram) -> StaticProgram:
    """Keeps few partial results of folds."""
    return replace(program, steps=tuple(replace(s, kernel=with_few(s.kernel)) for s in program.steps))


def with_few(kernel: Kernel) -> Kernel:
    """A kernel whose folds keep few partial results."""

    def few(block: Block) -> Block:
        return tuple(fewer(stmt) for stmt in block)

    def fewer(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Reduce) and stmt.lanes > _FEW:
            return replace(stmt, lanes=_FEW, body=few(stmt.body))
        if isinstance(stmt, Contract) and stmt.lanes > _FEW:
            return replace(stmt, lanes=_FEW)
        if isinstance(stmt, (Reduce, Loop)):
            return replace(stmt, body=few(stmt.body))
        return replace(stmt, body=few(stmt.body), then=few(stmt.then)) if isinstance(stmt, Scan) else stmt

    return replace(kernel, body=few(kernel.body))
