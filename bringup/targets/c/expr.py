"""IR values and indices to C: each is declared once, in the outermost scope where everything it needs is known."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from bringup.ir.dtypes import float32
from bringup.ir.expr import Binary, Bits, Cast, Const, Expr, Fma, IndexValue, Load, Name, Param, Philox, Unary, Where
from bringup.ir.fold_values import may_raise
from bringup.ir.guards import index_of
from bringup.ir.index import AxisVar, Index, Int, axes_in, coefficient
from bringup.ir.walk import bridges, subexpressions
from bringup.targets.c import integer as c_integer
from bringup.targets.c.lanes import Lanes
from bringup.targets.c.operations import Operations
from bringup.targets.c.scope import Scopes
from bringup.targets.c.value import Value, ctype, kind_of, literal

_ROW_BITS = 256  # of draws: two blocks of Philox, the fewest that make a vector


@dataclass
class Values:
    """Emits values. ``emitters`` says how, for each kind of expression; access.py adds those that look at memory."""

    w: Scopes
    ops: Operations
    lanes: Lanes
    changing: frozenset[str]
    """The memory that the kernel both reads and writes."""

    def __post_init__(self) -> None:
        ops, value = self.ops, self.value
        self.emitters: dict[type[Expr], Callable[[Any], Value]] = {
            Unary: lambda e: ops.unary(e.op, value(e.x), e.x.dtype),
            Binary: self._binary,
            Where: lambda e: ops.where(value(e.condition), value(e.yes), value(e.no)),
            Cast: lambda e: ops.cast(value(e.x), e.x.dtype, e.type),
            Bits: lambda e: ops.reinterpreted(value(e.x), e.x.dtype, e.type),
            Fma: self._fma,
            Philox: self._philox,
        }
        self._moving: dict[Expr, bool] = {}
        self._raising: dict[Expr, bool] = {}

    # what may be remembered

    def moving(self, expr: Expr) -> bool:
        """True if a value reads memory that the kernel writes: it is read where it stands, each time."""
        if not self.changing:
            return False
        known = self._moving.get(expr)
        if known is None:
            parts = subexpressions(expr)
            known = any(isinstance(part, Load) and part.buffer in self.changing for part in parts)
            self._moving[expr] = known
        return known

    def raising(self, expr: Expr) -> bool:
        """True if a value can report an index that is out of range."""
        if expr not in self._raising:
            self._raising[expr] = may_raise(expr)
        return self._raising[expr]

    def _key(self, expr: Expr) -> Hashable | None:
        if self.moving(expr):
            return None
        active = self.w.active
        return (expr, active.text) if active is not None and self.raising(expr) else expr

    # values

    def value(self, expr: Expr) -> Value:
        """The value of an expression here, computed once per scope."""
        if isinstance(expr, Const):
            return Value(literal(expr), kind_of(expr.type))
        if isinstance(expr, (Name, Param)):
            return self.lanes.fit(self.w.name(expr.name))
        key = self._key(expr)
        found = self.w.find(key) if key is not None else None
        if found is not None:
            return self.lanes.fit(found)
        made = self.emitters[type(expr)](expr)
        return made if key is None else self.w.remember(key, made)

    def by_lane(self, expr: Expr) -> Value:
        """A value computed one lane after the other."""
        w = self.w
        assert w.vector is not None
        kind, lanes = kind_of(expr.dtype), w.vector.lanes
        result = w.fresh()
        w.line(f"{ctype(kind, lanes)} {result} = {{0}};")
        with self.lanes.each() as lane:
            value = self.value(expr)
            w.line(f"{result}[{lane}] = {'-' if kind == 'bool' else ''}{value.text};")
        return Value(result, kind, lanes, w.depth)

    def _fma(self, expr: Fma) -> Value:
        texts, lanes, depth = self.ops.together(*(self.value(e) for e in (expr.a, expr.b, expr.c)))
        kind = kind_of(expr.dtype)
        return self.w.declare(self.w.call("fma", kind, lanes, *texts), kind, lanes, depth)

    def _binary(self, expr: Binary) -> Value:
        order = None if self.w.vector is None else index_order(expr, self.w.vector.axis)
        if order is not None:
            return self._lanes_below(order)
        clamped = _clamped(expr)
        if clamped is not None and self.w.vector is None and self.w.target.isa.startswith("rv"):
            x, low, high = (self.value(part) for part in clamped)
            depth = max(x.depth, low.depth, high.depth)
            return self.w.declare(self.w.call("clamp", x.kind, 1, x.text, low.text, high.text), x.kind, 1, depth)
        return self.ops.binary(expr.op, self.value(expr.a), self.value(expr.b), expr.a.dtype)

    def _lanes_below(self, order: IndexOrder) -> Value:
        """A comparison of indices that differ by 1 from lane to lane: the first lanes, or the last, in 32 bits."""
        w = self.w
        assert w.vector is not None
        lanes = w.vector.lanes
        text, depth = w.index(order.rest + AxisVar(w.vector.axis))  # negative in the lanes below
        edge = w.declare(f"-{text}", "i64", 1, depth)
        most = f"({edge.text} < 0 ? 0 : {edge.text} > {lanes} ? {lanes} : (int32_t){edge.text})"
        numbers = ", ".join(str(k) for k in range(lanes))
        mask = f"((i32x{lanes}){{{numbers}}} {'<' if order.below else '>='} {most})"
        return w.declare(mask, "bool", lanes, depth)

    def _philox(self, expr: Philox) -> Value:
        w, bits = self.w, expr.bits
        seed, offset = self.value(expr.seed), self.value(expr.offset)
        if max(seed.lanes, offset.lanes) > 1:
            return self.by_lane(expr)
        row = None
        if w.vector is not None and w.lane is None and w.vector.lanes * bits >= _ROW_BITS:
            row = draws_in_a_row(expr, w.vector.axis)
        if row is not None and w.vector is not None:
            lanes, (first, depth) = w.vector.lanes, w.index(row)
            name, counter = f"philox{bits}_rowx{lanes}", f"(uint64_t){first}"
            w.snippet("philox_block", c_integer.PHILOX_BLOCK)
            w.snippet(name, c_integer.philox_row(bits, lanes))
        else:
            made = self.value(expr.counter)
            counter, lanes, depth = made.text, made.lanes, made.depth
            name = f"philox{bits}" if lanes == 1 else f"philox{bits}x{lanes}"
            if lanes == 1:
                w.snippet("philox_block", c_integer.PHILOX_BLOCK)
            w.snippet(name, c_integer.philox(bits) if lanes == 1 else c_integer.philox_vector(bits, lanes))
        text = f"bu_{name}({seed.text}, {offset.text}, {counter})"
        return w.declare(text, f"u{bits}", lanes, max(seed.depth, offset.depth, depth))


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


def _clamped(expr: Binary) -> tuple[Expr, Const, Const] | None:
    """The parts of min(max(x, low), high) of float32 where both bounds are numbers, and no zero has the wrong sign."""
    inner, high = expr.a, expr.b
    if expr.op != "min" or not isinstance(inner, Binary) or inner.op != "max" or expr.dtype is not float32:
        return None
    low = inner.b
    if not isinstance(low, Const) or not isinstance(high, Const) or not low.value <= high.value:
        return None
    return None if high.value == 0 or (low.value == 0 and low.bits) else (inner.a, low, high)


def index_order(expr: Binary, axis: str) -> IndexOrder | None:
    """A comparison of indices as the sign of something that grows by 1 along an axis; None if it is not that.

    >>> index_order(Binary("lt", IndexValue(AxisVar("i")), IndexValue(Int(4))), "i").below
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
