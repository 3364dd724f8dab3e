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
    """What a fused kernel may be for a target."""

    pointers: int = 16
    """Buffers of one kernel."""
    local_bytes: int = 1 << 16
    """Scratch of one work unit."""
    lanes: int = 16
    """float32 elements that run side by side; rows that leave most of them empty are not cut shorter."""
    packs: Callable[[Kernel], bool] = _is_packed
    """True for a contraction that the target has fast code for: fusion does not take that form away."""


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
