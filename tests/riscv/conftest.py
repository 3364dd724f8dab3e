"""Fixtures of the RISC-V tests: QEMU as the judge of what an instruction does."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bringup.riscv import MachineSpec

RunQemu = Callable[..., bytes]


@pytest.fixture
def qemu_memory(tmp_path: Path) -> RunQemu:
    """Runs a program in QEMU until it exits; gives the RAM that it leaves.

    This knows QEMU's command line and nothing of ours, so that a mistake in our QEMU machine cannot hide one here.
    """
    if shutil.which("qemu-system-riscv64") is None or shutil.which("qemu-system-riscv32") is None:
        pytest.skip("QEMU is not installed (Debian: qemu-system-misc)")

    def run(program: bytes, spec: MachineSpec, *options: str, code: int = 0) -> bytes:
        (tmp_path / "program.elf").write_bytes(program)
        cpu = [f"rv{spec.xlen}", *(f"{name}=false" for name in ("zba", "zbb", "zbc", "zbs"))]
        if "v" in spec.extensions:
            cpu += ["v=true", f"vlen={spec.vlen}", "elen=64", "vext_spec=v1.0"]
        cpu += [] if "d" in spec.extensions else ["d=false"]
        if "zfh" in spec.extensions:
            cpu.append("Zfh=true")
        size, ram = f"{spec.ram_bytes >> 20}M", tmp_path / "ram"
        backend = f"memory-backend-file,id=ram,size={size},mem-path={ram},share=on"
        command = f"qemu-system-riscv{spec.xlen}"
        words = [command, "-M", "virt,memory-backend=ram", "-m", size, "-object", backend, "-cpu", ",".join(cpu)]
        words += ["-bios", "none", "-kernel", str(tmp_path / "program.elf"), "-display", "none", "-monitor", "none"]
        done = subprocess.run([*words, "-serial", "none", *options], capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stderr
        return ram.read_bytes()

    return run
