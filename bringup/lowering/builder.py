"""A kernel, statement by statement: names, sizes and arguments are made on the way.

k = call.kernel()
x, y = k.read(self), k.write(call.outs[0])
i = k.grid(self.shape[0])
peak = k.reduce(self.shape[1], lambda j: x[i, j], "max")
with k.loop(self.shape[1]) as j:
    k.store(y, (i, j), x[i, j] - peak)
k.launch()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias
from typing import cast as as_type

from bringup.ir.dtypes import DType, uint64
from bringup.ir.expr import Binary, Cast, Expr, ExprLike, Name, Param, const
from bringup.ir.expr import Number as Literal
from bringup.ir.index import AxisVar, Index, IndexLike, Int, Size, as_index
from bringup.ir.kernel import (
    Axis,
    AxisKind,
    Buffer,
    Combine,
    Contract,
    Kernel,
    Let,
    Local,
    Loop,
    Mode,
    Reduce,
    Role,
    ScalarParam,
    Scan,
    SizeRange,
    Stmt,
    Store,
    dense,
)
from bringup.ir.ops import COMBINES, REDUCTIONS, unknown_name
from bringup.ir.walk import all_values
from bringup.lowering.call import Call, Launch, NoKernel, Number, NumberParam, Tensor
from bringup.lowering.symbolic import Dim, IntLike, hint_of

#: A value or several: what the body of a reduction returns.
Values: TypeAlias = "Expr | tuple[Expr, ...]"
CombineLike: TypeAlias = "str | Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Expr, ...]]"


def convert(value: Expr, dtype: DType) -> Expr:
    """The value in another type; itself if it has that type.

    >>> from bringup.ir.dtypes import float32
    >>> convert(const(1.0, float32), float32)
    Const(bits=1065353216, type=float32)
    """
    return value if value.dtype is dtype else Cast(value, dtype)


def _larger(wanted: IntLike | Index, own: IntLike) -> bool:
    """True if a size is known to be above another; the answer is a guard."""
    return not isinstance(wanted, Index) and wanted is not own and bool(wanted > own)


def _repeats(stride: IntLike) -> bool:
    """True for the stride that a lowering gives a number that stands for many; asks nothing of a dynamic one."""
    return isinstance(stride, int) and stride == 0


def _said(shape: Sequence[IntLike | Index]) -> list[int | str]:
    return [str(n) if isinstance(n, Index) else hint_of(n) for n in shape]


class KernelBuilder:
    """Collects one kernel; see the module's example."""

    def __init__(self, call: Call, name: str) -> None:
        self.call, self.name = call, name
        self._sizes: dict[Index, tuple[SizeRange, IntLike]] = {}
        self._params: list[tuple[ScalarParam, Number | str | int]] = []
        self._buffers: list[tuple[Buffer, Tensor]] = []
        self._locals: list[Local] = []
        self._axes: list[Axis] = []
        self._blocks: list[list[Stmt]] = [[]]
        self._names = 0

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    # ---- arguments ----

    def size(self, number: IntLike | Index, low: int | None = 0) -> Index:
        """A number of the call as a size of the kernel; ``low`` is a promise (checked for this call by a guard)."""
        if not isinstance(number, Dim):
            return as_index(number)
        known = self._sizes.get(number.index)
        if known is None or (low is not None and (known[0].low is None or known[0].low < low)):
            if low is not None and low > 0 and not number >= low:
                raise NoKernel(f"{self.name}: a size must be at least {low}")
            name = known[0].name if known else f"n{len(self._sizes)}"
            self._sizes[number.index] = (SizeRange(name, low), number)
        return Size(self._sizes[number.index][0].name)

    def extents(self, numbers: Sequence[IntLike]) -> tuple[Index, ...]:
        """Several sizes."""
        return tuple(self.size(number) for number in numbers)

    def _stride(self, stride: IntLike) -> Index:
        """1 decides whether vectors can be loaded: it is part of the structure. Every other stride is a number."""
        if isinstance(stride, Dim) and stride.is_stride and stride == 1:
            return Int(1)
        return self.size(stride, low=None)

    def _memory(self, tensor: Tensor, role: Role, shape: Sequence[IntLike | Index] | None) -> Buffer:
        extents: Sequence[IntLike | Index] = tensor.shape if shape is None else shape
        known = zip(extents, tensor.shape, tensor.strides)
        if len(extents) != tensor.ndim or any(
            _larger(wanted, own) for wanted, own, step in known if not _repeats(step)
        ):
            # Autograd gives shapes that fit; who calls a backward op directly may not, and memory has no bounds.
            raise RuntimeError(f"{self.call.op}: an argument has the shape {_said(tensor.shape)}, not {_said(extents)}")
        if tensor.contiguous:
            # Written as products: targets see which axes lie in one run. Of the tensor's own shape: the one given
            # may be a part of it.
            strides = dense("", tensor.dtype, tuple(self.size(e) for e in tensor.shape), role).strides
        else:
            strides = tuple(self._stride(stride) for stride in tensor.strides)
        name = {"in": "x", "out": "y", "inout": "z"}[role] + str(len(self._buffers))
        buffer = Buffer(name, tensor.dtype, tuple(self.size(e) for e in extents), strides, role)
        self._buffers.append((buffer, tensor))
        return buffer

    def read(self, tensor: Tensor, shape: Sequence[IntLike | Index] | None = None) -> Buffer:
        """A tensor to load from. ``shape`` replaces its shape by numbers that are known to be the same."""
        return self._memory(tensor, "in", shape)

    def write(self, tensor: Tensor, shape: Sequence[IntLike | Index] | None = None) -> Buffer:
        """A tensor to store to."""
        return self._memory(tensor, "out", shape)

    def update(self, tensor: Tensor, shape: Sequence[IntLike | Index] | None = None) -> Buffer:
        """A tensor to load from and store to, or to combine into."""
        return self._memory(tensor, "inout", shape)

    def reading(self) -> list[tuple[Buffer, Tensor]]:
        """The buffers to load from so far, with their tensors."""
        return [(buffer, tensor) for buffer, tensor in self._buffers if buffer.role == "in"]

    def local(self, dtype: DType, shape: Sequence[int]) -> Local:
        """Scratch of one grid point, of constant size."""
        memory = Local(self._name("l"), dtype, tuple(shape))
        self._locals.append(memory)
        return memory

    def number(self, number: Number, dtype: DType) -> Expr:
        """A number of the call as a value of a type; a constant if a graph has it in the place of a tensor."""
        if number.wrapped and number.slot < 0:
            value = number.value
            if dtype.is_integer and isinstance(value, int):  # PyTorch casts it: 300 is 44 for uint8
                value = (value - dtype.low) % (1 << dtype.bits) + dtype.low
            return const(value, dtype)
        for param, given in self._params:
            if given is number and param.dtype is dtype:
                return NumberParam(param.name, dtype, number)
        param = ScalarParam(f"p{len(self._params)}", dtype)
        self._params.append((param, number))
        return NumberParam(param.name, dtype, number)

    def constant(self, value: int, dtype: DType) -> Param:
        """A number that the lowering knows, as an argument: kernels that differ only in it are one kernel."""
        param = ScalarParam(f"p{len(self._params)}", dtype)
        self._params.append((param, value))
        return Param(param.name, dtype)

    def philox_key(self) -> tuple[Param, Param]:
        """(seed, offset) of this call, as uint64 values for Philox."""
        if not any(given == "seed" for _, given in self._params):
            self._params.append((ScalarParam("seed", uint64), "seed"))
            self._params.append((ScalarParam("offset", uint64), "offset"))
        return Param("seed", uint64), Param("offset", uint64)

    # ---- statements ----

    def grid(self, extent: IntLike | Index) -> AxisVar:
        """One more parallel axis of the grid, inside those made before."""
        axis = Axis(f"i{len(self._axes)}", extent if isinstance(extent, Index) else self.size(extent))
        self._axes.append(axis)
        return axis.var

    def emit(self, stmt: Stmt) -> None:
        """Appends a statement to the block that is open."""
        self._blocks[-1].append(stmt)

    def let(self, value: Expr) -> Name:
        """Names a value, so that it is computed once."""
        name = self._name("t")
        self.emit(Let(name, value))
        return Name(name, value.dtype)

    def store(
        self,
        buffer: Buffer | Local,
        indices: Sequence[IndexLike],
        value: ExprLike,
        mode: Mode = "unique",
        combine: str | None = None,
        guard: Expr | None = None,
    ) -> None:
        """Stores a value, converted to the buffer's type."""
        if combine is not None and combine not in COMBINES:
            raise unknown_name(combine, COMBINES, "way to combine with what is stored")
        held = value if isinstance(value, Expr) else const(value, buffer.dtype)
        places = tuple(as_index(index) for index in indices)
        self.emit(Store(buffer.name, places, convert(held, buffer.dtype), mode, combine, guard))

    @contextmanager
    def _block(self) -> Iterator[list[Stmt]]:
        block: list[Stmt] = []
        self._blocks.append(block)
        try:
            yield block
        finally:
            self._blocks.pop()

    def _axis(self, extent: IntLike | Index, kind: AxisKind) -> Axis:
        return Axis(self._name("j"), extent if isinstance(extent, Index) else self.size(extent), kind)

    @contextmanager
    def loop(
        self, extent: IntLike | Index, kind: AxisKind = "parallel", count: Expr | None = None
    ) -> Iterator[AxisVar]:
        """A loop inside a grid point; a sequential one runs in order, and only the steps below ``count``."""
        axis = self._axis(extent, kind)
        with self._block() as block:
            yield axis.var
        self.emit(Loop(axis, tuple(block), count=count))

    def sequential(
        self,
        extent: IntLike | Index,
        inits: Sequence[Expr],
        body: Callable[[AxisVar, tuple[Name, ...]], Sequence[Expr]],
        count: Expr | None = None,
    ) -> tuple[Name, ...]:
        """A loop with carried values: the body returns their next values; the result is the last ones.

        Only the steps below ``count`` run, where it is given.
        """
        axis = self._axis(extent, "sequential")
        names = tuple(Name(self._name("c"), init.dtype) for init in inits)
        with self._block() as block:
            updates = tuple(body(axis.var, names))
        self.emit(Loop(axis, tuple(block), tuple(n.name for n in names), tuple(inits), updates, count))
        return names

    def _combine(self, combine: CombineLike, dtypes: Sequence[DType]) -> Combine:
        if isinstance(combine, str) and combine not in REDUCTIONS:
            raise unknown_name(combine, REDUCTIONS, "reduction")
        results: tuple[Expr, ...]
        left = tuple(Name(self._name("a"), dtype) for dtype in dtypes)
        right = tuple(Name(self._name("b"), dtype) for dtype in dtypes)
        if isinstance(combine, str):
            results = tuple(Binary(combine, a, b) for a, b in zip(left, right))
        else:
            results = combine(left, right)
        return Combine(tuple(n.name for n in left), tuple(n.name for n in right), tuple(results))

    def reduce(
        self,
        extents: IntLike | Index | Sequence[IntLike | Index],
        body: Callable[..., Values],
        combine: CombineLike = "add",
        init: Expr | Literal | Sequence[Expr] | None = None,
        lanes: int = 32,
    ) -> Name:
        """One value folded over some axes; ``init`` defaults to the identity of add, mul, min, max, and, or."""
        given = init if init is None or isinstance(init, (Expr, bool, int, float)) else init[0]
        return self.reduce_many(extents, lambda *j: (as_type(Expr, body(*j)),), combine, (given,), lanes)[0]

    def reduce_many(
        self,
        extents: IntLike | Index | Sequence[IntLike | Index],
        body: Callable[..., tuple[Expr, ...]],
        combine: CombineLike,
        inits: Sequence[Expr | Literal | None],
        lanes: int = 32,
    ) -> tuple[Name, ...]:
        """Several values folded together (argmax, Welford): ``combine(left, right)`` gives the new state."""
        many = [extents] if isinstance(extents, (Dim, int, Index)) else list(extents)
        axes = tuple(self._axis(extent, "reduce") for extent in many)
        with self._block() as block:
            values = body(*(axis.var for axis in axes))
        folded = self._combine(combine, [value.dtype for value in values])
        starts = tuple(self._start(init, combine, value.dtype) for init, value in zip(inits, values))
        names = tuple(Name(self._name("r"), value.dtype) for value in values)
        self.emit(Reduce(tuple(n.name for n in names), axes, tuple(block), values, starts, folded, lanes))
        return names

    @staticmethod
    def _start(init: Expr | Literal | None, combine: CombineLike, dtype: DType) -> Expr:
        if isinstance(init, Expr):
            return init
        if init is None:
            assert isinstance(combine, str), "a combine function needs its inits"
            init = identity(combine, dtype)
        return const(init, dtype)

    def scan(
        self,
        extent: IntLike | Index,
        body: Callable[[AxisVar], tuple[Expr, ...]],
        combine: CombineLike,
        inits: Sequence[Expr | Literal | None],
        then: Callable[[AxisVar, tuple[Name, ...]], None],
        exclusive: bool = False,
    ) -> None:
        """Running states along an axis; ``then`` stores what it wants of them at each position."""
        axis = self._axis(extent, "sequential")
        with self._block() as block:
            values = body(axis.var)
        folded = self._combine(combine, [value.dtype for value in values])
        starts = tuple(self._start(init, combine, value.dtype) for init, value in zip(inits, values))
        names = tuple(Name(self._name("r"), value.dtype) for value in values)
        with self._block() as after:
            then(axis.var, names)
        taken = tuple(n.name for n in names)
        self.emit(Scan(taken, axis, tuple(block), values, starts, folded, tuple(after), exclusive))

    def contract(
        self,
        extents: Sequence[IntLike | Index],
        body: Callable[..., tuple[Expr, Expr]],
        init: Expr | None = None,
        lanes: int = 1,
    ) -> Name:
        """init + sum of a × b: ``body`` gives the two factors at a position."""
        axes = tuple(self._axis(extent, "reduce") for extent in extents)
        a, b = body(*(axis.var for axis in axes))
        stmt = Contract(self._name("r"), axes, a, b, init, lanes)
        self.emit(stmt)
        return Name(stmt.name, stmt.dtype)

    # ---- the end ----

    def launch(self) -> None:
        """The kernel is complete: it becomes the next step of the call."""
        assert len(self._blocks) == 1, "a block is still open"
        sizes = list(self._sizes.values())
        body = tuple(self._blocks[0])
        # A number that only decided the structure is not an argument.
        used = {value.name for value in all_values(body) if isinstance(value, Param)}
        params = [(param, given) for param, given in self._params if param.name in used]
        kernel = Kernel(
            self.name,
            sizes=tuple(size for size, _ in sizes),
            params=tuple(param for param, _ in params),
            buffers=tuple(buffer for buffer, _ in self._buffers),
            locals=tuple(self._locals),
            axes=tuple(self._axes),
            body=body,
        )
        tensors = tuple(tensor for _, tensor in self._buffers)
        numbers = tuple(number for _, number in sizes)
        self.call.launches.append(Launch(kernel, tensors, numbers, tuple(given for _, given in params)))


def identity(op: str, dtype: DType) -> Literal:
    """What changes nothing when it is combined.

    >>> from bringup.ir.dtypes import int8
    >>> identity("max", int8)
    -128
    """
    if op in ("add", "or", "xor"):
        return 0
    if op == "mul":
        return 1
    if op == "and":
        return dtype.high if dtype.kind.value != "int" else -1
    if dtype.is_float:
        return float("-inf") if op == "max" else float("inf")
    return dtype.low if op == "max" else dtype.high
