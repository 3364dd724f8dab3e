"""Index arithmetic: integer polynomials over axes and sizes, with floor division, modulo, min and max.

Operators build the canonical form at once (a sorted sum of integer multiples of products), so equal polynomials are
equal objects and there is no separate expansion step:

    >>> i, m = AxisVar("i"), Size("m")
    >>> (i + 1) * m - m == m * i
    True

Division rounds down and takes a positive divisor (the verifier proves it), as in Python. Rules that need to know how
large an axis is are in index_proof.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, TypeAlias, Union

import numpy as np

Factors: TypeAlias = tuple["Index", ...]
IndexLike: TypeAlias = Union["Index", int]


class Index:
    """An integer expression; the subclasses say of what."""

    @cached_property
    def key(self) -> str:
        """A text that orders factors and terms the same way in every process."""
        return repr(self)

    def __add__(self, other: IndexLike) -> Index:
        return add(self, as_index(other))

    def __sub__(self, other: IndexLike) -> Index:
        return add(self, multiply(Int(-1), as_index(other)))

    def __rsub__(self, other: int) -> Index:
        return as_index(other) - self

    def __neg__(self) -> Index:
        return multiply(Int(-1), self)

    def __mul__(self, other: IndexLike) -> Index:
        return multiply(self, as_index(other))

    def __floordiv__(self, other: IndexLike) -> Index:
        return floor_divide(self, as_index(other))

    def __mod__(self, other: IndexLike) -> Index:
        return modulo(self, as_index(other))

    __radd__, __rmul__ = __add__, __mul__


@dataclass(frozen=True)
class Int(Index):
    """A constant."""

    value: int


@dataclass(frozen=True)
class AxisVar(Index):
    """The position on an axis."""

    name: str


@dataclass(frozen=True)
class Size(Index):
    """A size or stride that the kernel receives as an argument."""

    name: str


@dataclass(frozen=True)
class Sum(Index):
    """Terms (factors, coefficient) in canonical order; the constant term has no factors. Built by the operators."""

    terms: tuple[tuple[Factors, int], ...]


@dataclass(frozen=True)
class OfTwo(Index):
    """An operation on two indices; the subclasses say which."""

    a: Index
    b: Index


class FloorDiv(OfTwo):
    """a // b, rounded down; built by ``floor_divide``."""


class Mod(OfTwo):
    """a % b, in 0 … b - 1; built by ``modulo``."""


class Min(OfTwo):
    """The smaller of two."""


class Max(OfTwo):
    """The larger of two."""


class Bounded(Index):
    """An index from outside this module that lies in 0 … extent - 1 whenever it is used (expr.AsIndex)."""

    extent: Index


def as_index(value: IndexLike) -> Index:
    """An int as an index; an index stays itself.

    >>> as_index(3)
    Int(value=3)
    """
    return value if isinstance(value, Index) else Int(int(value))


def terms_of(index: Index) -> dict[Factors, int]:
    """The polynomial as {factors: coefficient}.

    >>> terms_of(AxisVar("i") * 2 + 1)
    {(): 1, (AxisVar(name='i'),): 2}
    """
    if isinstance(index, Int):
        return {(): index.value} if index.value else {}
    if isinstance(index, Sum):
        return dict(index.terms)
    return {(index,): 1}


def from_terms(terms: Mapping[Factors, int]) -> Index:
    """The canonical index of a polynomial.

    >>> from_terms({(): 0, (AxisVar("i"),): 1})
    AxisVar(name='i')
    """
    present = {factors: value for factors, value in terms.items() if value}
    if not present:
        return Int(0)
    if len(present) == 1:
        ((factors, value),) = present.items()
        if not factors:
            return Int(value)
        if value == 1 and len(factors) == 1:
            return factors[0]
    return Sum(tuple(sorted(present.items(), key=lambda term: [factor.key for factor in term[0]])))


def add(a: Index, b: Index) -> Index:
    """a + b.

    >>> add(AxisVar("i"), Int(0))
    AxisVar(name='i')
    """
    total = terms_of(a)
    for factors, value in terms_of(b).items():
        total[factors] = total.get(factors, 0) + value
    return from_terms(total)


