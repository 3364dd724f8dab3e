"""A contraction of known sizes as numbers: how far each axis moves the two factors.

Both emitters keep a tile of sums in registers while they walk along k in the order of the IR, so both give its bits.
Rows are the side that is read one number at a time; columns run along the output's unit stride.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bringup.ir.contraction_form import recognise, steps_of
from bringup.ir.dtypes import DType, float32, float64, int32
from bringup.ir.expr import Load
from bringup.ir.index import Index, Int
from bringup.ir.kernel import Axis, Block, Buffer, Contract, Kernel, offset_of
from bringup.ir.walk import all_values

#: Types of sums that become tiles in registers.
SUMS = (float32, float64, int32)


@dataclass(frozen=True)
class Span:
    """An axis as a run of positions: its extent, and how many elements a step moves each factor."""

    axis: Axis
    extent: int
    row_step: int
    column_step: int


@dataclass(frozen=True)
class Contraction:
    """init-free sums over k of rows × columns, each sum in order, then ``after``.

    ``row_base`` and ``column_base`` are the offsets at position 0 of every axis.
    """

    kernel: Kernel
    contract: Contract
    after: Block
    row_buffer: Buffer
    column_buffer: Buffer
    row_base: int
    column_base: int
    batch: tuple[Span, ...]
    rows: tuple[Span, ...]
    columns: tuple[Span, ...]
    k: tuple[Span, ...]

    @property
    def row(self) -> Span:
        """The innermost axis of the rows, or one of a single step."""
        return self.rows[-1] if self.rows else Span(Axis(" row", Int(1)), 1, 0, 0)

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return math.prod(span.extent for span in self.rows)

    @property
    def column_count(self) -> int:
        """How many columns there are."""
        return math.prod(span.extent for span in self.columns)

    @property
    def depth(self) -> int:
        """How many products each sum has."""
        return math.prod(span.extent for span in self.k)

    @property
    def macs(self) -> int:
        """Multiplications with addition in all."""
        return math.prod(s.extent for s in self.batch) * self.row_count * self.column_count * self.depth


def contraction_of(kernel: Kernel) -> Contraction | None:
    """The kernel as numbers; None if it does not match: a factor that is not a plain load, a guard, an init."""
    form = recognise(kernel, SUMS)
    if form is None or form.contract.init is not None or form.contract.lanes != 1:
        return None
    if form.dtype.is_float and not form.contract.fused:
        return None
    if form.before:
        return None
    loads = [factor.expr for factor in (form.rows, form.columns)]
    if not all(isinstance(load, Load) and load.guard is None and _fits(load.dtype, form.dtype) for load in loads):
        return None
    buffers, steps, bases = [], [], []
    axes = (*form.batch, *form.rows.axes, *form.columns.axes, *form.k)
    for load in loads:
        assert isinstance(load, Load)
        buffer = kernel.buffer(load.buffer)
        if not isinstance(buffer, Buffer):
            return None
        found = known_steps(buffer, load.indices, axes)
        if found is None:
            return None
        buffers.append(buffer)
        steps.append(found[0])
        bases.append(found[1])
    extents = [axis.extent.value for axis in axes if isinstance(axis.extent, Int)]
    assert len(extents) == len(axes), "all sizes are known"
    spans = [Span(axis, extent, row, column) for axis, extent, row, column in zip(axes, extents, *steps)]

    def of(some: Sequence[Axis]) -> tuple[Span, ...]:
        return tuple(span for span in spans if span.axis in some)

    return Contraction(
        kernel,
        form.contract,
        form.after,
        buffers[0],
        buffers[1],
        bases[0],
        bases[1],
        of(form.batch),
        of(form.rows.axes),
        of(form.columns.axes),
        merged_k(of(form.k)),
    )


def known_steps(buffer: Buffer, indices: tuple[Index, ...], axes: Sequence[Axis]) -> tuple[list[int], int] | None:
    """How many elements a step on each axis moves an access, and where it begins; None if those are not numbers."""
    found = steps_of(offset_of(buffer, indices), tuple(axes))
    if found is None:
        return None
    numbers = [index.value for index in (*found[0], found[1]) if isinstance(index, Int)]
    return (numbers[:-1], numbers[-1]) if len(numbers) == len(axes) + 1 else None


def packable(c: Contraction, constants: frozenset[str], rest: Block = ()) -> frozenset[str]:
    """The constants that may lie in another order: those that only the sums read, each as one factor.

    ``rest`` are statements after the contraction's own.
    """
    if c.row_buffer.name == c.column_buffer.name:
        return frozenset()
    return constants - {part.buffer for part in all_values((*c.after, *rest)) if isinstance(part, Load)}


def _fits(factor: DType, total: DType) -> bool:
    """True if sums of this type have such factors: the same float, or small integers."""
    return factor is total if total.is_float else factor.is_integer and factor.size <= total.size


def merged_k(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The axes of the sum without those of one step, and with neighbours joined that move both factors alike.

    >>> merged_k([Span(Axis("a", Int(3)), 3, 4, 4), Span(Axis("b", Int(4)), 4, 1, 1)])[0].extent
    12
    """
    out: list[Span] = []
    for span in spans:
        if span.extent == 1:
            continue
        last = out[-1] if out else None
        if (
            last is not None
            and last.row_step == span.row_step * span.extent
            and last.column_step == span.column_step * span.extent
        ):
            out[-1] = Span(span.axis, last.extent * span.extent, span.row_step, span.column_step)
        else:
            out.append(span)
    return tuple(out)
