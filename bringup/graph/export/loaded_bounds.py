"""Before a loaded model runs with some sizes: every tensor that a kernel or a caller sees lies inside its memory.

The verifier proves that a kernel stays inside the buffers it declares; here those buffers are what the file says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bringup.graph.export.artifact import ArtifactError
from bringup.graph.program import INTEGER, GraphProgram, Memory, Variant, span
from bringup.ir.dtypes import DTYPES
from bringup.ir.index import Index, evaluate_sizes
from bringup.ir.kernel import Kernel

_LARGEST = 1 << 48  # bytes: no arithmetic of a kernel's addresses comes near 64 bits


class BoundsCheck:
    """The checks of one variant for exact sizes; ``nbytes`` says how large each memory is."""

    def __init__(self, program: GraphProgram, variant: Variant, sizes: Sequence[int]) -> None:
        self._program, self._variant = program, variant
        self._sizes = program.named(sizes)
        self._nbytes: dict[Memory, int] = {}
        for n, constant in enumerate(program.constants):
            self._nbytes["tensor", n] = span(constant.shape, constant.strides) * DTYPES[constant.dtype].size
        for spec in program.inputs:
            shape, strides = ([self._number(one, self._sizes) for one in some] for some in (spec.shape, spec.strides))
            if any(number < 0 for number in (*shape, *strides)):
                raise ArtifactError(f"input '{spec.name}' has negative sizes or strides")
            if spec.dtype != INTEGER:
                self._nbytes[spec.memory] = span(shape, strides) * DTYPES[spec.dtype].size
        for n, formula in enumerate(variant.temporaries):
            # A negative number is an empty memory, as for sizes of 0.
            self._nbytes["temporary", n] = max(0, self._number(formula, self._sizes))

    def run(self) -> None:
        """Raises ArtifactError for the first tensor outside of its memory."""
        for call in self._variant.kernel_calls:
            kernel = call.kernel
            assert isinstance(kernel, Kernel), "files hold kernels of the IR only"
            sizes = self._kernel_sizes(kernel, call.sizes)
            for buffer, (memory, offset) in zip(kernel.buffers, call.buffers):
                start = self._number(offset, self._sizes)
                shape = [self._number(extent, sizes) for extent in buffer.shape]
                strides = [self._number(stride, sizes) for stride in buffer.strides]
                self._inside(memory, start, shape, strides, buffer.dtype.size, f"{buffer.name} of {kernel.name}")
        for n, result in enumerate(self._variant.results):
            start = self._number(result.offset, self._sizes)
            shape = [self._number(extent, self._sizes) for extent in result.shape]
            strides = [self._number(stride, self._sizes) for stride in result.strides]
            if any(number < 0 for number in (start, *shape, *strides)):
                raise ArtifactError(f"result {n} has negative sizes for {self._shown()}")
            self._inside(result.memory, start, shape, strides, DTYPES[result.dtype].size, f"result {n}")
            for number in [number for number, place in self._program.updates if place == n]:
                if tuple(shape) != self._program.constants[number].shape:
                    raise ArtifactError(f"result {n} is not of the shape of the state that it becomes")
        for formula in _sizes_in(self._program.gives):
            self._number(formula, self._sizes)

    def _shown(self) -> str:
        return ", ".join(f"{name} = {size}" for name, size in self._sizes.items()) or "its sizes"

    def _number(self, formula: Index, sizes: Mapping[str, int]) -> int:
        try:
            number = evaluate_sizes(formula, sizes)
        except ZeroDivisionError as error:
            raise ArtifactError(f"a formula divides by 0 for {self._shown()}") from error
        if abs(number) > _LARGEST:
            raise ArtifactError(f"a formula gives {number} for {self._shown()}")
        return number

    def _kernel_sizes(self, kernel: Kernel, formulas: Sequence[Index]) -> dict[str, int]:
        """What a kernel's sizes are; its proofs hold for the ranges that it declares."""
        sizes = {}
        for declared, formula in zip(kernel.sizes, formulas):
            number = self._number(formula, self._sizes)
            low, high = declared.low, declared.high
            if (low is not None and number < low) or (high is not None and number > high):
                raise ArtifactError(f"{kernel.name} gets {declared.name} = {number}, it declares {low}…{high}")
            sizes[declared.name] = number
        return sizes

    def _inside(
        self, memory: Memory, start: int, shape: Sequence[int], strides: Sequence[int], itemsize: int, what: str
    ) -> None:
        if any(extent <= 0 for extent in shape):
            return  # the loops over it are empty
        steps = [(extent - 1) * stride for extent, stride in zip(shape, strides)]
        first = start + sum(min(0, step) for step in steps)
        last = start + sum(max(0, step) for step in steps)
        if first < 0 or (last + 1) * itemsize > self._nbytes[memory]:
            raise ArtifactError(
                f"{what} lies outside of its memory for {self._shown()}: elements {first}…{last} of "
                f"{itemsize} bytes in {self._nbytes[memory]} bytes"
            )


def _sizes_in(tree: Any) -> Iterator[Index]:
    """The formulas among what a model gives."""
    if type(tree) is tuple:
        if tree[0] == "size":
            yield tree[1]
        return
    for part in tree[1:]:
        yield from _sizes_in(part[1] if tree[0] == "dict" else part)
