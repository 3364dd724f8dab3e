"""What became of a call and of its kernels, for those who watch: ``bringup explain`` and BRINGUP_DEBUG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bringup.compile.kernels import KernelRecord
from bringup.lowering.call import Call
from bringup.lowering.symbolic import Trace


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
