"""The sizes of a whole graph in one language: formulas over the graph's symbols, their ranges and their hints.

Kernels name their sizes n0, n1, … each for itself. Here every size, stride and offset of every launch is a polynomial
over the same symbols, so two extents are equal only if they are equal for every call. A part that is not polynomial (a
rounded quotient, a minimum) gets a name and counts as one more symbol.
"""

from __future__ import annotations

from collections.abc import Mapping

from bringup.ir.index import (
    FloorDiv,
    Index,
    Int,
    Max,
    Min,
    Mod,
    Size,
    Sum,
    add,
    evaluate_sizes,
    from_terms,
    multiply,
    substitute,
    terms_of,
)
from bringup.ir.index_proof import Facts
from bringup.lowering.symbolic import Dim, IntLike, Trace

Range = tuple[int | None, int | None]


class Formulas:
    """Numbers of launches to formulas and back."""

    def __init__(self, ranges: Mapping[str, tuple[int | None, int | None]]) -> None:
        self.ranges: dict[str, Range] = dict(ranges)
        self.hints: dict[str, int] = {}
        self.trace: Trace | None = None
        self._named: dict[Index, Size] = {}
        #: What the named parts stand for.
        self.meanings: dict[str, Index] = {}
        self._hint_of: dict[Index, int] = {}
        self._facts: Facts | None = None

    @property
    def facts(self) -> Facts:
        """What is known of the symbols."""
        if self._facts is None:
            self._facts = Facts(sizes=self.ranges)
        return self._facts

    def formula(self, number: IntLike, low: int | None = None) -> Index:
        """A number of a launch over the graph's symbols; ``low`` is what its kernel knows of it."""
        if not isinstance(number, Dim):
            return Int(number)
        if self.trace is None:
            self.trace = number.trace
            self.hints.update(number.trace.symbols)
        index = self._polynomial(number.index, number)
        if isinstance(index, Size):
            self._learn(index.name, low, number.hint)
        return index

    def _learn(self, name: str, low: int | None, hint: int) -> None:
        self.hints.setdefault(name, hint)
        known, high = self.ranges.get(name, (None, None))
        if low is not None and (known is None or known < low):
            self.ranges[name] = (low, high)
            self._facts = None

    def _polynomial(self, index: Index, number: Dim) -> Index:
        if isinstance(index, (Int, Size)):
            return index
        if isinstance(index, Sum):
            if all(isinstance(factor, Size) for factors, _ in index.terms for factor in factors):
                return index
            total: Index = Int(0)
            for factors, value in index.terms:
                product: Index = Int(value)
                for factor in factors:
                    product = multiply(product, self._polynomial(factor, number))
                total = add(total, product)
            return total
        assert isinstance(index, (FloorDiv, Mod, Min, Max)), f"{index} is not a formula over sizes"
        if index not in self._named:
            name = f"size:{len(self._named)}"
            self._named[index] = Size(name)
            self.meanings[name] = index
            self._learn(name, None, evaluate_sizes(index, {**number.trace.symbols, **self.hints}))
        return self._named[index]

    def hint(self, index: Index) -> int:
        """The number of a formula in the call that the graph was traced with: for choices that change no meaning."""
        if isinstance(index, Int):
            return index.value
        if index not in self._hint_of:
            self._hint_of[index] = evaluate_sizes(index, self.hints)
        return self._hint_of[index]

    def number(self, index: Index) -> IntLike:
        """A formula as a number of a launch."""
        if isinstance(index, Int):
            return index.value
        assert self.trace is not None
        return Dim(self.trace, substitute(index, sizes=self.meanings), self.hint(index))

    def at_least(self, a: Index, b: Index) -> bool:
        """True if a ≥ b is proved."""
        if isinstance(a, Int) and isinstance(b, Int):
            return a.value >= b.value
        return self.facts.always_at_most(b, a)


def exact_quotient(a: Index, b: Index) -> Index | None:
    """a / b if that is a polynomial, else None.

    >>> n, m = Size("n"), Size("m")
    >>> exact_quotient(n * m + m, n + 1) == m, exact_quotient(n, m)
    (True, None)
    """
    if isinstance(b, Int):
        if b.value == 0:
            return None
        if isinstance(a, Int):
            return None if a.value % b.value else Int(a.value // b.value)
    if a == b:
        return Int(1)
    divisor = sorted(terms_of(b).items(), key=_leading, reverse=True)
    if not divisor:
        return None
    head, scale = divisor[0]
    quotient: Index = Int(0)
    rest = a
    for _ in range(len(terms_of(a)) * 4):  # each step takes the leading term away
        terms = terms_of(rest)
        if not terms:
            return quotient
        factors, value = max(terms.items(), key=_leading)
        left = list(factors)
        for factor in head:
            if factor not in left:
                return None
            left.remove(factor)
        if value % scale:
            return None
        part = from_terms({tuple(left): value // scale})
        quotient, rest = add(quotient, part), add(rest, multiply(Int(-1), multiply(part, b)))
    return quotient if rest == Int(0) else None


def _leading(term: tuple[tuple[Index, ...], int]) -> tuple[int, list[str]]:
    return len(term[0]), [factor.key for factor in term[0]]
