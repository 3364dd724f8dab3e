"""A function in RISC-V assembly, written from the inside out: registers as they are needed, then what must be saved.

Arguments are pointers in a0 … a7. Vector registers and the scalar registers used here belong to the caller, except
s2 … s11 and fs0 … fs11, which are saved when they were taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


class OutOfRegisters(Exception):
    """A kernel that wants more registers than there are: it becomes C instead, or is cut smaller."""


@dataclass
class Pointer:
    """A register that walks through memory: how many bytes a step of each axis moves it."""

    register: str
    steps: Mapping[str, int]

    def step(self, axis: str) -> int:
        """The bytes of one step."""
        return self.steps.get(axis, 0)


@dataclass
class Asm:
    """The lines of a function so far."""

    name: str
    arguments: int
    lines: list[str] = field(default_factory=list)
    _labels: int = 0

    def __post_init__(self) -> None:
        free = [f"a{n}" for n in range(self.arguments, 8)]
        self._free = [*free, *(f"t{n}" for n in range(7)), *(f"s{n}" for n in range(2, 12))]
        self._free_floats = [f"{kind}{n}" for kind, count in (("ft", 12), ("fa", 8), ("fs", 12)) for n in range(count)]
        self._saved: list[str] = []

    # registers

    def take(self) -> str:
        """An integer register."""
        return self._taken(self._free, "integer")

    def _taken(self, free: list[str], what: str) -> str:
        if not free:
            raise OutOfRegisters(f"{self.name}: {what} registers")
        register = free.pop(0)
        if register.startswith(("s", "fs")) and register not in self._saved:
            self._saved.append(register)
        return register

    def give(self, register: str) -> None:
        """Gives an integer register back."""
        self._free.insert(0, register)

    @contextmanager
    def temporary(self) -> Iterator[str]:
        """An integer register for a few lines."""
        register = self.take()
        yield register
        self.give(register)

    def take_float(self) -> str:
        """A floating-point register."""
        return self._taken(self._free_floats, "floating-point")

    @property
    def floats_left(self) -> int:
        """How many floating-point registers are free."""
        return len(self._free_floats)

    def give_float(self, register: str) -> None:
        """Gives a floating-point register back."""
        self._free_floats.insert(0, register)

    # lines

    def line(self, text: str) -> None:
        """One instruction."""
        self.lines.append(f"  {text}")

    def label(self) -> str:
        """A label not used before; `place` puts it here."""
        self._labels += 1
        return f".L{self.name}_{self._labels}"

    def place(self, label: str) -> None:
        """The label is here."""
        self.lines.append(f"{label}:")

    def load_number(self, register: str, value: int) -> None:
        """A number into a register."""
        self.line(f"li {register}, {value}")

    def add(self, register: str, value: int, source: str | None = None) -> None:
        """Register = source (or itself) + number."""
        source = source or register
        if value == 0 and source == register:
            return
        if value == 0:
            self.line(f"mv {register}, {source}")
        elif -2048 <= value < 2048:
            self.line(f"addi {register}, {source}, {value}")
        else:
            with self.temporary() as number:
                self.load_number(number, value)
                self.line(f"add {register}, {source}, {number}")

    # loops

    @contextmanager
    def times(self, count: int) -> Iterator[None]:
        """A loop; nothing around the body if it runs once."""
        if count == 1:
            yield
            return
        with self.temporary() as left:
            top = self.label()
            self.load_number(left, count)
            self.place(top)
            yield
            self.line(f"addi {left}, {left}, -1")
            self.line(f"bnez {left}, {top}")

    @contextmanager
    def nest(
        self, axes: Sequence[tuple[str, int]], pointers: Sequence[Pointer], inner: Sequence[int]
    ) -> Iterator[None]:
        """Loops over (axis, extent), outermost first, that move pointers; ``inner``: bytes that the body moves each."""
        if not axes:
            yield
            return
        (axis, extent), *rest = axes
        moved = [self._moved(rest, pointer, body) for pointer, body in zip(pointers, inner)]
        with self.times(extent):
            with self.nest(rest, pointers, inner):
                yield
            for pointer, done in zip(pointers, moved):
                # After a single step the pointer is not read again, unless a loop outside counts on it.
                self.add(pointer.register, pointer.step(axis) - done)

    @staticmethod
    def _moved(axes: Sequence[tuple[str, int]], pointer: Pointer, body: int) -> int:
        """How far loops have moved a pointer when they are done."""
        return axes[0][1] * pointer.step(axes[0][0]) if axes else body

    # the whole

    def text(self) -> str:
        """The function, with the registers saved that belong to the caller."""
        frame = math.ceil(len(self._saved) * 8 / 16) * 16
        before = [f"  addi sp, sp, -{frame}"] if frame else []
        moves = [("fsd", "fld") if register[0] == "f" else ("sd", "ld") for register in self._saved]
        places = [f"{register}, {8 * at}(sp)" for at, register in enumerate(self._saved)]
        before += [f"  {save} {place}" for (save, _), place in zip(moves, places)]
        after = [f"  {load} {place}" for (_, load), place in zip(moves, places)]
        after += [f"  addi sp, sp, {frame}"] if frame else []
        lines = [
            f"  .globl {self.name}",
            f"  .type {self.name}, @function",
            f"{self.name}:",
            *before,
            *self.lines,
            *after,
        ]
        return "\n".join([*lines, "  ret", f"  .size {self.name}, . - {self.name}", "", ""])
