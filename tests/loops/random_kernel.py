"""Random valid kernels with inputs, to compare a target with the interpreter: 10,000 of them find what reviews do not.

    >>> import random
    >>> case = random_case(random.Random(1))
    >>> sorted(case.inputs) != []
    True

Kernels use every construct: broadcast, odd strides and offsets, casts, where, reductions, scans, loops, contractions,
gathers, scatters, Philox and Locals. A function with a permitted error (exp, …) comes last before the store if at all:
``case.ulp`` bounds the difference of the output.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bringup.ir.dtypes import (
    DTYPES,
    FLOATS,
    Array,
    DType,
    boolean,
    float32,
    float64,
    from_storage,
    int32,
    int64,
    to_storage,
    uint64,
)
from bringup.ir.expr import (
    Binary,
    Bits,
    Cast,
    Expr,
    Fma,
    IndexValue,
    Load,
    Name,
    Number,
    Param,
    Philox,
    Unary,
    Where,
    const,
)
from bringup.ir.guards import within
from bringup.ir.index import Index, Int, Size, as_index, evaluate_sizes
from bringup.ir.kernel import Axis, Buffer, Kernel, Let, Local, ScalarParam, SizeRange, Stmt, Store, strided
from bringup.ir.ops import BINARY, UNARY, is_exact
from tests.loops.random_statements import random_statement

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


#: The longest axis of a grid, and of most loops, where nobody asks for more.
SHORT = 6


@dataclass
class Case:
    """A kernel with arguments. Inputs include the buffers that the kernel writes, as they are before the run."""

    kernel: Kernel
    inputs: dict[str, Array]
    sizes: dict[str, int]
    params: dict[str, Number]
    ulp: int

    def fresh_inputs(self) -> dict[str, Array]:
        """Copies of the arrays with the same strides, for one run."""
        copies = {}
        for name, array in self.inputs.items():
            base = array if array.base is None else array.base
            assert isinstance(base, np.ndarray)
            memory = base.copy()
            offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
            copies[name] = np.ndarray(array.shape, array.dtype, memory.data, offset, array.strides)
        return copies


@dataclass
class Maker:
    """A kernel in the making."""

    rng: random.Random
    grid: list[Axis] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    params: dict[str, tuple[DType, Number]] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    locals: list[Local] = field(default_factory=list)
    body: list[Stmt] = field(default_factory=list)
    values: list[Expr] = field(default_factory=list)
    names: int = 0

    def name(self, stem: str) -> str:
        """A name not used before."""
        self.names += 1
        return f"{stem}{self.names}"

    def axis(self, kind: str = "parallel", longest: int = SHORT) -> Axis:
        """A new axis, of a symbolic or a constant extent."""
        name, extent = self.name("a"), self.rng.randint(1, longest)
        if self.rng.random() < 0.3:
            return Axis(name, Int(extent), kind)  # type: ignore[arg-type]
        self.sizes[f"{name}_n"] = extent
        return Axis(name, Size(f"{name}_n"), kind)  # type: ignore[arg-type]

    def dtype(self) -> DType:
        """Any type, floats more often."""
        return self.rng.choice([*DTYPES.values(), *FLOATS, float32])

    # memory

    def array(self, shape: tuple[int, ...], dtype: DType, low: int | None = None, high: int | None = None) -> Array:
        """An array with odd strides and odd values; integers in low … high if given."""
        steps = [self.rng.choice([1, 1, 2, 3]) for _ in shape]
        order = list(range(len(shape)))
        self.rng.shuffle(order)
        base_shape = tuple(shape[d] * steps[d] for d in order)
        values = self.numbers(base_shape, dtype, low, high)
        if not shape:
            return values
        view = values[tuple(slice(None, None, steps[d]) for d in order)]
        return np.transpose(view, np.argsort(order))

    def numbers(self, shape: tuple[int, ...], dtype: DType, low: int | None, high: int | None) -> Array:
        """Random values in storage form, with the awkward ones among them."""
        generator = np.random.default_rng(self.rng.getrandbits(32))
        count = int(np.prod(shape, dtype=np.int64))
        if low is not None and high is not None:
            return generator.integers(low, high, count, endpoint=True).astype(dtype.storage).reshape(shape)
        if dtype is boolean:
            return generator.integers(0, 2, count).astype(np.bool_).reshape(shape)
        if dtype.is_integer:
            wide = generator.integers(dtype.low, dtype.high, count, endpoint=True, dtype=dtype.storage.type)
            small = generator.integers(0, 9, count).astype(dtype.storage)
            return np.where(generator.random(count) < 0.6, small, wide).reshape(shape)
        values = (generator.standard_normal(count) * 4).astype(np.float32).astype(np.float64)
        special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, 65504.0, 3e38])
        chosen = np.where(generator.random(count) < 0.08, generator.choice(special, count), values)
        with np.errstate(over="ignore"):
            return to_storage(chosen.astype(dtype.compute), dtype).reshape(shape)

    def buffer(
        self, name: str, dtype: DType, shape: tuple[Index, ...], role: str, array: Array | None = None
    ) -> Buffer:
        """A declared buffer of symbolic strides, and its array."""
        made = strided(name, dtype, shape, role)  # type: ignore[arg-type]
        numbers = tuple(evaluate_sizes(extent, self.sizes) for extent in shape)
        self.arrays[name] = self.array(numbers, dtype) if array is None else array
        for at, stride in enumerate(self.arrays[name].strides):
            self.sizes[f"{name}_s{at}"] = stride // self.arrays[name].itemsize
        self.buffers[name] = made
        return made

    def load(self, axes: list[Axis], dtype: DType) -> Load:
        """A load from a new input: any of the axes, in any order, shifted, spread, reversed, or padded."""
        rng = self.rng
        used = [axis for axis in axes if rng.random() < 0.8]
        rng.shuffle(used)
        shape: list[Index] = []
        indices: list[Index] = []
        guard: Expr | None = None
        for axis in used:
            form = rng.randrange(5)
            if form == 0:
                shift = rng.randint(1, 2)
                shape.append(axis.extent + shift)
                indices.append(axis.var + shift)
            elif form == 1:
                shape.append(axis.extent * 2)
                indices.append(axis.var * 2 + rng.randint(0, 1))
            elif form == 2:
                shape.append(axis.extent)
                indices.append(axis.extent - 1 - axis.var)
            elif form == 3 and guard is None:
                shape.append(axis.extent)
                indices.append(axis.var - 1 if rng.random() < 0.5 else axis.var + 1)
                guard = within(indices[-1], axis.extent)
            else:
                shape.append(axis.extent)
                indices.append(axis.var)
        if rng.random() < 0.2:
            shape.append(Int(1))
            indices.append(Int(0))
        buffer = self.buffer(self.name("x"), dtype, tuple(shape), "in")
        other = const(1, dtype) if guard is not None and rng.random() < 0.5 else None
        return Load(buffer.name, tuple(indices), dtype, guard, other)

    # values

    def leaf(self, dtype: DType, axes: list[Axis]) -> Expr:
        """A small value of a type."""
        choice = self.rng.randrange(10)
        ready = [value for value in self.values if value.dtype == dtype]
        if ready and choice < 4:
            return self.rng.choice(ready)
        if self.values and choice < 5:
            return Cast(self.rng.choice(self.values), dtype)
        if choice == 5:
            return self.constant(dtype)
        if choice == 6:
            return self.param(dtype)
        if choice == 7 and axes:
            return Cast(IndexValue(self.rng.choice(axes).var), dtype)
        return self.load(axes, dtype)

    def constant(self, dtype: DType) -> Expr:
        """A constant that fits."""
        if dtype is boolean:
            return const(self.rng.random() < 0.5, dtype)
        if dtype.is_float:
            return const(self.rng.choice([0.0, -0.0, 1.0, 0.5, -2.25, float("inf"), float("nan"), 3.1415927]), dtype)
        return const(self.rng.choice([0, 1, 2, 7, dtype.low, dtype.high]), dtype)

    def param(self, dtype: DType) -> Expr:
        """A new scalar argument."""
        name = self.name("p")
        stored = self.numbers((1,), dtype, None, None)
        value: Number = from_storage(stored, dtype)[0].item()
        self.params[name] = (dtype, value)
        return Param(name, dtype)

    def value(self, dtype: DType, axes: list[Axis], depth: int) -> Expr:
        """A value of a type, of exact ops only."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.15:
            return self.leaf(dtype, axes)
        choice = rng.randrange(8)
        if choice == 0:
            condition = self.value(boolean, axes, depth - 1)
            return Where(condition, self.value(dtype, axes, depth - 1), self.value(dtype, axes, depth - 1))
        if choice == 1:
            return Cast(self.value(self.dtype(), axes, depth - 1), dtype)
        if choice == 2 and dtype in (float32, float64):
            return Fma(*(self.value(dtype, axes, depth - 1) for _ in range(3)))
        if choice == 4 and dtype is not boolean and not dtype.is_half:
            same = [t for t in DTYPES.values() if t.size == dtype.size and not t.is_half and t is not boolean]
            return Bits(self.value(rng.choice(same), axes, depth - 1), dtype)
        if dtype is boolean and choice < 6:
            other = self.dtype()
            op = rng.choice([op for op in BINARY.values() if op.returns_bool and op.accepts(other)])
            return Binary(op.name, self.value(other, axes, depth - 1), self.value(other, axes, depth - 1))
        if choice == 3:
            ones = [op.name for op in UNARY.values() if self._plain(op.name, dtype, UNARY)]
            if ones:
                return Unary(rng.choice(ones), self.value(dtype, axes, depth - 1))
        twos = [op.name for op in BINARY.values() if self._plain(op.name, dtype, BINARY)]
        return Binary(rng.choice(twos), self.value(dtype, axes, depth - 1), self.value(dtype, axes, depth - 1))

    @staticmethod
    def _plain(name: str, dtype: DType, table: object) -> bool:
        op = UNARY[name] if table is UNARY else BINARY[name]
        return op.accepts(dtype) and not op.returns_bool and is_exact(op, dtype)

    def draw_bits(self, axes: list[Axis]) -> Expr:
        """A Philox draw for each position."""
        position: Index = as_index(0)
        for axis in axes:
            position = position * axis.extent + axis.var
        seed, offset = self.param(uint64), self.param(uint64)
        return Philox(seed, offset, Cast(IndexValue(position), uint64), self.rng.choice([32, 64]))

    def let(self, value: Expr) -> Name:
        """Binds a value and offers it to later ones."""
        name = Name(self.name("t"), value.dtype)
        self.body.append(Let(name.name, value))
        self.values.append(name)
        return name

    def index_input(self, axes: list[Axis], low: int, high: int) -> Expr:
        """A load of integers in low … high."""
        dtype = self.rng.choice([int32, int64])
        shape = tuple(axis.extent for axis in axes)
        numbers = tuple(evaluate_sizes(extent, self.sizes) for extent in shape)
        buffer = self.buffer(self.name("k"), dtype, shape, "in", self.array(numbers, dtype, low, high))
        return buffer[tuple(axis.var for axis in axes)]


