"""What C is written for: the vectors and instructions of a machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class COptions:
    """The machine that code is written for, as far as the text depends on it."""

    vector_bytes: int = 16
    """64 for AVX-512, 32 for AVX2, 16 for SSE and NEON, 0 for scalar code only."""
    fma: bool = True
    """A hardware fused multiply-add exists."""
    isa: str = ""
    """Part of cache keys and of the compiler's flags, such as x86-64-v4 or rv64gc."""
