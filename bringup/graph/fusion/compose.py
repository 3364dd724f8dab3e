"""Two kernels as one on a common grid: at every point the statements of the first, then those of the second.

That is right where whatever one of them writes and the other touches is touched at the same grid point. Values still go
through memory here; forwarding.py takes them out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bringup.graph.fusion.mixed_radix import MixedRadix, cuts, same_point
from bringup.graph.fusion.piece import Access, Piece, Workshop
from bringup.graph.fusion.regrid import demoted, renamed, split
from bringup.graph.fusion.steps import Memory, Refused, Rule, need
from bringup.ir.expr import Load
from bringup.ir.index import AxisVar, Index, Int
from bringup.ir.kernel import Axis, Contract, Loop, Reduce, Scan
from bringup.ir.walk import subexpressions

Vanishes: TypeAlias = Callable[[Memory], bool]


@dataclass(frozen=True)
class Link:
    """An allocation that both pieces touch, by the number of the access in each."""

    memory: Memory
    first: int
    second: int


def place_of(shop: Workshop, piece: Piece, access: Access) -> MixedRadix | None:
    """The digits of an access."""
    return shop.place(access.buffer, access.indices, piece.extents)


def links(shop: Workshop, first: Piece, second: Piece, memories: frozenset[Memory], stores: bool) -> list[Link]:
    """The pairs of accesses to some allocations, those with the most grid axes in front; ``stores``: of the first piece
    only its stores count, of the second only its loads."""
    found: list[tuple[int, Link]] = []
    for n, a in enumerate(first.accesses):
        memory = shop.memory(a.buffer)
        if memory is None or memory not in memories or (a.store is None) == stores:
            continue
        for m, b in enumerate(second.accesses):
            if b.load is None or shop.memory(b.buffer) != memory:
                continue
            one, two = place_of(shop, first, a), place_of(shop, second, b)
            if one is None or two is None:
                continue
            common = sum(name in first.grid for name in one.axes) + sum(name in second.grid for name in two.axes)
            found.append((-common, Link(memory, n, m)))
    return [link for _, link in sorted(found, key=lambda pair: pair[0])]


def _splittable(piece: Piece) -> set[str]:
    """Axes whose steps may be counted otherwise: those of the grid and of parallel loops."""
    if piece.ordered:
        return set()
    loops = {s.axis.name for s in piece.statements if isinstance(s, Loop) and s.axis.kind == "parallel"}
    return set(piece.grid) | loops


def parts_of(shop: Workshop, piece: Piece, mine: MixedRadix, other: MixedRadix) -> dict[str, list[Index]]:
    """How the axes of a piece fall into parts where another layout of the same memory has its digits."""
    free = _splittable(piece)
    found = {}
    for digit in mine.digits:
        if isinstance(digit.atom, AxisVar) and digit.atom.name in free:
            extents = cuts(digit, other, shop.formulas)
            if extents is not None and len(extents) > 1:
                found[digit.atom.name] = extents
    return found


def refined(shop: Workshop, first: Piece, second: Piece, link: Link) -> tuple[Piece, Piece, MixedRadix, MixedRadix]:
    """Both pieces with axes split where the other one has digits, and where they now touch the link's memory."""
    a, b = first.accesses[link.first], second.accesses[link.second]
    one, two = place_of(shop, first, a), place_of(shop, second, b)
    assert one is not None
    assert two is not None
    parts = parts_of(shop, first, one, two), parts_of(shop, second, two, one)
    if parts[0]:
        first = split(shop, first, parts[0])
        one = place_of(shop, first, first.accesses[link.first])
    if parts[1]:
        second = split(shop, second, parts[1])
        two = place_of(shop, second, second.accesses[link.second])
    assert one is not None
    assert two is not None
    return first, second, one, two


def _matched(shop: Workshop, first: Piece, second: Piece, one: MixedRadix, two: MixedRadix) -> dict[str, str]:
    """Axes of the second grid to the axes of the first grid that are the same digit, one to one.

    Two digits may have one stride: where a column of 4 elements is padded to rows of 4, both axes step by 1.
    """
    found = {}
    by_stride = {d.stride: d for d in one.digits if isinstance(d.atom, AxisVar) and d.atom.name in first.grid}
    for digit in two.digits:
        if isinstance(digit.atom, AxisVar) and digit.atom.name in second.grid and digit.stride in by_stride:
            partner = by_stride[digit.stride]
            if partner.extent == digit.extent:
                assert isinstance(partner.atom, AxisVar)
                found[digit.atom.name] = partner.atom.name
                del by_stride[digit.stride]
            elif shop.formulas.hint(partner.extent) == shop.formulas.hint(digit.extent):
                raise Refused(Rule.SIZES, "extents that are equal now are not equal for every call")
    return found


