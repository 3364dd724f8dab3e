"""``bringup riscv run``: a project's program without QEMU; each bad file is one clear error."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import bringup
from bringup.kit.riscv_command import spec_of
from bringup.riscv import MachineSpec, Program, runtime, toolchain
from tests.fork_server import run_bringup
from tests.riscv.firmware_programs import build


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return run_bringup("riscv", "run", *map(str, words))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a program beside its sources, as ``make`` leaves it."""
    folder = tmp_path_factory.mktemp("project")
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[2.0, 3.0]]))
        model.bias.fill_(0.5)
    bringup.export(model, (torch.tensor([[1.0, 2.0]]),), target="riscv", out=folder, name="net")
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "Makefile"}
    (folder / "net.elf").write_bytes(toolchain.build(files, "rv64gc", ("-Wl,-T,net.ld", "-Wl,--gc-sections")))
    return folder


@pytest.mark.parametrize("named", ["", "net.elf"])
def test_a_project_runs(project: Path, named: str) -> None:
    done = run(project / named)
    assert (done.returncode, done.stdout.splitlines()[:2]) == (0, ["out0: float32, 1 x 1", "8.50000000"])
    assert done.stderr.startswith("net.elf: exit code 0, ")
    assert " bytes of code" in done.stderr


def test_the_exit_code_is_the_programs(tmp_path: Path) -> None:
    (tmp_path / "seven.elf").write_bytes(build("int main(void) { return 7; }"))
    assert run(tmp_path / "seven.elf").returncode == 7


def test_devices_are_attached(tmp_path: Path) -> None:
    (tmp_path / "echo.elf").write_bytes(build("echo"))
    assert run(tmp_path / "echo.elf", "--device", "echo@0x10200000").returncode == 0
    alone = run(tmp_path / "echo.elf")
    assert alone.returncode == 1
    assert "bringup riscv run: RISC-V guest on interpreter: " in alone.stderr


def test_a_program_that_waits_for_ever_says_so(tmp_path: Path) -> None:
    (tmp_path / "waits.elf").write_bytes(build('int main(void) { __asm__ volatile("wfi"); return 0; }'))
    done = run(tmp_path / "waits.elf")
    assert done.returncode == 1
    assert "waits for an interrupt (wfi) that no device will raise" in done.stderr


def _patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


#: name → (what becomes of a good program, the words of the error)
BAD = {
    "no ELF file": (lambda data: b"#!/bin/sh", "is not an ELF file: it starts with b'#!/b'"),
    "empty": (lambda data: b"", "is not an ELF file: it starts with b''"),
    "another architecture": (
        lambda data: _patched(data, 18, struct.pack("<H", 62)),
        "is a program for ELF machine 62, not for RISC-V",
    ),
    "no class": (lambda data: _patched(data, 4, b"\x07"), "is not a little-endian ELF file of 32 or 64 bits"),
    "big-endian": (lambda data: _patched(data, 5, b"\x02"), "is not a little-endian ELF file of 32 or 64 bits"),
    "cut in its header": (lambda data: data[:40], "is a damaged ELF file, cut off after 40 bytes"),
    "cut in a segment": (
        lambda data: data[:4500],
        "is a damaged ELF file, cut off after 4500 bytes or changed: a segment of it ends at byte",
    ),
    "not linked": (lambda data: _patched(data, 56, b"\0\0"), "has nothing to load: is it an object file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_clear_error(name: str, project: Path, tmp_path: Path) -> None:
    change, words = BAD[name]
    path = tmp_path / "bad.elf"
    path.write_bytes(change((project / "net.elf").read_bytes()))
    done = run(path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"bringup riscv run: {path} {words}")
    assert "Traceback" not in done.stderr


def test_files_that_are_not_there(project: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "no.elf").stderr == f"bringup riscv run: there is no file {tmp_path / 'no.elf'}\n"
    assert "is a folder with none to run: name one ELF file" in run(tmp_path).stderr
    (tmp_path / "Makefile").write_text((project / "Makefile").read_text())
    assert f'is not built yet: make -C {tmp_path} CC="python -m ziglang cc"' in run(tmp_path).stderr
    for name in ("one.elf", "two.elf"):
        (tmp_path / name).write_bytes(b"")
    assert "is a folder with one.elf, two.elf to run" in run(tmp_path).stderr


def test_wrong_options_are_errors_in_words(project: Path) -> None:
    assert "machine 'spike' is none of interpreter, qemu" in run(project, "--machine", "spike").stderr
    assert "--device dma@1 reads unlike gemm@0x10320000" in run(project, "--device", "dma@1").stderr
    negative = run(project, "--seconds", "-1")
    assert (negative.returncode, "--seconds" in negative.stderr) == (2, True)


def test_a_program_linked_elsewhere_says_where(tmp_path: Path) -> None:
    spec = MachineSpec("rv64gc", ram_base=0x2000_0000, ram_bytes=1 << 20)
    files = {"main.c": "int main(void) { return 0; }", **runtime.sources(spec)}
    (tmp_path / "low.elf").write_bytes(toolchain.build(files, "rv64gc", runtime.LINK))
    done = run(tmp_path / "low.elf")
    assert done.returncode == 2
    assert "at 0x20000000, outside of RAM (0x80000000 to" in done.stderr


@pytest.mark.parametrize("isa", ["rv64gc", "rv64gcv", "rv32imfc", "rv32imc"])
def test_the_machine_is_what_the_program_needs(isa: str) -> None:
    spec = spec_of(Program(build("int main(void) { return 0; }", isa=isa)), vector=256)
    wanted = MachineSpec(isa, vlen=256 if isa.endswith("v") else 0)
    assert (spec.xlen, spec.vlen) == (wanted.xlen, wanted.vlen)
    assert spec.extensions >= wanted.extensions - {"zicsr", "zifencei"}
