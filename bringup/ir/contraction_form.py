"""Which kernels are packed contractions: one Contract over the grid, its axes sorted into batch, rows, columns and k.

Rows are the grid axes of one factor, columns those of the other, the side of the output's unit-stride axis; vectors run
along the columns. A factor that is a Load at an affine place (perhaps guarded, as in a padded convolution) is packed
from offset tables; any other factor is evaluated element by element while packing.
"""

from __future__ import annotations

from dataclasses import dataclass

from bringup.ir.dtypes import DType, float32, float64
from bringup.ir.expr import Cast, Const, Expr, Load
from bringup.ir.guards import comparison, conjuncts
from bringup.ir.index import AxisVar, Bounded, Index, Int, atoms, coefficient
from bringup.ir.kernel import Axis, Block, Buffer, Contract, Kernel, Let, Store, offset_of
from bringup.ir.walk import Substitution, indices_of, subexpressions


@dataclass(frozen=True)
class Dimension:
    """One run of positions of a factor: its extent, and how far a step moves the offset and each guard."""

    extent: Index
    step: Index
    guard_steps: tuple[Index, ...]


@dataclass(frozen=True)
class Affine:
    """A factor that is buffer[base + Σ position × step] where every guard (base + Σ position × step) is ≥ 0, else fill.

    Neighbouring axes that step like one longer axis are merged; base and guard bases hold batch axes and sizes.
    """

    buffer: Buffer
    base: Index
    guards: tuple[Index, ...]
    lanes: tuple[Dimension, ...]
    k: tuple[Dimension, ...]
    #: What it is where a guard fails; of integers only, where a zero point stands for 0.
    fill: int = 0

    @property
    def unit_lanes(self) -> bool:
        """True if neighbours along the rows or columns lie next to each other in memory."""
        return bool(self.lanes) and self.lanes[-1].step == Int(1)

    @property
    def unit_k(self) -> bool:
        """True if neighbours along k lie next to each other in memory."""
        return bool(self.k) and self.k[-1].step == Int(1)

    @property
    def plain(self) -> bool:
        """True for a matrix: one axis each way and no guard."""
        return len(self.lanes) <= 1 and len(self.k) <= 1 and not self.guards


@dataclass(frozen=True)
class Factor:
    """One side of the contraction."""

    expr: Expr
    axes: tuple[Axis, ...]
    affine: Affine | None


@dataclass(frozen=True)
class Form:
    """A kernel as a contraction; ``before`` and ``after`` are the statements around the Contract."""

    kernel: Kernel
    contract: Contract
    batch: tuple[Axis, ...]
    rows: Factor
    columns: Factor
    before: Block
    after: Block

    @property
    def dtype(self) -> DType:
        """The type of the sum."""
        return self.contract.dtype

    @property
    def fused(self) -> bool:
        """True if a step of the sum rounds once; integers do not round."""
        return self.contract.fused and self.dtype.is_float

    @property
    def k(self) -> tuple[Axis, ...]:
        """The axes of the sum."""
        return self.contract.axes

    @property
    def columns_in_place(self) -> bool:
        """True if vectors of columns can be loaded where they lie: a matrix of the sum's type, adjacent along them."""
        affine = self.columns.affine
        return affine is not None and affine.plain and affine.unit_lanes and affine.buffer.dtype is self.dtype


def axes_used(kernel: Kernel, expr: Expr) -> set[str]:
    """The axes that a value depends on, also through values taken as indices; not those that its strides ignore.

    >>> sorted(axes_used(Kernel("k"), Load("x", (AxisVar("i") + AxisVar("j"),), float32)))
    ['i', 'j']
    """
    found: set[str] = set()
    for part in subexpressions(expr):
        places = indices_of(part)
        buffer = kernel.buffer(part.buffer) if isinstance(part, Load) else None
        if isinstance(buffer, Buffer):
            places = (offset_of(buffer, places),)
        found |= {atom.name for index in places for atom in atoms(index) if isinstance(atom, AxisVar)}
    return found


def steps_of(index: Index, axes: tuple[Axis, ...]) -> tuple[tuple[Index, ...], Index] | None:
    """(steps, base) with index = base + Σ position × step over the axes; None if it is not affine in them.

    >>> steps_of(AxisVar("i") * 2 + 1, (Axis("i", Int(5)),))
    ((Int(value=2),), Int(value=1))
    """
    steps = []
    for axis in axes:
        step, index = coefficient(index, axis.var)
        if any(isinstance(atom, (AxisVar, Bounded)) for atom in atoms(step)):
            return None
        steps.append(step)
    names = {axis.name for axis in axes}
    if any(isinstance(atom, Bounded) or (isinstance(atom, AxisVar) and atom.name in names) for atom in atoms(index)):
        return None
    return tuple(steps), index


def merged(dimensions: list[Dimension]) -> tuple[Dimension, ...]:
    """The dimensions, where an outer one that continues its inner one is joined to it, and those of extent 1 left out.

    >>> merged([Dimension(Int(3), Int(4), ()), Dimension(Int(4), Int(1), ())])
    (Dimension(extent=Int(value=12), step=Int(value=1), guard_steps=()),)
    """
    out: list[Dimension] = []
    for new in dimensions:
        if new.extent == Int(1):
            continue
        if out:
            steps, inner = (out[-1].step, *out[-1].guard_steps), (new.step, *new.guard_steps)
            if all(outer == step * new.extent for outer, step in zip(steps, inner)):
                out[-1] = Dimension(out[-1].extent * new.extent, new.step, new.guard_steps)
                continue
        out.append(new)
    return tuple(out)


