"""Which source line an address comes from: the line tables of DWARF 2 to 5, and nothing else of it."""

from __future__ import annotations

import bisect
import struct
from dataclasses import dataclass, field
from pathlib import PurePosixPath

_COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE, _CONST_ADD_PC, _FIXED_ADVANCE_PC = 1, 2, 3, 4, 8, 9
_END_SEQUENCE, _SET_ADDRESS, _DEFINE_FILE = 1, 2, 3
_NAME, _FOLDER = 1, 2  # DW_LNCT_path, DW_LNCT_directory_index


@dataclass
class LineTable:
    """Rows (address, file, line), sorted; a row without a line ends what comes before it."""

    rows: list[tuple[int, str, int]] = field(default_factory=list)

    def line_at(self, address: int) -> str | None:
        """``file:line`` of an address, with the file's own name only.

        >>> LineTable([(0x10, "a.c", 3), (0x18, "a.c", 4), (0x20, "", 0)]).line_at(0x16)
        'a.c:3'
        """
        at = bisect.bisect_right(self.rows, (address, "\U0010ffff", 0)) - 1
        if at < 0 or not self.rows[at][2]:
            return None
        return f"{self.rows[at][1]}:{self.rows[at][2]}"


def read_line_tables(lines: bytes, line_strings: bytes, strings: bytes) -> LineTable:
    """All tables of ``.debug_line``; the other two sections hold names."""
    rows: list[tuple[int, str, int]] = []
    reader = _Reader(lines)
    while reader.at < len(lines):
        rows += _Unit(reader, line_strings, strings).rows()
    # At one address the end of a sequence comes before the start of another.
    return LineTable(sorted(rows, key=lambda row: (row[0], row[2] > 0)))


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, code: str) -> int:
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize(code)
        return int(value)

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.take("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed(self) -> int:
        start = self.at
        value = self.unsigned()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) else value

    def text(self) -> str:
        end = self.data.index(b"\0", self.at)
        value, self.at = self.data[self.at : end].decode(errors="replace"), end + 1
        return value


class _Unit:
    """The table of one compiled file: a header, then a program for a small machine that makes the rows."""

    def __init__(self, reader: _Reader, line_strings: bytes, strings: bytes) -> None:
        self.reader, self.line_strings, self.strings = reader, line_strings, strings
        length = reader.take("I")
        self.offset = "I"
        if length == 0xFFFF_FFFF:
            length, self.offset = reader.take("Q"), "Q"
        self.end = reader.at + length
        self.version = reader.take("H")
        if self.version >= 5:
            reader.take("H")  # sizes of an address and of a segment selector
        header_length = reader.take(self.offset)
        start = reader.at + header_length
        self.step = reader.take("B")
        if self.version >= 4:
            reader.take("B")  # operations of a VLIW instruction
        reader.take("B")  # whether a row is a statement at first
        self.line_base, self.line_range, self.first_special = reader.take("b"), reader.take("B"), reader.take("B")
        self.operands = [0] + [reader.take("B") for _ in range(self.first_special - 1)]
        self.files = self._names() if self.version >= 5 else self._old_names()
        reader.at = start

    def _old_names(self) -> list[str]:
        reader, files = self.reader, [""]
        while reader.text():
            pass
        while name := reader.text():
            files.append(name)
            for _ in range(3):
                reader.unsigned()
        return files

    def _names(self) -> list[str]:
        self._entries()  # folders
        return self._entries()

    def _entries(self) -> list[str]:
        reader = self.reader
        formats = [(reader.unsigned(), reader.unsigned()) for _ in range(reader.take("B"))]
        names = []
        for _ in range(reader.unsigned()):
            values = {kind: self._value(form) for kind, form in formats}
            names.append(str(values.get(_NAME, "")))
        return names

    def _value(self, form: int) -> str | int:
        reader = self.reader
        if form == 0x08:  # DW_FORM_string
            return reader.text()
        if form in (0x1F, 0x0E):  # DW_FORM_line_strp, DW_FORM_strp
            names = _Reader(self.line_strings if form == 0x1F else self.strings)
            names.at = reader.take(self.offset)
            return names.text()
        if form == 0x0F:  # DW_FORM_udata
            return reader.unsigned()
        if form in (0x0B, 0x05, 0x06, 0x07):  # DW_FORM_data1, 2, 4, 8
            return reader.take({0x0B: "B", 0x05: "H", 0x06: "I", 0x07: "Q"}[form])
        if form == 0x1E:  # DW_FORM_data16, a checksum
            reader.at += 16
            return 0
        raise ValueError(f"the line table names files in form {form:#x}, which is not known here")

    def rows(self) -> list[tuple[int, str, int]]:
        reader, rows = self.reader, []
        address, file, line = 0, 1, 1
        while reader.at < self.end:
            code = reader.take("B")
            if code >= self.first_special:
                code -= self.first_special
                address += code // self.line_range * self.step
                line += self.line_base + code % self.line_range
                rows.append((address, self._file(file), line))
            elif code == 0:
                length = reader.unsigned()
                following = reader.at + length
                kind = reader.take("B")
                if kind == _END_SEQUENCE:
                    rows.append((address, "", 0))
                    address, file, line = 0, 1, 1
                elif kind == _SET_ADDRESS:
                    address = reader.take("Q" if length == 9 else "I")
                elif kind == _DEFINE_FILE:
                    self.files.append(reader.text())
                reader.at = following
            elif code == _COPY:
                rows.append((address, self._file(file), line))
            elif code == _ADVANCE_PC:
                address += reader.unsigned() * self.step
            elif code == _ADVANCE_LINE:
                line += reader.signed()
            elif code == _SET_FILE:
                file = reader.unsigned()
            elif code == _CONST_ADD_PC:
                address += (255 - self.first_special) // self.line_range * self.step
            elif code == _FIXED_ADVANCE_PC:
                address += reader.take("H")
            else:
                for _ in range(self.operands[code]):
                    reader.unsigned()
        reader.at = self.end
        return rows

    def _file(self, index: int) -> str:
        return PurePosixPath(self.files[index]).name if 0 <= index < len(self.files) else "?"
