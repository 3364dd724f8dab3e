"""What a kernel costs: flops, transcendental calls, bytes of memory touched; as formulas over its sizes.

>>> from bringup.ir.parser import parse
>>> add = parse("kernel add size n in x: float32[n] strides [1] out y: float32[n] strides [1] grid i < n "
...             "{ store y[i] = (x[i] + x[i]) }")
>>> cost(add).evaluate({"n": 10})
CostNumbers(flops=10, transcendentals=0, read=40, written=40)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bringup.ir.expr import Binary, Expr, Fma, Load, Unary
from bringup.ir.index import AxisVar, Index, Int, as_index, evaluate_sizes, minimum
from bringup.ir.kernel import Axis, Block, Buffer, Contract, Kernel, Let, Loop, Reduce, Scan, Stmt, Store, extent_of
from bringup.ir.ops import BINARY, UNARY
from bringup.ir.walk import Substitution, axes_inside, operands, own_values, subexpressions


@dataclass(frozen=True)
class CostNumbers:
    """A cost for given sizes; read and written are bytes."""

    flops: int
    transcendentals: int
    read: int
    written: int


@dataclass(frozen=True)
class Cost:
    """A cost as indices over the kernel's sizes.

    A flop is an op on a float type (Fma: 2; a transcendental function: 1, and counted apart). Read and written are the
    bytes of the distinct elements that are touched, so a cache that holds everything would move just these; guards
    count as if they held.
    """

    flops: Index
    transcendentals: Index
    read: Index
    written: Index
    local_bytes: int

    def evaluate(self, sizes: Mapping[str, int]) -> CostNumbers:
        """The numbers for some sizes."""
        formulas = (self.flops, self.transcendentals, self.read, self.written)
        return CostNumbers(*(evaluate_sizes(formula, sizes) for formula in formulas))


@dataclass
class _Meter:
    kernel: Kernel
    flops: Index = field(default_factory=lambda: Int(0))
    transcendentals: Index = field(default_factory=lambda: Int(0))
    read: dict[str, dict[tuple[Index, ...], Index]] = field(default_factory=dict)
    written: dict[str, dict[tuple[Index, ...], Index]] = field(default_factory=dict)

    def value(self, expr: Expr, axes: tuple[Axis, ...], times: Index) -> None:
        """Counts a value that is evaluated ``times`` times inside some axes."""
        for part in subexpressions(expr):
            if isinstance(part, Fma):
                self.flops = self.flops + times * 2
            elif isinstance(part, (Unary, Binary)):
                op = UNARY[part.op] if isinstance(part, Unary) else BINARY[part.op]
                if operands(part)[0].dtype.is_float:
                    self.flops = self.flops + times
                    self.transcendentals = self.transcendentals + (times if op.transcendental else 0)
            elif isinstance(part, Load):
                self.touch(self.read, part.buffer, part.indices, axes)

    def touch(
        self,
        table: dict[str, dict[tuple[Index, ...], Index]],
        name: str,
        indices: tuple[Index, ...],
        axes: tuple[Axis, ...],
    ) -> None:
        """Notes an access by its form: which axis it was does not matter, how long the axis is does."""
        buffer = self.kernel.buffer(name)
        if not isinstance(buffer, Buffer):
            return
        extents = {axis.name: axis.extent for axis in axes}
        inside = [sorted(axes_inside(index)) for index in indices]
        order = {name: at for at, name in enumerate(dict.fromkeys(n for names in inside for n in names))}
        rename = {name: AxisVar(f"{at}:{extents[name].key}") for name, at in order.items()}
        form = tuple(Substitution(axes=rename).index(index) for index in indices)
        per_dimension = as_index(1)
        for names, extent in zip(inside, buffer.shape):
            steps = extent_of(Axis(n, extents[n]) for n in names)
            per_dimension = per_dimension * (steps if len(names) <= 1 else minimum(steps, extent))
        every = extent_of(Axis(n, extents[n]) for n in order)
        table.setdefault(name, {})[form] = minimum(every, per_dimension)

    def block(self, block: Block, axes: tuple[Axis, ...]) -> None:
        for stmt in block:
            self.stmt(stmt, axes)

    def stmt(self, stmt: Stmt, axes: tuple[Axis, ...]) -> None:
        times = extent_of(axes)
        if isinstance(stmt, Let):
            self.value(stmt.value, axes, times)
        elif isinstance(stmt, Store):
            for expr in own_values(stmt):
                self.value(expr, axes, times)
            self.touch(self.written, stmt.buffer, stmt.indices, axes)
            if stmt.combine is not None:
                self.touch(self.read, stmt.buffer, stmt.indices, axes)
                if stmt.value.dtype.is_float:
                    self.flops = self.flops + times
        elif isinstance(stmt, Contract):
            inner = axes + stmt.axes
            for expr in (stmt.a, stmt.b):
                self.value(expr, inner, extent_of(inner))
            extra = as_index(stmt.lanes - 1)
            if stmt.init is not None:
                self.value(stmt.init, axes, times)
                extra = extra + (1 if stmt.lanes > 1 else 0)
            if stmt.dtype.is_float:
                self.flops = self.flops + extent_of(inner) * 2 + times * extra
        else:
            for init in stmt.inits:
                self.value(init, axes, times)
            if isinstance(stmt, Loop) and stmt.count is not None:
                self.value(stmt.count, axes, times)
            inner = axes + (stmt.axes if isinstance(stmt, Reduce) else (stmt.axis,))
            self.block(stmt.body, inner)
            for value in stmt.updates if isinstance(stmt, Loop) else stmt.values:
                self.value(value, inner, extent_of(inner))
            if not isinstance(stmt, Loop):
                merges = stmt.lanes - 1 if isinstance(stmt, Reduce) else 0
                for result in stmt.combine.results:
                    self.value(result, inner, extent_of(inner) + times * merges)
            if isinstance(stmt, Scan):
                self.block(stmt.then, inner)

    def bytes(self, table: dict[str, dict[tuple[Index, ...], Index]]) -> Index:
        total = as_index(0)
        for buffer in self.kernel.buffers:
            forms = table.get(buffer.name)
            if forms:
                elements = sum(forms.values(), as_index(0))
                if len(forms) > 1:
                    elements = minimum(elements, extent_of(Axis("", extent) for extent in buffer.shape))
                total = total + elements * buffer.dtype.size
        return total


def cost(kernel: Kernel) -> Cost:
    """The cost of one launch."""
    meter = _Meter(kernel)
    meter.block(kernel.body, kernel.axes)
    scratch = sum(local.nbytes for local in kernel.locals)
    return Cost(meter.flops, meter.transcendentals, meter.bytes(meter.read), meter.bytes(meter.written), scratch)
