"""A whole model without Python: kernels, which memory they get for which sizes, inputs and outputs.

``bringup.export`` makes one and hands it to a target, with the constants' bytes; it holds no torch objects. All
formulas are over the model's sizes, in the order of ``GraphProgram.sizes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from bringup.ir.index import Index
from bringup.ir.kernel import Kernel

#: ("tensor", n): constant n, or input n - len(constants); ("temporary", n): memory of the model's own.
Memory: TypeAlias = tuple[str, int]
Formulas: TypeAlias = tuple[Index, ...]
#: bits: the argument itself; number: one of the variant's numbers; seed and offset: of that random call.
Given: TypeAlias = tuple[Literal["bits", "number", "seed", "offset"], int]
#: An input that is an integer instead of a tensor has this type.
INTEGER = "integer"


@dataclass(frozen=True)
class SizeSymbol:
    """A size that calls decide: from which input (and dimension; None: the input is that integer), in which range."""

    name: str
    low: int
    high: int | None
    input: int
    dimension: int | None
    #: What it was in the call that the model was traced with.
    example: int

    @property
    def words(self) -> str:
        """The range, for messages."""
        return f"{self.low}…{self.high}" if self.high is not None else f"{self.low} or more"


@dataclass(frozen=True)
class InputSpec:
    """A tensor that calls bring; strides are those that kernels expect."""

    name: str
    dtype: str
    shape: Formulas
    strides: Formulas


@dataclass(frozen=True)
class ConstantSpec:
    """A tensor that comes with the model: as many bytes as its shape and strides span. ``state``: calls change it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    state: bool = False


@dataclass(frozen=True)
class KernelCall:
    """One launch: allocations with the offset in elements of each buffer, the kernel's sizes and its numbers."""

    kernel: int
    buffers: tuple[tuple[Memory, Index], ...]
    sizes: Formulas
    params: tuple[Given, ...]
    #: Ops, shapes and lines of the model that it comes from, for people. Files do not keep it.
    note: str = ""


@dataclass(frozen=True)
class ResultSpec:
    """An output tensor."""

    memory: Memory
    dtype: str
    shape: Formulas
    strides: Formulas
    offset: Index


@dataclass(frozen=True)
class Variant:
    """The model for all sizes that the guards describe: (relation, formula) compares the formula with 0 that way."""

    guards: tuple[tuple[str, Index], ...]
    #: (number, relation, value): the number compares with the value that way.
    number_guards: tuple[tuple[int, str, bool | int | float], ...]
    numbers: Formulas
    #: Bytes of each.
    temporaries: Formulas
    calls: tuple[KernelCall, ...]
    results: tuple[ResultSpec, ...]
    #: How many random calls it makes.
    draws: int = 0


@dataclass(frozen=True)
class GraphProgram:
    """A model. ``takes`` and ``gives`` are trees (containers.py) with leaves ("input", n), ("result", n), ("size",
    formula) and ("value", constant); ``updates``: after a call, constant → result."""

    target: str
    sizes: tuple[SizeSymbol, ...]
    inputs: tuple[InputSpec, ...]
    constants: tuple[ConstantSpec, ...]
    kernels: tuple[Kernel, ...]
    variants: tuple[Variant, ...]
    #: Names of the positional parameters.
    parameters: tuple[str, ...]
    takes: Any
    gives: Any
    updates: tuple[tuple[int, int], ...] = ()
    #: How many batch norms became part of weights, for reports. Files do not keep it.
    folded_norms: int = 0


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements of memory a tensor reaches over.

    >>> span((2, 3), (4, 1)), span((0, 3), (4, 1))
    (7, 0)
    """
    return 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
