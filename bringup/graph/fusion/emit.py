"""From a piece back to a launch: buffers, sizes and numbers as arguments, and names that only say the order.

Two pieces of the same structure give the same kernel text, so that the layers of a model share one compiled kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from bringup.graph.fusion.formulas import exact_quotient
from bringup.graph.fusion.mixed_radix import MixedRadix, place
from bringup.graph.fusion.piece import Piece, View, Workshop, accesses
from bringup.graph.fusion.steps import Memory, Refused, Rule, need
from bringup.ir.expr import IndexValue, Load, Param
from bringup.ir.index import AxisVar, Index, Int, Size, add, atoms, multiply
from bringup.ir.kernel import (
    Block,
    Buffer,
    Contract,
    Kernel,
    Let,
    Local,
    Loop,
    Reduce,
    ScalarParam,
    Scan,
    SizeRange,
    Store,
    axes_of,
    statements,
)
from bringup.ir.walk import Substitution, all_values, bridges
from bringup.lowering.call import Launch, LoweredLaunch, Tensor

_NAME_LENGTH = 80


def launch_of(
    shop: Workshop, piece: Piece, needed: Callable[[Memory], bool], local_bytes: int, pointers: int
) -> LoweredLaunch:
    """The launch of a settled piece; Refused if it is more than a target takes."""
    piece = _row_memory(shop, piece, needed, local_bytes)
    used = list(dict.fromkeys(a.buffer for a in accesses(piece.body) if a.buffer in shop.views))
    need(len(used) <= pointers, Rule.LIMITS, f"{len(used)} buffers, {pointers} are allowed")
    loaded = {p.buffer for p in all_values(piece.body) if isinstance(p, Load)}
    stores = [s for s in statements(piece.body) if isinstance(s, Store)]
    stored = {s.buffer for s in stores}
    combined = {s.buffer for s in stores if s.combine is not None}
    buffers = []
    for name in used:
        role = "in" if name not in stored else "inout" if name in loaded | combined else "out"
        view = shop.views[name]
        buffers.append(Buffer(name, view.dtype, view.shape, view.strides, role))  # type: ignore[arg-type]
    params = list(dict.fromkeys(p.name for p in all_values(piece.body) if isinstance(p, Param)))
    sizes = list(dict.fromkeys(atom.name for index in _formulas(piece, buffers) for atom in _sizes(index)))
    kernel = Kernel(
        _short(piece.name),
        sizes=tuple(SizeRange(name, *shop.formulas.ranges.get(name, (None, None))) for name in sizes),
        params=tuple(ScalarParam(name, shop.params[name][0]) for name in params),
        buffers=tuple(buffers),
        locals=piece.locals,
        axes=piece.axes,
        body=piece.body,
    )
    number = shop.formulas.number
    return Launch(
        _plainly_named(kernel),
        tuple(_tensor(shop, shop.views[name]) for name in used),
        tuple(number(Size(name)) for name in sizes),
        tuple(shop.params[name][1] for name in params),
    )


def _tensor(shop: Workshop, view: View) -> Tensor:
    number = shop.formulas.number
    return Tensor(
        view.memory,  # type: ignore[arg-type]
        view.dtype,
        tuple(number(extent) for extent in view.shape),
        tuple(number(stride) for stride in view.strides),
        offset=number(view.offset),
    )


def _short(name: str) -> str:
    """A name for people: the ops in order, as many as fit."""
    if len(name) <= _NAME_LENGTH:
        return name
    return f"{name[: _NAME_LENGTH // 2]}__{name[-_NAME_LENGTH // 2 :]}"


def _formulas(piece: Piece, buffers: list[Buffer]) -> list[Index]:
    found = [axis.extent for axis in piece.axes]
    for buffer in buffers:
        found += [*buffer.shape, *buffer.strides]
    for stmt in statements(piece.body):
        found += [axis.extent for axis in axes_of(stmt)]
    for access in accesses(piece.body):
        found += access.indices
    found += [p.index for p in all_values(piece.body) if isinstance(p, IndexValue)]
    found += [bridge.extent for index in found for bridge in bridges(index)]
    return found


def _sizes(index: Index) -> list[Size]:
    return [atom for atom in atoms(index) if isinstance(atom, Size)]


# ---- rows that stay: one view for memory that is written and read, or scratch of the grid point ----


def _row_memory(shop: Workshop, piece: Piece, needed: Callable[[Memory], bool], local_bytes: int) -> Piece:
    """An allocation that the kernel both writes and reads is one buffer, or a Local if nothing else needs it."""
    found = list(accesses(piece.body))
    stored = {shop.memory(a.buffer) for a in found if a.store is not None}
    loaded = {shop.memory(a.buffer) for a in found if a.load is not None}
    body, scratch = piece.body, list(piece.locals)
    room = local_bytes - sum(local.nbytes for local in piece.locals)
    for memory in sorted(m for m in stored & loaded if m is not None):
        # Places may hold values that were in an allocation before: they are read anew for each.
        now = [(a.buffer, a.indices) for a in accesses(body) if shop.memory(a.buffer) == memory]
        touching = list(dict.fromkeys(now))
        inside = not needed(memory)
        if len(touching) == 1 or (not inside and len({buffer for buffer, _ in touching}) == 1):
            continue
        row = _Row(shop, piece, touching)
        if inside:
            local = row.local(room)
            if local is not None:
                scratch.append(local)
                room -= local.nbytes
        body = row.change.block(body)
    return replace(piece, body=body, locals=tuple(scratch))


class _Row:
    """Elements of an allocation that one grid point touches: the grid's digits, then one dimension over the rest."""

    def __init__(self, shop: Workshop, piece: Piece, touching: list[tuple[str, tuple[Index, ...]]]) -> None:
        self.shop, self.grid = shop, piece.grid
        self.places: dict[tuple[str, tuple[Index, ...]], MixedRadix] = {}
        for buffer, indices in touching:
            where = shop.place(buffer, indices, piece.extents)
            if where is None:
                raise Refused(Rule.LOOPS, "a row that is kept is not read where it was stored")
            self.places[buffer, indices] = where
        first = next(iter(self.places.values()))
        own = [first.of(axis.name) for axis in piece.axes]
        for each in self.places.values():
            need(each.base == first.base, Rule.LOOPS, "parts of a row are read from different places")
            for axis, digit in zip(piece.axes, own):
                mine = each.of(axis.name)
                same = mine == digit if digit is None or mine is None else mine.stride == digit.stride
                need(same, Rule.LOOPS, "rows of a kept memory lie differently for two readers")
        steps = [d.stride for p in self.places.values() for d in p.digits if not self._of_grid(d.atom)]
        self.step: Index = min(steps, key=shop.formulas.hint) if steps else Int(1)
        self.extent = max((self._end(each) for each in self.places.values()), key=shop.formulas.hint)
        outer = [digit for digit in own if digit is not None]
        self.outer = tuple(digit.atom for digit in outer)
        self.view = replace(
            shop.views[touching[0][0]],
            offset=first.base,
            shape=(*(digit.extent for digit in outer), self._in_memory(piece.extents)),
            strides=(*(digit.stride for digit in outer), self.step),
        )
        self.scratch: Local | None = None
        self.change = Substitution(access=self.access)

    def local(self, room: int) -> Local | None:
        """Scratch for the row, which it uses from now on; None if there is no room."""
        allowed = room if self.step == Int(1) else min(room, self.shop.limits.across_bytes)
        if isinstance(self.extent, Int) and self.extent.value * self.view.dtype.size <= allowed:
            self.scratch = Local(self.shop.fresh("l"), self.view.dtype, (self.extent.value,))
        return self.scratch

    def access(self, buffer: str, indices: tuple[Index, ...]) -> tuple[str, tuple[Index, ...]]:
        """What an access touches instead."""
        where = self.places.get((buffer, indices))
        if where is None:  # its own place may be a value that was kept
            return buffer, tuple(self.change.index(index) for index in indices)
        inner: Index = Int(0)
        for digit in where.digits:
            if not self._of_grid(digit.atom):
                inner = add(inner, multiply(self.change.index(digit.atom), self._scaled(digit.stride)))
        if self.scratch is not None:
            return self.scratch.name, (inner,)
        return self.shop.buffer(self.view), (*self.outer, inner)

    def _of_grid(self, atom: Index) -> bool:
        return isinstance(atom, AxisVar) and atom.name in self.grid

    def _end(self, where: MixedRadix) -> Index:
        total: Index = Int(1)
        for digit in where.digits:
            if not self._of_grid(digit.atom):
                total = add(total, multiply(add(digit.extent, Int(-1)), self._scaled(digit.stride)))
        return total

    def _in_memory(self, extents: Mapping[str, Index]) -> Index:
        """How many steps the row has in memory: an axis that walks on behind a guard sees no more than its view."""
        formulas, found = self.shop.formulas, []
        for (buffer, indices), whole in self.places.items():
            view, end = self.shop.views[buffer], self._end(whole)
            for index, extent, stride in zip(indices, view.shape, view.strides):
                where = place(multiply(index, stride), extents, formulas)
                if where is None or any(self._of_grid(digit.atom) for digit in where.digits):
                    continue
                beyond = add(where.base, multiply(add(Int(1), multiply(extent, Int(-1))), stride))
                for digit in where.digits:
                    beyond = add(beyond, multiply(add(digit.extent, Int(-1)), digit.stride))
                if formulas.at_least(beyond, Int(1)):
                    end = add(end, multiply(self._scaled(beyond), Int(-1)))
            found.append(end)
        return max(found, key=formulas.hint)

    def _scaled(self, stride: Index) -> Index:
        found = exact_quotient(stride, self.step)
        if found is None:
            raise Refused(Rule.LOOPS, "a row with gaps of different widths")
        return found


