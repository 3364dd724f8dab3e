"""What the CPU of this machine can do, as a CTarget: from /proc/cpuinfo, so that no compiler has to be asked.

The instruction sets are the four levels of the x86-64 psABI and not ``native``: a cached kernel then serves every
machine of its level, and the name says what it needs.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from pathlib import Path

from bringup.targets.c.target import CTarget

#: level → what it adds, in /proc/cpuinfo's words (abm is lzcnt). Highest last.
_X86_LEVELS: dict[str, frozenset[str]] = {
    "x86-64": frozenset(),
    "x86-64-v2": frozenset("cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3".split()),
    "x86-64-v3": frozenset("avx avx2 bmi1 bmi2 f16c fma abm movbe xsave".split()),
    "x86-64-v4": frozenset("avx512f avx512bw avx512cd avx512dq avx512vl".split()),
}
#: /proc/cpuinfo's words that the compiler has a macro for, such as __AVX2__: for a -march that is not a level.
_MACROS = frozenset("sse4_1 avx avx2 fma f16c".split()) | _X86_LEVELS["x86-64-v4"]


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """The features of the first CPU in /proc/cpuinfo's text (all are the same on x86).

    >>> sorted(cpu_flags("flags : fma avx2\\n"))
    ['avx2', 'fma']
    """
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


@functools.lru_cache(maxsize=1)
def _own_flags() -> frozenset[str]:
    try:
        return cpu_flags(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        return frozenset()


def x86_level(flags: frozenset[str]) -> str:
    """The highest level of which a CPU has everything.

    >>> x86_level(frozenset())
    'x86-64'
    """
    level = "x86-64"
    for name, needed in _X86_LEVELS.items():
        if not needed <= flags:
            break
        level = name
    return level


def level_flags(level: str) -> frozenset[str]:
    """Everything a level has, its lower levels included."""
    names = list(_X86_LEVELS)
    return frozenset().union(*(_X86_LEVELS[name] for name in names[: names.index(level) + 1]))


def x86_target(isa: str, flags: frozenset[str]) -> CTarget:
    """The CTarget of an x86 instruction set with these features."""
    avx512 = _X86_LEVELS["x86-64-v4"] <= flags
    vector = 64 if avx512 else 32 if "avx2" in flags else 16
    return CTarget(vector_bytes=vector, fma="fma" in flags, isa=isa)


@functools.lru_cache(maxsize=1)
def probed_target() -> CTarget:
    """What this CPU can do."""
    return target_of(platform.machine(), _own_flags())


def target_of(machine: str, flags: frozenset[str]) -> CTarget:
    """The CTarget of a machine, by ``platform.machine()`` and the words of /proc/cpuinfo.

    >>> target_of("aarch64", frozenset()).isa
    'armv8-a'
    """
    if machine in ("x86_64", "AMD64"):
        level = x86_level(flags)
        return x86_target(level, level_flags(level))
    if machine in ("aarch64", "arm64"):
        return CTarget(vector_bytes=16, fma=True, isa="armv8-a")  # NEON and fused multiply-add are part of it
    if machine == "riscv64":
        return CTarget(vector_bytes=0, fma=True, isa="rv64gc")
    return CTarget(vector_bytes=0, fma=False, isa="")  # whatever the compiler makes by default


def march_target(march: str, predefined: Callable[[str], frozenset[str]]) -> CTarget:
    """The target of a -march on this machine; refuses one whose code would end the process with an illegal instruction.

    ``predefined`` gives the compiler's macros for a -march that is not a level.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        usual = probed_target()
        return CTarget(vector_bytes=usual.vector_bytes, fma=usual.fma, isa=march)
    if march in _X86_LEVELS:
        flags = level_flags(march)
    else:
        macros = predefined(march)
        flags = frozenset(word for word in _MACROS if f"__{word.upper()}__" in macros)
    missing = flags - _own_flags()
    if missing:
        raise ValueError(
            f"BRINGUP_MARCH={march} needs {', '.join(sorted(missing))}, which this CPU does not have; it is "
            f"{x86_level(_own_flags())}"
        )
    return x86_target(march, flags)
