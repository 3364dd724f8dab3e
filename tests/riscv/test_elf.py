"""ELF files: segments, symbols, functions, and lines of every DWARF version that our compilers write."""

import shutil
import subprocess
from pathlib import Path, PurePath

import pytest

from bringup.riscv import MachineSpec, Program, runtime, toolchain
from tests.riscv.firmware_programs import build
from tests.riscv.test_interpreter_programs import COMPILERS

SOURCE = """static int square(int x);
int table[3] = {1, 2, 3};
__attribute__((noinline)) static int square(int x) {
  return x * x;
}
__attribute__((noinline)) int twice(int x) {
  x = square(x);
  __asm__ volatile("nop");
  return x + x;
}
int main(void) { return twice(table[1]); }
"""


@pytest.mark.parametrize("family", COMPILERS)
@pytest.mark.parametrize("isa", ["rv64gc", "rv32imc"])
@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_symbols_and_lines(family, isa, version):
    files = {"firmware.c": SOURCE, **runtime.sources(MachineSpec(isa, ram_bytes=1 << 20))}
    flags = ["-g", f"-gdwarf-{version}"]
    program = Program(toolchain.build(files, isa, runtime.LINK, toolchain.find_toolchain(family), extra=flags))
    assert program.xlen == int(isa[2:4])
    twice = program.symbol("twice")
    assert twice.is_function
    assert not program.symbol("table").is_function
    assert program.function_at(twice.address) == "twice"
    assert program.function_at(twice.address + twice.size - 2) == "twice"
    assert program.function_at(0) is None
    assert program.function_at(program.entry) == "_start"
    lines = {program.line_at(address) for address in range(twice.address, twice.address + twice.size, 2)}
    assert {"firmware.c:6", "firmware.c:8"} <= lines
    assert lines <= {f"firmware.c:{line}" for line in range(3, 11)}
    assert program.line_at(0) is None
    assert str(program.line_at(program.symbol("bringup_exit").address)).startswith("crt0.S:")


@pytest.mark.parametrize("family", COMPILERS)
def test_lines_equal_those_of_binutils(family, tmp_path):
    addr2line = shutil.which("riscv64-unknown-elf-addr2line")
    if addr2line is None:
        pytest.skip("riscv64-unknown-elf-addr2line is not installed")
    path = tmp_path / "program.elf"
    path.write_bytes(build(SOURCE, family=family))
    program = Program(path)
    addresses = [address for start, end, _ in program.functions for address in range(start, min(end, start + 400), 2)]
    words = "\n".join(hex(address) for address in addresses)
    listed = subprocess.run(
        [addr2line, "-e", str(path)], input=words, capture_output=True, text=True, check=True
    ).stdout
    theirs = [PurePath(line.split(" ")[0]).name for line in listed.splitlines()]
    assert [program.line_at(address) or "??:0" for address in addresses] == [
        "??:0" if line.startswith("??") else line for line in theirs
    ]


def test_segments_hold_the_data():
    program = Program(build(SOURCE))
    table = program.symbol("table").address
    data = [each for each in program.segments if each.address <= table < each.address + len(each.data)]
    assert len(data) == 1
    at = table - data[0].address
    assert data[0].data[at : at + 12] == b"\1\0\0\0\2\0\0\0\3\0\0\0"


def test_ranges_named_at_run_time():
    program = Program(build(SOURCE))
    twice = program.symbol("twice")
    program.name_range("kernel", 0x8008_0000, 0x8008_0100)
    assert program.function_at(0x8008_0010) == "kernel"
    program.name_range("later", 0x8008_0080, 0x8008_0200)
    assert program.function_at(0x8008_0090) == "later"
    assert program.function_at(0x8008_0010) is None, "what an overwritten name had left is gone with it"
    program.name_range("middle", twice.address + 2, twice.address + 4)
    assert [program.function_at(twice.address + i) for i in (0, 2, 4)] == ["twice", "middle", "twice"]
    starts = [start for start, _, _ in program.functions]
    assert starts == sorted(starts)
    with pytest.raises(ValueError, match="is not a range"):
        program.name_range("empty", 8, 8)


def test_damaged_files():
    good = build(SOURCE)
    with pytest.raises(ValueError, match="not an ELF file"):
        Program(b"")
    with pytest.raises(ValueError, match="little-endian"):
        Program(good[:5] + b"\2" + good[6:])
    with pytest.raises(ValueError, match="not for RISC-V"):
        Program(good[:18] + b"\x3e\0" + good[20:])
    for length in (40, 70, len(good) // 2):
        with pytest.raises(ValueError, match=r"damaged|cut off"):
            Program(good[:length])
    with pytest.raises(KeyError, match="no symbol 'nothing'"):
        Program(good).symbol("nothing")
    with pytest.raises(FileNotFoundError):
        Program(Path("nowhere.elf"))


def test_no_debug_information():
    files = {"firmware.c": SOURCE, **runtime.sources(MachineSpec("rv64gc", ram_bytes=1 << 20))}
    program = Program(toolchain.build(files, "rv64gc", runtime.LINK, toolchain.find_toolchain(), extra=["-g0"]))
    assert program.line_at(program.symbol("twice").address) is None
