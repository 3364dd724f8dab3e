"""An elementwise producer inside a consumer that runs over another grid: each load becomes the value stored there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bringup.graph.fusion.compose import Link, parts_of, place_of, refined
from bringup.graph.fusion.forwarding import guarded, settled
from bringup.graph.fusion.mixed_radix import exact, layout, place, solved
from bringup.graph.fusion.piece import Access, Piece, View, Workshop
from bringup.graph.fusion.recompute_cost import Weight, weight
from bringup.graph.fusion.regrid import split
from bringup.graph.fusion.steps import Memory, Refused, Rule, need
from bringup.ir.expr import Cast, Expr, Load, Name
from bringup.ir.guards import guard_facts
from bringup.ir.index import AxisVar, Index, Int
from bringup.ir.kernel import Axis, Contract, Let, Store
from bringup.ir.walk import Substitution, bridges, subexpressions
from bringup.targets.target import FusionLimits


@dataclass(frozen=True)
class Formula:
    """What an elementwise kernel stores to one memory: a value over its grid, and where it goes."""

    axes: tuple[Axis, ...]
    store: Store
    value: Expr
    cost: Weight


def formula_of(shop: Workshop, piece: Piece, memory: Memory) -> Formula:
    """The value that a piece stores to an allocation, without names; Refused if there is no such expression."""
    wanted = settled(shop, piece, lambda other: other == memory)
    names: dict[str, Expr] = {}
    lengths: dict[str, int] = {}
    store = None

    def length(expr: Expr) -> int:
        """Of the expression without names. Counted ahead: a series whose steps use two before them grows by powers."""
        parts = subexpressions(expr)
        return sum(lengths.get(part.name, 1) if isinstance(part, Name) else 1 for part in parts)

    for stmt in wanted.body:
        if isinstance(stmt, Let):
            lengths[stmt.name] = length(stmt.value)
            if lengths[stmt.name] <= shop.limits.expression:
                names[stmt.name] = Substitution(names=names).value(stmt.value)
        elif isinstance(stmt, Store) and shop.memory(stmt.buffer) == memory:
            need(store is None, Rule.LOOPS, "the memory is stored to more than once")
            store = stmt
    assert store is not None
    need(store.guard is None and store.combine is None, Rule.LOOPS, "the memory is not stored to at every point")
    short = length(store.value) <= shop.limits.expression
    need(short, Rule.RECOMPUTE, "the expression is too long to be written more than once")
    value = Substitution(names=names).value(store.value)
    loads = {shop.memory(part.buffer) for part in subexpressions(value) if isinstance(part, Load)}
    need(not loads & piece.writes, Rule.ORDER, "the producer reads what it writes")
    return Formula(piece.axes, store, value, weight([value], shop.limits.slow))


@dataclass(frozen=True)
class Inlined:
    """The new consumer, and what it computes there."""

    piece: Piece
    cost: Weight
    #: True if no load takes a value twice.
    distinct: bool
    #: True if the value does not change along the innermost axis of the consumer: one is computed for all its steps.
    steady: bool
    #: True if a value is read through windows that overlap.
    windows: bool
    #: How many values the consumer takes in all, in the call that the graph was traced with.
    taken: int


def inlined(shop: Workshop, producer: Piece, consumer: Piece, memory: Memory) -> Inlined:
    """The consumer with the producer's value for each load of an allocation; Refused where that cannot be said."""
    need(
        producer.straight and not producer.ordered,
        Rule.LOOPS,
        "only an elementwise kernel goes into another one's loads",
    )
    loads = [n for n, a in enumerate(consumer.accesses) if shop.memory(a.buffer) == memory]
    need(all(consumer.accesses[n].load is not None for n in loads), Rule.ORDER, "the consumer writes the memory, too")
    stores = [n for n, a in enumerate(producer.accesses) if a.store is not None and shop.memory(a.buffer) == memory]
    need(len(stores) == 1, Rule.LOOPS, "the memory is not stored to exactly once")
    need(
        place_of(shop, producer, producer.accesses[stores[0]]) is not None,
        Rule.LOOPS,
        "not stored along the producer's axes",
    )
    for number in loads:  # splitting axes keeps the order of accesses
        access = consumer.accesses[number]
        own = place_of(shop, consumer, access)
        if own is not None and exact(own, shop.formulas) and _unguarded(access):
            producer, consumer, _, _ = refined(shop, producer, consumer, Link(memory, stores[0], number))
        else:  # a window, or padding: the producer runs along the dimensions that the consumer sees
            made = place_of(shop, producer, producer.accesses[stores[0]])
            assert made is not None
            producer = split(shop, producer, parts_of(shop, producer, made, layout(shop.views[access.buffer])))
    formula = formula_of(shop, producer, memory)
    found = [a for a in consumer.accesses if shop.memory(a.buffer) == memory]
    points: dict[Load, dict[str, Index]] = {}
    distinct, steady, windows, taken = True, True, False, 0
    for access in found:
        load = access.load
        assert load is not None
        own = place_of(shop, consumer, access)
        around = [axis.name for axis in (*consumer.axes, *access.axes)]
        windows = windows or own is None or not exact(own, shop.formulas)
        distinct = distinct and not windows and own is not None and set(around) <= set(own.axes)
        inner = (access.axes or consumer.axes)[-1:]
        steady = steady and own is not None and all(axis.name not in own.axes for axis in inner)
        if load not in points:
            taken += shop.steps(consumer.axes) * shop.steps(access.axes)
        points[load] = _positions(shop, producer, consumer, formula, access)
    _check_contract(shop, consumer, memory, formula)

    def instead(load: Load) -> Expr:
        if shop.memory(load.buffer) != memory:
            return load
        at = points.get(load)
        if at is None:  # a load inside another's index was replaced first
            raise Refused(Rule.LOOPS, "the memory is an index of itself")
        return _value(shop, formula, load, at, consumer)

    body = Substitution(load=instead).block(consumer.body)
    piece = replace(consumer, name=f"{producer.name}_{consumer.name}", body=body)
    return Inlined(piece, formula.cost, distinct, steady, windows, taken)


