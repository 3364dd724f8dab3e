"""A fused kernel's values out of memory: stores feed the loads after them, loops join, what nothing reads disappears.

Every step keeps the bits. It starts from pieces put together as they were, each storing its results and loading those
of the ones before, and ends with the memory that is needed outside the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bringup.graph.fusion.mixed_radix import MixedRadix, same_point, solved
from bringup.graph.fusion.piece import Piece, Workshop, accesses
from bringup.graph.fusion.recompute_cost import weight
from bringup.graph.fusion.steps import Memory
from bringup.ir.expr import Binary, Cast, Const, Expr, Load, Name, Param, Where, const
from bringup.ir.index import AxisVar, Index, Int
from bringup.ir.kernel import Axis, Block, Contract, Let, Loop, Reduce, Scan, Stmt, Store, binds, statements
from bringup.ir.walk import Substitution, all_values, bridges, indices_of, own_values, subexpressions

#: The last value stored to an allocation at this point, and to which of its elements.
Known = dict[Memory, tuple[Index, Expr]]


def settled(shop: Workshop, piece: Piece, needed: Callable[[Memory], bool]) -> Piece:
    """The piece with as little memory traffic as its loops allow; ``needed``: memory that must hold its value after."""
    return _Settling(shop, piece, needed).run()


@dataclass(frozen=True)
class LoopStore:
    """A store in parallel loops: the number of its statement, the loops, and its value without names of the loops."""

    at: int
    axes: tuple[Axis, ...]
    store: Store
    value: Expr


class _Settling:
    def __init__(self, shop: Workshop, piece: Piece, needed: Callable[[Memory], bool]) -> None:
        self.shop, self.piece, self.needed = shop, piece, needed
        self.extents = dict(piece.extents)

    def run(self) -> Piece:
        body = self.alive(self.forwarded(self.piece.body, {}))
        if any(isinstance(stmt, Loop) for stmt in body):
            body = self.alive(self.inlined(body))
            joined = self.joined(body)
            if joined != body:
                body = self.alive(self.forwarded(joined, {}))
                body = self.alive(self.inlined(body))
        return replace(self.piece, body=_contract_first(self.shop, body))

    # ---- from a store to the loads after it ----

    def forwarded(self, block: Block, known: Known) -> Block:
        """The block in which a load of what was stored before is the stored value."""
        out: list[Stmt] = []
        for stmt in block:
            change = self._forwarding(known)
            if isinstance(stmt, Store):
                new = change.stmt(stmt)
                assert isinstance(new, Store)
                out += self._stored(new, known)
            elif isinstance(stmt, (Loop, Scan)):
                stored = _memories(self.shop, stmt, stores=True)
                inner = {m: k for m, k in known.items() if m not in stored or stmt.axis.kind == "parallel"}
                for memory in [m for m in known if m in stored]:
                    del known[memory]
                within = self._forwarding(inner)
                if isinstance(stmt, Loop):
                    inits = change.values(stmt.inits)
                    count = None if stmt.count is None else change.value(stmt.count)
                    body = self.forwarded(stmt.body, inner)
                    updates = within.values(stmt.updates)
                    out.append(replace(stmt, inits=inits, body=body, updates=updates, count=count))
                else:
                    head = replace(stmt, then=())
                    new_scan = within.stmt(head)
                    assert isinstance(new_scan, Scan)
                    out.append(replace(new_scan, then=self.forwarded(stmt.then, inner)))
            else:
                out.append(change.stmt(stmt))
        return tuple(out)

    def _forwarding(self, known: Known) -> Substitution:
        return Substitution(load=lambda load: self._instead(load, known))

    def _stored(self, store: Store, known: Known) -> Iterator[Stmt]:
        memory = self.shop.memory(store.buffer)
        if memory is None:
            yield store
            return
        if store.mode != "unique" or store.guard is not None or store.combine is not None:
            known.pop(memory, None)
            yield store
            return
        value = store.value
        if not isinstance(value, (Name, Const, Param)):
            name = self.shop.fresh("v")
            yield Let(name, value)
            value = Name(name, value.dtype)
        known[memory] = (self.shop.linear(store.buffer, store.indices), value)
        yield replace(store, value=value)

    def _instead(self, load: Load, known: Known) -> Expr:
        memory = self.shop.memory(load.buffer)
        if memory is None or memory not in known:
            return load
        linear, value = known[memory]
        if value.dtype is not load.type or self.shop.linear(load.buffer, load.indices) != linear:
            return load
        if self.shop.hides_check(load.buffer, load.indices):
            return load
        if load.guard is None:
            return value
        return Where(load.guard, value, const(0, load.type) if load.other is None else load.other)

    # ---- from a store in a loop to loads in other loops ----

    def inlined(self, block: Block) -> Block:
        """The block in which values of loops are computed where they are wanted, if keeping them costs more."""
        for found in self.loop_stores(block):
            memory = self.shop.memory(found.store.buffer)
            assert memory is not None
            if self.needed(memory):
                continue
            new = self._inlined(block, found, memory)
            if new is not None:
                return self.inlined(self.alive(new))
        return block

    def loop_stores(self, block: Block) -> Iterator[LoopStore]:
        """The stores of parallel loops whose values are known as expressions."""
        written = [self.shop.memory(s.buffer) for s in statements(block) if isinstance(s, Store)]
        for at, stmt in enumerate(block):
            axes, inner = _nest(stmt)
            if not axes or not all(isinstance(s, (Let, Store)) for s in inner):
                continue
            names: dict[str, Expr] = {}
            size: dict[str, int] = {}
            for one in inner:
                if isinstance(one, Let):
                    count = sum(size.get(p.name, 1) if isinstance(p, Name) else 1 for p in subexpressions(one.value))
                    size[one.name] = count
                    if count <= self.shop.limits.expression:
                        names[one.name] = Substitution(names=names).value(one.value)
                    continue
                assert isinstance(one, Store)
                memory = self.shop.memory(one.buffer)
                plain = one.mode == "unique" and one.guard is None and one.combine is None
                if memory is None or not plain or written.count(memory) != 1:
                    continue
                value = Substitution(names=names).value(one.value)
                open_ = {p.name for p in subexpressions(value) if isinstance(p, Name)} & set(size)
                loaded = {self.shop.memory(p.buffer) for p in subexpressions(value) if isinstance(p, Load)}
                scratch = any(isinstance(p, Load) and p.buffer not in self.shop.views for p in subexpressions(value))
                if not open_ and not scratch and not loaded & set(written):
                    yield LoopStore(at, axes, one, value)

    def _inlined(self, block: Block, found: LoopStore, memory: Memory) -> Block | None:
        want = self._place(found.store.buffer, found.store.indices)
        sites = [
            (at, access)
            for at, stmt in enumerate(block)
            for access in accesses((stmt,))
            if access.load is not None and self.shop.memory(access.buffer) == memory
        ]
        if want is None or not sites or any(at <= found.at for at, _ in sites):
            return None
        inner = [d for d in want.digits if isinstance(d.atom, AxisVar) and d.atom.name in {a.name for a in found.axes}]
        rest = MixedRadix(want.base, tuple(inner))
        fixed = {d.atom.name for d in want.digits if isinstance(d.atom, AxisVar) and d not in inner}
        single: dict[str, Index] = {axis.name: Int(0) for axis in found.axes if axis.extent == Int(1)}
        points: dict[Load, dict[str, Index]] = {}
        passes: set[int] = set()
        repeated = False
        steps = self.shop.steps(found.axes)
        for at, access in sites:
            load = access.load
            assert load is not None
            linear = self.shop.linear(load.buffer, load.indices)
            own = self._place(load.buffer, load.indices)
            if own is None or (load.guard is None and load.other is not None):
                return None
            for name in fixed:  # the grid's own digits are the same on both sides
                digit, mine = want.of(name), own.of(name)
                if digit is None or mine is None or digit.stride != mine.stride:
                    return None
                linear = linear - digit.atom * digit.stride
            where = solved(linear, rest, self.shop.formulas, self.extents)
            if where is None or any(b.mode == "skip" for index in load.indices for b in bridges(index)):
                return None
            points[load] = {**single, **where}
            if self.shop.steps(access.axes) * 2 > steps:
                passes.add(at)
            repeated = repeated or any(axis.name not in own.axes for axis in access.axes)
        cost = weight([found.value], self.shop.limits.slow)
        once = len(passes) <= 1 and not (repeated and passes)
        again = max(len(passes) - 1, 0) * (cost.operations + cost.loads)
        if not once and (cost.expensive or repeated or again > self.shop.limits.row_operations):
            return None
        checks = any(bridges(index) for where in points.values() for index in where.values())
        if checks and not any(isinstance(p, Load) for p in subexpressions(found.value)):
            return None  # nothing would be left that raises the IndexError

        def instead(load: Load) -> Expr:
            if load not in points:
                return load
            return guarded(Substitution(axes=points[load]).value(found.value), load)

        return Substitution(load=instead).block(block)

    def _place(self, buffer: str, indices: tuple[Index, ...]) -> MixedRadix | None:
        return self.shop.place(buffer, indices, self.extents)

    # ---- loops together ----

    def joined(self, block: Block) -> Block:
        """The block with loops over the same steps joined where they touch the same memory."""
        stmts = list(block)
        second = 1
        while second < len(stmts):
            for first in range(second - 1, -1, -1):
                new = self._joined(stmts, first, second)
                if new is not None:
                    stmts = new
                    second = 0
                    break
            second += 1
        return tuple(replace(s, body=self.joined(s.body)) if isinstance(s, Loop) else s for s in stmts)

    def _joined(self, stmts: list[Stmt], first: int, second: int) -> list[Stmt] | None:
        a, b = stmts[first], stmts[second]
        if not isinstance(a, Loop) or not isinstance(b, Loop) or a.axis.extent != b.axis.extent:
            return None
        if a.axis.kind != "parallel" or b.axis.kind != "parallel":
            return None
        b = Substitution(axes={b.axis.name: a.axis.var}).stmt(b)
        assert isinstance(b, Loop)
        common = _memories(self.shop, a) & _memories(self.shop, b)
        if not common or not all(self._in_step(a, b, memory) for memory in common):
            return None
        between = stmts[first + 1 : second]
        loop = Loop(a.axis, a.body + b.body)
        if not any(self._conflict(a, other) for other in between):
            return [*stmts[:first], *between, loop, *stmts[second + 1 :]]
        bound = {name for other in between for name in binds(other)}
        uses = {part.name for part in all_values((b,)) if isinstance(part, Name)}
        if not bound & uses and not any(self._conflict(b, other) for other in between):
            return [*stmts[:first], loop, *between, *stmts[second + 1 :]]
        return None

    def _in_step(self, a: Loop, b: Loop, memory: Memory | str) -> bool:
        """True if steps of two loops over one axis meet in an allocation only at the same step."""
        if isinstance(memory, str):
            return False  # scratch: who reads what there is its kernel's own business
        ones = [x for x in accesses((a,)) if self.shop.memory(x.buffer) == memory]
        twos = [x for x in accesses((b,)) if self.shop.memory(x.buffer) == memory]
        for one in ones:
            for two in twos:
                if one.store is None and two.store is None:
                    continue
                if self.shop.linear(one.buffer, one.indices) == self.shop.linear(two.buffer, two.indices):
                    continue
                left, right = self._place(one.buffer, one.indices), self._place(two.buffer, two.indices)
                if left is None or right is None:
                    return False
                if not same_point(left, right, [a.axis.name], self.shop.formulas):
                    return False
        return True

    def _conflict(self, one: Stmt, two: Stmt) -> bool:
        """True if the order of two statements matters."""
        writes = _memories(self.shop, one, stores=True), _memories(self.shop, two, stores=True)
        touched = _memories(self.shop, one), _memories(self.shop, two)
        return bool(writes[0] & touched[1] or writes[1] & touched[0])

    # ---- what nothing reads ----

    def alive(self, block: Block) -> Block:
        """The block without stores that nothing needs, and without what only those needed."""
        while True:
            loaded = {p.buffer for p in all_values(block) if isinstance(p, Load)}
            memories = {self.shop.memory(buffer) for buffer in loaded}
            block, changed = self._without_stores(block, loaded, memories)
            used = {p.name for p in all_values(block) if isinstance(p, Name)}
            block, fewer = _without_names(block, used)
            if not changed and not fewer:
                return block

    def _without_stores(self, block: Block, loaded: set[str], memories: set[Memory | None]) -> tuple[Block, bool]:
        out: list[Stmt] = []
        changed = False
        for stmt in block:
            if isinstance(stmt, Store) and not checks(stmt):
                memory = self.shop.memory(stmt.buffer)
                wanted = stmt.buffer in loaded if memory is None else self.needed(memory) or memory in memories
                if not wanted:
                    changed = True
                    continue
            if isinstance(stmt, Loop):
                body, inner = self._without_stores(stmt.body, loaded, memories)
                stmt, changed = replace(stmt, body=body), changed or inner
            elif isinstance(stmt, Scan):
                body, inner = self._without_stores(stmt.then, loaded, memories)
                stmt, changed = replace(stmt, then=body), changed or inner
            out.append(stmt)
        return tuple(out), changed


def guarded(value: Expr, load: Load) -> Expr:
    """A value instead of a load: under the load's guard nothing inside touches memory where the guard does not hold."""
    guard = load.guard
    if guard is None:
        return value

    def under(inner: Load) -> Expr:
        both = guard if inner.guard is None else Binary("and", guard, inner.guard)
        return replace(inner, guard=both)

    other = const(0, load.type) if load.other is None else load.other
    if isinstance(value, Load) and value.guard is None:
        return replace(value, guard=guard, other=load.other)
    if isinstance(value, Cast) and isinstance(other, Const) and other.bits == 0 and value.x.dtype.is_float:
        return Cast(guarded(value.x, replace(load, type=value.x.dtype, other=None)), value.type)
    return Where(guard, Substitution(load=under).value(value), other)


