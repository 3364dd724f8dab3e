"""Other loops over the same points: an axis in several parts, axes of the grid as loops inside it, other names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bringup.graph.fusion.piece import Piece, Workshop
from bringup.ir.index import AxisVar, Index, Int, add, multiply
from bringup.ir.kernel import Axis, Block, Loop, Stmt
from bringup.ir.walk import Substitution


@dataclass(frozen=True)
class _Split:
    """The parts of an axis, outermost first."""

    axes: tuple[Axis, ...]

    @property
    def extent(self) -> Index:
        total: Index = Int(1)
        for axis in self.axes:
            total = multiply(total, axis.extent)
        return total

    @property
    def position(self) -> Index:
        total: Index = Int(0)
        for axis in self.axes:
            total = add(multiply(total, axis.extent), axis.var)
        return total


class _Splitter:
    """Rewrites a block in which some axes fall into parts: dimensions that such an axis walks fall into parts, too."""

    def __init__(self, shop: Workshop, parts: Mapping[str, _Split]) -> None:
        self.shop, self.parts = shop, parts
        self.change = Substitution(
            axes={name: split.position for name, split in parts.items()},
            access=self.access,
        )

    def access(self, buffer: str, indices: tuple[Index, ...]) -> tuple[str, tuple[Index, ...]]:
        view = self.shop.views.get(buffer)
        if view is None or not any(isinstance(i, AxisVar) and i.name in self.parts for i in indices):
            return buffer, tuple(self.change.index(index) for index in indices)
        shape: list[Index] = []
        strides: list[Index] = []
        places: list[Index] = []
        for index, extent, stride in zip(indices, view.shape, view.strides):
            split = self.parts.get(index.name) if isinstance(index, AxisVar) else None
            # An axis that walks on behind a guard stays one index: its parts would see more than there is.
            if split is None or not self.shop.formulas.at_least(extent, split.extent):
                shape.append(extent)
                strides.append(stride)
                places.append(self.change.index(index))
                continue
            steps = [stride]
            for axis in reversed(split.axes[1:]):
                steps.insert(0, multiply(steps[0], axis.extent))
            shape += [axis.extent for axis in split.axes]
            strides += steps
            places += [axis.var for axis in split.axes]
        return self.shop.buffer(replace(view, shape=tuple(shape), strides=tuple(strides))), tuple(places)

    def block(self, block: Block) -> Block:
        return self.loops(self.change.block(block))

    def loops(self, block: Block) -> Block:
        """Loops over an axis in parts, as loops over the parts."""
        new: list[Stmt] = []
        for stmt in block:
            if isinstance(stmt, Loop):
                body = self.loops(stmt.body)
                split = self.parts.get(stmt.axis.name)
                if split is None:
                    stmt = replace(stmt, body=body)
                else:
                    for axis in reversed(split.axes):
                        body = (Loop(axis, body),)
                    (stmt,) = body
            new.append(stmt)
        return tuple(new)


def split(shop: Workshop, piece: Piece, parts: Mapping[str, Sequence[Index]]) -> Piece:
    """The piece with axes of its grid, or of parallel loops, in several parts (extents outermost first)."""
    if not parts:
        return piece
    made = {
        name: _Split(tuple(Axis(shop.fresh(name[0]), extent) for extent in extents)) for name, extents in parts.items()
    }
    splitter = _Splitter(shop, made)
    axes: list[Axis] = []
    for axis in piece.axes:
        axes += made[axis.name].axes if axis.name in made else (axis,)
    return replace(piece, axes=tuple(axes), body=splitter.block(piece.body))


def renamed(piece: Piece, axes: Mapping[str, str]) -> Piece:
    """The piece with other names for axes of its grid."""
    if all(old == new for old, new in axes.items()):
        return piece
    change = Substitution(axes={old: AxisVar(new) for old, new in axes.items()})
    return replace(piece, axes=tuple(change.axis(axis) for axis in piece.axes), body=change.block(piece.body))


def demoted(piece: Piece, keep: Sequence[str]) -> Piece:
    """The piece on a smaller grid: its other axes are parallel loops inside each point."""
    if all(axis.name in keep for axis in piece.axes):
        return piece
    body = piece.body
    for axis in reversed(piece.axes):
        if axis.name not in keep:
            body = (Loop(axis, body),)
    return replace(piece, axes=tuple(axis for axis in piece.axes if axis.name in keep), body=body)