def check_rows(shop: Workshop, before: Piece, after: Sequence[Axis], siblings: bool = False) -> None:
    """Refuses to cut long rows short where vectors would be half empty: exp over rows of 10 takes 1.6 times as long."""
    if not before.axes or not after or before.axes[-1].extent == after[-1].extent:
        return
    row = shop.formulas.hint(after[-1].extent)
    lanes = shop.limits.lanes
    full = row / (-(-row // lanes) * lanes) if row else 1.0
    expensive = siblings or shop.weight(before.statements).expensive
    need(not expensive or full >= shop.limits.full, Rule.LOOPS, f"rows of {row} elements leave vectors half empty")


def _demotion(shop: Workshop, piece: Piece, keep: set[str], other: Piece, inside: MixedRadix) -> None:
    """Refuses to take axes of a piece off the grid where that is wrong or slow. ``inside``: where the other piece,
    which has the smaller grid, touches the link's memory."""
    hint, limits = shop.formulas.hint, shop.limits
    gone = [axis for axis in piece.axes if axis.name not in keep]
    need(not piece.contraction, Rule.LOOPS, "a contraction needs its whole grid")
    need(piece.straight and not piece.ordered, Rule.LOOPS, "a kernel with loops of its own keeps its grid")
    need(not other.contraction, Rule.LOOPS, "the other kernel is a contraction over another grid")
    need(not other.straight, Rule.LOOPS, "the kernels run over different grids")
    steps, points = shop.steps(gone), shop.steps([axis for axis in piece.axes if axis.name in keep])
    own = [hint(digit.extent) for digit in inside.digits if _name(digit.atom) not in other.grid]
    same = sorted(own) == sorted(hint(axis.extent) for axis in gone)
    enough = same or steps >= limits.short or points == 1
    need(enough, Rule.LOOPS, f"loops of {steps} steps are too short for a grid point")
    need(bool(keep) or steps <= limits.long, Rule.LOOPS, "one grid point would do all the work")
    loops = max((shop.steps(_axes(s)) for s in other.statements if _axes(s)), default=1)
    spread = points >= limits.few or steps <= max(limits.long, 4 * loops)
    need(spread, Rule.LOOPS, f"{points} grid points would do all the work")
    if piece.axes and piece.axes[-1].name in keep:
        walks = any(isinstance(s, Loop) and hint(s.axis.extent) == steps for s in other.statements)
        need(walks, Rule.LOOPS, "the rows of one kernel are the columns of the other")
        # exp before a softmax over 2048 channels: 1.06 times as slow as apart.
        short = not shop.weight(piece.statements).expensive or steps * 4 <= limits.across_bytes
        need(short, Rule.SCRATCH, f"columns of {steps} values are too long for scratch")


def _axes(stmt: object) -> tuple[Axis, ...]:
    if isinstance(stmt, Reduce):
        return stmt.axes
    return (stmt.axis,) if isinstance(stmt, (Loop, Scan)) else ()


def _name(atom: Index) -> str:
    return atom.name if isinstance(atom, AxisVar) else ""


def check_kinds(first: Piece, second: Piece) -> None:
    """Refuses pieces that share no kernel, whatever they touch."""
    need(not (first.contraction and second.contraction), Rule.LOOPS, "two contractions share no kernel")
    for one, two in ((first, second), (second, first)):
        need(not one.contraction or two.straight, Rule.LOOPS, "a contraction and a kernel with loops of its own")
    need(not first.ordered and not second.ordered, Rule.LOOPS, "the order of a kernel's stores has a meaning")
    for stmt in second.body:
        if isinstance(stmt, Contract):
            loads = [p for factor in (stmt.a, stmt.b) for p in subexpressions(factor) if isinstance(p, Load)]
            factors = {second.shop.memory(load.buffer) for load in loads}
            need(not factors & first.writes, Rule.RECOMPUTE, "the factors of a contraction are read many times")


def composed(shop: Workshop, first: Piece, second: Piece, link: Link, vanishes: Vanishes) -> Piece:
    """One piece that does what both do, in order; Refused if they do not meet at the same points. ``vanishes``: nothing
    outside needs the allocation then."""
    check_kinds(first, second)
    siblings = first.accesses[link.first].store is None
    whole = first, second
    first, second, one, two = refined(shop, first, second, link)
    if first.straight and second.straight:
        for before, after in zip(whole, (first, second)):
            check_rows(shop, before, after.axes, siblings)
    pairs = _matched(shop, first, second, one, two)
    keep_first, keep_second = set(pairs.values()), set(pairs)
    more_first, more_second = first.grid - keep_first, second.grid - keep_second
    if more_first or more_second:
        need(not siblings, Rule.LOOPS, "the kernels run over different grids")
        need(not (more_first and more_second), Rule.LOOPS, "the kernels run over different grids")
    if more_first:
        _demotion(shop, first, keep_first, second, two)
    if more_second:
        _demotion(shop, second, keep_second, first, one)
    # The smaller grid says in which order it wants to run; of two equal ones the one with more contiguous accesses.
    order = [axis.name for axis in first.axes if axis.name in keep_first]
    theirs = [pairs[axis.name] for axis in second.axes if axis.name in pairs]
    second = renamed(second, pairs)
    if more_first or (not more_second and not first.contraction and _prefers_second(shop, first, second, vanishes)):
        order = theirs
    extents = {axis.name: axis for axis in first.axes}
    head, tail = demoted(first, order), demoted(second, order)
    _check_points(shop, head, tail, order)
    return head.followed_by(tail, tuple(extents[name] for name in order))


def strided(shop: Workshop, piece: Piece, vanishes: Vanishes, innermost: str | None = None) -> int:
    """How many accesses are not contiguous along the innermost axis of the grid; vectors scatter slower than they
    gather. Memories that vanish do not count."""
    if not piece.axes:
        return 0
    axis, total = innermost or piece.axes[-1].name, 0
    for access in {(a.buffer, a.indices, a.store is None): a for a in piece.accesses}.values():
        memory, found = shop.memory(access.buffer), place_of(shop, piece, access)
        digit = None if found is None or memory is None or vanishes(memory) else found.of(axis)
        if digit is not None and digit.stride != Int(1):
            total += 1 if access.store is None else 2
    return total


def read_across(shop: Workshop, piece: Piece) -> int:
    """How many loads inside of loops are not contiguous along the innermost parallel loop, which runs in vectors."""
    total = 0
    loads = {(a.buffer, a.indices): a for a in piece.accesses if a.load is not None and a.axes}
    for access in (access for access in loads.values() if access.buffer in shop.views):
        found = place_of(shop, piece, access)
        parallel = [axis for axis in access.axes if axis.kind == "parallel"]
        digit = None if found is None else found.of((parallel or access.axes)[-1].name)
        total += digit is not None and digit.stride != Int(1)
    return total


def _prefers_second(shop: Workshop, first: Piece, second: Piece, vanishes: Vanishes) -> bool:
    if not first.axes or first.axes[-1].name == second.axes[-1].name:
        return False
    if second.contraction or not second.straight:
        return True
    if not first.straight:
        return False
    apart = strided(shop, first, _nothing) + strided(shop, second, _nothing)
    both = [strided(shop, p, vanishes, i) for i in (first.axes[-1].name, second.axes[-1].name) for p in (first, second)]
    by_first, by_second = both[0] + both[1], both[2] + both[3]
    # Three operands of a transposed sum, 256 × 256: 1.4 times as slow as apart.
    need(min(by_first, by_second) <= apart, Rule.LOOPS, "rows of one kernel are columns of the other")
    return by_second <= by_first


def _nothing(memory: Memory) -> bool:
    return False


def _check_points(shop: Workshop, first: Piece, second: Piece, grid: list[str]) -> None:
    """Whatever one piece writes and the other touches must be touched at the same grid point."""
    writes = first.writes, second.writes
    touched = first.reads | writes[0], second.reads | writes[1]
    for memory in sorted((writes[0] & touched[1]) | (writes[1] & touched[0])):
        places: list[Mapping[int, MixedRadix]] = []
        for piece in (first, second):
            found = {}
            for n, access in enumerate(piece.touching(memory)):
                if (where := place_of(shop, piece, access)) is None:
                    raise Refused(Rule.LOOPS, f"{_text(memory)} is not read at the point where it is made")
                found[n] = where
            places.append(found)
        views = {shop.views[a.buffer].dtype for p in (first, second) for a in p.touching(memory)}
        need(len(views) == 1, Rule.ORDER, f"{_text(memory)} is seen as two types")
        for n, a in enumerate(first.touching(memory)):
            for m, b in enumerate(second.touching(memory)):
                if a.store is None and b.store is None:
                    continue
                if not same_point(places[0][n], places[1][m], grid, shop.formulas):
                    rule = Rule.LOOPS if b.store is None else Rule.ORDER
                    raise Refused(rule, f"{_text(memory)} is not touched at the same points by both")


def _text(memory: Memory) -> str:
    return f"{memory[0]} {memory[1]}"
