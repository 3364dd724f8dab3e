"""The steps of a program as C functions and assembly, each by the emitter that suits it, with its constants packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bringup.graph.bare_metal.choosing import Form, constants_of, first_forms
from bringup.graph.bare_metal.static_program import StaticProgram, Step
from bringup.targets.c.unit import unit
from bringup.targets.riscv.rendered import Rendered, packed_array

if TYPE_CHECKING:
    from bringup.targets.riscv.target import RiscvTarget

_ALIGNMENT = 64


@dataclass(frozen=True)
class Blob:
    """Constants in one piece, and where each of them begins."""

    data: bytes
    offsets: tuple[tuple[int, ...], ...]
    """For each step and each of its buffers: bytes from the start, -1 for what is not a constant."""


@dataclass(frozen=True)
class Kernels:
    """All steps rendered."""

    rendered: tuple[Rendered, ...]
    source: str
    """C of every function, and what they share."""
    assembly: str
    weights: Blob


def render_steps(
    program: StaticProgram, target: RiscvTarget, prefix: str = "", forms: Sequence[Form] | None = None
) -> Kernels:
    """Renders every step, in its first form if none are given.

    ``prefix``: how names begin that the linker sees; two models can be in one program then.
    """
    rendered, parts = [], []
    forms = first_forms(program, target) if forms is None else forms
    for step, form in zip(program.steps, forms):
        one = form.rendered(step.name, constants_of(step), prefix)
        rendered.append(one)
        parts.append(replace(one.part, function=heading(step) + "\n" + one.part.function))
    widest = max((form.target.vector_bytes for form in forms), default=0)
    source = unit(parts, replace(target, vector_bytes=max(widest, target.vector_bytes)))
    assembly = "".join(one.assembly for one in rendered)
    return Kernels(tuple(rendered), source, assembly, _weights(program, rendered))


def heading(step: Step) -> str:
    """The line above a step's function. It holds the name only, so that the same loops are the same program
    wherever the model was written; `sources.run_source` puts the note there for people."""
    return f"/* {step.name} */"


def _weights(program: StaticProgram, rendered: Sequence[Rendered]) -> Blob:
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
        for buffer, place in zip(step.kernel.buffers, step.buffers):
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
