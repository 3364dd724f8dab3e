"""Steps with dynamic sizes, ready to be bound: every formula of a lowered and fused graph as one generated function."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.compile.index_code import code_of
from bringup.compile.kernels import ForeignKernel
from bringup.compile.loader import Compiled
from bringup.compile.rendering import target_of
from bringup.driver import in_use
from bringup.graph.fusion.steps import Decision, Opaque, Step
from bringup.graph.lowered import LoweredGraph
from bringup.graph.memory_plan import Life
from bringup.graph.values import Memory
from bringup.ir.dtypes import DType, bfloat16, float16, float64
from bringup.ir.kernel import Kernel
from bringup.lowering.call import Launch, Number
from bringup.lowering.scalar_types import CODE_OF
from bringup.lowering.symbolic import index_of
from bringup.targets.target import FusionLimits

_IMMEDIATE, _SCALAR, _SEED, _OFFSET = 0, 4, 5, 6  # as bringup/_C.pyi numbers arguments

#: (device, kernels) → the kernels on the device, None for None.
LoadAll = Callable[[int, "Sequence[Kernel | ForeignKernel | None]"], "list[Compiled | None]"]


@dataclass(frozen=True)
class FilledLaunch:
    """One launch for known sizes: buffers with byte offsets first, then arguments as make_plan takes them."""

    handle: int
    units: int
    flops: float
    bytes: float
    addresses: Sequence[tuple[Memory, int]]
    arguments: Sequence[tuple[int, int, int]]


@dataclass(frozen=True)
class Filled:
    """A graph for known sizes: launches by step (None for ordinary ops), bytes of allocations, results' sizes."""

    launches: Sequence[FilledLaunch | None]
    nbytes: dict[int, int]
    #: For every Held that becomes a tensor, by its number: (shape, strides, offset).
    layouts: Sequence[tuple[tuple[int, ...], tuple[int, ...], int]]


@dataclass(frozen=True)
class GraphStructure:
    """A graph whose sizes are still open: ``holds(v, s)`` are its guards, ``fill(v, s)`` makes everything of sizes."""

    lowered: LoweredGraph
    steps: Sequence[Step]
    decisions: Sequence[Decision]
    origins: Sequence[Sequence[int]]
    holds: Callable[[Sequence[int], Sequence[Any]], bool]
    fill: Callable[[Sequence[int], Sequence[Any]], Filled]
    #: Temporaries of the arena and when they live, in steps.
    lives: dict[int, Life]
    #: The kernel of each step on the device; None for a step that is no launch.
    compiled: Sequence[Compiled | None]


def bits_of(value: bool | int | float, dtype: DType) -> int:
    """A number as the 8 bytes of a kernel's argument.

    >>> from bringup.ir.dtypes import float32, int32
    >>> hex(bits_of(1.0, float32)), bits_of(-1, int32) == 2**64 - 1
    ('0x3f800000', True)
    """
    if dtype is float64:
        return int(struct.unpack("<Q", struct.pack("<d", float(value)))[0])
    if dtype.is_float:
        if dtype in (float16, bfloat16):
            value = _rounded(float(value), dtype)
        return int(struct.unpack("<I", _float32_bytes(float(value)))[0])
    whole = int(bool(value)) if dtype.name == "bool" else int(value)
    return whole & 0xFFFFFFFFFFFFFFFF


def _float32_bytes(value: float) -> bytes:
    import numpy as np

    with np.errstate(over="ignore"):
        return bytes(np.float32(value).tobytes())


def _rounded(value: float, dtype: DType) -> float:
    import torch

    return float(torch.tensor(value, dtype=torch.float16 if dtype is float16 else torch.bfloat16).item())


def touched(step: Step) -> set[Memory]:
    """The allocations that a step reads or writes."""
    if isinstance(step, Opaque):
        return set(step.reads | step.writes)
    return {tensor.memory for tensor in step.buffers}


def lives_of(steps: Sequence[Step], apart: set[Memory]) -> dict[int, Life]:
    """When each temporary is needed; those that are no part of the arena are left out."""
    lives: dict[int, Life] = {}
    for n, step in enumerate(steps):
        for memory in touched(step):
            if memory[0] == "temporary" and memory not in apart:
                lives[memory[1]] = Life(lives[memory[1]].first if memory[1] in lives else n, n)
    return lives


