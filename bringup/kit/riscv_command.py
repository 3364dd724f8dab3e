"""``bringup riscv run model.elf``: a bare-metal program in our own emulator, without QEMU.

What the program writes to its UART is the output, and its exit code is the command's.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bringup.kit.terminal import fail

if TYPE_CHECKING:  # the other commands need not wait for NumPy
    from bringup.riscv import Device, MachineSpec, Program

_RAM = 64 << 20
_LETTERS = "mafdcv"


def riscv_application() -> typer.Typer:
    """The command group; ``bringup.cli`` adds it."""
    application = typer.Typer(help="Bare-metal RISC-V programs.", no_args_is_help=True)
    application.callback()(lambda: None)  # one command is still named
    application.command()(run)
    return application


def run(
    program: Annotated[Path, typer.Argument(help="An ELF file, or the folder of an exported project that was built.")],
    vector: Annotated[int, typer.Option(help="Bits of a vector register, where the program has vectors.")] = 128,
    machine: Annotated[str, typer.Option(help="The emulator: interpreter or qemu.")] = "interpreter",
    device: Annotated[
        list[str] | None, typer.Option(metavar="NAME@ADDRESS", help="gemm@0x10320000, echo@…, compute@…: attach it.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long it may run.", min=0.001)] = 60.0,
) -> None:
    """Run a program in an emulator: its output, its exit code, and how many instructions it took (on stderr)."""
    from bringup.riscv import GuestError, Program, open_machine

    try:
        attached = dict(_device(text) for text in device or ())
        path = elf_in(program)
        loaded = Program(path)
        if not loaded.segments:
            raise ValueError(f"{path} has nothing to load: is it an object file that was not linked?")
        with open_machine(machine, path, spec_of(loaded, vector), attached) as guest:
            try:
                stop = guest.run(seconds=seconds)
            finally:
                sys.stdout.write(guest.console.decode(errors="replace"))
                sys.stdout.flush()
            took = guest.counts.instructions
    except GuestError as error:
        fail("riscv run", str(error), 1)
    except (OSError, ValueError, RuntimeError) as error:
        fail("riscv run", str(error))
    if stop.reason == "idle":
        fail(
            "riscv run",
            f"{program} waits for an interrupt (wfi) that no device will raise, after {took:,} instructions",
            1,
        )
    code = sum(symbol.size for symbol in loaded.symbols if symbol.is_function)
    summary = f"exit code {stop.code}, {took:,} instructions on {machine}; {code:,} bytes of code"
    print(f"{path.name}: {summary}", file=sys.stderr)
    raise typer.Exit(min(stop.code, 255))


def elf_in(path: Path) -> Path:
    """The ELF file that a path means: itself, or the one in the folder of a project."""
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(f"there is no file {path}")
        return path
    found = sorted(path.glob("*.elf"))
    if not found and (path / "Makefile").exists():
        raise FileNotFoundError(f'{path} is not built yet: make -C {path} CC="python -m ziglang cc"')
    if len(found) != 1:
        names = ", ".join(one.name for one in found) or "none"
        raise FileNotFoundError(f"{path} is a folder with {names} to run: name one ELF file")
    return found[0]


def spec_of(program: Program, vector: int = 128) -> MachineSpec:
    """The machine that a program says it needs (``.riscv.attributes``), with room for all of it."""
    from bringup.riscv import MachineSpec

    declared = re.search(rb"rv(32|64)[a-z0-9_]+", program.section(".riscv.attributes"))
    if declared is None:  # as much as we have
        isa = "rv64gcv" if program.xlen == 64 else "rv32imfc"
    else:
        words = [re.match(rb"[a-z]+", word) for word in declared[0][4:].split(b"_")]
        names = {word[0].decode() for word in words if word is not None}
        isa = f"rv{program.xlen}i" + "".join(letter for letter in _LETTERS if letter in names)
        isa += "".join(f"_{name}" for name in ("zfh", "zfhmin", "zvfh") if name in names)
    base = MachineSpec().ram_base
    end = max((segment.address + segment.memory_bytes for segment in program.segments), default=base)
    ram = _RAM
    while base + ram < end and base + ram < 1 << 32:
        ram *= 2
    letters = isa.partition("_")[0]
    return MachineSpec(isa, vlen=vector if letters.endswith("v") else 0, ram_bytes=min(ram, (1 << 32) - base))


def _device(text: str) -> tuple[int, Device]:
    """An address and the device that is to be there.

    >>> _device("gemm@0x10320000")[0] == 0x10320000
    True
    """
    from bringup.riscv import Compute, Echo, Gemm

    devices: dict[str, type[Device]] = {"gemm": Gemm, "echo": Echo, "compute": Compute}
    name, _, address = text.partition("@")
    if name not in devices or not re.fullmatch(r"0x[0-9a-fA-F]+|\d+", address):
        known = ", ".join(f"{one}@ADDRESS" for one in devices)
        raise ValueError(f"--device {text} reads unlike gemm@0x10320000; there are {known}")
    return int(address, 0), devices[name]()
