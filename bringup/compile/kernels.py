"""What the kernel compiler takes besides loop IR, and what it reports of each kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

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


Origin: TypeAlias = Literal["compiled", "disk cache", "memory"]


@dataclass(frozen=True)
class KernelRecord:
    """A kernel on its way to a device. ``seconds`` is by step: verify, simplify, render, cost, compile or cache, load.

    The steps up to the source are taken while somebody watches, also where the disk cache makes them unnecessary.
    """

    kernel: Kernel | ForeignKernel  # simplified, as it runs
    source: Source
    cost: Cost | None  # of a kernel of the IR
    origin: Origin
    seconds: dict[str, float]