def _guard_terms(guard: Expr | None) -> tuple[Index, ...] | None:
    """The guard as indices that must all be ≥ 0; None if it says anything else."""
    if guard is None:
        return ()
    parts = [comparison(part) for part in conjuncts(guard)]
    return tuple(term for terms in parts for term in terms) if all(parts) else None


def _affine(kernel: Kernel, expr: Expr, axes: tuple[Axis, ...], k: tuple[Axis, ...], dtype: DType) -> Affine | None:
    load = expr.x if isinstance(expr, Cast) and expr.type is dtype else expr
    if not isinstance(load, Load) or load.type.is_float is not dtype.is_float or load.type.size > dtype.size:
        return None
    if load.other is not None and not (isinstance(load.other, Const) and (load.other.bits == 0 or not dtype.is_float)):
        return None
    fill = 0 if load.other is None else int(load.other.value)
    buffer, terms = kernel.buffer(load.buffer), _guard_terms(load.guard)
    if not isinstance(buffer, Buffer) or terms is None:
        return None
    found = [steps_of(index, axes + k) for index in (offset_of(buffer, load.indices), *terms)]
    if any(each is None for each in found):
        return None
    steps, bases = zip(*(each for each in found if each is not None))
    dimensions = [
        Dimension(axis.extent, steps[0][at], tuple(guard[at] for guard in steps[1:]))
        for at, axis in enumerate(axes + k)
    ]
    return Affine(buffer, bases[0], bases[1:], merged(dimensions[: len(axes)]), merged(dimensions[len(axes) :]), fill)


def _unit_axis(kernel: Kernel, block: Block) -> str | None:
    """The grid axis along which the first Store is contiguous."""
    for stmt in block:
        if isinstance(stmt, Store):
            buffer = kernel.buffer(stmt.buffer)
            if isinstance(buffer, Buffer):
                found = steps_of(offset_of(buffer, stmt.indices), kernel.axes)
                if found is not None:
                    units = (a.name for a, step in zip(kernel.axes, found[0]) if step == Int(1) and a.extent != Int(1))
                    return next(units, None)
    return None


def _epilogue_fits(kernel: Kernel, block: Block) -> bool:
    """True if the statements around the Contract are Lets and unique Stores to buffers."""
    outputs = {buffer.name for buffer in kernel.buffers}
    return all(
        isinstance(stmt, Let) or (isinstance(stmt, Store) and stmt.mode == "unique" and stmt.buffer in outputs)
        for stmt in block
    )


def recognise(kernel: Kernel, types: tuple[DType, ...] = (float32, float64)) -> Form | None:
    """The kernel as a packed contraction whose sum has one of some types, or None."""
    at = next((at for at, stmt in enumerate(kernel.body) if isinstance(stmt, Contract)), None)
    if at is None or kernel.locals:
        return None
    contract, before, after = kernel.body[at], kernel.body[:at], kernel.body[at + 1 :]
    assert isinstance(contract, Contract)
    if contract.dtype not in types or not _epilogue_fits(kernel, before + after):
        return None
    if any(isinstance(stmt, Store) for stmt in before):
        return None
    known: dict[str, Expr] = {}
    for stmt in before:
        assert isinstance(stmt, Let)
        known[stmt.name] = Substitution(names=known).value(stmt.value)
    rename = Substitution(names=known)
    a, b = rename.value(contract.a), rename.value(contract.b)
    written = {stmt.buffer for stmt in after if isinstance(stmt, Store)}
    if any(isinstance(part, Load) and part.buffer in written for f in (a, b) for part in subexpressions(f)):
        return None  # another tile's result could be packed
    in_a, in_b = axes_used(kernel, a), axes_used(kernel, b)
    of_a = tuple(axis for axis in kernel.axes if axis.name in in_a and axis.name not in in_b)
    of_b = tuple(axis for axis in kernel.axes if axis.name in in_b and axis.name not in in_a)
    batch = tuple(axis for axis in kernel.axes if axis not in of_a and axis not in of_b)
    unit = _unit_axis(kernel, after)
    rows, columns = (a, of_a), (b, of_b)
    if any(axis.name == unit for axis in of_a) or not of_b:
        rows, columns = columns, rows
    if not columns[1]:
        return None
    inner = tuple(axis for axis in columns[1] if axis.name == unit)
    columns = (columns[0], tuple(axis for axis in columns[1] if axis.name != unit) + inner)
    factors = [
        Factor(expr, axes, _affine(kernel, expr, axes, contract.axes, contract.dtype)) for expr, axes in (rows, columns)
    ]
    return Form(kernel, contract, batch, factors[0], factors[1], before, after)


def is_packed(kernel: Kernel) -> bool:
    """True if a kernel is a contraction whose factors can be packed from where they lie."""
    form = recognise(kernel)
    return form is not None and form.rows.affine is not None and form.columns.affine is not None
