"""Fusion of a producer into its consumer: the loads of one tensor become the values that would have been stored there.

Both kernels use one set of names: the same buffer, size or param name is the same thing (``rename`` makes it so).
The rules are those of design/kernel-rules.md; a Refusal says which one and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bringup.ir.expr import AsIndex, Binary, Expr, Load, Name, Param, Philox, Unary, Where, const
from bringup.ir.index import AxisVar, Index, Int, Size, atoms
from bringup.ir.index_proof import Facts
from bringup.ir.injective import injective
from bringup.ir.kernel import (
    Axis,
    Block,
    Buffer,
    Contract,
    Kernel,
    Let,
    Loop,
    Reduce,
    Scan,
    SizeRange,
    Stmt,
    Store,
    axes_of,
    blocks_of,
    statements,
)
from bringup.ir.ops import BINARY, UNARY
from bringup.ir.share import bound_names, share
from bringup.ir.verify import VerifyError, verify
from bringup.ir.walk import Substitution, all_values, indices_of, own_values, subexpressions


@dataclass(frozen=True)
class Limits:
    """What a target allows a fused kernel."""

    pointers: int = 16
    local_bytes: int = 1 << 16


@dataclass(frozen=True)
class Refusal:
    """Why two kernels are not fused: the number of the rule in design/kernel-rules.md, and words."""

    rule: int
    reason: str


class _Refused(Exception):
    def __init__(self, rule: int, reason: str):
        self.refusal = Refusal(rule, reason)


def _need(good: bool, rule: int, reason: str) -> None:
    if not good:
        raise _Refused(rule, reason)


def rename(
    kernel: Kernel,
    buffers: Mapping[str, str] | None = None,
    sizes: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
) -> Kernel:
    """A kernel whose arguments have other names.

    >>> rename(Kernel("k", sizes=(SizeRange("n"),), axes=(Axis("i", Size("n")),)), sizes={"n": "rows"}).axes[0].extent
    Size(name='rows')
    """
    buffers, sizes, params = buffers or {}, sizes or {}, params or {}
    types = {param.name: param.dtype for param in kernel.params}
    change = Substitution(
        buffers=buffers,
        sizes={old: Size(new) for old, new in sizes.items()},
        params={old: Param(new, types[old]) for old, new in params.items()},
    )
    return replace(
        kernel,
        sizes=tuple(replace(size, name=sizes.get(size.name, size.name)) for size in kernel.sizes),
        params=tuple(replace(param, name=params.get(param.name, param.name)) for param in kernel.params),
        buffers=tuple(
            replace(
                buffer,
                name=buffers.get(buffer.name, buffer.name),
                shape=tuple(change.index(i) for i in buffer.shape),
                strides=tuple(change.index(i) for i in buffer.strides),
            )
            for buffer in kernel.buffers
        ),
        axes=tuple(change.axis(axis) for axis in kernel.axes),
        body=change.block(kernel.body),
    )


def _shared_names(kernel: Kernel) -> set[str]:
    """The names of arguments, which mean the same in both kernels."""
    return {x.name for x in kernel.buffers} | {x.name for x in kernel.sizes} | {x.name for x in kernel.params}


def _names_apart(kernel: Kernel, taken: set[str]) -> Kernel:
    """The kernel with axes, locals and bound names that are not taken."""
    shared = _shared_names(kernel)
    new: dict[str, str] = {}
    used = taken | bound_names(kernel)
    for name in sorted(bound_names(kernel) - shared):
        if name in taken:
            number = next(k for k in range(1, len(used) + 2) if f"{name}_{k}" not in used)
            new[name] = f"{name}_{number}"
            used.add(new[name])
    change = Substitution(axes={k: AxisVar(v) for k, v in new.items()}, buffers=new, binders=new)
    return replace(
        kernel,
        axes=tuple(change.axis(axis) for axis in kernel.axes),
        locals=tuple(replace(local, name=new.get(local.name, local.name)) for local in kernel.locals),
        body=change.block(kernel.body),
    )


def recompute_is_cheap(kernel: Kernel) -> bool:
    """True if computing a value of the kernel again costs no more than loading it: no function, Philox, gather, loop.

    >>> recompute_is_cheap(Kernel("nothing"))
    True
    """
    for part in all_values(kernel.body):
        op = UNARY[part.op] if isinstance(part, Unary) else BINARY[part.op] if isinstance(part, Binary) else None
        if isinstance(part, Philox) or (op is not None and op.transcendental):
            return False
        if any(isinstance(atom, AsIndex) for index in indices_of(part) for atom in atoms(index)):
            return False
    return all(isinstance(stmt, (Let, Store)) for stmt in statements(kernel.body))


def _loads(block: Block, axes: tuple[Axis, ...], name: str, out: list[tuple[Load, tuple[Axis, ...]]]) -> None:
    for stmt in block:
        inner = axes + axes_of(stmt)
        for value in own_values(stmt):
            out.extend((p, inner) for p in subexpressions(value) if isinstance(p, Load) and p.buffer == name)
        for inside in blocks_of(stmt):
            _loads(inside, inner, name, out)


def _guarded(expr: Expr, guard: Expr) -> Expr:
    """The value with every load under one more guard."""

    def under(load: Load) -> Expr:
        both = guard if load.guard is None else Binary("and", guard, load.guard)
        return replace(load, guard=both)

    return Substitution(load=under).value(expr)


class _Fusion:
    def __init__(self, producer: Kernel, consumer: Kernel, name: str):
        made, wanted = producer.buffer(name), consumer.buffer(name)
        if not isinstance(made, Buffer) or not isinstance(wanted, Buffer):
            raise _Refused(1, f"{name} is not a buffer of both kernels")
        self.name, self.shape, self.dtype = name, made.shape, made.dtype
        _need(made.shape == wanted.shape and made.dtype == wanted.dtype, 4, f"{name} has two shapes or types")
        self.consumer = consumer = _names_apart(consumer, _shared_names(producer))
        self.producer = _names_apart(producer, bound_names(consumer))
        stores = [stmt for stmt in statements(self.producer.body) if isinstance(stmt, Store)]
        outputs = [s for s in stores if s.buffer not in {local.name for local in producer.locals}]
        _need(len(outputs) == 1 and outputs[0].buffer == name, 2, "the producer has other outputs")
        self.store = outputs[0]
        top = self.store in self.producer.body
        plain = self.store.mode == "unique" and self.store.guard is None and self.store.combine is None
        _need(top and plain, 1, f"{name} is not stored once at each grid point")
        self.map = self._axis_of_dimension()
        self.lets = tuple(s for s in self.producer.body if s is not self.store)
        self.simple = all(isinstance(s, Let) for s in self.lets)
        self.loads: list[tuple[Load, tuple[Axis, ...]]] = []
        _loads(consumer.body, consumer.axes, name, self.loads)
        _need(bool(self.loads), 1, f"the consumer does not load {name}")
        sizes = {size.name: (size.low, size.high) for size in consumer.sizes}
        self.facts = Facts(sizes=sizes)

    def _axis_of_dimension(self) -> dict[int, Axis]:
        axes = {axis.name: axis for axis in self.producer.axes}
        found: dict[int, Axis] = {}
        for at, index in enumerate(self.store.indices):
            if isinstance(index, AxisVar) and index.name in axes:
                found[at] = axes.pop(index.name)
                _need(found[at].extent == self.shape[at], 4, f"dimension {at} of {self.name} is not stored in full")
            else:
                whole = index == Int(0) and self.shape[at] == Int(1)
                _need(whole, 1, f"dimension {at} of {self.name} is not stored by an axis of its own")
        _need(not axes, 1, "the producer has axes that do not show in its output")
        return found

    def positions(self, load: Load) -> dict[str, Index]:
        """Where on its axes the producer computes what a load wants."""
        return {axis.name: load.indices[at] for at, axis in self.map.items()}

    def inline(self, users: int) -> Kernel:
        """A producer of one expression goes into each load."""
        forms = {load.indices for load, _ in self.loads}
        once = len(forms) == 1 and all(
            injective(load.indices, [a.name for a in axes], self.facts.with_axes({a.name: a.extent for a in axes}))
            for load, axes in self.loads
        )
        cheap = recompute_is_cheap(self.producer)
        _need(cheap or users == 1, 2, f"{self.name} has {users} users and is not cheap to compute again")
        _need(cheap or once, 2, f"{self.name} would be computed more than once, and is not cheap")
        value = self.store.value
        for stmt in reversed(self.lets):
            assert isinstance(stmt, Let)
            value = Substitution(names={stmt.name: stmt.value}).value(value)
        checks = any(isinstance(a, AsIndex) for p in subexpressions(value) for i in indices_of(p) for a in atoms(i))

        def instead(load: Load) -> Expr:
            if load.buffer != self.name:
                return load
            skips = any(isinstance(atom, AsIndex) for index in load.indices for atom in atoms(index))
            _need(not skips, 1, f"{self.name} is loaded at positions that are values")
            new = Substitution(axes=self.positions(load)).value(value)
            if load.guard is None:
                return new
            _need(not checks, 1, "a guarded load of a gather")
            other = const(0, self.dtype) if load.other is None else load.other
            return Where(load.guard, _guarded(new, load.guard), other)

        return replace(self.consumer, body=Substitution(load=instead).block(self.consumer.body))

    def prefix(self, users: int) -> Kernel:
        """A producer with reductions runs first at each point; the consumer follows, as an epilogue or row by row."""
        _need(users == 1, 2, f"{self.name} has {users} users and is not cheap to compute again")
        forms = {load.indices for load, _ in self.loads}
        _need(len(forms) == 1 and all(load.guard is None for load, _ in self.loads), 1, "loads at several positions")
        (indices,) = forms
        grid = {axis.name: axis for axis in self.consumer.axes}
        rows: list[Axis] = []
        for at, index in enumerate(indices):
            if at in self.map:
                axis = grid.get(index.name) if isinstance(index, AxisVar) else None
                _need(axis is not None and axis not in rows, 1, "a load that is not at the consumer's own grid point")
                assert axis is not None
                _need(axis.extent == self.shape[at], 4, f"axis {axis.name} is not as long as {self.name}")
                rows.append(axis)
        inner = [axis for axis in self.consumer.axes if axis not in rows]
        body = self.consumer.body
        if inner:
            folds = [s for s in statements(body) if isinstance(s, (Reduce, Contract, Scan))]
            _need(not folds, 1, "reductions over different axes share no kernel")
            _need(not self.consumer.locals, 1, "the consumer's Locals belong to more grid points than there would be")
            ordered = [s for s in statements(body) if isinstance(s, Store) and s.mode != "unique"]
            _need(not ordered, 1, "an ordered store would change its order")
        change = Substitution(axes=self.positions(self.loads[0][0]))
        value = change.value(self.store.value)
        name = Name(self._fresh("row"), self.dtype)
        before: list[Stmt] = [*change.block(self.lets), Let(name.name, value)]
        body = Substitution(load=lambda load: name if load.buffer == self.name else load).block(body)
        for axis in reversed(inner):
            body = (Loop(axis, body),)
        return replace(self.consumer, axes=tuple(a for a in self.consumer.axes if a in rows), body=(*before, *body))

    def _fresh(self, name: str) -> str:
        taken = bound_names(self.consumer) | bound_names(self.producer)
        return next(new for k in range(len(taken) + 1) if (new := f"{name}{k}") not in taken)

    def merged(self, kernel: Kernel) -> Kernel:
        """The kernel with the arguments of both."""
        have = {buffer.name for buffer in self.consumer.buffers}
        buffers = [b for b in self.producer.buffers if b.name not in have and b.name != self.name]
        buffers += [b for b in self.consumer.buffers if b.name != self.name]
        params = {param.name: param for param in (*self.producer.params, *self.consumer.params)}
        return replace(
            kernel,
            name=f"{self.producer.name}_{self.consumer.name}",
            sizes=_merge_sizes(self.producer.sizes, self.consumer.sizes),
            params=tuple(params.values()),
            buffers=tuple(buffers),
            locals=self.producer.locals + self.consumer.locals,
        )


def _merge_sizes(a: tuple[SizeRange, ...], b: tuple[SizeRange, ...]) -> tuple[SizeRange, ...]:
    merged = {size.name: size for size in a}
    for size in b:
        old = merged.get(size.name, size)
        lows = [end for end in (old.low, size.low) if end is not None]
        highs = [end for end in (old.high, size.high) if end is not None]
        merged[size.name] = SizeRange(size.name, max(lows, default=None), min(highs, default=None))
    return tuple(merged.values())


def _check_mutation(producer: Kernel, consumer: Kernel, name: str, mutated: frozenset[str]) -> None:
    reads = {buffer.name for buffer in producer.buffers if buffer.role != "out"}
    writes = {buffer.name for buffer in consumer.buffers if buffer.role != "in"}
    _need(name not in writes, 3, f"the consumer writes {name}")
    both = sorted(reads & (writes | mutated))
    _need(not both, 3, f"{', '.join(both)} changes between producer and consumer")
    inout = [buffer.name for buffer in producer.buffers if buffer.role == "inout"]
    _need(not inout, 3, f"the producer changes {', '.join(inout)} in place")


def fuse(
    producer: Kernel,
    consumer: Kernel,
    name: str,
    users: int = 1,
    mutated: frozenset[str] = frozenset(),
    limits: Limits | None = None,
) -> Kernel | Refusal:
    """One kernel that does what both do, without the tensor ``name`` between them; or why not.

    ``users`` counts the kernels that read the tensor; ``mutated`` names tensors that change between the two.

    >>> from bringup.ir.parser import parse
    >>> head, tail = "kernel k size n in x: float32[n] strides [1] ", "out y: float32[n] strides [1] grid i < n "
    >>> double = parse(head + tail + "{ store y[i] = (x[i] + x[i]) }")
    >>> square = rename(double, {"x": "y", "y": "z"})
    >>> fused = fuse(double, square, "y")
    >>> fused.name, [buffer.name for buffer in fused.buffers]
    ('k_k', ['x', 'z'])
    """
    limits = limits or Limits()
    try:
        _check_mutation(producer, consumer, name, mutated)
        work = _Fusion(producer, consumer, name)
        kernel = work.merged(work.inline(users) if work.simple else work.prefix(users))
        scratch = sum(local.nbytes for local in kernel.locals)
        _need(scratch <= limits.local_bytes, 5, f"{scratch} bytes of Locals, {limits.local_bytes} are allowed")
        pointers = len(kernel.buffers)
        _need(pointers <= limits.pointers, 6, f"{pointers} buffers, {limits.pointers} are allowed")
        kernel = share(kernel)
        verify(kernel)
    except _Refused as refused:
        return refused.refusal
    except VerifyError as error:
        return Refusal(1, f"the fused kernel is not proved safe: {error.rule}: {error.reason}")
    return kernel
