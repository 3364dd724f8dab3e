"""A program: what a lowering returns. Kernels in order, temporaries, and sizes read back from the device between them.

Count → read back → allocate → fill is how nonzero and its relatives work:

    Program("nonzero", inputs=(…), outputs=(Tensor("where", int64, (Size("found"), Int(1))),),
            temporaries=(Tensor("count", int64, (Int(1),)),),
            steps=(Launch(count_kernel, …), ReadBack("found", "count"), Launch(fill_kernel, …)))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from bringup.ir.arguments import InterpretError, bind_sizes
from bringup.ir.dtypes import Array, DType
from bringup.ir.expr import Number
from bringup.ir.index import Index, Size, atoms, evaluate_sizes
from bringup.ir.interpret import run
from bringup.ir.kernel import Kernel


@dataclass(frozen=True)
class Tensor:
    """A tensor of the program, with a symbolic shape; temporaries and outputs are contiguous."""

    name: str
    dtype: DType
    shape: tuple[Index, ...]


@dataclass(frozen=True)
class Launch:
    """Runs a kernel. ``buffers`` and ``params`` pair the kernel's names with the program's; those not named are the
    same on both sides. ``sizes`` pairs sizes of the kernel that no buffer shows with indices over the program's sizes.
    """

    kernel: Kernel
    buffers: tuple[tuple[str, str], ...] = ()
    params: tuple[tuple[str, str], ...] = ()
    sizes: tuple[tuple[str, Index], ...] = ()


@dataclass(frozen=True)
class ReadBack:
    """Waits for the kernels so far and reads the first element of an integer tensor into a size."""

    size: str
    tensor: str


Step: TypeAlias = Launch | ReadBack


@dataclass(frozen=True)
class Program:
    """Inputs, temporaries, outputs and the steps between them."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    temporaries: tuple[Tensor, ...] = ()


def run_program(
    program: Program, inputs: Mapping[str, Array], params: Mapping[str, Number] | None = None
) -> dict[str, Array]:
    """The outputs of a program on NumPy arrays (bfloat16 as uint16), by the reference interpreter.

    >>> run_program(Program("nothing", (), (), ()), {})
    {}
    """
    sizes: dict[str, int] = {}
    arrays: dict[str, Array] = {}
    for tensor in program.inputs:
        array = arrays[tensor.name] = inputs[tensor.name]
        if array.ndim != len(tensor.shape) or array.dtype != tensor.dtype.storage:
            raise InterpretError(
                f"{program.name}: input {tensor.name} is {array.dtype}{list(array.shape)}, "
                f"the program wants {tensor.dtype.storage} with {len(tensor.shape)} dimensions"
            )
        for index, extent in zip(tensor.shape, array.shape):
            if isinstance(index, Size):
                sizes.setdefault(index.name, extent)
            if evaluate_sizes(index, sizes) != extent:
                raise InterpretError(f"{program.name}: input {tensor.name} has shape {array.shape}, wanted {index}")
    made = program.temporaries + program.outputs

    def allocate() -> None:
        for tensor in made:
            known = all(isinstance(a, Size) and a.name in sizes for index in tensor.shape for a in atoms(index))
            if tensor.name not in arrays and known:
                shape = tuple(evaluate_sizes(index, sizes) for index in tensor.shape)
                arrays[tensor.name] = np.zeros(shape, tensor.dtype.storage)

    for step in program.steps:
        allocate()
        if isinstance(step, ReadBack):
            sizes[step.size] = int(arrays[step.tensor].reshape(-1)[0])
            continue
        buffer_names, param_names = dict(step.buffers), dict(step.params)
        missing = [n for b in step.kernel.buffers if (n := buffer_names.get(b.name, b.name)) not in arrays]
        if missing:
            raise InterpretError(f"{program.name}: {step.kernel.name} needs {', '.join(missing)}, not allocated yet")
        buffers = {b.name: arrays[buffer_names.get(b.name, b.name)] for b in step.kernel.buffers}
        values = {p.name: (params or {})[param_names.get(p.name, p.name)] for p in step.kernel.params}
        extra = {name: evaluate_sizes(index, sizes) for name, index in step.sizes}
        run(step.kernel, buffers, bind_sizes(step.kernel, buffers, extra), values)
    allocate()
    return {tensor.name: arrays[tensor.name] for tensor in program.outputs}
