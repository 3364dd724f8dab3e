"""ELF files of RISC-V programs: what is loaded where, the names of functions, and the source line of an address."""

from __future__ import annotations

import bisect
import functools
import io
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

_EXECUTABLE = 0x4  # SHF_EXECINSTR


@dataclass(frozen=True)
class Segment:
    """Bytes to put at an address; memory beyond them is zero."""

    address: int
    data: bytes
    memory_bytes: int


@dataclass(frozen=True)
class Symbol:
    """A name for ``size`` bytes from ``address`` on (0 where the file does not say)."""

    name: str
    address: int
    size: int
    is_function: bool


class Program:
    """An ELF file of a RISC-V program, little-endian, 32 or 64 bits; from a path, or from its bytes."""

    def __init__(self, source: bytes | Path) -> None:
        self._name = "the program" if isinstance(source, bytes) else str(source)
        self._data = source if isinstance(source, bytes) else Path(source).read_bytes()
        data = self._data
        if data[:4] != b"\x7fELF":
            raise ValueError(f"{self._name} is not an ELF file: it starts with {data[:4]!r}")
        if data[4:5] not in (b"\1", b"\2") or data[5:6] != b"\1":
            raise ValueError(f"{self._name} is not a little-endian ELF file of 32 or 64 bits")
        machine = int.from_bytes(data[18:20], "little")
        if machine != 243:
            raise ValueError(f"{self._name} is a program for ELF machine {machine}, not for RISC-V")
        try:
            self._read(_reader(data))
        except Exception as error:  # whatever the library raises on bytes that make no sense
            text = f"{self._name} is a damaged ELF file, cut off after {len(data)} bytes or changed: {error}"
            raise ValueError(text) from error

    def _read(self, file: Any) -> None:
        self.xlen: int = file.elfclass
        self.entry: int = file.header.e_entry
        loaded = [segment for segment in file.iter_segments("PT_LOAD") if segment.header.p_memsz]
        self.segments = [self._segment(segment.header) for segment in loaded]
        sections = list(file.iter_sections())
        tables = [section for section in sections if section.header.sh_type == "SHT_SYMTAB"]
        found = [_symbol(symbol, sections) for table in tables for symbol in table.iter_symbols()]
        self.symbols = [symbol for symbol in found if symbol is not None]
        self._ranges = _function_ranges(self.symbols)
        self._named: set[tuple[int, int, str]] = set()

    def _segment(self, header: Any) -> Segment:
        end = header.p_offset + header.p_filesz
        if end > len(self._data):
            raise ValueError(f"a segment of it ends at byte {end} of {len(self._data)}")
        return Segment(header.p_paddr, self._data[header.p_offset : end], header.p_memsz)

    def section(self, name: str) -> bytes:
        """The bytes of a section; none where there is no such section."""
        found = _reader(self._data).get_section_by_name(name)
        return bytes(found.data()) if found is not None else b""

    def symbol(self, name: str) -> Symbol:
        """The symbol of a name; KeyError where there is none."""
        for symbol in self.symbols:
            if symbol.name == name:
                return symbol
        raise KeyError(f"{self._name} has no symbol '{name}'")

    @property
    def functions(self) -> list[tuple[int, int, str]]:
        """(start, end, name) of all code with a name, sorted, without overlaps."""
        return self._ranges

    def name_range(self, name: str, start: int, end: int) -> None:
        """Names code that was loaded at run time; the later of two names counts."""
        if not 0 <= start < end:
            raise ValueError(f"'{name}' from {start:#x} to {end:#x} is not a range")
        ranges = self._ranges
        first = bisect.bisect_right(ranges, start, key=lambda other: other[1])
        last = bisect.bisect_left(ranges, end, key=lambda other: other[0])
        # What was loaded there before is gone; what is left of the program's own functions is not.
        own = [other for other in ranges[first:last] if other not in self._named]
        self._named.difference_update(ranges[first:last])
        before = [(low, start, other) for low, _, other in own if low < start]
        behind = [(end, high, other) for _, high, other in own if high > end]
        self._named.add((start, end, name))
        self._ranges = [*ranges[:first], *before, (start, end, name), *behind, *ranges[last:]]

    def function_at(self, address: int) -> str | None:
        """The function that holds an address."""
        ranges = self.functions
        at = bisect.bisect_right(ranges, (address, 1 << 64, "")) - 1
        return ranges[at][2] if at >= 0 and address < ranges[at][1] else None

    def line_at(self, address: int) -> str | None:
        """Where an address comes from, such as ``model.c:41``; None without debug information."""
        # Functions that the linker dropped keep their lines, at address 0.
        if not any(segment.address <= address < segment.address + len(segment.data) for segment in self.segments):
            return None
        at = bisect.bisect_right(self._lines, (address, "\U0010ffff", 0)) - 1
        if at < 0 or not self._lines[at][2]:
            return None
        return f"{self._lines[at][1]}:{self._lines[at][2]}"

    @functools.cached_property
    def _lines(self) -> list[tuple[int, str, int]]:
        """Rows (address, file, line), sorted; a row without a line ends what comes before it."""
        rows = []
        debug = _reader(self._data).get_dwarf_info(follow_links=False)
        for unit in debug.iter_CUs():
            program = debug.line_program_for_CU(unit)
            if program is None:
                continue
            files = [PurePosixPath(entry.name.decode(errors="replace")).name for entry in program["file_entry"]]
            first = 0 if program["version"] >= 5 else 1
            for entry in program.get_entries():
                if (state := entry.state) is None:
                    continue
                number = state.file - first
                name = files[number] if 0 <= number < len(files) else "?"
                rows.append((state.address, *(("", 0) if state.end_sequence else (name, state.line))))
        # At one address the end of a sequence comes before the start of another.
        return sorted(rows, key=lambda row: (row[0], row[2] > 0))


