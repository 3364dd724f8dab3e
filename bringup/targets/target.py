"""What a target is: a language that kernels are written in, with what one chip says about itself.

A language is a class, found by name (``registry.py``); ``Driver.target()`` names it and gives its words:

    "c; vector=32 fma=1"   →   CTarget.from_words({"vector": "32", "fma": "1"})
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:  # `import torch` reads the drivers' descriptions: what renders is imported with the first kernel
    from bringup.ir.kernel import Kernel
    from bringup.targets.source import Source


def _is_packed(kernel: Kernel) -> bool:
    from bringup.ir.contraction_form import is_packed

    return is_packed(kernel)


@dataclass(frozen=True)
class FusionLimits:
    """What a fused kernel may be for a target, and what is cheap on it. The numbers are those of a CPU with vectors."""

    pointers: int = 16
    """Buffers of one kernel."""
    local_bytes: int = 1 << 16
    """Scratch of one work unit."""
    lanes: int = 16
    """float32 elements that run side by side; rows that leave most of them empty are not cut shorter."""
    packs: Callable[[Kernel], bool] = _is_packed
    """True for a contraction that the target has fast code for: fusion does not take that form away."""
    statements: int = 200
    """Statements of one kernel: compilers take more than their share of time for more."""
    expression: int = 300
    """Nodes of an expression that may be written more than once."""
    slow: frozenset[str] = frozenset("div floordiv truncdiv remainder fmod sqrt rsqrt reciprocal".split())
    """Ops that are not computed twice, like functions and random draws: as long as a dozen additions."""
    reader_operations: int = 3
    """Operations that are done again for every reader instead of one more load."""
    row_operations: int = 24
    """Operations that may be done once more in each further pass over a row instead of keeping the row."""
    often: int = 64
    """Steps of an innermost loop beside which one value, computed before the loop, does not show."""
    small: int = 4096
    """Elements of a kernel that takes no longer than its launch."""
    full: float = 0.75
    """How many of the lanes must be in use where every lane is expensive."""
    short: int = 16
    """Loops inside a grid point that are shorter than this are slower than a grid of vectors."""
    few: int = 8
    """A grid of fewer points, each with more than ``long`` steps, leaves threads idle."""
    long: int = 8192
    """Steps that one grid point may do where nothing else runs beside it."""
    across_bytes: int = 4096
    """Scratch for a row whose elements lie apart: vectors run across such rows, each lane with scratch of its own."""


class Target(ABC):
    """A language with its settings. Targets are compared and hashed by their settings: frozen dataclasses.

    A target renders one kernel after the loop IR; math functions, launch convention and limits are its own affair. The
    convention of every target so far: ``entry(arguments, begin, end, report)`` runs the work units begin … end - 1 of
    ``Source.units`` (driver.h, ``bringup_kernel``). A chip with grids of threads maps a unit to a block.
    """

    #: The name of the language in ``Driver.target()``.
    language: ClassVar[str]
    #: Words of a description, and how each is written.
    words: ClassVar[Mapping[str, str]] = {}
    #: Part of the disk cache's keys: raise it whenever a kernel renders to another text. Targets inside of bringup need
    #: none, as the hash of their sources is part of every key.
    version: ClassVar[str] = ""

    @classmethod
    @abstractmethod
    def from_words(cls, words: Mapping[str, str]) -> Target:
        """Returns the target that a description's words say; raises ValueError for a value that it cannot be."""

    @abstractmethod
    def render(self, kernel: Kernel) -> Source:
        """Returns the source of a kernel that is verified and simplified; raises ``CannotRender`` if it cannot."""

    def describe(self) -> str:
        """Returns the text for ``Driver.target()``."""
        return self.language

    def together(self, sources: Sequence[Source]) -> tuple[str, list[str]] | None:
        """Returns several sources as one text and the entry of each; None if one run makes one kernel."""
        return None

    @property
    def limits(self) -> FusionLimits:
        """What fused kernels may be."""
        return FusionLimits()


class CannotRender(Exception):
    """The target has no code for something in a kernel: the op takes its next route."""