# ---- names ----


def _plainly_named(kernel: Kernel) -> Kernel:
    """The kernel with its names numbered in the order in which they are bound."""
    new: dict[str, str] = {}
    for n, axis in enumerate(kernel.axes):
        new[axis.name] = f"i{n}"
    for n, buffer in enumerate(kernel.buffers):
        new[buffer.name] = {"in": "x", "out": "y", "inout": "z"}[buffer.role] + str(n)
    for n, local in enumerate(kernel.locals):
        new[local.name] = f"l{n}"
    for n, size in enumerate(kernel.sizes):
        new[size.name] = f"n{n}"
    for n, param in enumerate(kernel.params):
        new[param.name] = f"p{n}"
    count = 0

    def bind(stem: str, *names: str) -> None:
        nonlocal count
        for name in names:
            count += 1
            new[name] = f"{stem}{count}"

    def visit(block: Block) -> None:
        for stmt in block:
            bind("j", *(axis.name for axis in axes_of(stmt)))
            if isinstance(stmt, Let):
                bind("t", stmt.name)
            elif isinstance(stmt, Contract):
                bind("r", stmt.name)
            elif isinstance(stmt, Loop):
                bind("c", *stmt.carried)
                visit(stmt.body)
            elif isinstance(stmt, (Reduce, Scan)):
                visit(stmt.body)
                bind("r", *stmt.names)
                bind("a", *stmt.combine.left)
                bind("b", *stmt.combine.right)
                if isinstance(stmt, Scan):
                    visit(stmt.then)

    visit(kernel.body)
    change = Substitution(
        axes={old: AxisVar(name) for old, name in new.items()},
        sizes={size.name: Size(new[size.name]) for size in kernel.sizes},
        params={param.name: Param(new[param.name], param.dtype) for param in kernel.params},
        buffers=new,
        binders=new,
    )

    return Kernel(
        kernel.name,
        sizes=tuple(replace(size, name=new[size.name]) for size in kernel.sizes),
        params=tuple(replace(param, name=new[param.name]) for param in kernel.params),
        buffers=tuple(
            replace(
                buffer,
                name=new[buffer.name],
                shape=tuple(change.index(extent) for extent in buffer.shape),
                strides=tuple(change.index(stride) for stride in buffer.strides),
            )
            for buffer in kernel.buffers
        ),
        locals=tuple(replace(local, name=new[local.name]) for local in kernel.locals),
        axes=tuple(change.axis(axis) for axis in kernel.axes),
        body=change.block(kernel.body),
    )
