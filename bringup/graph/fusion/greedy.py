"""Fusion of a graph's launches: greedy in topological order, nearest producers first, every refusal by its rule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from bringup.graph.fusion.compose import check_kinds, check_rows, composed, links, place_of, read_across, strided
from bringup.graph.fusion.emit import launch_of
from bringup.graph.fusion.formulas import Formulas
from bringup.graph.fusion.forwarding import checks, settled
from bringup.graph.fusion.inline import formula_of, inlined, profitable
from bringup.graph.fusion.order import Order, bits
from bringup.graph.fusion.piece import Piece, Workshop
from bringup.graph.fusion.regrid import renamed
from bringup.graph.fusion.steps import Decision, Fused, Memory, Opaque, Refused, Rule, Step, need
from bringup.ir.expr import Load
from bringup.ir.index import Index
from bringup.ir.kernel import Contract, Kernel
from bringup.ir.verify import VerifyError, verify
from bringup.ir.walk import subexpressions
from bringup.lowering.call import Launch
from bringup.targets.target import FusionLimits

#: Pointers of the smallest kernels that are tried again when a larger one is refused in the end.
_FEWEST = 4
#: How many of the latest readers of an allocation a new one is tried with.
_NEAR = 4


def fuse_steps(
    steps: Sequence[Step],
    kept: Collection[Memory],
    limits: FusionLimits | None = None,
    symbols: Mapping[str, tuple[int | None, int | None]] | None = None,
) -> Fused:
    """The same program in fewer launches, bit for bit; ``kept`` are allocations that must hold their value then.

    >>> fuse_steps([], ())
    Fused(steps=(), decisions=(), origins=())
    """
    return _Fusing(steps, frozenset(kept), limits or FusionLimits(), symbols or {}).run()


@lru_cache(maxsize=4096)
def _verified(kernel: Kernel) -> None:
    """Verifies a kernel; the layers of a model have the same ones."""
    verify(kernel)


@dataclass
class _Fusing:
    steps: Sequence[Step]
    kept: frozenset[Memory]
    limits: FusionLimits
    symbols: Mapping[str, tuple[int | None, int | None]]
    order: Order = field(default_factory=Order)
    pieces: dict[int, Piece] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    #: Steps whose values a group computes itself, though they are (or were) steps of their own.
    taken: dict[int, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shop = Workshop(Formulas(self.symbols), self.limits)
        self.reads: list[set[Memory]] = []
        self.writes: list[set[Memory]] = []
        #: How many steps had written to an allocation when a step ran: equal numbers, equal contents.
        self.versions: list[dict[Memory, int]] = []
        self.readers: dict[Memory, set[int]] = {}
        self.writers: dict[Memory, set[int]] = {}

    def run(self) -> Fused:
        """Everything, in order."""
        made = [self._touched(number, step) for number, step in enumerate(self.steps)]
        count: dict[Memory, int] = {}
        for number, (reads, writes) in enumerate(made):
            self.reads.append(set(reads))
            self.writes.append(set(writes))
            self.versions.append({memory: count.get(memory, 0) for memory in reads | writes})
            for memory in reads:
                self.readers.setdefault(memory, set()).add(number)
            for memory in writes:
                self.writers.setdefault(memory, set()).add(number)
                count[memory] = count.get(memory, 0) + 1
        for number in range(len(self.steps)):
            group = self.order.add(self.reads[number], self.writes[number])
            if group in self.pieces:
                self._visit(group)
        self._gather_small()
        return self._finished()

    def _touched(self, number: int, step: Step) -> tuple[frozenset[Memory], frozenset[Memory]]:
        if isinstance(step, Opaque):
            return step.reads, step.writes
        if not isinstance(step.kernel, Kernel):
            every: frozenset[Memory] = frozenset(tensor.memory for tensor in step.buffers)
            return every, every
        piece = self.pieces[number] = self.shop.piece(step, number)
        return piece.reads, piece.writes

    # ---- one step, as it comes ----

    def _visit(self, group: int) -> None:
        """Tries the step with the groups whose results it reads, then with those that read the same."""
        tried: set[int] = set()
        while True:
            producers = self._producers(group) - tried
            if not producers:
                break
            producer = max(producers, key=lambda number: (self._made(number, group), self.order.groups[number].last))
            tried.add(producer)
            self._attempt(producer, group)
        for other in sorted(self._siblings(group), reverse=True):
            if other in self.pieces and other != group:
                self._attempt_siblings(other, group)

    def _producers(self, group: int) -> set[int]:
        found = set()
        for memory in self.reads[group]:
            for step in self.writers.get(memory, ()):
                found.add(self.order.group_of(step))
        return {number for number in found if number is not None and number != group and number in self.pieces}

    def _made(self, producer: int, consumer: int) -> int:
        """How many elements pass from one group to another: the larger tensor counts more than the smaller one."""
        first, wanted = self.pieces[producer], self.pieces[consumer].reads
        stores = [a for a in first.accesses if a.store is not None and self.shop.memory(a.buffer) in wanted]
        return self.shop.steps(first.axes) * max((self.shop.steps(a.axes) for a in stores), default=1)

    def _siblings(self, group: int) -> set[int]:
        """The latest groups that read an allocation that this one reads."""
        found = set()
        for memory in self.reads[group]:
            known = [g for s in sorted(self.readers.get(memory, ())) if (g := self.order.group_of(s)) is not None]
            found |= set(known[-_NEAR:])
        return found - {group}

    def _attempt(self, producer: int, consumer: int) -> None:
        first, second = self.pieces[producer], self.pieces[consumer]
        common = first.writes & second.reads
        if not common:
            return  # computed in the consumer already
        memory = min(common)
        if self.order.must_precede(consumer, producer):
            return  # it overwrites what the consumer read before
        try:
            need(
                self.order.mergeable(producer, consumer),
                Rule.ORDER,
                "a step between them needs one and makes the other",
            )
            need(not self._rather_with_readers(first, second, common), Rule.RECOMPUTE, "computed where it is read")
            piece = self._composed(first, second, common, stores=True)
        except Refused as refused:
            self._attempt_inline(producer, consumer, common, refused)
            return
        self._merge(producer, consumer, piece, memory, "at the same points")

    def _rather_with_readers(self, first: Piece, second: Piece, common: frozenset[Memory]) -> bool:
        """True for a cheap value of a contraction's result that only row kernels read, such as the square of RMS norm:
        they compute it themselves from what is in memory anyway, instead of reading one more tensor."""
        if not first.contraction or not second.straight or len(second.steps) > 1:
            return False
        members = {*first.steps, *second.steps}
        if any(not self.readers.get(memory, set()) - members and memory not in self.kept for memory in common):
            return False
        for memory in second.writes:
            readers = [self.pieces.get(step) for step in self.readers.get(memory, ())]
            if memory in self.kept or not readers:
                return False
            if any(other is None or other.straight or other.contraction for other in readers):
                return False
        return not self.shop.weight(second.statements).expensive

    def _composed(self, first: Piece, second: Piece, memories: frozenset[Memory], stores: bool) -> Piece:
        check_kinds(first, second)
        members = {*first.steps, *second.steps}

        def vanishes(memory: Memory) -> bool:
            return self._vanishes(memory, members)

        found = links(self.shop, first, second, memories, stores)
        need(bool(found), Rule.LOOPS, "the memory is read at places that are values")
        piece = composed(self.shop, first, second, found[0], vanishes)
        self._check_size(piece)
        return piece

    def _check_size(self, piece: Piece) -> None:
        members = set(piece.steps)
        buffers = {access.buffer for access in piece.accesses if access.buffer in self.shop.views}
        used = [name for name in buffers if not self._vanishes(self.shop.views[name].memory, members)]
        need(
            len(piece.statements) <= self.limits.statements,
            Rule.LIMITS,
            f"more than {self.limits.statements} statements take long to compile",
        )
        need(len(used) <= self.limits.pointers, Rule.LIMITS, f"{len(used)} buffers, {self.limits.pointers} are allowed")
        scratch = sum(local.nbytes for local in piece.locals)
        allowed = self.limits.local_bytes
        need(scratch <= allowed, Rule.SCRATCH, f"{scratch} bytes of Locals, {allowed} are allowed")

    def _vanishes(self, memory: Memory, members: set[int]) -> bool:
        """True if some steps together make and use up an allocation."""
        if memory in self.kept or memory[0] == "tensor" or not self.writers.get(memory, set()) <= members:
            return False
        return self.readers.get(memory, set()) <= members

    def _merge(self, producer: int, consumer: int, piece: Piece, memory: Memory | None, how: str) -> None:
        self._decide(producer, consumer, memory, True, Rule.LOOPS, how)
        del self.pieces[producer]
        number = self.order.merge(producer, consumer)
        self.pieces[number] = piece
        self.taken.setdefault(number, set()).update(self.taken.pop(producer, set()))

    def _attempt_inline(self, producer: int, consumer: int, common: frozenset[Memory], refused: Refused) -> None:
        for memory in sorted(common):
            try:
                piece = self._inlined(producer, consumer, memory)
            except Refused as problem:
                why = problem if refused.rule is Rule.LOOPS and problem.rule is not Rule.LOOPS else refused
                self._decide(producer, consumer, memory, False, why.rule, why.reason)
                continue
            self._decide(producer, consumer, memory, True, Rule.RECOMPUTE, "computed where it is read")
            self.pieces[consumer] = piece
            self._reads_instead(producer, consumer, memory, piece)

    def _inlined(self, producer: int, consumer: int, memory: Memory) -> Piece:
        first, second = self.pieces[producer], self.pieces[consumer]
        members = set(bits(self.order.groups[producer].members))
        need(self.writers[memory] <= members, Rule.ORDER, "others write to the memory, too")
        self._unchanged_until(first, memory, consumer)
        result = inlined(self.shop, first, second, memory)
        if second.straight:
            check_rows(self.shop, first, result.piece.axes)
            apart = sum(strided(self.shop, piece, lambda memory: False) for piece in (first, second))
            together = strided(self.shop, result.piece, lambda memory: False)
            need(together <= apart, Rule.LOOPS, "rows of one kernel are columns of the other")
        outside = self.readers[memory] - members - set(bits(self.order.groups[consumer].members))
        vanishes = not (self.readers[memory] & members) and memory not in self.kept and memory[0] != "tensor"
        points, once = self.shop.steps(first.axes), result.distinct
        if outside:
            # The parts of a long sum read one part of the memory each.
            others = [self._taken(first, step, memory) for step in outside] if vanishes else [points]
            vanishes = once = once and result.taken + sum(others) <= points
        once = once and result.taken <= points
        if not second.straight and not second.contraction and result.taken > points:
            # Keys transposed in the loops of attention, once for each tile of queries: 1.84 ms, apart 0.91.
            need(
                read_across(self.shop, result.piece) <= read_across(self.shop, second),
                Rule.RECOMPUTE,
                "its loops would read again and again what does not lie side by side",
            )
        formula = formula_of(self.shop, first, memory)
        loads = {p.buffer: p.type.size for p in subexpressions(formula.value) if isinstance(p, Load)}
        extra = sum(loads.values()) - self.shop.views[formula.store.buffer].dtype.size
        profitable(result, self.limits, once, vanishes, extra, many=self.shop.steps(second.axes) // max(points, 1))
        self._check_size(result.piece)
        return result.piece

    def _taken(self, first: Piece, step: int, memory: Memory) -> int:
        """How many values another reader of an allocation would take; more than there are if it cannot."""
        group = self.order.group_of(step)
        other = self.pieces.get(step if group is None else group)
        never = self.shop.steps(first.axes) + 1
        if other is None:
            return never
        try:
            result = inlined(self.shop, first, other, memory)
        except Refused:
            return never
        return result.taken if result.distinct else never

    def _unchanged_until(self, first: Piece, memory: Memory, consumer: int) -> None:
        """What the producer reads must still be the same where the consumer runs."""
        last = self.order.groups[consumer].last
        writes = self.writes[last]
        for other in first.reads:
            then = max((self.versions[step].get(other, 0) for step in first.steps), default=0)
            now = sum(1 for step in self.writers.get(other, ()) if step < last)
            need(then == now, Rule.ORDER, f"{other[0]} {other[1]} changes between producer and consumer")
            need(other not in writes or other == memory, Rule.ORDER, f"the consumer writes {other[0]} {other[1]}")

    def _reads_instead(self, producer: int, consumer: int, memory: Memory, piece: Piece) -> None:
        """A consumer now reads what its producer read."""
        steps = set(bits(self.order.groups[consumer].members))
        self.readers[memory] -= steps
        last = self.order.groups[consumer].last
        for other in piece.reads:
            now = sum(1 for step in self.writers.get(other, ()) if step < last)
            self.versions[last].setdefault(other, now)
            self.readers.setdefault(other, set()).add(last)
            self.order.reads_too(consumer, other)
        self.taken.setdefault(consumer, set()).update(bits(self.order.groups[producer].members))

    def _attempt_siblings(self, first: int, second: int) -> None:
        if not self.order.mergeable(first, second):
            return
        swapped = self.order.must_precede(second, first)
        one, two = self.pieces[first], self.pieces[second]
        if swapped:
            one, two = two, one
        common = one.reads & two.reads
        if not common or one.writes & two.reads or one.contraction or two.contraction:
            return
        if one.straight != two.straight:
            return
        try:
            found = links(self.shop, one, two, common, stores=False)
            need(bool(found), Rule.LOOPS, "nothing in common")
            link = found[0]
            where = place_of(self.shop, one, one.accesses[link.first])
            assert where is not None
            need(bool(one.axes) and one.grid <= set(where.axes), Rule.LOOPS, "what is in common is not worth a kernel")
            piece = composed(self.shop, one, two, link, lambda memory: False)
            self._check_size(piece)
        except Refused:
            return
        self._merge(first, second, piece, link.memory, "both read it at the same points")

    def _gather_small(self) -> None:
        """Small elementwise kernels of one shape together, as an optimizer's steps: what they cost is the launch."""
        latest: dict[tuple[Index, ...], int] = {}
        for number in sorted(self.pieces):
            piece = self.pieces[number]
            if not piece.straight or piece.ordered or not piece.axes or self.shop.steps(piece.axes) > self.limits.small:
                continue
            shape = tuple(axis.extent for axis in piece.axes)
            other = latest.get(shape)
            latest[shape] = number
            if other is None or not self._independent(other, number):
                continue
            one = self.pieces[other]
            same = renamed(piece, {mine.name: theirs.name for mine, theirs in zip(piece.axes, one.axes)})
            both = one.followed_by(same, one.axes)
            try:
                self._check_size(both)
            except Refused:
                continue
            self._merge(other, number, both, None, "small kernels of one shape")

    def _independent(self, a: int, b: int) -> bool:
        order = self.order
        return not order.must_precede(a, b) and not order.must_precede(b, a)

    def _decide(self, a: int, b: int, memory: Memory | None, fused: bool, rule: Rule, reason: str) -> None:
        groups, names = self.order.groups, (self.pieces[a].name, self.pieces[b].name)
        self.decisions.append(Decision(*names, memory, fused, rule, reason, (groups[a].last, groups[b].last)))

    # ---- the end ----

    def _finished(self) -> Fused:
        """Back to launches, the last one first: a step that stays as it was wants what it read."""
        steps: list[tuple[Step, tuple[int, ...]]] = []
        for number in reversed(self.order.in_order()):
            members = tuple(bits(self.order.groups[number].members))
            piece = self.pieces.get(number)
            made = [(self.steps[number], members)] if piece is None else self._emitted(number, piece, members)
            steps += reversed(made)
        steps.reverse()
        return Fused(tuple(step for step, _ in steps), tuple(self.decisions), tuple(origin for _, origin in steps))

    def _emitted(self, number: int, piece: Piece, members: tuple[int, ...]) -> list[tuple[Step, tuple[int, ...]]]:
        inside = set(members)

        def needed(memory: Memory) -> bool:
            return not self._vanishes(memory, inside)

        if not any(needed(memory) for memory in piece.writes) and not any(map(checks, piece.statements)):
            return []
        taken = self.taken.get(number, set())
        dropped = [m for m in piece.writes if not needed(m)]
        if len(members) == 1 and not taken and not dropped:
            return [(self.steps[members[0]], members)]
        try:
            done = settled(self.shop, piece, needed)
            launch = launch_of(self.shop, done, needed, self.limits.local_bytes, self.limits.pointers)
            assert isinstance(launch.kernel, Kernel)
            if any(self._packed(member) for member in members):
                need(self.limits.packs(launch.kernel), Rule.LOOPS, "the contraction would lose its fast form")
            _verified(launch.kernel)
        except (Refused, VerifyError) as problem:
            rule = problem.rule if isinstance(problem, Refused) else Rule.LOOPS
            text = problem.reason if isinstance(problem, Refused) else f"not proved safe: {problem.reason}"
            self.decisions.append(Decision(piece.name, piece.name, None, False, rule, text, (members[0], members[-1])))
            for member in members:
                for memory in self.reads[member]:
                    self.readers[memory].add(member)
            return self._in_smaller_groups(members, needed)
        return [(launch, tuple(sorted(inside | taken)))]

    def _packed(self, step: int) -> bool:
        launch = self.steps[step]
        if not isinstance(launch, Launch) or not isinstance(launch.kernel, Kernel):
            return False
        return any(isinstance(stmt, Contract) for stmt in launch.kernel.body) and self.limits.packs(launch.kernel)

    def _in_smaller_groups(
        self, members: tuple[int, ...], needed: Callable[[Memory], bool]
    ) -> list[tuple[Step, tuple[int, ...]]]:
        """Fuses the steps of a rejected group again, with half the room for each kernel."""
        steps = [self.steps[member] for member in members]
        if len(members) <= 2 or self.limits.pointers <= _FEWEST:
            return [(step, (member,)) for step, member in zip(steps, members)]
        touched = {memory for member in members for memory in self.writes[member]}
        smaller = replace(self.limits, pointers=self.limits.pointers // 2)
        again = fuse_steps(steps, {memory for memory in touched if needed(memory)}, smaller, self.symbols)
        self.decisions += again.decisions
        return [(step, tuple(members[n] for n in origin)) for step, origin in zip(again.steps, again.origins)]
