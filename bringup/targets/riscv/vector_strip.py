"""Pointwise kernels and small windows in vector assembly: strips along the axis on which results are adjacent.

The instructions ask the machine how many elements it takes at a time, so the same code runs on every vector length.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from bringup.ir.dtypes import float32
from bringup.ir.expr import Expr, Load
from bringup.ir.index import Index, Int
from bringup.ir.kernel import Axis, Block, Buffer, Kernel, Let, Reduce, Store
from bringup.ir.walk import Substitution, subexpressions
from bringup.targets.c.contract_tile import merged_axes
from bringup.targets.c.unit import Part
from bringup.targets.riscv.asm import Asm, OutOfRegisters, Pointer
from bringup.targets.riscv.contraction import known_steps
from bringup.targets.riscv.rendered import Rendered
from bringup.targets.riscv.static_function import parameters
from bringup.targets.riscv.vector_values import Access, NotInVectors, VectorValues
from bringup.targets.riscv.windows import starts_with_first

#: Elements of float32 in one register of the shortest vectors that RVV allows.
SHORTEST = 4
#: Positions of a window that are written out.
_WINDOW = 25
#: Elements of a strip from which on no other form can be quicker, if they are adjacent.
_LONG = 8


def vector_strip(kernel: Kernel, name: str, prefix: str = "") -> Rendered | None:
    """The kernel in assembly, its name beginning with ``prefix``; None if vectors do not do what it is made of."""
    try:
        stores = _own_stores(kernel)
        plan = _Plan(kernel, stores)
    except NotInVectors:
        return None
    for lmul in plan.lmuls():
        try:
            return _rendered(plan, name, prefix, lmul)
        except OutOfRegisters:
            continue
        except NotInVectors:
            return None
    return None


def _own_stores(kernel: Kernel) -> list[Store]:
    """The stores of a whole kernel."""
    stores = resolved(kernel.body)
    if kernel.locals or not stores:
        raise NotInVectors("scratch memory")
    written = {store.buffer for store in stores}
    for store in stores:
        for part in subexpressions(store.value):
            if isinstance(part, Load) and part.buffer in written and part.indices != store.indices:
                raise NotInVectors("a kernel that reads what another element writes")
    return stores


def resolved(block: Block) -> list[Store]:
    """The stores of a block, with every name and small fold written into them."""
    known: dict[str, Expr] = {}
    stores = []
    for stmt in block:
        put = Substitution(names=known)
        if isinstance(stmt, Let):
            known[stmt.name] = put.value(stmt.value)
        elif isinstance(stmt, Reduce):
            known[stmt.names[0]] = put.value(_unfolded(stmt))
        elif isinstance(stmt, Store) and stmt.mode == "unique" and stmt.combine is None and stmt.guard is None:
            stores.append(replace(stmt, value=put.value(stmt.value)))
        else:
            raise NotInVectors(type(stmt).__name__)
    _refuse_late_reads(stores)
    return stores


def _refuse_late_reads(stores: Sequence[Store]) -> None:
    """Raises if a value reads what a store before it wrote: written out, it could mean either of the two."""
    written: set[str] = set()
    for store in stores:
        if any(isinstance(part, Load) and part.buffer in written for part in subexpressions(store.value)):
            raise NotInVectors("a value that reads what was stored before")
        written.add(store.buffer)


def _unfolded(stmt: Reduce) -> Expr:
    """A fold over a few known positions as one expression."""
    extents = [axis.extent for axis in stmt.axes]
    sizes = [extent.value for extent in extents if isinstance(extent, Int)]
    if (
        len(sizes) != len(extents)
        or not 0 < math.prod(sizes) <= _WINDOW
        or len(stmt.names) != 1
        or stmt.body
        or stmt.lanes != 1
    ):
        raise NotInVectors("a long fold")
    state = None if starts_with_first(stmt) else stmt.inits[0]
    for at in itertools.product(*(range(size) for size in sizes)):
        here = Substitution(axes={axis.name: Int(place) for axis, place in zip(stmt.axes, at)})
        value = here.value(stmt.values[0])
        if state is not None:
            names = {stmt.combine.left[0]: state, stmt.combine.right[0]: value}
            value = Substitution(names=names).value(stmt.combine.results[0])
        state = value
    assert state is not None, "a fold over nothing was taken out before"
    return state


class _Plan:
    """Loops, the axis of the vectors, and the pointers that all accesses share."""

    def __init__(self, kernel: Kernel, stores: list[Store]) -> None:
        axes, body = merged_axes(kernel, kernel.axes, tuple(stores))
        self.kernel = kernel
        self.stores = [stmt for stmt in body if isinstance(stmt, Store)]
        if not axes:
            axes = (Axis("one", Int(1)),)
        self.vector = self._chosen(axes)
        self.outer = [axis for axis in axes if axis is not self.vector]
        if any(not isinstance(axis.extent, Int) for axis in axes) or len(kernel.buffers) > 8:
            raise NotInVectors("dynamic sizes, or many buffers")

    def _chosen(self, axes: Sequence[Axis]) -> Axis:
        first = self.stores[0]
        steps = self._steps(first.buffer, first.indices, axes)[0]
        moving = [(step, axis) for axis, step in reversed(list(zip(axes, steps))) if step and axis.extent != Int(1)]
        return min(moving, key=lambda pair: abs(pair[0]))[1] if moving else axes[-1]

    def _steps(self, name: str, indices: tuple[Index, ...], axes: Sequence[Axis]) -> tuple[list[int], int]:
        buffer = self.kernel.buffer(name)
        if not isinstance(buffer, Buffer) or buffer.dtype is not float32:
            raise NotInVectors(f"memory of {getattr(buffer, 'dtype', 'one element')}")
        found = known_steps(buffer, indices, axes)
        if found is None:
            raise NotInVectors("an index that is not a sum of steps")
        return found

    def place(self, name: str, indices: tuple[Index, ...]) -> tuple[dict[str, int], int, int]:
        """Bytes of a step on each outer axis, elements along the vector, and the constant part in bytes."""
        steps, base = self._steps(name, indices, [*self.outer, self.vector])
        moves = {axis.name: 4 * step for axis, step in zip(self.outer, steps)}
        return moves, steps[-1], 4 * base

    @property
    def extent(self) -> int:
        """The length of the strips."""
        assert isinstance(self.vector.extent, Int)
        return self.vector.extent.value

    def lmuls(self) -> list[int]:
        """Register groups to try: one that takes a short strip at once on every machine, else the largest that fits."""
        enough = [lmul for lmul in (1, 2, 4, 8) if SHORTEST * lmul >= self.extent]
        return [*enough, *(lmul for lmul in (8, 4, 2, 1) if lmul not in enough)]


def _rendered(plan: _Plan, name: str, prefix: str, lmul: int) -> Rendered:
    kernel = plan.kernel
    entry = f"{prefix}{name}_vector"
    asm = Asm(entry, len(kernel.buffers))
    arguments = {buffer.name: f"a{n}" for n, buffer in enumerate(kernel.buffers)}
    pointers: dict[tuple[str, tuple[tuple[str, int], ...], int], Pointer] = {}
    taken: set[str] = set()

    def access(buffer: str, node: Load | Store) -> Access:
        moves, step, base = plan.place(buffer, node.indices)
        key = (buffer, tuple(sorted(moves.items())), step)
        if key not in pointers:
            register = arguments[buffer]
            if buffer in taken:  # another walk through the same memory
                register = asm.take()
                values.prologue.append(f"  mv {register}, {arguments[buffer]}")
            taken.add(buffer)
            pointers[key] = Pointer(register, {**moves, plan.vector.name: 4 * step})
        return Access(pointers[key].register, base, step)

    values = VectorValues(asm, lmul, access)
    values.prepare(plan.stores)  # every pointer, too, is known before the first loop is written
    walkers = list(pointers.values())
    outer = [(axis.name, axis.extent.value) for axis in plan.outer if isinstance(axis.extent, Int)]
    configure = f"e32, m{lmul}, ta, ma"
    once = plan.extent <= SHORTEST * lmul
    if once:
        values.prologue += _once(asm, plan.extent, configure)
        with asm.nest(outer, walkers, [0] * len(walkers)):
            values.run(plan.stores)
    else:
        moved = [plan.extent * walker.step(plan.vector.name) for walker in walkers]
        with asm.nest(outer, walkers, moved):
            left, count = asm.take(), asm.take()
            top = asm.label()
            asm.load_number(left, plan.extent)
            asm.place(top)
            asm.line(f"vsetvli {count}, {left}, {configure}")
            values.run(plan.stores)
            asm.line(f"sub {left}, {left}, {count}")
            advance(asm, walkers, plan.vector.name, count)
            asm.line(f"bnez {left}, {top}")
            asm.give(count)
            asm.give(left)
    asm.lines[:0] = values.prologue
    made = wrapped(kernel, name, asm, f"vectors of {lmul} registers")
    adjacent = all(abs(pointer.step(plan.vector.name)) in (0, 4) for pointer in walkers)
    return replace(made, surely_best=adjacent and plan.extent >= _LONG)


def _once(asm: Asm, extent: int, configure: str) -> list[str]:
    """The length of all strips, set before all of them."""
    if extent < 32:
        return [f"  vsetivli zero, {extent}, {configure}"]
    with asm.temporary() as count:
        return [f"  li {count}, {extent}", f"  vsetvli zero, {count}, {configure}"]


def advance(asm: Asm, pointers: Sequence[Pointer], axis: str, count: str) -> None:
    """Moves pointers by as many elements as a register says."""
    by: dict[int, str] = {}
    for pointer in pointers:
        step = pointer.step(axis)
        if step == 0:
            continue
        if step not in by:
            by[step] = asm.take()
            if step > 0 and step & step - 1 == 0:
                asm.line(f"slli {by[step]}, {count}, {step.bit_length() - 1}")
            else:
                asm.load_number(by[step], step)
                asm.line(f"mul {by[step]}, {by[step]}, {count}")
        asm.line(f"add {pointer.register}, {pointer.register}, {by[step]}")
    for register in by.values():
        asm.give(register)


def wrapped(kernel: Kernel, name: str, asm: Asm, how: str) -> Rendered:
    """The assembly with a C function around it that every step looks like."""
    given = ", ".join(f"b_{buffer.name}" for buffer in kernel.buffers)
    text = f"static void {name}({parameters(kernel)}) {{\n  (void)report;\n  {asm.name}({given});\n}}\n"
    declared = parameters(kernel).rpartition(", ")[0]
    part = Part(name, Int(1), f"void {asm.name}({declared});\n{text}", frozenset(), {})
    return Rendered(part, assembly=asm.text(), how=how)
