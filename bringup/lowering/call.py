"""One call of an op, as a lowering sees it: tensors with symbolic shapes, numbers, outputs, and the launches so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from bringup.compile.failure import NoKernel as NoKernel
from bringup.compile.kernels import Launch as Launch
from bringup.driver import PlacementKind
from bringup.ir.dtypes import DType
from bringup.ir.expr import Param
from bringup.lowering.scalar_types import number_type
from bringup.lowering.symbolic import IntLike, Trace, product

if TYPE_CHECKING:
    from bringup.lowering.builder import KernelBuilder


#: Where memory comes from: "tensor", "output" or "temporary", and its number there.
Memory: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class Tensor:
    """A tensor of the call: where its memory comes from, and how it is laid out (strides count elements)."""

    memory: Memory
    dtype: DType
    shape: tuple[IntLike, ...]
    strides: tuple[IntLike, ...]
    contiguous: bool = False
    wrapped: bool = False
    offset: IntLike = 0
    #: How its storage lies over the partitions of the device.
    placement: PlacementKind = PlacementKind.SINGLE

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def numel(self) -> IntLike:
        """How many elements it has."""
        return product(self.shape)

    def view(self, shape: Sequence[IntLike], strides: Sequence[IntLike], offset: IntLike = 0) -> Tensor:
        """The same memory, seen otherwise; the offset counts elements from where this view starts."""
        moved = self.offset + offset
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=moved, contiguous=False)

    def permute(self, dims: Sequence[int]) -> Tensor:
        """The dimensions in another order."""
        return self.view([self.shape[d] for d in dims], [self.strides[d] for d in dims])

    def select(self, dim: int, position: IntLike) -> Tensor:
        """One slice, without its dimension."""
        keep = [d for d in range(self.ndim) if d != dim]
        offset = self.strides[dim] * position
        return self.view([self.shape[d] for d in keep], [self.strides[d] for d in keep], offset)

    def narrow(self, dim: int, start: IntLike, length: IntLike, step: IntLike = 1) -> Tensor:
        """Part of one dimension."""
        shape, strides = list(self.shape), list(self.strides)
        offset = strides[dim] * start
        shape[dim], strides[dim] = length, strides[dim] * step
        return self.view(shape, strides, offset)

    def expand(self, shape: Sequence[IntLike]) -> Tensor:
        """Broadcast to a shape; dimensions of 1 repeat."""
        ahead = len(shape) - self.ndim
        if ahead < 0:
            raise NoKernel("an operand has more dimensions than what is written")
        strides: list[IntLike] = [0] * ahead
        for mine, wanted, stride in zip(self.shape, shape[ahead:], self.strides):
            same = mine == wanted
            if not same and mine != 1:
                raise NoKernel("an operand does not broadcast to what is written")
            strides.append(stride if same else 0)
        return self.view(shape, strides)


@dataclass(frozen=True)
class Number:
    """A number of the call: a Scalar argument, a 0-dim CPU tensor or a wrapped number. It is data of the launch."""

    slot: int  # -1: a number that the lowering itself brought, the same in every call
    value: bool | int | float
    tensor_dtype: DType | None  # of a CPU tensor
    wrapped: bool
    trace: Trace
    #: A Scalar that PyTorch makes a tensor of, as of an operand: 300 is 44 for uint8. Others must fit their type.
    wraps: bool = False

    @property
    def dtype(self) -> DType:
        """The type it takes part in promotion with."""
        return self.tensor_dtype or number_type(self.value)

    def equals(self, number: bool | int | float) -> bool:
        """Asks for a special value; the answer is a guard."""
        return self.trace.compare_scalar(self.slot, "eq", self.value, number)

    def __lt__(self, number: float) -> bool:
        """Asks on which side of a number it lies; the answer is a guard."""
        return self.trace.compare_scalar(self.slot, "lt", self.value, number)

    def __gt__(self, number: float) -> bool:
        """Asks on which side of a number it lies; the answer is a guard."""
        return self.trace.compare_scalar(self.slot, "gt", self.value, number)

    def known(self) -> bool | int | float:
        """The number itself: the kernels that follow hold for this number only."""
        if self.value != self.value:
            raise NoKernel("a NaN cannot be part of a kernel's structure")
        self.equals(self.value)
        return self.value


def number_of(value: bool | int | float, in_tensor_slot: bool, trace: Trace, slot: int = -1) -> Number:
    """A Python number as an argument; where the schema has a Tensor it is a wrapped number, which takes part in
    promotion: (x > 0) * 0.5 is a float.

    >>> number_of(0.5, True, Trace()).wrapped, number_of(0.5, False, Trace()).wrapped
    (True, False)
    """
    return Number(slot, value, number_type(value) if in_tensor_slot else None, in_tensor_slot, trace)


@dataclass(frozen=True)
class NumberParam(Param):
    """A number inside a formula: a launch parameter that can be asked for a special value."""

    number: Number | None = field(default=None, compare=False, repr=False)

    def equals(self, number: bool | int | float) -> bool:
        """Asks for a special value; the answer is a guard."""
        assert self.number is not None
        return self.number.equals(number)


#: What a param of a launch is: "seed" and "offset" are those of the call, an int is the bits of a constant.
GivenNumber: TypeAlias = Number | str | int
LoweredLaunch: TypeAlias = Launch[Tensor, IntLike, GivenNumber]


@dataclass
class Call:
    """What a lowering fills: launches and temporaries. ``inplace``: an output is also an input's memory."""

    op: str
    trace: Trace
    outs: tuple[Tensor, ...] = ()
    launches: list[LoweredLaunch] = field(default_factory=list)
    temporaries: list[Tensor] = field(default_factory=list)
    #: True while every launch reads an element only at the place where it writes one.
    pointwise: bool = False
    #: True where PyTorch refuses an output that overlaps an input: without it such a call goes through a temporary.
    apart: bool = False
    #: On which device of the process it runs.
    device: int = 0

    def kernel(self, name: str = "") -> KernelBuilder:
        """A new kernel of this call; ``launch()`` on it when it is complete."""
        from bringup.lowering.builder import KernelBuilder

        # No number in the name: two launches of the same loops are one kernel.
        return KernelBuilder(self, name or self.op.removeprefix("aten::").replace(".", "_").replace("::", "_"))

    def part(self, op: str, outs: Sequence[Tensor]) -> Call:
        """A call of another op inside this one: its launches and temporaries belong to this call."""
        return Call(op, self.trace, tuple(outs), self.launches, self.temporaries, device=self.device)

    def temporary(self, dtype: DType, shape: Sequence[IntLike]) -> Tensor:
        """Contiguous memory for the time of this call."""
        tensor = Tensor(
            ("temporary", len(self.temporaries)), dtype, tuple(shape), dense_strides(shape), contiguous=True
        )
        self.temporaries.append(tensor)
        return tensor

    @property
    def random(self) -> bool:
        """True if a kernel draws numbers."""
        return any(param == "seed" for launch in self.launches for param in launch.params)


def dense_strides(shape: Sequence[IntLike]) -> tuple[IntLike, ...]:
    """The strides of a contiguous tensor.

    >>> dense_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides: list[IntLike] = []
    step: IntLike = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step = step * extent
    return tuple(strides)
