"""The options text "devices=2,isa=rv64gcv,vlen=256": every mistake names key, value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from bringup.riscv.machine import MACHINES, MachineSpec
from bringup.targets.c.target import CTarget

MAX_DEVICES = 64
_ISAS = ("rv64gc", "rv64gcv")
_VLENS = (128, 256, 512, 1024)
_LEAST_MEMORY, _MOST_MEMORY = 4 << 20, 64 << 30
_SUFFIXES = {"K": 10, "M": 20, "G": 30}
#: Bytes of the fixed-size vectors in the C of a kernel, which clang turns into vector instructions. Measured on gelu,
#: softmax and layer_norm: 64 needs the fewest instructions; 128 spills.
_C_VECTOR_BYTES = 64


@dataclass(frozen=True)
class Options:
    """What the guests are.

    >>> parse_options("devices=1,memory=16M,isa=rv64gcv").spec
    MachineSpec(isa='rv64gcv', vlen=256, ram_base=2147483648, ram_bytes=16777216)
    """

    devices: int = 2
    machine: str = "interpreter"
    isa: str = "rv64gc"
    vlen: int = 256
    memory: int = 256 << 20
    seconds: float = 60.0

    @property
    def spec(self) -> MachineSpec:
        """The machine of one device."""
        return MachineSpec(self.isa, self.vlen if self.vectors else 0, ram_bytes=self.memory)

    @property
    def vectors(self) -> bool:
        """Whether it has the vector extension."""
        return self.isa.endswith("v")

    def target(self, compiler_makes_vectors: bool) -> CTarget:
        """What kernels are written for."""
        vectors = self.vectors and compiler_makes_vectors
        return CTarget(vector_bytes=_C_VECTOR_BYTES if vectors else 0, isa=self.isa)


def parse_options(text: str) -> Options:
    """The options of a text as in BRINGUP_RISCV; the later of two equal keys counts.

    >>> parse_options("devices=0")
    Traceback (most recent call last):
    ValueError: BRINGUP_RISCV: devices=0: allowed is 1 to 64
    """
    values: dict[str, object] = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if key not in _PARSERS or not equals:
            raise ValueError(f"BRINGUP_RISCV: {item}: allowed are {', '.join(f'{name}=…' for name in _PARSERS)}")
        parse, allowed = _PARSERS[key]
        try:
            values[key] = parse(value)
        except ValueError:
            raise ValueError(f"BRINGUP_RISCV: {key}={value}: allowed is {allowed}") from None
    if "vlen" in values and values.get("isa") != "rv64gcv":
        raise ValueError(f"BRINGUP_RISCV: vlen={values['vlen']}: only isa=rv64gcv has vector registers")
    return Options(**values)  # type: ignore[arg-type]


def _devices(text: str) -> int:
    return _within(_whole(text), 1, MAX_DEVICES)


def _memory(text: str) -> int:
    shift = _SUFFIXES.get(text[-1:], 0)
    return _within(_whole(text[:-1] if shift else text) << shift, _LEAST_MEMORY, _MOST_MEMORY) & -4096


def _seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError
    return seconds


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):  # int() would take signs and blanks
        raise ValueError
    return int(text)


def _within(number: int, least: int, most: int) -> int:
    if not least <= number <= most:
        raise ValueError
    return number


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError
        return text

    return parse


#: key → (how to read a value, what is allowed)
_PARSERS: dict[str, tuple[Callable[[str], object], str]] = {
    "devices": (_devices, f"1 to {MAX_DEVICES}"),
    "machine": (_one_of(*MACHINES), " or ".join(MACHINES)),
    "isa": (_one_of(*_ISAS), " or ".join(_ISAS)),
    "vlen": (lambda text: int(_one_of(*map(str, _VLENS))(text)), "128, 256, 512 or 1024 bits"),
    "memory": (_memory, "a size per device from 4M to 64G, a whole number with K, M, G or no suffix"),
    "seconds": (_seconds, "a number above 0"),
}
