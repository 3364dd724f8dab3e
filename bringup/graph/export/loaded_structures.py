"""The variants of a program as structures that can be bound: the lowered graphs that they were, without the graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bringup.graph.export.artifact import ArtifactError
from bringup.graph.lowered import LoweredGraph
from bringup.graph.program import GraphProgram, KernelCall, Variant
from bringup.graph.structure import GraphStructure, LoadAll, structure_of
from bringup.graph.symbols import Symbols
from bringup.graph.values import Held, NumberSource
from bringup.ir.dtypes import uint8
from bringup.ir.index import Index, Int
from bringup.ir.kernel import Kernel
from bringup.ir.verify_error import VerifyError
from bringup.lowering.call import Call, Launch, Number, Tensor
from bringup.lowering.symbolic import Dim, IntLike, Trace

#: (hint that makes a comparison with 0 true)
_TRUE = {"eq": 0, "ne": 1, "lt": -1, "le": 0, "gt": 1, "ge": 0}


def structures_of(program: GraphProgram, device: torch.device, load_all: LoadAll) -> list[GraphStructure]:
    """Every variant, with its kernels verified and on the device."""
    try:
        return [
            structure_of(_Variant(program, variant, device).lowered(), load_all, None) for variant in program.variants
        ]
    except VerifyError as error:
        raise ArtifactError(f"a kernel breaks a rule: {error}") from error


class _Variant:
    def __init__(self, program: GraphProgram, variant: Variant, device: torch.device) -> None:
        self._program, self._variant, self._device = program, variant, device
        self._trace = Trace()
        for size in program.sizes:
            self._trace.symbol(size.name, size.example)
        for relation, index in variant.guards:
            self._trace.compare(relation, index, _TRUE[relation])
        self._trace.scalar_guards.update(dict.fromkeys(variant.number_guards))

    def lowered(self) -> LoweredGraph:
        variant = self._variant
        call = Call("graph", self._trace, device=self._device.index or 0)
        for n, nbytes in enumerate(variant.temporaries):
            call.temporaries.append(Tensor(("temporary", n), uint8, (self._dim(nbytes),), (1,), contiguous=True))
        lowered = LoweredGraph(call, Symbols(self._trace), self._device)
        lowered.inputs = len(self._program.constants) + len(self._program.inputs)
        lowered.numbers = [NumberSource(formula=self._dim(formula)) for formula in variant.numbers]
        lowered.random_calls = variant.draws
        lowered.steps = [self._launch(one, self._program.kernels[one.kernel]) for one in variant.calls]
        lowered.results = [
            Held(
                result.memory,
                getattr(torch, result.dtype),
                self._dims(result.shape),
                self._dims(result.strides),
                self._dim(result.offset),
                on_device=True,
                tensor=None,
            )
            for result in variant.results
        ]
        return lowered

    def _dim(self, index: Index) -> IntLike:
        return index.value if isinstance(index, Int) else Dim(self._trace, index, 0)

    def _dims(self, formulas: Sequence[Index]) -> tuple[IntLike, ...]:
        return tuple(self._dim(formula) for formula in formulas)

    def _launch(self, call: KernelCall, kernel: Kernel) -> Launch:
        buffers = tuple(
            Tensor(memory, buffer.dtype, (), (), offset=self._dim(offset))  # type: ignore[arg-type]
            for buffer, (memory, offset) in zip(kernel.buffers, call.buffers)
        )
        params: list[Number | str | int] = []
        for kind, value in call.params:
            if kind == "bits":
                params.append(value)
            elif kind == "number":
                params.append(Number(value, 0, None, False, self._trace))
            else:
                params.append(f"{kind}:{value}")
        return Launch(kernel, buffers, self._dims(call.sizes), tuple(params))
