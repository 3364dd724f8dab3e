"""C as a target: for a host's compiler or a bare-metal one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bringup.targets.c.options import COptions
from bringup.targets.target import Target

if TYPE_CHECKING:
    from bringup.ir.kernel import Kernel
    from bringup.targets.source import Source

#: Lengths of vectors that there is code for.
VECTOR_BYTES = (0, 16, 32, 64)


@dataclass(frozen=True)
class CTarget(COptions, Target):
    """C with the vectors that gcc and clang share.

    >>> CTarget(vector_bytes=64, isa="x86-64-v4").describe()
    'c; vector=64 fma=1 isa=x86-64-v4'
    """

    language: ClassVar[str] = "c"
    words: ClassVar[Mapping[str, str]] = {"vector": "vector=BYTES", "fma": "fma=0|1", "isa": "isa=NAME"}

    @classmethod
    def from_words(cls, words: Mapping[str, str]) -> CTarget:
        """Returns the target; its words are ``vector``, ``fma`` and ``isa``."""
        vector, fma = words.get("vector", "16"), words.get("fma", "1")
        if vector not in map(str, VECTOR_BYTES):
            choices = ", ".join(map(str, VECTOR_BYTES))
            raise ValueError(f"vector={vector} is none of {choices} (bytes; 0 for scalar code)")
        if fma not in ("0", "1"):
            raise ValueError(f"fma={fma} is neither 0 nor 1")
        return cls(int(vector), fma == "1", words.get("isa", ""))

    def describe(self) -> str:
        """Returns the text for ``Driver.target()``."""
        words = [f"vector={self.vector_bytes}", f"fma={int(self.fma)}"]
        if self.isa:
            words.append(f"isa={self.isa}")
        return f"{self.language}; {' '.join(words)}"

    def render(self, kernel: Kernel) -> Source:
        """Returns a translation unit with one function."""
        from bringup.targets.c.render import render  # 40 modules that `import torch` can do without

        return render(kernel, self)

    def together(self, sources: Sequence[Source]) -> tuple[str, list[str]]:
        """Returns one translation unit of all: eight at once take 0.65 of the time of eight runs (gcc 12)."""
        from bringup.targets.c.unit import together

        return together(sources)
