"""ELF files of RISC-V programs: what is loaded where, the names of functions, and the source line of an address."""

from __future__ import annotations

import bisect
import functools
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from .dwarf_lines import LineTable, read_line_tables

_MACHINE_RISCV = 243
_PT_LOAD = 1
_SHT_SYMTAB, _SHT_NOBITS = 2, 8
_SHF_COMPRESSED = 0x800
_SHF_EXECUTABLE = 0x4
_STT_NOTYPE, _STT_FUNC = 0, 2
_STB_LOCAL = 0


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


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    address: int
    size: int
    link: int
    data: bytes

    def is_code_at(self, address: int) -> bool:
        return bool(self.flags & _SHF_EXECUTABLE) and self.address <= address < self.address + self.size


class Program:
    """An ELF file of a RISC-V program, little-endian, 32 or 64 bits; from a path, or from its bytes."""

    def __init__(self, source: bytes | Path) -> None:
        self._name = "the program" if isinstance(source, bytes) else str(source)
        self._data = source if isinstance(source, bytes) else Path(source).read_bytes()
        try:
            self._read()
        except (struct.error, IndexError, zlib.error, UnicodeDecodeError) as error:
            text = f"{self._name} is a damaged ELF file, cut off after {len(self._data)} bytes or changed: {error}"
            raise ValueError(text) from error

    def _read(self) -> None:
        data = self._data
        if data[:4] != b"\x7fELF":
            raise ValueError(f"{self._name} is not an ELF file: it starts with {data[:4]!r}")
        if data[4] not in (1, 2) or data[5] != 1:
            raise ValueError(f"{self._name} is not a little-endian ELF file of 32 or 64 bits")
        self.xlen = 64 if data[4] == 2 else 32
        header = "<HHIQQQIHHHHHH" if self.xlen == 64 else "<HHIIIIIHHHHHH"
        (
            _,
            machine,
            _,
            self.entry,
            program_at,
            section_at,
            _,
            _,
            program_size,
            programs,
            section_size,
            sections,
            names,
        ) = struct.unpack_from(header, data, 16)
        if machine != _MACHINE_RISCV:
            raise ValueError(f"{self._name} is a program for ELF machine {machine}, not for RISC-V")
        self.segments = [
            segment
            for i in range(programs)
            if (segment := self._segment(program_at + i * program_size)) and segment.memory_bytes
        ]
        rows = [self._section_row(section_at + i * section_size) for i in range(sections)]
        texts = self._section_data(rows[names]) if names < len(rows) else b""
        self._sections = [
            _Section(_text(texts, name), kind, flags, address, size, link, self._section_data(row))
            for row in rows
            for name, kind, flags, address, _, size, link, *_ in [row]
        ]
        self.symbols = [
            symbol for section in self._sections if section.kind == _SHT_SYMTAB for symbol in self._symbols(section)
        ]
        self._ranges = _function_ranges(self.symbols)
        self._named: set[tuple[int, int, str]] = set()

    def _segment(self, at: int) -> Segment | None:
        if self.xlen == 64:
            kind, _, offset, _, address, size, memory, _ = struct.unpack_from("<IIQQQQQQ", self._data, at)
        else:
            kind, offset, _, address, size, memory, _, _ = struct.unpack_from("<IIIIIIII", self._data, at)
        if kind != _PT_LOAD:
            return None
        if offset + size > len(self._data):
            raise ValueError(
                f"{self._name} is cut off: a segment of it ends at byte {offset + size} of {len(self._data)}"
            )
        return Segment(address, self._data[offset : offset + size], memory)

    def _section_row(self, at: int) -> tuple[int, ...]:
        return struct.unpack_from("<IIQQQQIIQQ" if self.xlen == 64 else "<IIIIIIIIII", self._data, at)

    def _section_data(self, row: tuple[int, ...]) -> bytes:
        _, kind, flags, _, offset, size = row[:6]
        if kind == _SHT_NOBITS:
            return b""
        data = self._data[offset : offset + size]
        if flags & _SHF_COMPRESSED:
            return zlib.decompress(data[24 if self.xlen == 64 else 12 :])
        return data

    def _symbols(self, table: _Section) -> list[Symbol]:
        texts = self._sections[table.link].data
        found = []
        for at in range(0, len(table.data), 24 if self.xlen == 64 else 16):
            if self.xlen == 64:
                name, info, _, section, value, size = struct.unpack_from("<IBBHQQ", table.data, at)
            else:
                name, value, size, info, _, section = struct.unpack_from("<IIIBBH", table.data, at)
            label = _text(texts, name)
            kind = info & 15
            # $x and .L names are the assembler's own, and mark no function
            if not section or not label or label.startswith(("$", ".L")) or kind > _STT_FUNC:
                continue
            # assembly often gives its entry points no type
            untyped = kind == _STT_NOTYPE and info >> 4 != _STB_LOCAL and section < len(self._sections)
            is_function = kind == _STT_FUNC or (untyped and self._sections[section].is_code_at(value))
            found.append(Symbol(label, value, size, is_function))
        return found

    def section(self, name: str) -> bytes:
        """The bytes of a section; none where there is no such section."""
        return next((section.data for section in self._sections if section.name == name), b"")

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
            raise ValueError(f"'{name}' from {start:#x} to {end:#x} is no range")
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
        return self._lines.line_at(address)

    @functools.cached_property
    def _lines(self) -> LineTable:
        return read_line_tables(
            self.section(".debug_line"), self.section(".debug_line_str"), self.section(".debug_str")
        )


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode() if at < len(table) else ""


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
