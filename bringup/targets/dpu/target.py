"""The C of UPMEM's processors in memory (DPUs) as a target: one program for each kernel, that every DPU runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bringup.targets.c.options import COptions
from bringup.targets.target import FusionLimits, Target

if TYPE_CHECKING:
    from bringup.ir.kernel import Kernel
    from bringup.targets.source import Source

#: What the hardware has; fewer than 11 leave the pipeline idle, and 16 are what the stacks and windows leave room for.
MOST_TASKLETS = 24


@dataclass(frozen=True)
class DpuTarget(COptions, Target):
    """C for a DPU: scalar, buffers in MRAM behind windows in WRAM, work shared by tasklets.

    >>> DpuTarget.from_words({"tasklets": "11"}).describe()
    'dpu; tasklets=11'
    """

    language: ClassVar[str] = "dpu"
    words: ClassVar[Mapping[str, str]] = {"tasklets": "tasklets=1…24"}
    vector_bytes: int = 0
    fma: bool = False
    isa: str = "dpu"
    tasklets: int = 16

    @classmethod
    def from_words(cls, words: Mapping[str, str]) -> DpuTarget:
        """Returns the target; its word is ``tasklets``."""
        text = words.get("tasklets", "16")
        if not text.isdecimal() or not 1 <= int(text) <= MOST_TASKLETS:
            raise ValueError(f"tasklets={text} is none of 1 … {MOST_TASKLETS}, which is what a DPU has")
        return cls(tasklets=int(text))

    def describe(self) -> str:
        """Returns the text for ``Driver.target()``."""
        return f"{self.language}; tasklets={self.tasklets}"

    def render(self, kernel: Kernel) -> Source:
        """Returns a program: ``main`` of every tasklet."""
        from bringup.targets.dpu.program import render

        return render(kernel, self, self.tasklets)

    @property
    def limits(self) -> FusionLimits:
        """Few buffers: each has a window in WRAM for every tasklet. Nothing is vectorised, so no lane is wasted."""
        return FusionLimits(pointers=8, local_bytes=512, lanes=1, packs=lambda kernel: False, short=1, few=1)
