"""A model whose sizes are all known: kernels without parameters, and which memory each of them touches."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from bringup.compile.kernels import Launch
from bringup.graph.program import INTEGER, GraphProgram, KernelCall, TensorSpec, Variant, span
from bringup.ir.dtypes import DTYPES, DType, boolean, float64
from bringup.ir.expr import Const, const
from bringup.ir.index import Index, Int, evaluate_sizes
from bringup.ir.kernel import Axis, Buffer, Kernel, Store, dense
from bringup.ir.simplify import simplify
from bringup.ir.walk import Substitution

Kind: TypeAlias = Literal["input", "constant", "temporary", "output"]


class NotBareMetal(ValueError):
    """A model that cannot be a bare-metal program; the message says why and what to change."""


@dataclass(frozen=True)
class Place:
    """Memory that a kernel gets: which one, and from which element on."""

    kind: Kind
    number: int
    offset: int = 0

    @property
    def memory(self) -> tuple[Kind, int]:
        """The whole memory."""
        return self.kind, self.number


@dataclass(frozen=True)
class Step(Launch[Place, int, int]):
    """A launch whose sizes and numbers are all written into its kernel, under the name of a C function."""

    kernel: Kernel
    sizes: tuple[int, ...] = ()
    params: tuple[int, ...] = ()
    name: str = ""
    #: Products that its sums need; set by the passes.
    macs: int = 0

    def reads(self, memory: tuple[Kind, int]) -> bool:
        """Whether it gets this memory to read."""
        return any(p.memory == memory and b.role != "out" for p, b in zip(self.buffers, self.kernel.buffers))

    def writes(self, memory: tuple[Kind, int]) -> bool:
        """Whether it gets this memory to write."""
        return any(p.memory == memory and b.role != "in" for p, b in zip(self.buffers, self.kernel.buffers))

    def touches(self, memory: tuple[Kind, int]) -> bool:
        """Whether it gets this memory at all."""
        return any(place.memory == memory for place in self.buffers)


@dataclass(frozen=True)
class StaticTensor:
    """An input or output: name, type, and how its elements lie; outputs are row-major."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements of memory it reaches over."""
        return span(self.shape, self.strides)

    @property
    def nbytes(self) -> int:
        """The same in bytes."""
        return self.elements * self.dtype.size


@dataclass(frozen=True)
class Constant:
    """A tensor that comes with the model, as it lies in memory."""

    name: str
    array: npt.NDArray[Any]


@dataclass(frozen=True)
class StaticProgram:
    """The model: steps in order, and the allocations they name. ``temporaries`` are sizes in bytes."""

    inputs: tuple[StaticTensor, ...]
    outputs: tuple[StaticTensor, ...]
    constants: tuple[Constant, ...]
    temporaries: tuple[int, ...]
    steps: tuple[Step, ...]
    folded_norms: int = 0
    """How many batch norms are part of weights."""

    def with_kernels(self, change: Callable[[Kernel], Kernel]) -> StaticProgram:
        """The program with another kernel in each step."""
        return replace(self, steps=tuple(replace(step, kernel=change(step.kernel)) for step in self.steps))


def static_program(program: GraphProgram, constants: Sequence[memoryview]) -> StaticProgram:
    """The program with its sizes written in; raises NotBareMetal for what a bare-metal program cannot be."""
    if program.sizes:
        names = ", ".join(size.name for size in program.sizes)
        raise NotBareMetal(f"a bare-metal program has fixed sizes, and {names} is dynamic: leave dynamic_shapes out")
    if program.updates:
        changed = ", ".join(program.constants[number].name for number, _ in program.updates)
        raise NotBareMetal(
            f"the model changes its own buffers ({changed}); weights lie in read-only memory: pass them in"
        )
    integers = [spec.name for spec in program.inputs if spec.dtype == INTEGER]
    if integers:
        raise NotBareMetal(f"input '{integers[0]}' is a Python integer: pass a tensor, or write the number in")
    variant = program.variants[0]
    if variant.draws:
        raise NotBareMetal("the model draws random numbers (dropout in training mode?): call model.eval()")
    return _Maker(program, variant, constants).program()


