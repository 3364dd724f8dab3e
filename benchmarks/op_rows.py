"""The rows of benchmarks/ops.py: statements of op_families.py at a shape, size and dtype, and the tensors they name.

>>> next(case for case in cases(sizes=("small",)) if case.op == "sort").key
'sorting/sort/rows/small/float32/forward'
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from op_families import DTYPES, FAMILIES, SIZES, Shape

if TYPE_CHECKING:
    import torch


class Tensors:
    """The tensors that statements name, made when they are first asked for, on the CPU and always the same."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        import torch

        self.shape, self.dtype, self.torch = shape, dtype, torch

    def __getitem__(self, name: str) -> Any:
        self.torch.manual_seed(zlib.crc32(name.encode()))
        return getattr(self, f"_{name}")()

    @cached_property
    def count(self) -> int:
        """The elements of the shape."""
        return prod(self.shape)

    def random(self, *shape: int) -> Any:
        """Normal floats, or integers of both signs."""
        if self.dtype.is_floating_point:
            return self.torch.randn(shape).to(self.dtype)
        return self.torch.randint(-(1 << 20), 1 << 20, shape, dtype=self.dtype)

    def places(self, high: int, *shape: int) -> Any:
        """Indices below a number."""
        return self.torch.randint(max(1, high), shape)

    def _x(self) -> Any:
        return self.random(*self.shape)

    _y = _z = _host = _x

    def _p(self) -> Any:
        return self.random(*self.shape).abs() + (0.01 if self.dtype.is_floating_point else 1)

    def _u(self) -> Any:
        return self.torch.rand(self.shape).mul(0.98).add(0.01).to(self.dtype)

    _v = _u

    def _m(self) -> Any:
        return self.torch.rand(self.shape) > 0.5

    def _few(self) -> Any:
        return self.torch.randint(100, self.shape).to(self.dtype)

    def _degree(self) -> Any:
        return self.torch.randint(7, self.shape).to(self.dtype)

    def _flat(self) -> Any:
        return self.random(self.count)

    def _ascending(self) -> Any:
        return self.random(1000).sort().values

    def _seven(self) -> Any:
        return self.torch.arange(7).to(self.dtype)

    def _even(self) -> Any:
        return self.random(*self.shape[:-1], 2 * self.shape[-1])

    def _threes(self) -> Any:
        return self.random(max(1, self.count // 3), 3)

    def _row(self) -> Any:
        return self.random(self.shape[-1])

    def _column(self) -> Any:
        return self.random(self.shape[0], *[1] * (len(self.shape) - 1))

    def _one(self) -> Any:
        return self.torch.ones(1, dtype=self.dtype)

    def _zero(self) -> Any:
        return self.torch.zeros((), dtype=self.dtype)

    def _whole(self) -> Any:
        return self.torch.zeros(1, dtype=self.torch.int32)

    def _step(self) -> Any:
        return self.torch.ones((), dtype=self.torch.float32)

    def _i(self) -> Any:
        return self.places(self.shape[-1], *self.shape)

    def _first(self) -> Any:
        return self.places(self.shape[0], *self.shape)

    def _place(self) -> Any:
        return self.places(self.count, self.count)

    def _pick(self) -> Any:
        return self.places(self.shape[0], self.shape[0])

    def _last(self) -> Any:
        return self.places(self.shape[-1], self.shape[-1])

    def _target(self) -> Any:
        return self.places(self.shape[-1], self.shape[0])

    def _counts(self) -> Any:
        return self.places(4, self.count)

    def _lengths(self) -> Any:
        return self.torch.tensor([self.shape[0] // 2, self.shape[0] - self.shape[0] // 2])

    def _parts(self) -> Any:
        return list(self.random(*self.shape).abs().add(0.1).unbind())

    _others = _parts

    def _squares(self) -> Any:
        return [self.random(32, 32) for _ in range(4)]

    def _filters(self) -> Any:
        return self.random(self.shape[1], self.shape[1], 3, 3) / 3

    def _depthwise(self) -> Any:
        return self.random(self.shape[1], 1, 3, 3) / 3

    def _taps(self) -> Any:
        return self.random(16, self.shape[1], 3)

    def _mean(self) -> Any:
        return self.torch.zeros(self.shape[1])

    def _variance(self) -> Any:
        return self.torch.ones(self.shape[1])

    def _four(self) -> Any:
        return self.random(self.shape[0], 4 * self.shape[1], *self.shape[2:])

    def _points(self) -> Any:
        return self.random(self.shape[0], *self.shape[2:], len(self.shape) - 2).clamp(-1, 1)

    def _spread(self) -> Any:
        """Where each element goes when every extent is doubled."""
        place = self.torch.zeros((), dtype=self.torch.int64)
        for extent in self.shape[2:]:
            place = place[..., None] * (2 * extent) + 2 * self.torch.arange(extent)
        return place.expand(self.shape).contiguous()

    def _wide4(self) -> Any:
        return self.random(4 * self.shape[-1], self.shape[-1]) / 8

    def _bias4(self) -> Any:
        return self.random(4 * self.shape[-1])

    def _wide3(self) -> Any:
        return self.random(3 * self.shape[-1], self.shape[-1]) / 8

    def _bias3(self) -> Any:
        return self.random(3 * self.shape[-1])


#: What gets no gradient though it is a float.
CONSTANTS = frozenset("y u points mean variance few".split())


@dataclass(frozen=True)
class Case:
    """One row: a statement of a family at one shape, size and dtype, forward or backward."""

    family: str
    op: str
    statement: str
    shape_name: str
    shape: Shape
    size: str
    dtype: str
    direction: str

    @property
    def key(self) -> str:
        """Names the row in results and on the command line."""
        return "/".join((self.family, self.op, self.shape_name, self.size, self.dtype, self.direction))

    @property
    def names(self) -> list[str]:
        """The tensors that the statement names."""
        words = dict.fromkeys(re.findall(r"(?<![\w.'])[a-z_]\w*", self.statement))
        return [word for word in words if hasattr(Tensors, f"_{word}")]

    def tensors(self) -> dict[str, Any]:
        """The tensors by name, on the CPU."""
        import torch

        made = Tensors(self.shape, getattr(torch, self.dtype))
        return {name: made[name] for name in self.names}


def cases(
    families: Sequence[str] = (), sizes: Sequence[str] = tuple(SIZES), dtypes: str = "fbdi", every: bool = False
) -> Iterator[Case]:
    """Rows in the order of the table; ``dtypes`` by first letter.

    A family's first shape is measured in all its dtypes, the others in its first dtype; ``every`` crosses them.
    """
    for name, family in FAMILIES.items():
        if families and name not in families:
            continue
        for size in sizes:
            # What is small stays so: only calls that take long are made shorter.
            count = SIZES[size] if size == "small" else max(SIZES["small"], SIZES[size] // family.shrink)
            shapes = {kind: make(count) for kind, make in family.shapes.items()}
            for op, statement in family.statements.items():
                for dtype in family.dtypes:
                    if dtype not in dtypes:
                        continue
                    for place, (kind, shape) in enumerate(shapes.items()):
                        if place and dtype != family.dtypes[0] and not every:
                            continue
                        for direction in ("forward", "backward") if family.backward else ("forward",):
                            yield Case(name, op, statement, kind, shape, size, DTYPES[dtype], direction)


def rotated(chosen: Sequence[Case]) -> list[Case]:
    """Two rows of each op, size and direction: its typical shape in its first type, and one more by a fixed rule.

    The other row is the one at the place that a checksum of the names gives, whatever any run has measured: together
    these rows go through all shapes and types of a family.

    >>> found = rotated(list(cases(["sorting"], ("cache",))))
    >>> [case.key for case in found if case.op == "mode"]
    ['sorting/mode/rows/cache/float32/forward', 'sorting/mode/odd/cache/float32/forward']
    """
    groups: dict[str, list[Case]] = {}
    for case in chosen:
        groups.setdefault("/".join((case.family, case.op, case.size, case.direction)), []).append(case)
    found = []
    for name, (typical, *others) in groups.items():
        found.append(typical)
        if others:
            found.append(others[zlib.crc32(name.encode()) % len(others)])
    return found