def _reader(data: bytes) -> Any:
    try:
        from elftools.elf.elffile import ELFFile
    except ImportError as error:
        raise ImportError("reading RISC-V programs needs pyelftools: pip install 'bringup[riscv]'") from error
    return ELFFile(io.BytesIO(data))


def _symbol(symbol: Any, sections: list[Any]) -> Symbol | None:
    """Returns a symbol of the program; None for names of the assembler's own, of files and of sections."""
    name, section, kind = symbol.name, symbol.entry.st_shndx, symbol.entry.st_info.type
    # $x and .L names mark no function
    if section == "SHN_UNDEF" or not name or name.startswith(("$", ".L")):
        return None
    if kind not in ("STT_NOTYPE", "STT_OBJECT", "STT_FUNC"):
        return None
    address = symbol.entry.st_value
    # assembly often gives its entry points no type
    untyped = kind == "STT_NOTYPE" and symbol.entry.st_info.bind != "STB_LOCAL" and isinstance(section, int)
    is_function = kind == "STT_FUNC" or (untyped and _is_code(sections[section].header, address))
    return Symbol(name, address, symbol.entry.st_size, is_function)


def _is_code(section: Any, address: int) -> bool:
    inside: bool = section.sh_addr <= address < section.sh_addr + section.sh_size
    return inside and bool(section.sh_flags & _EXECUTABLE)


def _function_ranges(symbols: list[Symbol]) -> list[tuple[int, int, str]]:
    """Functions as ranges; a label without a size (assembly) reaches to the next name."""
    functions = {symbol.address: symbol for symbol in symbols if symbol.is_function and symbol.size}
    sized = sorted((symbol.address, symbol.address + symbol.size, symbol.name) for symbol in functions.values())
    loose = sorted(
        {
            symbol.address: symbol.name
            for symbol in symbols
            if symbol.is_function and not symbol.size and symbol.address not in functions
        }.items()
    )
    starts = sorted([start for start, _, _ in sized] + [address for address, _ in loose])
    ranges = list(sized)
    for address, name in loose:
        inside = bisect.bisect_right(sized, (address, 1 << 64, "")) - 1
        if inside >= 0 and address < sized[inside][1]:
            continue
        following = bisect.bisect_right(starts, address)
        end = starts[following] if following < len(starts) else address + 4096
        ranges.append((address, end, name))
    return _without_overlaps(sorted(ranges))


def _without_overlaps(ranges: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    kept: list[tuple[int, int, str]] = []
    for start, end, name in ranges:
        start = max(start, kept[-1][1]) if kept else start
        if start < end:
            kept.append((start, end, name))
    return kept
