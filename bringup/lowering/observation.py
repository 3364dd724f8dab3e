"""What became of a call and of its kernels, for those who watch: ``bringup explain`` and BRINGUP_DEBUG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from bringup.ir.cost import Cost
from bringup.ir.kernel import Kernel
from bringup.lowering.call import Call, ForeignKernel
from bringup.lowering.symbolic import Trace
from bringup.targets.source import Source

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


@dataclass(frozen=True)
class CallRecord:
    """A call that the core's signature cache did not know, as the core describes it (bringup/_C.pyi).

    ``call`` is None for a refused one; ``known``: its structure was there, and only shapes or strides were new.
    """

    op: str
    device: int
    arguments: Sequence[Any]
    outputs: Sequence[Any] | None
    trace: Trace
    seconds: dict[str, float]  # by step: lowering, plan
    call: Call | None = None
    refusal: str = ""
    known: bool = False
    kernels: Sequence[KernelRecord] = ()
