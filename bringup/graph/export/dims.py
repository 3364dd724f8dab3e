"""Which sizes of an example call are open, as torch.export's ``dynamic_shapes`` says: names, and better examples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def open_dimensions(
    args: Sequence[Any], kwargs: Mapping[str, Any], parameters: Sequence[str], dynamic_shapes: Any
) -> Iterator[tuple[Any, int, Any]]:
    """(leaf of the arguments, dimension, what ``dynamic_shapes`` holds for it)

    >>> list(open_dimensions(["x"], {}, ["input"], {"input": {0: "batch"}}))
    [('x', 0, 'batch')]
    """
    if isinstance(dynamic_shapes, dict):
        yield from _walk({**dict(zip(parameters, args)), **kwargs}, dynamic_shapes)
    elif isinstance(dynamic_shapes, (list, tuple)):
        yield from _walk([*args, *kwargs.values()], dynamic_shapes)


def _walk(value: Any, shapes: Any) -> Iterator[tuple[Any, int, Any]]:
    if isinstance(value, dict):
        for key in value:
            if isinstance(shapes, dict) and key in shapes:
                yield from _walk(value[key], shapes[key])
    elif isinstance(value, (list, tuple)):
        for one, other in zip(value, shapes if isinstance(shapes, (list, tuple)) else ()):
            yield from _walk(one, other)
    elif isinstance(shapes, dict):
        yield from ((value, dimension, dim) for dimension, dim in shapes.items())
    elif isinstance(shapes, (list, tuple)):
        yield from ((value, dimension, dim) for dimension, dim in enumerate(shapes))


def name_of(dim: Any) -> str | None:
    """The name of a torch.export.Dim, if sizes can be called so.

    >>> name_of(torch.export.Dim("batch"))
    'batch'
    """
    name = getattr(dim, "__name__", "")
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else None


def without_ones(
    args: Sequence[Any], kwargs: Mapping[str, Any], parameters: Sequence[str], dynamic_shapes: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example with dynamic sizes of at least 2: what torch.export sees as 0 or 1 it takes for a constant."""
    wanted: dict[int, dict[int, int]] = {}
    for leaf, dimension, dim in open_dimensions(args, kwargs, parameters, dynamic_shapes):
        if dim is None or not isinstance(leaf, Tensor) or not -leaf.ndim <= dimension < leaf.ndim:
            continue
        least, most = getattr(dim, "min", 2), getattr(dim, "max", 2)
        if leaf.shape[dimension] == 1 and isinstance(least, int) and most >= 2:
            wanted.setdefault(id(leaf), {})[dimension] = max(2, least)

    def enlarged(tensor: Tensor) -> Tensor:
        shape = list(tensor.shape)
        for dimension, size in wanted.get(id(tensor), {}).items():
            shape[dimension] = size
        return tensor.expand(shape).contiguous() if shape != list(tensor.shape) else tensor

    changed: tuple[Any, Any] = pytree.tree_map_only(torch.Tensor, enlarged, (tuple(args), dict(kwargs)))
    return changed
