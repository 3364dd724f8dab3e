"""unique and its relatives: sort, mark where a new value begins, keep those places."""

from __future__ import annotations

import torch
from torch import Tensor

from bringup.lowering.composed import flat_places
from bringup.lowering.registry import composed

_Found = tuple[Tensor, Tensor, Tensor]


def _nothing(like: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.int64, device=like.device)


def _groups(begins: Tensor, order: Tensor | None, inverse: bool, counts: bool) -> _Found:
    """(where groups begin, the group of each element, how many a group has); ``order``: where elements stood before."""
    starts = flat_places(begins)
    group, many = _nothing(begins), _nothing(begins)
    if inverse:
        group = begins.cumsum(0) - 1
        if order is not None:
            group = torch.empty_like(order).scatter_(0, order, group)
    if counts:
        end = torch.full((min(1, starts.numel()),), begins.numel(), dtype=torch.int64, device=begins.device)
        many = torch.cat((starts[1:], end)) - starts
    return starts, group, many


def _first(differs: Tensor, length: int) -> Tensor:
    """True for the first of all and where an element differs from the one before."""
    return torch.cat((torch.ones(min(1, length), dtype=torch.bool, device=differs.device), differs))


def _changes(values: Tensor) -> Tensor:
    return _first(values[1:] != values[:-1], values.shape[0])


@composed("aten::_unique2")
def unique2(self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> _Found:
    """The different values, in order."""
    values, order = self.reshape(-1).sort(stable=True)
    starts, group, many = _groups(_changes(values), order, return_inverse, return_counts)
    return values.index_select(0, starts), group.view(self.shape) if return_inverse else group, many


@composed("aten::_unique")
def unique(self: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    """The different values, in order."""
    return unique2(self, sorted, return_inverse)[:2]


@composed("aten::unique_consecutive")
def unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> _Found:
    """The first of each run of equal values."""
    if dim is not None:
        return unique_dim_consecutive(self, dim, return_inverse, return_counts)
    values = self.reshape(-1)
    starts, group, many = _groups(_changes(values), None, return_inverse, return_counts)
    return values.index_select(0, starts), group.view(self.shape) if return_inverse else group, many


def _slices(self: Tensor, dim: int) -> Tensor:
    """The slices along a dimension as rows."""
    if 0 in (size for d, size in enumerate(self.shape) if d != dim % self.ndim):
        if self.shape[dim] != 0:
            raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
        return self.new_empty((0, 1))
    transposed = self.movedim(dim, 0)
    return transposed.reshape(self.shape[dim], -1) if self.numel() else self.new_empty((0, 1))


def _taken(self: Tensor, dim: int, places: Tensor) -> Tensor:
    """Some slices; they lie one after the other in memory, as ATen's do."""
    return self.movedim(dim, 0).index_select(0, places).movedim(0, dim)


@composed("aten::unique_dim_consecutive")
def unique_dim_consecutive(self: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False) -> _Found:
    """The first of each run of equal slices."""
    rows = _slices(self, dim)
    begins = _first((rows[1:] != rows[:-1]).any(1), rows.shape[0])
    starts, group, many = _groups(begins, None, True, True)
    return _taken(self, dim, starts), group, many


@composed("aten::unique_dim")
def unique_dim(
    self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> _Found:
    """The different slices, in lexicographic order: sorted by every column, the last one first."""
    rows = _slices(self, dim)
    order = torch.arange(rows.shape[0], device=self.device)
    for column in reversed(range(rows.shape[1])):
        order = order[rows[:, column][order].sort(stable=True).indices]
    ranked = rows[order]
    begins = _first((ranked[1:] != ranked[:-1]).any(1), rows.shape[0])
    starts, group, many = _groups(begins, order, True, True)
    return _taken(self, dim, order[starts]), group, many