def multiply(a: Index, b: Index) -> Index:
    """a × b, expanded.

    >>> multiply(Int(2), AxisVar("i") + 1) == AxisVar("i") * 2 + 2
    True
    """
    if isinstance(a, Int) and isinstance(b, Int):
        return Int(a.value * b.value)
    total: dict[Factors, int] = {}
    for left, x in terms_of(a).items():
        for right, y in terms_of(b).items():
            factors = tuple(sorted(left + right, key=lambda factor: factor.key))
            total[factors] = total.get(factors, 0) + x * y
    return from_terms(total)


def _split(a: Index, b: Index) -> tuple[Index, Index]:
    """a = quotient × b + rest, for a divisor of one term; the rest holds what is not visibly a multiple."""
    divisor = terms_of(b)
    if len(divisor) != 1:
        return (Int(1), Int(0)) if a == b else (Int(0), a)
    ((by, scale),) = divisor.items()
    quotient: dict[Factors, int] = {}
    rest: dict[Factors, int] = {}
    for factors, value in terms_of(a).items():
        left = Counter(factors)
        left.subtract(by)
        if value % scale == 0 and all(count >= 0 for count in left.values()):
            quotient[tuple(sorted(left.elements(), key=lambda factor: factor.key))] = value // scale
        elif not factors and not by:
            quotient[()], rest[()] = divmod(value, scale)
        else:
            rest[factors] = value
    return from_terms(quotient), from_terms(rest)


def floor_divide(a: Index, b: Index) -> Index:
    """a // b, with the visible multiples of b taken out.

    >>> m, i = Size("m"), AxisVar("i")
    >>> floor_divide(m * i + 3 * m, m) == i + 3
    True
    """
    if isinstance(b, Int) and b.value == 0:
        raise ZeroDivisionError("an index is divided by 0")
    quotient, rest = _split(a, b)
    if rest == Int(0):
        return quotient
    if isinstance(rest, FloorDiv):
        return quotient + floor_divide(rest.a, rest.b * b)
    return quotient + FloorDiv(rest, b)


def modulo(a: Index, b: Index) -> Index:
    """a % b, without the visible multiples of b.

    >>> modulo(AxisVar("i") * 8 + 11, Int(4))
    Int(value=3)
    """
    if isinstance(b, Int) and b.value == 0:
        raise ZeroDivisionError("an index is divided by 0")
    _, rest = _split(a, b)
    if isinstance(rest, Int) and isinstance(b, Int):
        return Int(rest.value % b.value)
    if rest == Int(0) or (isinstance(rest, Mod) and rest.b == b):
        return rest
    return Mod(rest, b)


def minimum(a: IndexLike, b: IndexLike) -> Index:
    """The smaller of two.

    >>> minimum(3, 5)
    Int(value=3)
    """
    a, b = sorted((as_index(a), as_index(b)), key=lambda index: index.key)
    difference = a - b
    return (a if difference.value <= 0 else b) if isinstance(difference, Int) else Min(a, b)


def maximum(a: IndexLike, b: IndexLike) -> Index:
    """The larger of two.

    >>> maximum(AxisVar("i"), AxisVar("i") + 1) == AxisVar("i") + 1
    True
    """
    a, b = sorted((as_index(a), as_index(b)), key=lambda index: index.key)
    difference = a - b
    return (a if difference.value >= 0 else b) if isinstance(difference, Int) else Max(a, b)


#: The function that makes the canonical form of each operation.
MAKERS: dict[type[OfTwo], Callable[[Index, Index], Index]] = {
    FloorDiv: floor_divide,
    Mod: modulo,
    Min: minimum,
    Max: maximum,
}


