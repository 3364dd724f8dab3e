"""Kernels to source: verified, simplified, rendered for the driver's target; how the disk cache keeps a made one."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from functools import cache
from time import perf_counter
from typing import Any

from bringup.compile.failure import NoKernel
from bringup.compile.index_code import function_code
from bringup.driver import Driver
from bringup.ir.cost import Cost, cost
from bringup.ir.index import Index, Size, atoms
from bringup.ir.kernel import Kernel
from bringup.ir.simplify import simplify
from bringup.ir.verify import verify
from bringup.targets.registry import parse_target
from bringup.targets.source import Source
from bringup.targets.target import CannotRender, Target

#: The function that ``Entry.measure_code`` defines.
MEASURE = "measure"


@cache
def target_of(driver: Driver) -> Target:
    """What the driver's kernels are rendered for."""
    return parse_target(driver.target())


@dataclass(frozen=True)
class Rendered:
    """A kernel as it will run, its source and its cost, and the seconds each step took."""

    kernel: Kernel
    source: Source
    cost: Cost
    seconds: dict[str, float]

    def entry(self) -> Entry:
        """What the disk cache keeps beside the binary."""
        source = self.source
        formulas = (source.units, self.cost.flops, self.cost.read + self.cost.written)
        code = function_code(MEASURE, [size.name for size in self.kernel.sizes], formulas)
        return Entry(source.entry, code, source.block, source.local_bytes)


def rendered(kernel: Kernel, target: Target) -> Rendered:
    """Takes a kernel to its source; one that breaks a rule is a VerifyError."""
    start = perf_counter()
    verify(kernel)
    verified = perf_counter()
    simple = simplify(kernel)
    simplified = perf_counter()
    source = _source(simple, target)
    written = perf_counter()
    numbers = cost(simple)
    seconds = {
        "verify": verified - start,
        "simplify": simplified - verified,
        "render": written - simplified,
        "cost": perf_counter() - written,
    }
    return Rendered(simple, source, numbers, seconds)


def _source(kernel: Kernel, target: Target) -> Source:
    """Returns the target's source; one that cannot be or that makes no sense names the target and the kernel."""
    try:
        source = target.render(kernel)
    except CannotRender as error:
        raise NoKernel(f"{target.describe()}: no code for {kernel.name}: {error}") from error
    except Exception as error:
        raise RuntimeError(
            f"the target {target.describe()!r} failed to render {kernel.name}: {type(error).__name__}: {error}; "
            "what its language lacks should raise bringup.targets.target.CannotRender"
        ) from error
    if wrong := _wrong(source, kernel):
        raise RuntimeError(f"the target {target.describe()!r} rendered {kernel.name} to {wrong}")
    return source


def _wrong(source: Any, kernel: Kernel) -> str:
    """What is wrong with what a target rendered, and what to return instead; empty if nothing is."""
    if not isinstance(source, Source):
        return f"no Source but {type(source).__name__}: return Source(text, entry, units)"
    if not isinstance(source.text, str):
        return f"a source whose text is {type(source.text).__name__}: it must be str"
    if not isinstance(source.entry, str) or not source.entry or source.entry not in source.text:
        return f"a source without its entry {source.entry!r}: entry is the name of a function in the text"
    if not isinstance(source.units, Index):
        return f"a source whose units are {source.units!r}: write a formula over the kernel's sizes, such as Int(1)"
    known = {size.name for size in kernel.sizes}
    unknown = [atom.name for atom in atoms(source.units) if isinstance(atom, Size) and atom.name not in known]
    return f"a source whose units need {unknown[0]!r}, which is not a size of the kernel" if unknown else ""


@dataclass(frozen=True)
class Entry:
    """What the disk cache keeps beside a binary: its function, ``Measure`` as Python source, what a launch needs."""

    name: str
    measure_code: str
    block: int = 0
    local_bytes: int = 0


def packed(entry: Entry, binary: bytes) -> bytes:
    """A made kernel as the disk cache keeps it.

    >>> unpacked(packed(Entry("f", "def measure(): ..."), b"ELF"))
    (Entry(name='f', measure_code='def measure(): ...', block=0, local_bytes=0), b'ELF')
    """
    return json.dumps(astuple(entry)).encode() + b"\n" + binary


def unpacked(data: bytes) -> tuple[Entry, bytes]:
    """The other way round."""
    head, _, binary = data.partition(b"\n")
    return Entry(*json.loads(head)), binary
