"""Sums in order: a contraction with many partial sums becomes one with a single sum.

Partial sums suit vectors along k. Here vectors and tiles of registers run along the outputs, and a constant factor is
packed for that, so one sum in order is both simpler and quicker. It is another rounding, equally good.
"""

from __future__ import annotations

import math
from dataclasses import replace

from bringup.graph.bare_metal.static_program import StaticProgram, Step
from bringup.ir.expr import Name
from bringup.ir.index import Int
from bringup.ir.kernel import Contract, Kernel, Let, Stmt
from bringup.targets.c_contract_form import recognise
from bringup.targets.riscv.contraction import contraction_of


def in_order(program: StaticProgram) -> StaticProgram:
    """The program with such contractions rewritten, and their products counted."""
    return replace(program, steps=tuple(_rewritten(step) for step in program.steps))


def _rewritten(step: Step) -> Step:
    kernel = kernel_in_order(step.kernel)
    form = recognise(kernel)
    if form is None:
        return replace(step, kernel=kernel)
    extents = [axis.extent for axis in (*kernel.axes, *form.k)]
    return replace(step, kernel=kernel, macs=math.prod(extent.value for extent in extents if isinstance(extent, Int)))


def kernel_in_order(kernel: Kernel) -> Kernel:
    """A kernel that is one contraction, with a single sum; other kernels stay.

    >>> kernel_in_order(Kernel("nothing")) == Kernel("nothing")
    True
    """
    form = recognise(kernel)
    if form is None or form.contract.lanes == 1:
        return kernel
    contract = form.contract
    body: tuple[Stmt, ...] = (replace(contract, lanes=1, init=None),)
    if contract.init is not None:  # with partial sums it is added last
        sums = replace(contract, name=f"{contract.name}_sum", lanes=1, init=None)
        body = (sums, Let(contract.name, contract.init + Name(sums.name, contract.dtype)))
    new = replace(kernel, body=(*form.before, *body, *form.after))
    return new if any(isinstance(s, Contract) for s in new.body) and contraction_of(new) is not None else kernel
