"""The steps of a program as C functions and assembly, each by the emitter that suits it, with its constants packed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bringup.graph.bare_metal.static_program import StaticProgram, Step
from bringup.targets.c.render import unit
from bringup.targets.c.target import CTarget
from bringup.targets.riscv.engine import engine_call
from bringup.targets.riscv.rendered import Rendered, packed_array
from bringup.targets.riscv.scalar_contract import scalar_contract
from bringup.targets.riscv.static_function import static_function
from bringup.targets.riscv.vector_contract import vector_contract
from bringup.targets.riscv.vector_strip import vector_strip

_ALIGNMENT = 64


@dataclass(frozen=True)
class Blob:
    """Constants in one piece, and where each of them begins."""

    data: bytes
    offsets: tuple[tuple[int, ...], ...]
    """For each step and each of its buffers: bytes from the start, -1 for what is no constant."""


@dataclass(frozen=True)
class Kernels:
    """All steps rendered."""

    rendered: tuple[Rendered, ...]
    source: str
    """C of every function, and what they share."""
    assembly: str
    weights: Blob


def render_steps(program: StaticProgram, target: CTarget, vectors: bool, engine: int = 0, prefix: str = "") -> Kernels:
    """Renders every step; ``vectors``: with vector instructions of any length; ``engine``: where a matrix engine is;
    ``prefix``: how names begin that the linker sees, so that two models can be in one program."""
    rendered = tuple(_render(step, target, vectors, engine, prefix) for step in program.steps)
    parts = []
    for step, one in zip(program.steps, rendered):
        parts.append(replace(one.part, function=heading(step) + "\n" + one.part.function))
    source = unit(parts, target)
    assembly = "".join(one.assembly for one in rendered)
    return Kernels(rendered, source, assembly, _weights(program, rendered))


def heading(step: Step) -> str:
    """The line above a step's function. It holds the name only, so that the same loops are the same program
    wherever the model was written; `sources.run_source` puts the note there for people."""
    return f"/* {step.name} */"


def _render(step: Step, target: CTarget, vectors: bool, engine: int, prefix: str) -> Rendered:
    kernel = step.kernel
    constants = frozenset(buffer.name for buffer, place in zip(kernel.buffers, step.places) if place.kind == "constant")
    found = engine_call(kernel, step.name, target, engine) if engine else None
    if found is None and vectors:
        found = vector_contract(kernel, step.name, target, constants, prefix)
        found = found or vector_strip(kernel, step.name, target, prefix)
    found = found or scalar_contract(kernel, step.name, target, constants)
    return found or Rendered(static_function(kernel, step.name, target))


def _weights(program: StaticProgram, rendered: tuple[Rendered, ...]) -> Blob:
    parts: list[bytes] = []
    size = 0
    known: dict[bytes, int] = {}

    def put(array: npt.NDArray[Any]) -> int:
        nonlocal size
        data = np.ascontiguousarray(array).tobytes()
        if data not in known:
            gap = -size % _ALIGNMENT
            parts.extend([b"\0" * gap, data])
            known[data] = size + gap
            size += gap + len(data)
        return known[data]

    offsets = []
    for step, one in zip(program.steps, rendered):
        row = []
        for buffer, place in zip(step.kernel.buffers, step.places):
            if place.kind != "constant":
                row.append(-1)
                continue
            array = program.constants[place.number].array
            order = one.packed.get(buffer.name)
            if order is None:
                row.append(put(array) + place.offset * buffer.dtype.size)
            else:
                row.append(put(packed_array(array[place.offset :], order)))
        offsets.append(tuple(row))
    parts.append(b"\0" * (-size % 4))  # whole words, for the checksum
    return Blob(b"".join(parts), tuple(offsets))
