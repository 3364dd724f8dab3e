"""A graph after lowering and fusion: kernel calls, the allocations they get for which sizes, inputs and outputs.

A Variant is what lowering and fusion make and what is bound to a device (structure.py, binding.py). A GraphProgram is a
whole model: ``bringup.export`` makes one and hands it to a target, ``bringup.load`` reads one. Its variants are kernels
and formulas alone; those of a compiled graph may have ordinary ops between the kernels, which no file holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from bringup.compile.kernels import ForeignKernel, Launch
from bringup.driver import PlacementKind
from bringup.ir.index import Index, Int
from bringup.ir.kernel import Kernel
from bringup.lowering.call import Memory as Memory

Formulas: TypeAlias = tuple[Index, ...]
#: bits: the argument itself; number: one of the variant's numbers; seed and offset: of that random call.
GivenKind: TypeAlias = Literal["bits", "number", "seed", "offset"]
Given: TypeAlias = tuple[GivenKind, int]
#: An input that is an integer instead of a tensor has this type.
INTEGER = "integer"
_ZERO = Int(0)


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
class TensorSpec:
    """An input, an output, or what an ordinary op takes or gives: its allocation, and how it lies there in elements.

    ("tensor", n) is constant n, or input n - len(constants); ("temporary", n) memory of the model's own.
    """

    memory: Memory
    dtype: str
    shape: Formulas
    strides: Formulas
    offset: Index = _ZERO
    #: How a new storage is to lie over the partitions of the device.
    placement: PlacementKind = PlacementKind.SINGLE
    #: Of an input.
    name: str = ""


@dataclass(frozen=True)
class ConstantSpec:
    """A tensor that comes with the model: as many bytes as its shape and strides span. ``state``: calls change it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    state: bool = False


#: Buffers are allocations with an offset in elements (in bytes, of a foreign kernel: its buffers have no types); sizes
#: are formulas.
KernelCall: TypeAlias = Launch[tuple[Memory, Index], Index, Given]


@dataclass(frozen=True)
class EagerCall:
    """A node that runs as an ordinary op: its arguments (with TensorSpecs and sizes among them) and what it gives."""

    name: str
    target: Callable[..., Any]
    args: Any
    kwargs: Any
    #: A TensorSpec for each, or None.
    results: tuple[Any, ...]
    #: Why it is not a kernel.
    reason: str
    stack: str
    #: How many random calls of the graph come before it.
    draws: int = 0


@dataclass(frozen=True)
class Variant:
    """The graph for all sizes that the guards describe: (relation, formula) compares the formula with 0 that way.

    In a file numbers are formulas, calls are kernels and results are tensors. In a compiled graph a number may also be
    a 0-dim tensor on the CPU or PyTorch's expression of sizes, and a result anything that is not a tensor.
    """

    guards: tuple[tuple[str, Index], ...]
    #: (number, relation, value): the number compares with the value that way.
    number_guards: tuple[tuple[int, str, bool | int | float], ...]
    numbers: tuple[Any, ...]
    #: Bytes of each.
    temporaries: Formulas
    calls: tuple[KernelCall | EagerCall, ...]
    results: tuple[Any, ...]
    #: How many random calls it makes.
    draws: int = 0

    @property
    def kernel_calls(self) -> list[KernelCall]:
        """Its launches."""
        return [call for call in self.calls if isinstance(call, Launch)]


@dataclass(frozen=True)
class GraphProgram:
    """A model. ``takes`` and ``gives`` are trees (containers.py) with leaves ("input", n), ("result", n), ("size",
    formula) and ("value", constant); ``updates``: after a call, constant → result."""

    target: str
    sizes: tuple[SizeSymbol, ...]
    inputs: tuple[TensorSpec, ...]
    constants: tuple[ConstantSpec, ...]
    variants: tuple[Variant, ...]
    #: Names of the positional parameters.
    parameters: tuple[str, ...] = ()
    takes: Any = None
    gives: Any = None
    updates: tuple[tuple[int, int], ...] = ()
    #: How many batch norms became part of weights, for reports. Files do not keep it.
    folded_norms: int = 0

    @property
    def kernels(self) -> tuple[Kernel | ForeignKernel, ...]:
        """The kernels of its variants, each once."""
        return tuple(dict.fromkeys(call.kernel for variant in self.variants for call in variant.kernel_calls))

    def named(self, sizes: Sequence[int]) -> dict[str, int]:
        """The sizes of a call by their names."""
        return {size.name: number for size, number in zip(self.sizes, sizes)}


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements of memory a tensor reaches over.

    >>> span((2, 3), (4, 1)), span((0, 3), (4, 1))
    (7, 0)
    """
    return 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