class _Maker:
    def __init__(self, program: GraphProgram, variant: Variant, constants: Sequence[memoryview]) -> None:
        self._program, self._variant, self._given = program, variant, constants
        self._numbers = tuple(_number(formula) for formula in variant.numbers)
        self._outputs = self._memory_of_outputs()
        self._names: dict[str, int] = {}

    def program(self) -> StaticProgram:
        specs = self._program.inputs
        inputs = [StaticTensor(spec.name, DTYPES[spec.dtype], _all(spec.shape), _all(spec.strides)) for spec in specs]
        arrays = [
            np.frombuffer(data, dtype=DTYPES[spec.dtype].storage)
            for spec, data in zip(self._program.constants, self._given)
        ]
        steps = [self._step(call) for call in self._variant.kernel_calls]
        steps = [step for step in steps if all(axis.extent != Int(0) for axis in step.kernel.axes)]
        outputs = []
        for number, result in enumerate(self._variant.results):
            tensor = StaticTensor(f"output{number}", DTYPES[result.dtype], _all(result.shape), _all(result.strides))
            if self._outputs.get(result.memory) != number:
                tensor = replace(tensor, strides=_contiguous(tensor.shape))
                steps.append(self._copy(result, tensor, number))
            outputs.append(tensor)
        return StaticProgram(
            tuple(inputs),
            tuple(outputs),
            tuple(Constant(spec.name, array) for spec, array in zip(self._program.constants, arrays)),
            tuple(_number(formula) for formula in self._variant.temporaries),
            tuple(steps),
            self._program.folded_norms,
        )

    def _memory_of_outputs(self) -> dict[tuple[str, int], int]:
        """Temporaries that are an output as they are: the kernels write there directly."""
        memories = [result.memory for result in self._variant.results]
        found = {}
        for number, result in enumerate(self._variant.results):
            size = span(_all(result.shape), _all(result.strides)) * DTYPES[result.dtype].size
            alone = result.memory[0] == "temporary" and memories.count(result.memory) == 1
            if not is_row_major(_all(result.shape), _all(result.strides)):
                continue
            if alone and result.offset == Int(0) and size == _number(self._variant.temporaries[result.memory[1]]):
                found[result.memory] = number
        return found

    def _place(self, memory: tuple[str, int], offset: Index) -> Place:
        kind, number = memory
        at = _number(offset)
        if kind == "tensor":
            constants = len(self._program.constants)
            return Place("constant", number, at) if number < constants else Place("input", number - constants, at)
        output = self._outputs.get(memory)
        return Place("temporary", number, at) if output is None else Place("output", output, at)

    def _step(self, call: KernelCall) -> Step:
        kernel = call.kernel
        assert isinstance(kernel, Kernel), "lowerings of loops make no foreign kernels"
        sizes = {size.name: _number(formula) for size, formula in zip(kernel.sizes, call.sizes)}
        params = {}
        for param, (kind, value) in zip(kernel.params, call.params):
            params[param.name] = (
                _from_bits(value, param.dtype) if kind == "bits" else const(self._numbers[value], param.dtype)
            )
        places = tuple(self._place(memory, offset) for memory, offset in call.buffers)
        return Step(with_sizes(kernel, sizes, params), places, name=self._named(kernel, places), note=call.note)

    def _named(self, kernel: Kernel, places: Sequence[Place]) -> str:
        """A C name from the layers whose weights the kernel reads, and what it does."""
        used = [self._program.constants[place.number].name for place in places if place.kind == "constant"]
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in used if "." in name))
        name = identifier("_".join([*layers[:3], kernel.name]))
        self._names[name] = count = self._names.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"

    def _copy(self, result: TensorSpec, tensor: StaticTensor, number: int) -> Step:
        """An output that is a view, an input, a constant, or not row-major: its elements are copied."""
        shape = tuple(Int(extent) for extent in tensor.shape)
        axes = tuple(Axis(f"i{d}", extent) for d, extent in enumerate(shape))
        source = Buffer("x", tensor.dtype, shape, tuple(Int(s) for s in _all(result.strides)), "in")
        to = dense("y", tensor.dtype, shape, "out")
        at = tuple(axis.var for axis in axes)
        kernel = Kernel("copy", buffers=(source, to), axes=axes, body=(Store("y", at, source.at(*at)),))
        places = (self._place(result.memory, result.offset), Place("output", number))
        return Step(kernel, places, name=f"output{number}_copy", note=f"output {number}, row-major")


def with_sizes(kernel: Kernel, sizes: Mapping[str, int], params: Mapping[str, Const]) -> Kernel:
    """A kernel with its sizes and parameters written in, simplified.

    >>> from bringup.ir.index import Size
    >>> with_sizes(Kernel("k", axes=(Axis("i", Size("n")),)), {"n": 3}, {}).axes
    (Axis(name='i', extent=Int(value=3), kind='parallel'),)
    """
    put = Substitution(sizes={name: Int(value) for name, value in sizes.items()}, params=dict(params))
    buffers = tuple(
        replace(b, shape=tuple(map(put.index, b.shape)), strides=tuple(map(put.index, b.strides)))
        for b in kernel.buffers
    )
    axes = tuple(put.axis(axis) for axis in kernel.axes)
    return simplify(replace(kernel, sizes=(), params=(), buffers=buffers, axes=axes, body=put.block(kernel.body)))


def identifier(text: str) -> str:
    """A name that C accepts, whatever the text: letters, digits and single underscores, at most 60, never a keyword.

    >>> identifier('a.b"; int main()'), identifier("int"), identifier("")
    ('a_b_int_main', 'int_', 'layer')
    """
    name = re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9]", "_", text)).strip("_")[:60].rstrip("_")
    if not name or name[0].isdigit():
        name = f"layer_{name}".rstrip("_")
    return f"{name}_" if name in _KEYWORDS else name


_KEYWORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int long main "
    "register restrict return short signed sizeof static struct switch typedef typeof union unsigned void volatile "
    "while asm bool class catch delete explicit export false friend mutable namespace new operator private protected "
    "public template this throw true try typename using virtual memcpy memset memmove memcmp".split()
)


def _number(formula: Index) -> int:
    return evaluate_sizes(formula, {})


def _all(formulas: Sequence[Index]) -> tuple[int, ...]:
    return tuple(_number(formula) for formula in formulas)


def is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True if the last index counts fastest and nothing lies between elements.

    >>> is_row_major((2, 1, 3), (3, 7, 1)), is_row_major((2, 3), (1, 2))
    (True, False)
    """
    dense = _contiguous(shape)
    return 0 in shape or all(n == 1 or a == b for n, a, b in zip(shape, strides, dense))


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return tuple(strides)


def _from_bits(bits: int, dtype: DType) -> Const:
    """A parameter from the 8 bytes of a launch: halves come as float32."""
    if dtype is float64:
        return const(struct.unpack("<d", struct.pack("<Q", bits))[0], dtype)
    if dtype.is_float:
        return const(struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0], dtype)
    if dtype is boolean:
        return const(bool(bits), dtype)
    low = bits & (1 << dtype.bits) - 1
    return const(low - (1 << dtype.bits) if dtype.low < 0 and low >> dtype.bits - 1 else low, dtype)
