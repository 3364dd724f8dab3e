"""What the kernel compiler takes besides loop IR, one launch of a kernel, and what is reported of each kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

from bringup.ir.cost import Cost
from bringup.ir.index import Index
from bringup.ir.kernel import Kernel, ScalarParam, SizeRange
from bringup.targets.source import Source


@dataclass(frozen=True)
class ForeignKernel:
    """A kernel that is source already, such as the call of a vendor's function; the formulas are over the call's sizes.

    ``text`` is a whole translation unit that defines the function ``name`` (see ``bringup_kernel`` in driver.h), or a
    remark where the code is there already: a ``function`` of the chip's library (``bringup_library_function``).
    """

    name: str
    text: str
    sizes: tuple[SizeRange, ...]
    params: tuple[ScalarParam, ...]
    units: Index
    flops: Index
    bytes: Index
    function: int = 0
    context: int = 0


MemoryT = TypeVar("MemoryT")
SizeT = TypeVar("SizeT")
NumberT = TypeVar("NumberT")


@dataclass(frozen=True)
class Launch(Generic[MemoryT, SizeT, NumberT]):
    """A kernel and what it gets: memory for each of its buffers, and numbers for its sizes and its params.

    It is the same at every stage, over that stage's words: tensors and traced numbers in a lowering, allocations and
    formulas in a program, and no sizes or params at all where they are written into the kernel.
    """

    kernel: Kernel | ForeignKernel
    buffers: tuple[MemoryT, ...]
    sizes: tuple[SizeT, ...]
    params: tuple[NumberT, ...]
    #: Ops, shapes and lines of the model that it comes from, for people. Files do not keep it.
    note: str = ""


class FilledLaunch(NamedTuple):
    """A launch with its numbers, as ``_C.make_plan`` takes it: every argument is (kind, number, offset or type).

    In a graph the kind of an address is a name still, such as "temporary": binding it to a device says where that is.
    """

    handle: int
    units: int
    flops: float
    bytes: float
    arguments: list[tuple[int | str, int, int]]


Origin: TypeAlias = Literal["compiled", "disk cache", "memory"]


@dataclass(frozen=True)
class KernelRecord:
    """A kernel on its way to a device. ``seconds`` is by step: verify, simplify, render, cost, compile or cache, load.

    The steps up to the source are taken while launches are observed, even where the disk cache makes them unnecessary.
    """

    kernel: Kernel | ForeignKernel  # simplified, as it runs
    source: Source
    cost: Cost | None  # of a kernel of the IR
    origin: Origin
    seconds: dict[str, float]
