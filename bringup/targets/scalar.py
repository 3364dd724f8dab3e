"""Kernels in any language that has variables, loops and conditions: one value at a time, in the IR's own order.

A target derives from ``ScalarEmitter`` and says how its language spells a dozen things. The order of reductions, guards
and checked indices, and what the IR means by them, is written here. Ops that the language has no
instruction for are composed by portable_ops.py; what that does not know either is ``CannotRender``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce

from bringup.ir.dtypes import DType, int64
from bringup.ir.expr import (
    AsIndex,
    Binary,
    Bits,
    Cast,
    Const,
    Expr,
    Fma,
    IndexValue,
    Load,
    Name,
    Param,
    Unary,
    Where,
    binary,
    const,
)
from bringup.ir.index import AxisVar, FloorDiv, Index, Int, Max, Min, Mod, OfTwo, Size, Sum
from bringup.ir.kernel import Axis, Block, Buffer, Contract, Kernel, Let, Local, Loop, Reduce, Stmt, Store, offset_of
from bringup.ir.walk import bridges, operands
from bringup.targets.fold import Fold, fold_of
from bringup.targets.portable_ops import Given, Machine, expanded
from bringup.targets.target import CannotRender

Lines = list[str]
_NAMES: dict[type[OfTwo], str] = {FloorDiv: "floordiv", Mod: "remainder", Min: "min", Max: "max"}


class ScalarEmitter(ABC):
    """One kernel as text. Variables: ``b_`` (addresses of buffers), ``n_`` (sizes), ``i_`` (axes), ``v_``
    (values), ``w_`` and ``g_`` (states of sums, and parts of composed ops)."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        #: Every variable of the function, with its type.
        self.variables: dict[str, DType] = {}
        #: Scratch that the function needs: the kernel's Locals, and the states of reductions in lanes.
        self.scratch: list[Local] = list(kernel.locals)
        self._places: dict[AsIndex, str] = {}
        self._given: dict[str, str] = {}

    # ---- what a language says ----
    @abstractmethod
    def instruction(self, op: str, types: Sequence[DType], to: DType) -> str | None:
        """Returns how an op of operands of some types is written, with {} for each; None if it is composed of others.

        The ops are those of ir/ops.py, ``cast``, ``bits``, ``fma``, ``select`` (condition, yes, no), and the plain ones
        of portable_ops.py. A language needs the plain ones, ``select``, casts between its types, comparisons, and
        arithmetic; whatever else it has is quicker than what would be composed.
        """

    @abstractmethod
    def constant(self, value: Const) -> str:
        """Returns a constant."""

    @abstractmethod
    def given(self, assignment: str, body: str, to: DType) -> str:
        """Returns a value that is computed after an assignment."""

    @abstractmethod
    def either(self, condition: str, yes: str, no: str, to: DType) -> str:
        """Returns one of two values; the other one is not computed."""

    @abstractmethod
    def load(self, memory: Buffer | Local, offset: str) -> str:
        """Returns the element of a buffer or scratch at an offset, in elements."""

    @abstractmethod
    def checked(self, place: str, inside: str, extent: str) -> str:
        """Returns the variable ``place``, and ends the kernel with a report if it is not ``inside``."""

    @abstractmethod
    def assignment(self, variable: str, value: str) -> str:
        """Returns the statement that gives a variable its value."""

    @abstractmethod
    def store(self, memory: Buffer | Local, offset: str, value: str) -> str:
        """Returns the statement that writes an element."""

    @abstractmethod
    def branch(self, condition: str, body: Lines) -> Lines:
        """Returns statements that run if a condition holds."""

    @abstractmethod
    def loop(self, variable: str, begin: str, end: str, body: Lines) -> Lines:
        """Returns a loop of a variable over begin … end - 1; the end does not change in it."""

    # ---- values ----
    def value(self, expr: Expr) -> str:
        """Returns the text of a value."""
        if isinstance(expr, Const):
            return self.constant(expr)
        if isinstance(expr, (Name, Param)):
            return self.read(self._given.get(expr.name) or variable_of(expr.name))
        if isinstance(expr, IndexValue):
            return self.index(expr.index)
        if isinstance(expr, Load):
            return self._load(expr)
        if isinstance(expr, Given):
            # Numbered here: the same kernel is the same text, whatever was rendered before.
            name = self._given[expr.name.name] = f"g_{len(self._given)}"
            assignment = self.assign(name, self.value(expr.value), expr.name.dtype)
            return self.given(assignment, self.value(expr.body), expr.dtype)
        if isinstance(expr, (Cast, Bits)) and expr.x.dtype is expr.type:
            return self.value(expr.x)
        op, inside = _parts(expr)
        template = self.instruction(op, [x.dtype for x in inside], expr.dtype)
        if template is not None:
            return template.format(*map(self.value, inside))
        other = expanded(expr)
        if other is None:
            raise CannotRender(f"{op} of {', '.join(x.dtype.name for x in inside)}")
        return self.value(other)

    def read(self, variable: str) -> str:
        """Returns the text that reads a variable."""
        return variable

    def assign(self, variable: str, value: str, dtype: DType) -> str:
        """Returns an assignment, and makes the variable known."""
        self.variables[variable] = dtype
        return self.assignment(variable, value)

    def _bind(self, names: Sequence[str], values: Sequence[Expr]) -> Lines:
        """Names for values, all of which are computed before the first is bound."""
        if len(names) == 1:
            return [self.assign(variable_of(names[0]), self.value(values[0]), values[0].dtype)]
        new = [(f"{variable_of(name)}_new", variable_of(name), value) for name, value in zip(names, values)]
        return [
            *(self.assign(fresh, self.value(value), value.dtype) for fresh, _, value in new),
            *(self.assign(name, self.read(fresh), value.dtype) for fresh, name, value in new),
        ]

    # ---- indices and memory ----
    def index(self, index: Index) -> str:
        """Returns the text of an index, an int64."""
        if isinstance(index, Int):
            return self.constant(const(index.value, int64))
        if isinstance(index, (AxisVar, Size)):
            return self.read(f"{'i' if isinstance(index, AxisVar) else 'n'}_{index.name}")
        if isinstance(index, AsIndex):
            if index in self._places:
                return self.read(self._places[index])
            variable, start, inside = self._place(index)
            return self.given(start, self.checked(variable, inside, self.index(index.extent)), int64)
        if isinstance(index, Sum):
            return self.value(reduce(lambda a, b: Binary("add", a, b), map(_product, index.terms)))
        assert isinstance(index, OfTwo)
        return self.value(Binary(_NAMES[type(index)], IndexValue(index.a), IndexValue(index.b)))

    def _place(self, bridge: AsIndex) -> tuple[str, str, str]:
        """A value taken as an index: its variable, the assignment to it, and the test whether it is in range."""
        name = f"place{len(self.variables)}"
        place, extent = Name(name, int64), IndexValue(bridge.extent)
        value: Expr = Cast(bridge.value, int64)
        if bridge.mode == "wrap":
            value = Binary("add", value, Where(value < 0, extent, const(0, int64)))
        start = self.assign(f"v_{name}", self.value(value), int64)
        return f"v_{name}", start, self.value((place >= 0) & Binary("lt", place, extent))

    def _offset(self, memory: Buffer | Local, indices: Sequence[Index]) -> str:
        return self.index(offset_of(memory, tuple(indices)))

    def _skipping(self, indices: Sequence[Index]) -> list[tuple[AsIndex, str, str]]:
        """The values in indices that may skip an access: (value, assignment of its place, test)."""
        found = []
        for bridge in dict.fromkeys(bridge for index in indices for bridge in bridges(index)):
            if bridge.mode == "skip" and bridge not in self._places:
                variable, start, inside = self._place(bridge)
                found.append((bridge, start, inside))
                self._places[bridge] = variable
        return found

    def _load(self, expr: Load) -> str:
        other = self.value(const(0, expr.type) if expr.other is None else expr.other)
        skipping = self._skipping(expr.indices)
        memory = self.memory(expr.buffer)
        text = self.load(memory, self._offset(memory, expr.indices))
        for bridge, start, inside in reversed(skipping):
            text = self.given(start, self.either(inside, text, other, expr.type), expr.type)
            del self._places[bridge]
        return text if expr.guard is None else self.either(self.value(expr.guard), text, other, expr.type)

    def memory(self, name: str) -> Buffer | Local:
        """Returns the buffer or Local of a name."""
        memory = self.kernel.buffer(name)
        assert memory is not None
        return memory

    def _store(self, stmt: Store) -> Lines:
        skipping = self._skipping(stmt.indices)
        memory = self.memory(stmt.buffer)
        value = stmt.value
        if stmt.combine is not None:
            value = Binary(stmt.combine, Load(stmt.buffer, stmt.indices, memory.dtype), value)
        lines = [self.store(memory, self._offset(memory, stmt.indices), self.value(value))]
        for bridge, start, inside in reversed(skipping):
            lines = [start, *self.branch(inside, lines)]
            del self._places[bridge]
        return lines if stmt.guard is None else self.branch(self.value(stmt.guard), lines)

    # ---- statements ----
    def block(self, block: Block) -> Lines:
        """Returns the statements of a block."""
        return [line for stmt in block for line in self._statement(stmt)]

    def _statement(self, stmt: Stmt) -> Lines:
        if isinstance(stmt, Let):
            return self._bind([stmt.name], [stmt.value])
        if isinstance(stmt, Store):
            return self._store(stmt)
        if isinstance(stmt, Loop):
            step = [*self.block(stmt.body), *self._bind(stmt.carried, stmt.updates)]
            return [*self._bind(stmt.carried, stmt.inits), *self.loops((stmt.axis,), step, stmt.count)]
        if isinstance(stmt, (Reduce, Contract)):
            return self._fold(fold_of(stmt))
        combine = stmt.combine
        states = [Name(name, init.dtype) for name, init in zip(combine.left, stmt.inits)]
        bind, merge = self._bind(stmt.names, states), self._bind(combine.left, combine.results)
        values = [*self.block(stmt.body), *self._bind(combine.right, stmt.values)]
        step = [*values, *bind, *merge] if stmt.exclusive else [*values, *merge, *bind]
        return [*self._bind(combine.left, stmt.inits), *self.loops((stmt.axis,), [*step, *self.block(stmt.then)])]

    def loops(self, axes: Sequence[Axis], body: Lines, count: Expr | None = None) -> Lines:
        """Returns nested loops over axes, the first one outermost; ``count`` ends them earlier."""
        for axis in reversed(axes):
            end = f"n_{axis.name}_end"
            steps = self.index(axis.extent)
            if count is not None:
                steps = self.value(binary("min", count, IndexValue(axis.extent)))
            start = self.assign(end, steps, int64)
            self.variables[f"i_{axis.name}"] = int64
            zero = self.constant(const(0, int64))
            body = [start, *self.loop(f"i_{axis.name}", zero, self.read(end), body)]
        return body

    def _fold(self, fold: Fold) -> Lines:
        """Folds values into names; states of several lanes are in scratch, and a tree merges them."""
        left, right, lanes = fold.join.left, fold.join.right, fold.lanes
        start = self._bind(left, fold.inits)
        step = [*self.block(fold.body), *self._bind(fold.step.right, fold.values), *self._bind(left, fold.step.results)]
        results: list[Expr] = [Name(name, init.dtype) for name, init in zip(left, fold.inits)]
        if fold.last is not None:
            results = [fold.last + results[0]]
        bind = self._bind(fold.names, results)
        if lanes == 1:
            return [*start, *self.loops(fold.axes, step), *bind]
        states = [Local(f"{name}_lanes", init.dtype, (lanes,)) for name, init in zip(fold.names, fold.inits)]
        self.scratch += states
        lane, half = Axis(f"{fold.names[0]}_lane", Int(lanes)), f"{fold.names[0]}_half"

        def read(names: Sequence[str], at: Index) -> Lines:
            text = self.index(at)
            return [
                self.assign(variable_of(name), self.load(state, text), state.dtype)
                for name, state in zip(names, states)
            ]

        def write(at: Index) -> Lines:
            text = self.index(at)
            return [self.store(state, text, self.read(variable_of(name))) for name, state in zip(left, states)]

        merge = self._bind(left, fold.join.results)
        lines = [*start, *self.loops([lane], write(lane.var))]
        own = fold.axes[-1].var % lanes
        lines += self.loops(fold.axes, [*read(left, own), *step, *write(own)])
        width = lanes // 2
        while width:
            lines.append(self.assign(f"n_{half}", self.index(Int(width)), int64))
            pair = [*read(left, lane.var), *read(right, lane.var + Size(half)), *merge]
            lines += self.loops([Axis(lane.name, Size(half))], [*pair, *write(lane.var)])
            width //= 2
        return [*lines, *read(left, Int(0)), *bind]


def variable_of(name: str) -> str:
    """Returns the variable of a name; those with a space (fold.py) are apart from a kernel's own."""
    return f"w_{name.replace(' ', '_')}" if " " in name else f"v_{name}"


def _product(term: tuple[tuple[Index, ...], int]) -> Expr:
    factors, number = term
    values: list[Expr] = [IndexValue(factor) for factor in factors]
    if number != 1 or not factors:
        values.append(IndexValue(Int(number)))
    return reduce(lambda a, b: Binary("mul", a, b), values[1:], values[0])


def _parts(expr: Expr) -> tuple[str, tuple[Expr, ...]]:
    """What ``ScalarEmitter.instruction`` calls a value, and its operands."""
    if isinstance(expr, Machine):
        return expr.op, expr.operands
    if isinstance(expr, (Unary, Binary)):
        return expr.op, operands(expr)
    name = {Where: "select", Cast: "cast", Bits: "bits", Fma: "fma"}.get(type(expr))
    if name is None:
        raise CannotRender(f"{type(expr).__name__} of {expr.dtype.name}")
    return name, operands(expr)