def _unguarded(access: Access) -> bool:
    return access.load is not None and access.load.guard is None


def _positions(shop: Workshop, producer: Piece, consumer: Piece, formula: Formula, access: Access) -> dict[str, Index]:
    load = access.load
    assert load is not None
    need(not any(bridges(index) for index in load.indices), Rule.LOOPS, "the memory is read at places that are values")
    made, wanted = shop.views[formula.store.buffer], shop.views[load.buffer]
    need(made.dtype is wanted.dtype, Rule.ORDER, "the memory is seen as two types")
    if (made.strides, made.offset) == (wanted.strides, wanted.offset) and _covers(shop, producer, formula, wanted):
        return {at.name: index for at, index in zip(formula.store.indices, load.indices) if isinstance(at, AxisVar)}
    want = place(shop.linear(formula.store.buffer, formula.store.indices), producer.extents, shop.formulas)
    assert want is not None
    linear = shop.linear(load.buffer, load.indices)
    guards = guard_facts(load.guard)
    point = solved(linear, want, shop.formulas, consumer.extents, guards)
    if point is None:
        raise Refused(Rule.LOOPS, "the consumer reads the memory in another order than it is made")
    return point


def _covers(shop: Workshop, producer: Piece, formula: Formula, wanted: View) -> bool:
    """True if the producer walks each dimension by an axis of its own, at least as far as the reader sees it."""
    names = [index.name for index in formula.store.indices if isinstance(index, AxisVar)]
    if len(set(names)) != len(names):
        return False
    for index, extent in zip(formula.store.indices, wanted.shape):
        if isinstance(index, AxisVar):
            if not shop.formulas.at_least(producer.extents[index.name], extent):
                return False
        elif index != Int(0) or extent != Int(1):
            return False
    return True


def _value(shop: Workshop, formula: Formula, load: Load, at: dict[str, Index], consumer: Piece) -> Expr:
    value = Substitution(axes=at).value(formula.value)
    if load.guard is None:
        return Substitution(load=lambda inner: _by_digits(shop, inner, consumer)).value(value)
    return guarded(value, load)


def _by_digits(shop: Workshop, load: Load, consumer: Piece) -> Expr:
    """A load at sums of axes, as one of a view with a dimension for each axis: that it is in bounds is plain then."""
    view = shop.views.get(load.buffer)
    if view is None or load.guard is not None or all(isinstance(index, (AxisVar, Int)) for index in load.indices):
        return load
    found = place(shop.linear(load.buffer, load.indices), consumer.extents, shop.formulas)
    if found is None or any(not isinstance(digit.atom, AxisVar) for digit in found.digits):
        return load
    shape, strides = tuple(d.extent for d in found.digits), tuple(d.stride for d in found.digits)
    buffer = shop.buffer(replace(view, shape=shape, strides=strides, offset=found.base))
    return Load(buffer, tuple(digit.atom for digit in found.digits), load.type)


def _check_contract(shop: Workshop, consumer: Piece, memory: Memory, formula: Formula) -> None:
    """The factors of a contraction are packed many times: nothing but a conversion or another layout goes there."""
    for stmt in consumer.statements:
        if not isinstance(stmt, Contract):
            continue
        factors = [p for f in (stmt.a, stmt.b) for p in subexpressions(f) if isinstance(p, Load)]
        if any(shop.memory(part.buffer) == memory for part in factors):
            value = formula.value
            inner = value.x if isinstance(value, Cast) and value.type.is_float else value
            simple = isinstance(inner, Load) and inner.guard is None and inner.type.is_float
            need(simple and stmt.lanes == 1, Rule.RECOMPUTE, "the factors of a contraction are read many times")


def profitable(result: Inlined, limits: FusionLimits, once: bool, vanishes: bool, reload_bytes: int, many: int) -> None:
    """Refuses what would compute more than it saves. ``once``: no value is computed twice by all who read it;
    ``vanishes``: nothing needs the allocation then; ``many``: how many points the consumer has for each value."""
    cost = result.cost
    light = cost.operations <= limits.reader_operations and cost.loads <= 1
    if vanishes:
        if once or (result.steady and many >= limits.often):
            return
        need(not cost.expensive, Rule.RECOMPUTE, "values would be computed more than once, and are not cheap")
        # relu into a 3 × 3 pool of 56 × 56: 1.04 times as slow as apart.
        need(
            not result.windows or not cost.operations, Rule.RECOMPUTE, "windows would compute each value several times"
        )
        need(light or result.steady or many < 4, Rule.RECOMPUTE, "a few values would be computed again and again")
        return
    need(
        not cost.expensive,
        Rule.RECOMPUTE,
        "the memory has other readers, and its values are not cheap to compute again",
    )
    need(light and reload_bytes <= 0, Rule.RECOMPUTE, "the memory has other readers, and reading it costs no more")
