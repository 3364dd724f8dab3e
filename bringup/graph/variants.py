"""From a lowered graph to a variant of a program: kernels joined, and formulas in the place of traced numbers."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import torch

from bringup.compile.kernels import ForeignKernel
from bringup.compile.rendering import target_of
from bringup.driver import in_use
from bringup.graph.fusion.steps import Fused, Opaque
from bringup.graph.lowered import Held, LoweredGraph
from bringup.graph.notes import notes_of
from bringup.graph.program import EagerCall, Given, KernelCall, Memory, TensorSpec, Variant
from bringup.graph.symbols import SYMBOLIC
from bringup.ir.dtypes import DType, bfloat16, float16, float64
from bringup.ir.index import Index, Size, substitute
from bringup.lowering.call import GivenNumber, Launch, LoweredLaunch, Number, Tensor
from bringup.lowering.symbolic import IntLike, index_of
from bringup.targets.target import FusionLimits

_64_BITS = 0xFFFFFFFFFFFFFFFF


def limits_of(device: int) -> FusionLimits:
    """What fused kernels of a device may be."""
    return target_of(in_use.driver_of(device).driver).limits


def variant_of(lowered: LoweredGraph, limits: FusionLimits | None) -> Variant:
    """Joins the kernels of a lowered graph within limits (None: not at all); the variant that a compiled graph runs."""
    _fuse(lowered, limits)
    return _Formulas({}, {}).variant(lowered, lowered.call.temporaries, ())


def variant_for_file(
    lowered: LoweredGraph, limits: FusionLimits, names: Mapping[str, str], graph: torch.fx.Graph
) -> Variant:
    """The same for a program without ordinary ops, where sizes have other names: results are tensors only, temporaries
    that fusion left over are not there, and notes say where in the ``graph`` each call comes from."""
    _fuse(lowered, limits)
    memories = {tensor.memory for step in lowered.fused.steps if isinstance(step, Launch) for tensor in step.buffers}
    memories |= {result.memory for result in lowered.results if isinstance(result, Held)}
    used = sorted(number for kind, number in memories if kind == "temporary")
    numbering = {("temporary", old): ("temporary", new) for new, old in enumerate(used)}
    notes = notes_of(graph, lowered.nodes, lowered.fused.origins)
    variant = _Formulas(names, numbering).variant(lowered, [lowered.call.temporaries[n] for n in used], notes)
    return replace(variant, results=tuple(one for one in variant.results if isinstance(one, TensorSpec)))


def _fuse(lowered: LoweredGraph, limits: FusionLimits | None) -> None:
    if limits is None:
        lowered.fused = Fused(tuple(lowered.steps), (), tuple((n,) for n in range(len(lowered.steps))))
    else:
        from bringup.graph.fusion import fuse_steps
        from bringup.graph.repeated import without_repeats

        needed = without_repeats(lowered.steps, lowered.kept, lowered.call.temporaries)
        lowered.nodes = [lowered.nodes[number] for number, _ in needed]
        lowered.steps = [step for _, step in needed]
        lowered.fused = fuse_steps(lowered.steps, lowered.kept, limits, lowered.symbols.ranges)


class _Formulas:
    """Makes formulas of a lowering's numbers: sizes by their ``names``, temporaries by their new ``numbering``."""

    def __init__(self, names: Mapping[str, str], numbering: Mapping[Memory, Memory]) -> None:
        self._names = {old: Size(new) for old, new in names.items()}
        self._numbering = numbering
        self._specs: dict[int, TensorSpec] = {}

    def variant(self, lowered: LoweredGraph, temporaries: Sequence[Tensor], notes: Sequence[str]) -> Variant:
        trace = lowered.call.trace
        return Variant(
            guards=tuple((relation, self._renamed(index)) for relation, index in trace.guards),
            number_guards=tuple(trace.scalar_guards),
            numbers=tuple(self._seen(number) for number in lowered.numbers),
            temporaries=tuple(self._formula(t.numel * t.dtype.size) for t in temporaries),
            calls=tuple(
                self._eager(lowered.eager[step.label]) if isinstance(step, Opaque) else self._kernel(step, note)
                for step, note in zip(lowered.fused.steps, notes or repeat(""))
            ),
            results=tuple(self._outside(result) for result in lowered.results),
            draws=lowered.random_calls,
        )

    def _renamed(self, index: Index) -> Index:
        return substitute(index, sizes=self._names) if self._names else index

    def _formula(self, number: IntLike) -> Index:
        return self._renamed(index_of(number))

    def _formulas(self, numbers: Sequence[IntLike]) -> tuple[Index, ...]:
        return tuple(map(self._formula, numbers))

    def _place(self, memory: Memory) -> Memory:
        return self._numbering.get(memory, memory)

    def _kernel(self, launch: LoweredLaunch, note: str) -> KernelCall:
        foreign = isinstance(launch.kernel, ForeignKernel)  # its buffers have no types: their offsets count bytes
        buffers = tuple(
            (self._place(t.memory), self._formula(t.offset * t.dtype.size if foreign else t.offset))
            for t in launch.buffers
        )
        params = tuple(_given(given, param.dtype) for param, given in zip(launch.kernel.params, launch.params))
        return Launch(launch.kernel, buffers, self._formulas(launch.sizes), params, note)

    def _eager(self, call: EagerCall) -> EagerCall:
        args, kwargs, results = map(self._outside, (call.args, call.kwargs, call.results))
        return replace(call, args=args, kwargs=kwargs, results=results)

    def _outside(self, value: Any) -> Any:
        """A value with every tensor of the graph in it described."""
        if isinstance(value, Held):
            return self._specs.setdefault(id(value), self._spec(value))
        if isinstance(value, (list, tuple)):
            return type(value)(self._outside(part) for part in value)
        return {key: self._outside(part) for key, part in value.items()} if isinstance(value, dict) else value

    def _spec(self, held: Held) -> TensorSpec:
        dtype = str(held.dtype).removeprefix("torch.")
        layout = self._formulas(held.shape), self._formulas(held.strides), self._formula(held.offset)
        return TensorSpec(self._place(held.memory), dtype, *layout)

    def _seen(self, number: Any) -> Any:
        return self._outside(number) if isinstance(number, (Held, *SYMBOLIC)) else self._formula(number)


def _given(given: GivenNumber, dtype: DType) -> Given:
    if isinstance(given, Number):
        return ("bits", bits_of(given.value, dtype)) if given.slot < 0 else ("number", given.slot)
    if isinstance(given, int):
        return "bits", given & _64_BITS
    what, _, number = given.partition(":")
    return ("seed" if what == "seed" else "offset"), int(number or 0)


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
            value = float(torch.tensor(value, dtype=torch.float16 if dtype is float16 else torch.bfloat16).item())
        return int(struct.unpack("<I", _float32_bytes(float(value)))[0])
    whole = int(bool(value)) if dtype.name == "bool" else int(value)
    return whole & _64_BITS


def _float32_bytes(value: float) -> bytes:
    import numpy as np

    with np.errstate(over="ignore"):
        return bytes(np.float32(value).tobytes())