def random_case(rng: random.Random, functions: bool = False, longest: int = SHORT) -> Case:
    """A valid kernel with arguments, drawn from a random source; one axis of its grid has up to ``longest`` points.

    >>> random_case(random.Random(7)).kernel == random_case(random.Random(7)).kernel
    True
    """
    maker = Maker(rng)
    count = rng.randint(0, 3)
    long = rng.randrange(count) if longest > SHORT and count else None  # one only: the interpreter sees every point
    maker.grid = [maker.axis(longest=longest if at == long else SHORT) for at in range(count)]
    for _ in range(rng.randint(0, 3)):
        random_statement(maker)
    dtype = maker.dtype()
    value = maker.value(dtype, maker.grid, rng.randint(1, 3))
    ulp = 0
    if functions and dtype.is_float:
        op = rng.choice([op for op in UNARY.values() if op.transcendental])
        value, ulp = Unary(op.name, value), op.ulp
    if rng.random() < 0.15:
        maker.values.append(maker.draw_bits(maker.grid))
        value = Where(maker.value(boolean, maker.grid, 2), value, const(0, dtype))
    axes = list(maker.grid)
    rng.shuffle(axes)
    guard = maker.value(boolean, maker.grid, 1) if rng.random() < 0.15 else None
    out = maker.buffer("result", dtype, tuple(axis.extent for axis in axes), "out" if guard is None else "inout")
    maker.body.append(Store(out.name, tuple(axis.var for axis in axes), value, guard=guard))
    return finished(maker, ulp)


def finished(maker: Maker, ulp: int) -> Case:
    """The case of a finished maker.

    >>> finished(Maker(random.Random(0)), 0).kernel.name
    'random'
    """
    kernel = Kernel(
        "random",
        sizes=tuple(SizeRange(name, None if "_s" in name else 0) for name in maker.sizes),
        params=tuple(ScalarParam(name, dtype) for name, (dtype, _) in maker.params.items()),
        buffers=tuple(maker.buffers.values()),
        locals=tuple(maker.locals),
        axes=tuple(maker.grid),
        body=tuple(maker.body),
    )
    return Case(kernel, maker.arrays, maker.sizes, {name: value for name, (_, value) in maker.params.items()}, ulp)


def cases(functions: bool = False, longest: int = SHORT) -> SearchStrategy[Case]:
    """The same as a hypothesis strategy, which shrinks the random choices.

    >>> cases().example().kernel.name  # doctest: +SKIP
    'random'
    """
    from hypothesis import strategies

    return strategies.randoms(use_true_random=False).map(lambda rng: random_case(rng, functions, longest))


__all__ = ["SHORT", "Case", "Maker", "cases", "finished", "random_case"]
