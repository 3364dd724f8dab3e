"""IR values and indices to C: each is declared once, in the outermost scope where everything it needs is known."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

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
    Philox,
    Unary,
    Where,
)
from bringup.ir.fold_values import may_raise
from bringup.ir.guards import index_of
from bringup.ir.index import AxisVar, FloorDiv, Index, Int, Max, Min, Mod, Size, Sum, atoms, axes_in, coefficient
from bringup.ir.walk import bridges, indices_of, operands, subexpressions
from bringup.targets.c import integer as c_integer
from bringup.targets.c.operations import Operations
from bringup.targets.c.options import COptions
from bringup.targets.c.value import Value, kind_of, literal

_ROW_BITS = 256  # of draws: two blocks of Philox, the fewest that make a vector


class Values(Operations):
    """Emits values. ``load`` is in access.py."""

    def __init__(self, target: COptions, written: frozenset[str]) -> None:
        super().__init__(target)
        self.written = written
        self.active: Value | None = None  # where a guard further out holds; None: everywhere
        self._moving: dict[Expr, bool] = {}
        self._raising: dict[Expr, bool] = {}

    # what may be remembered

    def moving(self, expr: Expr) -> bool:
        """True if a value reads memory that the kernel writes: it is read where it stands, each time."""
        if expr not in self._moving:
            parts = subexpressions(expr)
            self._moving[expr] = any(isinstance(part, Load) and part.buffer in self.written for part in parts)
        return self._moving[expr]

    def raising(self, expr: Expr) -> bool:
        """True if a value can report an index that is out of range."""
        if expr not in self._raising:
            self._raising[expr] = may_raise(expr)
        return self._raising[expr]

    def _key(self, expr: Expr) -> Hashable | None:
        if self.moving(expr):
            return None
        return (expr, self.active.text) if self.active is not None and self.raising(expr) else expr

    def varies(self, expr: Expr) -> bool:
        """True if a value differs between the lanes of the vector axis."""
        if self.vector is None:
            return False
        if isinstance(expr, Name):
            return self.name(expr.name).lanes > 1
        if isinstance(expr, Load) and self.private(expr.buffer):
            return True
        return any(self.varies(part) for part in operands(expr)) or any(self.moves(i) for i in indices_of(expr))

    def private(self, buffer: str) -> bool:
        """True for a Local of which each lane has its own."""
        return False

    def moves(self, index: Index) -> bool:
        """True if an index differs between the lanes."""
        if self.vector is None:
            return False
        for atom in atoms(index):
            if atom == AxisVar(self.vector.axis) or (isinstance(atom, AsIndex) and self.varies(atom.value)):
                return True
        return False

    def stride(self, index: Index) -> Index | None:
        """By how much an index grows from lane to lane; None if that is not one number."""
        if self.vector is None:
            return Int(0)
        scale, rest = coefficient(index, AxisVar(self.vector.axis))
        return None if self.moves(scale) or self.moves(rest) else scale

    # fitting values together

    def fit(self, value: Value) -> Value:
        """A value for use here: inside a loop over lanes, the lane of a vector."""
        if self.lane is None or value.lanes == 1:
            return value
        key = ("lane", value.text, self.lane)
        found = self.find(key)
        if found is None:
            text = f"{value.text}[{self.lane}]"
            found = self.declare(f"({text} != 0)" if value.kind == "bool" else text, value.kind, 1, self.depth)
            self.stack[self.depth].memo[key] = found
        return found

    # values

    def value(self, expr: Expr) -> Value:
        """The value of an expression here, computed once per scope."""
        if isinstance(expr, Const):
            return Value(literal(expr), kind_of(expr.type))
        if isinstance(expr, Name):
            return self.fit(self.name(expr.name))
        key = self._key(expr)
        found = self.find(key) if key is not None else None
        if found is not None:
            return self.fit(found)
        made = self._compute(expr)
        if key is not None:
            self.stack[made.depth].memo[key] = made
        return made

    def _compute(self, expr: Expr) -> Value:
        if isinstance(expr, Load):
            return self.load(expr)
        if isinstance(expr, Unary):
            return self.unary(expr.op, self.value(expr.x), expr.x.dtype)
        if isinstance(expr, Binary):
            below = self._lanes_below(expr)
            if below is not None:
                return below
            return self.binary(expr.op, self.value(expr.a), self.value(expr.b), expr.a.dtype)
        if isinstance(expr, Where):
            return self.where(self.value(expr.condition), self.value(expr.yes), self.value(expr.no))
        if isinstance(expr, Cast):
            return self.cast(self.value(expr.x), expr.x.dtype, expr.type)
        if isinstance(expr, Bits):
            return self.reinterpreted(self.value(expr.x), expr.x.dtype, expr.type)
        if isinstance(expr, Fma):
            texts, lanes, depth = self.together(*(self.value(e) for e in (expr.a, expr.b, expr.c)))
            kind = kind_of(expr.dtype)
            return self.declare(self.call("fma", kind, lanes, *texts), kind, lanes, depth)
        if isinstance(expr, IndexValue):
            return self.index_value(expr)
        if isinstance(expr, Philox):
            return self.philox(expr)
        assert isinstance(expr, Param)
        return self.name(expr.name)

    def load(self, expr: Load) -> Value:
        """An element of memory."""
        raise NotImplementedError

    def by_lane(self, expr: Expr) -> Value:
        """A value computed one lane after the other."""
        raise NotImplementedError

    def philox(self, expr: Philox) -> Value:
        """A draw."""
        seed, offset = self.value(expr.seed), self.value(expr.offset)
        if max(seed.lanes, offset.lanes) > 1:
            return self.by_lane(expr)
        if self.vector is not None and self.lane is None and self.vector.lanes * expr.bits >= _ROW_BITS:
            row = draws_in_a_row(expr, self.vector.axis)
            if row is not None:
                return self._philox_row(expr.bits, self.vector.lanes, seed, offset, row)
        counter = self.value(expr.counter)
        lanes = counter.lanes
        if lanes > 1:
            self.snippet(f"philox{expr.bits}x{lanes}", c_integer.philox_vector(expr.bits, lanes))
            text = f"bu_philox{expr.bits}x{lanes}({seed.text}, {offset.text}, {counter.text})"
            return self.declare(text, f"u{expr.bits}", lanes, max(seed.depth, offset.depth, counter.depth))
        self.snippet("philox_block", c_integer.PHILOX_BLOCK)
        self.snippet(f"philox{expr.bits}", c_integer.philox(expr.bits))
        depth = max(seed.depth, offset.depth, counter.depth)
        text = f"bu_philox{expr.bits}({seed.text}, {offset.text}, {counter.text})"
        return self.declare(text, f"u{expr.bits}", 1, depth)

    def _philox_row(self, bits: int, lanes: int, seed: Value, offset: Value, row: Index) -> Value:
        first, depth = self.index(row)
        self.snippet("philox_block", c_integer.PHILOX_BLOCK)
        self.snippet(f"philox{bits}_rowx{lanes}", c_integer.philox_row(bits, lanes))
        text = f"bu_philox{bits}_rowx{lanes}({seed.text}, {offset.text}, (uint64_t){first})"
        return self.declare(text, f"u{bits}", lanes, max(seed.depth, offset.depth, depth))

    # indices

    def index(self, index: Index, places: dict[AsIndex, Value] | None = None) -> tuple[str, int]:
        """An index in C (of lane 0 where it differs between lanes), and its scope."""
        if isinstance(index, Int):
            return f"INT64_C({index.value})" if abs(index.value) >> 31 else str(index.value), 0
        if isinstance(index, Size):
            return f"n_{index.name}", 0
        if isinstance(index, AxisVar):
            return self.axis(index.name)
        if isinstance(index, AsIndex):
            place = (places or {})[index]
            return place.text, place.depth
        if isinstance(index, Sum):
            words, depths = [], [0]
            for factors, value in index.terms:
                parts = [self.index(factor, places) for factor in factors]
                depths += [depth for _, depth in parts]
                texts = [text for text, _ in parts]
                if value != 1 or not texts:
                    texts.insert(0, self.index(Int(value))[0])
                words.append(" * ".join(texts))
            return f"({' + '.join(words)})", max(depths)
        assert isinstance(index, (FloorDiv, Mod, Min, Max))
        (a, depth_a), (b, depth_b) = self.index(index.a, places), self.index(index.b, places)
        depth = max(depth_a, depth_b)
        if isinstance(index, (Min, Max)):
            return f"({a} {'<' if isinstance(index, Min) else '>'} {b} ? {a} : {b})", depth
        divides = isinstance(index, FloorDiv)
        if self.facts.non_negative(index.a):
            return f"({a} {'/' if divides else '%'} {b})", depth
        self.snippet("index_division", c_integer.INDEX_DIVISION)
        return f"bu_index_{'div' if divides else 'mod'}({a}, {b})", depth

    def index_value(self, expr: IndexValue) -> Value:
        """An index as a value."""
        index = expr.index
        if self.moves(index):
            assert self.vector is not None
            step = self.stride(index)
            if step is None or any(isinstance(atom, AsIndex) for atom in atoms(index)):
                return self.by_lane(expr)
            lanes = self.vector.lanes
            (base, depth), (scale, _) = self.index(index), self.index(step)
            numbers = ", ".join(str(k) for k in range(lanes))
            scaled = "" if step == Int(1) else f" * {scale}"
            return self.declare(f"(i64x{lanes}){{{numbers}}}{scaled} + (int64_t){base}", "i64", lanes, depth)
        places, _ = self.bridged((index,))
        text, depth = self.index(index, places)
        return self.declare(text, "i64", 1, max(depth, self.pin if places else 0))

    def bridged(self, indices: tuple[Index, ...]) -> tuple[dict[AsIndex, Value], Value | None]:
        """The places of the values that indices take as indices, and where all are in range (None: everywhere)."""
        raise NotImplementedError

    def _lanes_below(self, expr: Binary) -> Value | None:
        """A comparison of indices that differ by 1 from lane to lane: the first lanes, or the last, in 32 bits."""
        if self.vector is None:
            return None
        order = index_order(expr, self.vector.axis)
        if order is None:
            return None
        lanes = self.vector.lanes
        text, depth = self.index(order.rest + AxisVar(self.vector.axis))  # negative in the lanes below
        edge = self.declare(f"-{text}", "i64", 1, depth)
        most = f"({edge.text} < 0 ? 0 : {edge.text} > {lanes} ? {lanes} : (int32_t){edge.text})"
        numbers = ", ".join(str(k) for k in range(lanes))
        mask = f"((i32x{lanes}){{{numbers}}} {'<' if order.below else '>='} {most})"
        return self.declare(mask, "bool", lanes, depth)


@dataclass(frozen=True)
class IndexOrder:
    """``rest + axis < 0`` (below), or its opposite: what a comparison of two indices says along an axis."""

    rest: Index
    below: bool


def draws_in_a_row(expr: Philox, axis: str) -> Index | None:
    """The number of a draw, if the next step of an axis has the next draw; None if not.

    >>> from bringup.ir.dtypes import uint64
    >>> seed, i = Param("seed", uint64), AxisVar("i")
    >>> draws_in_a_row(Philox(seed, seed, Cast(IndexValue(i), uint64), 32), "i")
    AxisVar(name='i')
    >>> draws_in_a_row(Philox(seed, seed, Cast(IndexValue(i * 2), uint64), 32), "i")
    """
    counter = expr.counter
    if not (isinstance(counter, Cast) and isinstance(counter.x, IndexValue)):
        return None
    index = counter.x.index
    scale, rest = coefficient(index, AxisVar(axis))
    return index if scale == Int(1) and axis not in axes_in(rest) and not bridges(rest) else None


def index_order(expr: Binary, axis: str) -> IndexOrder | None:
    """A comparison of indices as the sign of something that grows by 1 along an axis; None if it is not that.

    >>> index_order(Binary("lt", IndexValue(AxisVar("i")), IndexValue(Size("n"))), "i").below
    True
    """
    a, b = index_of(expr.a), index_of(expr.b)
    if a is None or b is None or expr.op not in ("lt", "le", "gt", "ge"):
        return None
    scale, rest = coefficient(a - b, AxisVar(axis))
    op = expr.op
    if scale == Int(-1):
        rest, op = -rest, {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}[op]
    elif scale != Int(1):
        return None
    if axis in axes_in(rest) or bridges(rest):
        return None
    return IndexOrder(rest - 1 if op in ("le", "gt") else rest, op in ("lt", "le"))