def _nest(stmt: Stmt) -> tuple[tuple[Axis, ...], Block]:
    """The parallel loops that a statement is, and what stands in the innermost one."""
    axes: tuple[Axis, ...] = ()
    inner: Block = (stmt,)
    while len(inner) == 1 and isinstance(inner[0], Loop) and inner[0].axis.kind == "parallel":
        axes, inner = (*axes, inner[0].axis), inner[0].body
    return axes, inner


def _memories(shop: Workshop, stmt: Stmt, stores: bool = False) -> set[Memory | str]:
    """Memories (and Locals, by name) that a statement touches, or stores to."""
    found: set[Memory | str] = set()
    for access in accesses((stmt,)):
        if not stores or access.store is not None:
            found.add(shop.memory(access.buffer) or access.buffer)
    return found


def checks(stmt: Stmt) -> bool:
    """True if a statement may raise an IndexError: then it is not dead."""
    parts = [part for value in own_values(stmt) for part in subexpressions(value)]
    indices = [index for part in parts for index in indices_of(part)]
    if isinstance(stmt, Store):
        indices += stmt.indices
    return any(bridge.mode != "skip" for index in indices for bridge in bridges(index))


def _without_names(block: Block, used: set[str]) -> tuple[Block, bool]:
    """The block without statements whose names nothing uses and that store and check nothing."""
    out: list[Stmt] = []
    changed = False
    for stmt in block:
        if isinstance(stmt, (Loop, Reduce)):
            body, inner = _without_names(stmt.body, used)
            stmt, changed = replace(stmt, body=body), changed or inner
        elif isinstance(stmt, Scan):
            body, inner = _without_names(stmt.body, used)
            then, more = _without_names(stmt.then, used)
            stmt, changed = replace(stmt, body=body, then=then), changed or inner or more
        inside = list(statements((stmt,)))
        lives = any(isinstance(s, Store) or checks(s) for s in inside) or any(name in used for name in binds(stmt))
        if lives:
            out.append(stmt)
        changed = changed or not lives
    return tuple(out), changed


def _contract_first(shop: Workshop, block: Block) -> Block:
    """Stores behind the contraction, where targets look for its epilogue."""
    at = next((n for n, stmt in enumerate(block) if isinstance(stmt, Contract)), None)
    if at is None or not any(isinstance(stmt, Store) for stmt in block[:at]):
        return block
    contract = block[at]
    loaded = {shop.memory(p.buffer) for p in all_values((contract,)) if isinstance(p, Load)}
    if any(isinstance(stmt, Store) and shop.memory(stmt.buffer) in loaded for stmt in block[:at]):
        return block
    lets = tuple(stmt for stmt in block[:at] if not isinstance(stmt, Store))
    stores = tuple(stmt for stmt in block[:at] if isinstance(stmt, Store))
    return (*lets, contract, *stores, *block[at + 1 :])
