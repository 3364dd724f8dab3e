"""What a target renders a kernel to: a complete translation unit, its entry point, and how many work units it has."""

from __future__ import annotations

from dataclasses import dataclass

from bringup.ir.index import Index

#: Part of cache keys: raised whenever the same kernel renders to another text or another meaning.
GENERATOR_VERSION = 1


@dataclass(frozen=True)
class Source:
    """A rendered kernel. ``units`` is over the kernel's sizes: ``evaluate_sizes(source.units, sizes)``.

    >>> from bringup.ir.index import Int
    >>> Source("void k(void) {}", "k", Int(1)).entry
    'k'
    """

    text: str
    entry: str
    units: Index
    block: int = 0
    """Threads of one unit, where the language has such; ``Launch.block``."""
    local_bytes: int = 0
    """Memory that the threads of a unit share; ``Launch.local_bytes``."""