def rebuild(index: Index, leaf: Callable[[Index], Index]) -> Index:
    """The same index with each axis, size and bounded value replaced by ``leaf`` of it.

    >>> rebuild(AxisVar("i") * 2, lambda atom: Int(3))
    Int(value=6)
    """
    if isinstance(index, Int):
        return index
    if isinstance(index, Sum):
        new = {factor: rebuild(factor, leaf) for factors, _ in index.terms for factor in factors}
        if all(factor is replaced for factor, replaced in new.items()):
            return index
        products = (reduce(multiply, [new[f] for f in factors], as_index(value)) for factors, value in index.terms)
        return reduce(add, products, as_index(0))
    if isinstance(index, OfTwo):
        return MAKERS[type(index)](rebuild(index.a, leaf), rebuild(index.b, leaf))
    return leaf(index)


def substitute(
    index: Index, axes: Mapping[str, IndexLike] | None = None, sizes: Mapping[str, IndexLike] | None = None
) -> Index:
    """The index with axes and sizes replaced; a bounded value keeps its inside (walk.py replaces there too).

    >>> substitute(AxisVar("i") + Size("n"), {"i": 2}, {"n": 3})
    Int(value=5)
    """

    def leaf(atom: Index) -> Index:
        if isinstance(atom, AxisVar) and axes and atom.name in axes:
            return as_index(axes[atom.name])
        if isinstance(atom, Size) and sizes and atom.name in sizes:
            return as_index(sizes[atom.name])
        return atom

    return rebuild(index, leaf)


def atoms(index: Index) -> Iterator[Index]:
    """Every axis, size and bounded value inside, with repeats.

    >>> [atom.key for atom in atoms(AxisVar("i") % Size("n"))]
    ["AxisVar(name='i')", "Size(name='n')"]
    """
    if isinstance(index, Sum):
        for factors, _ in index.terms:
            for factor in factors:
                yield from atoms(factor)
    elif isinstance(index, OfTwo):
        yield from atoms(index.a)
        yield from atoms(index.b)
    elif not isinstance(index, Int):
        yield index


def axes_in(index: Index) -> set[str]:
    """The names of the axes that an index mentions (outside bounded values).

    >>> sorted(axes_in(AxisVar("i") + AxisVar("j") // 2))
    ['i', 'j']
    """
    return {atom.name for atom in atoms(index) if isinstance(atom, AxisVar)}


def coefficient(index: Index, factor: Index) -> tuple[Index, Index]:
    """(c, rest) with index = c × factor + rest, as far as the factor is visible in products.

    >>> coefficient(Size("m") * AxisVar("i") + 1, AxisVar("i"))
    (Size(name='m'), Int(value=1))
    """
    scale: dict[Factors, int] = {}
    rest: dict[Factors, int] = {}
    for factors, value in terms_of(index).items():
        if factor in factors:
            at = factors.index(factor)
            scale[factors[:at] + factors[at + 1 :]] = value
        else:
            rest[factors] = value
    return from_terms(scale), from_terms(rest)


def evaluate(index: Index, leaf: Callable[[Index], Any]) -> Any:
    """The number (or NumPy array) of an index, given those of its axes, sizes and bounded values.

    >>> evaluate(AxisVar("i") * 2 + 1, lambda atom: 5)
    11
    """
    if isinstance(index, Int):
        return index.value
    if isinstance(index, Sum):
        known: dict[Index, Any] = {}
        total: Any = 0
        for factors, value in index.terms:
            product: Any = value
            for factor in factors:
                if factor not in known:
                    known[factor] = evaluate(factor, leaf)
                product = product * known[factor]
            total = total + product
        return total
    if isinstance(index, OfTwo):
        a, b = evaluate(index.a, leaf), evaluate(index.b, leaf)
        if isinstance(index, FloorDiv):
            return a // b
        if isinstance(index, Mod):
            return a % b
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b) if isinstance(index, Min) else max(a, b)
        return np.minimum(a, b) if isinstance(index, Min) else np.maximum(a, b)
    return leaf(index)


def evaluate_sizes(index: Index, sizes: Mapping[str, int]) -> int:
    """The number of an index of sizes only.

    >>> evaluate_sizes(Size("n") * 2, {"n": 4})
    8
    """

    def leaf(atom: Index) -> int:
        if isinstance(atom, Size) and atom.name in sizes:
            return sizes[atom.name]
        raise KeyError(f"no number for {atom} in the sizes {sorted(sizes)}")

    return int(evaluate(index, leaf))
