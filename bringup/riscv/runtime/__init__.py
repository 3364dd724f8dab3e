"""What every bare-metal program is linked with: its start (crt0.S) and its place in memory (link.ld)."""

from __future__ import annotations

from pathlib import Path

from bringup.riscv.machine import MachineSpec

#: The words for the linker that go with `sources`.
LINK = ("-Wl,-T,link.ld", "-Wl,--gc-sections")
STACK_BYTES = 64 << 10
_FOLDER = Path(__file__).parent


def crt0() -> str:
    """The start of a program: calls ``main``, exits with what it returns; ``bringup_exit(code)`` exits at once."""
    return (_FOLDER / "crt0.S").read_text(encoding="utf-8")


def memory_functions() -> str:
    """memset, memcpy, memmove and memcmp, which compilers call on their own."""
    return (_FOLDER / "memory.c").read_text(encoding="utf-8")


def square_root() -> str:
    """sqrtf and sqrt, which compilers call on cores that lack them; the rest of such arithmetic is in their library."""
    return (_FOLDER / "square_root.c").read_text(encoding="utf-8")


def link_script(spec: MachineSpec, stack_bytes: int = STACK_BYTES) -> str:
    """The linker script for a machine's memory.

    >>> "ORIGIN = 0x80000000, LENGTH = 0x4000000" in link_script(MachineSpec())
    True
    """
    text = (_FOLDER / "link.ld").read_text(encoding="utf-8")
    values = {"ram_base": spec.ram_base, "ram_bytes": spec.ram_bytes, "stack_bytes": stack_bytes}
    for name, value in values.items():
        text = text.replace(f"@{name}@", f"{value:#x}")
    return text


def sources(spec: MachineSpec, stack_bytes: int = STACK_BYTES) -> dict[str, str]:
    """All files, to be built with a program by `toolchain.build(…, link=LINK)`."""
    files = {"crt0.S": crt0(), "memory.c": memory_functions(), "link.ld": link_script(spec, stack_bytes)}
    return files if "d" in spec.extensions else files | {"square_root.c": square_root()}