def limits_of(device: int) -> FusionLimits:
    """What fused kernels of a device may be."""
    return target_of(in_use.driver_of(device).driver).limits


def structure_of(lowered: LoweredGraph, load_all: LoadAll, limits: FusionLimits | None) -> GraphStructure:
    """Fuses within limits (None: not at all), compiles and generates the functions that fill a plan in."""
    if limits is not None:
        from bringup.graph.fusion import fuse_steps

        fused = fuse_steps(lowered.steps, lowered.kept, limits, lowered.symbols.ranges)
        steps, decisions, origins = fused.steps, fused.decisions, fused.origins
    else:
        steps, decisions = tuple(lowered.steps), ()
        origins = tuple((n,) for n in range(len(steps)))
    device = lowered.call.device
    compiled = load_all(device, [step.kernel if isinstance(step, Launch) else None for step in steps])
    trace = lowered.call.trace
    places = {name: f"v[{n}]" for n, name in enumerate(trace.symbols)}

    def code(number: Any) -> str:
        return code_of(index_of(number), places)

    space: dict[str, Any] = {"bits_of": bits_of, "FilledLaunch": FilledLaunch, "Filled": Filled}
    lines = []
    for n, step in enumerate(steps):
        loaded = compiled[n]
        if not isinstance(step, Launch) or loaded is None:
            lines.append("None")
            continue
        addresses = [f"({t.memory!r}, {code(t.offset * t.dtype.size)})" for t in step.buffers]
        sizes = [code(size) for size in step.sizes]
        arguments = [f"({_IMMEDIATE}, {size}, 0)" for size in sizes]
        for param, given in zip(step.kernel.params, step.params):
            arguments.append(_argument(param.dtype, given, lowered, space))
        if isinstance(step.kernel, ForeignKernel):
            kernel = step.kernel
            measured = ", ".join(code_of(i, places) for i in (kernel.units, kernel.flops, kernel.bytes))
        else:
            space[f"measure{n}"] = loaded.measure
            measured = f"*measure{n}({', '.join(sizes)})"
        lines.append(f"FilledLaunch({loaded.handle}, {measured}, [{', '.join(addresses)}], [{', '.join(arguments)}])")
    nbytes = ", ".join(f"{n}: max(0, {code(t.numel * t.dtype.size)})" for n, t in enumerate(lowered.call.temporaries))
    layouts = []
    for held in lowered.held():
        parts = [_tuple(map(code, held.shape)), _tuple(map(code, held.strides)), code(held.offset)]
        layouts.append(f"({', '.join(parts)})")
    body = ",\n        ".join(lines)
    source = (
        f"def holds(v, s):\n    return {trace.guard_code(lambda index: code_of(index, places))}\n"
        f"def fill(v, s):\n    return Filled([{body}], {{{nbytes}}}, [{', '.join(layouts)}])\n"
    )
    exec(compile(source, "<plan of a graph>", "exec"), space)
    lives = lives_of(steps, lowered.kept)
    return GraphStructure(lowered, steps, decisions, origins, space["holds"], space["fill"], lives, compiled)


def _tuple(parts: Any) -> str:
    return "(" + "".join(f"{part}, " for part in parts) + ")"


def _argument(dtype: DType, given: Number | str | int, lowered: LoweredGraph, space: dict[str, Any]) -> str:
    if isinstance(given, Number):
        if given.slot < 0:
            return f"({_IMMEDIATE}, {bits_of(given.value, dtype)}, 0)"
        if lowered.numbers[given.slot].held is None:
            name = f"type{len(space)}"
            space[name] = dtype
            return f"({_IMMEDIATE}, bits_of(s[{given.slot}], {name}), 0)"
        return f"({_SCALAR}, {given.slot}, {CODE_OF[dtype]})"
    if isinstance(given, int):
        return f"({_IMMEDIATE}, {given}, 0)"
    what, _, number = given.partition(":")
    return f"({_SEED if what == 'seed' else _OFFSET}, {number or 0}, 0)"
