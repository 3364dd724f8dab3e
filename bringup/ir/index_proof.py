"""Proofs about indices: what is known of axes and sizes (Facts), and what follows (bounds, less-than, simpler forms).

A proof of e ≥ 0 replaces one axis, size or division after another by the end of its range that makes e smallest; what
remains is a number. Sound always, complete for the affine forms that lowerings write; "not proved" is never "false".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from bringup.ir.index import (
    AxisVar,
    Bounded,
    FloorDiv,
    Index,
    Int,
    Max,
    Min,
    Mod,
    Size,
    Sum,
    add,
    coefficient,
    floor_divide,
    from_terms,
    maximum,
    minimum,
    modulo,
    multiply,
    terms_of,
)

_DEPTH = 12  # atoms replaced in one proof; the deepest lowering so far (conv3d) needs 9


@dataclass(frozen=True)
class Facts:
    """What a proof may use: each axis lies in 0 … extent - 1, each size in its range, each inequality is ≥ 0.

    >>> facts = Facts(axes={"i": Size("n")}, sizes={"n": (1, None)})
    >>> facts.always_less(AxisVar("i"), Size("n"))
    True
    """

    axes: Mapping[str, Index] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    inequalities: tuple[Index, ...] = ()
    _known: dict[tuple[Index, int], bool] = field(default_factory=dict, compare=False, repr=False)

    def with_axes(self, axes: Mapping[str, Index]) -> Facts:
        """These facts inside a loop over more axes; a loop's body runs only if its extents are at least 1."""
        sizes = dict(self.sizes)
        for extent in axes.values():
            for name in _factors_of_product(extent):  # a product of sizes is at least 1 only if each is
                low, high = sizes.get(name, (0, None))
                if low is not None:
                    sizes[name] = (max(low, 1), high)
        positive = tuple(extent - 1 for extent in axes.values() if not isinstance(extent, (Int, Size)))
        return replace(
            self,
            axes={**self.axes, **axes},
            sizes=sizes,
            inequalities=self.inequalities + positive,
            _known={},
        )

    def with_inequalities(self, non_negative: Iterable[Index]) -> Facts:
        """These facts where in addition each given index is ≥ 0 (what a guard says)."""
        return replace(self, inequalities=self.inequalities + tuple(non_negative), _known={})

    def non_negative(self, index: Index) -> bool:
        """True if index ≥ 0 is proved."""
        return self._prove(index, _DEPTH)

    def always_less(self, a: Index, b: Index) -> bool:
        """True if a < b is proved."""
        return self.non_negative(b - a - 1)

    def always_at_most(self, a: Index, b: Index) -> bool:
        """True if a ≤ b is proved."""
        return self.non_negative(b - a)

    def in_range(self, index: Index, extent: Index) -> bool:
        """True if 0 ≤ index < extent is proved."""
        return self.non_negative(index) and self.always_less(index, extent)

    def _prove(self, index: Index, depth: int) -> bool:
        if isinstance(index, Int):
            return index.value >= 0
        if depth == 0:
            return False
        key = (index, depth)
        if key not in self._known:
            self._known[key] = False  # while it is under way: no circular proofs
            self._known[key] = self._prove_by_range(index, depth) or self._prove_by_fact(index, depth)
        return self._known[key]

    def _prove_by_fact(self, index: Index, depth: int) -> bool:
        """index ≥ fact ≥ 0, or index ≥ multiple × fact where a size scales it; facts are tried one level at a time."""
        for fact in self.inequalities:
            rest = index - fact
            if isinstance(rest, Int):
                if rest.value >= 0:
                    return True
            elif _shorter(rest, index) and self._prove(rest, depth - 1):
                return True
        return False

    def _prove_by_range(self, index: Index, depth: int) -> bool:
        for atom in self._ordered(index):
            scale, rest = coefficient(index, atom)
            if self._sign(scale, depth, up=True):
                ends = self._ends(atom, depth, upper=False)
            elif self._sign(scale, depth, up=False):
                ends = self._ends(atom, depth, upper=True)
            else:
                continue
            found = False
            for end in ends:
                found = True
                if self._prove(add(multiply(scale, end), rest), depth - 1):
                    return True
            if found and not isinstance(atom, Size):
                return False  # axes before sizes, and one order of axes: another order would find the same ends
        return False

    def _sign(self, scale: Index, depth: int, up: bool) -> bool:
        scale = scale if up else -scale
        return scale.value >= 0 if isinstance(scale, Int) else self._prove(scale, depth - 1)

    def _ordered(self, index: Index) -> list[Index]:
        """The factors to replace: derived ones, then axes from the innermost, then sizes."""
        order = {name: at for at, name in enumerate(self.axes)}

        def rank(atom: Index) -> tuple[int, int]:
            if isinstance(atom, Size):
                return (2, 0)
            if isinstance(atom, AxisVar):
                return (1, -order.get(atom.name, 0))
            return (0, 0)

        return sorted(dict.fromkeys(_atoms(index)), key=rank)

    def _ends(self, atom: Index, depth: int, upper: bool) -> Iterator[Index]:
        """Indices that the atom never exceeds (upper) or never falls below."""
        if isinstance(atom, AxisVar):
            if atom.name in self.axes:
                yield self.axes[atom.name] - 1 if upper else Int(0)
        elif isinstance(atom, Size):
            low, high = self.sizes.get(atom.name, (0, None))
            end = high if upper else low
            if end is not None:
                yield Int(end)
        elif isinstance(atom, Bounded):
            yield atom.extent - 1 if upper else Int(0)
        elif isinstance(atom, Mod):
            yield atom.b - 1 if upper else Int(0)
            if upper and self._prove(atom.a, depth - 1):
                yield atom.a
        elif isinstance(atom, FloorDiv):
            if self._prove(atom.b - 1, depth - 1):
                inner = self.bound(atom.a, upper, depth - 1)
                if inner is not None and FloorDiv(inner, atom.b) != atom:
                    yield self.simplify(floor_divide(inner, atom.b), depth - 1)
                if upper and self._prove(atom.a, depth - 1):
                    yield atom.a
                if not upper and self._prove(atom.a, depth - 1):
                    yield Int(0)
        elif isinstance(atom, Min if upper else Max):
            assert isinstance(atom, (Min, Max))
            yield atom.a
            yield atom.b
        elif isinstance(atom, (Min, Max)):  # the other end needs both
            for one, two in ((atom.a, atom.b), (atom.b, atom.a)):
                if self._prove(two - one if not upper else one - two, depth - 1):
                    yield one
            low_a, low_b = self.bound(atom.a, upper, depth - 1), self.bound(atom.b, upper, depth - 1)
            if isinstance(low_a, Int) and isinstance(low_b, Int):
                yield maximum(low_a, low_b) if upper else minimum(low_a, low_b)

    def bound(self, index: Index, upper: bool, depth: int = _DEPTH) -> Index | None:
        """An index of sizes only that is never exceeded (upper) or never undercut; None if none is found.

        >>> Facts(axes={"i": Size("n")}).bound(AxisVar("i") * 2, upper=True) == Size("n") * 2 - 2
        True
        """
        for _ in range(depth):
            moving = [atom for atom in self._ordered(index) if not isinstance(atom, Size)]
            if not moving:
                return index
            atom = moving[0]
            scale, rest = coefficient(index, atom)
            if self._sign(scale, depth, up=True):
                end = next(self._ends(atom, depth, upper), None)
            elif self._sign(scale, depth, up=False):
                end = next(self._ends(atom, depth, not upper), None)
            else:
                return None
            if end is None:
                return None
            index = add(multiply(scale, end), rest)
        return None

    def constant_bound(self, index: Index, upper: bool) -> int | None:
        """A number that is never exceeded (upper) or never undercut; None if it depends on the sizes.

        >>> Facts(axes={"i": Size("n")}, sizes={"n": (1, 64)}).constant_bound(AxisVar("i"), upper=True)
        63
        """
        end = self.bound(index, upper)
        for _ in range(_DEPTH):
            if end is None or isinstance(end, Int):
                return end.value if isinstance(end, Int) else None
            atom = self._ordered(end)[0]
            scale, rest = coefficient(end, atom)
            up = self._sign(scale, _DEPTH, up=True)
            if not up and not self._sign(scale, _DEPTH, up=False):
                return None
            value = next(self._ends(atom, _DEPTH, upper == up), None)
            end = None if value is None else add(multiply(scale, value), rest)
        return None

    def simplify(self, index: Index, depth: int = _DEPTH) -> Index:
        """The index without divisions and extrema that these facts decide.

        >>> facts = Facts(axes={"i": Int(4), "j": Size("m")}, sizes={"m": (1, None)})
        >>> facts.simplify((AxisVar("i") * Size("m") + AxisVar("j")) // Size("m"))
        AxisVar(name='i')
        """
        if isinstance(index, Sum):
            total: Index = Int(0)
            for factors, value in index.terms:
                product: Index = Int(value)
                for factor in factors:
                    product = multiply(product, self.simplify(factor, depth))
                total = add(total, product)
            return _rejoin(total)
        if isinstance(index, (FloorDiv, Mod)):
            return self._simplify_division(index, depth)
        if isinstance(index, (Min, Max)):
            a, b = self.simplify(index.a, depth), self.simplify(index.b, depth)
            smaller = a if self._prove(b - a, depth) else b if self._prove(a - b, depth) else None
            if smaller is not None:
                return smaller if isinstance(index, Min) else (b if smaller is a else a)
            return minimum(a, b) if isinstance(index, Min) else maximum(a, b)
        return index

    def _simplify_division(self, index: FloorDiv | Mod, depth: int) -> Index:
        divide = isinstance(index, FloorDiv)
        a, b = self.simplify(index.a, depth), self.simplify(index.b, depth)
        new = floor_divide(a, b) if divide else modulo(a, b)
        if not isinstance(new, (FloorDiv, Mod)):
            return new if new == index else self.simplify(new, depth - 1) if depth > 0 else new
        a, b = new.a, new.b
        if depth > 0:
            if self._prove(a, depth - 1) and self._prove(b - a - 1, depth - 1):
                return Int(0) if divide else a
            if self._prove(-a - 1, depth - 1) and self._prove(a + b, depth - 1):
                return Int(-1) if divide else a + b
        return new


def _atoms(index: Index) -> list[Index]:
    return [factor for factors in terms_of(index) for factor in factors]


def _factors_of_product(index: Index) -> list[str]:
    """The sizes of an index that is a product of sizes (and a positive number)."""
    terms = terms_of(index)
    if len(terms) != 1 or min(terms.values()) < 0:
        return []
    (factors,) = terms
    sizes = [factor.name for factor in factors if isinstance(factor, Size)]
    return sizes if len(sizes) == len(factors) else []


def _shorter(a: Index, b: Index) -> bool:
    return set(_atoms(a)) < set(_atoms(b)) or len(terms_of(a)) < len(terms_of(b))


def _rejoin(index: Index) -> Index:
    """b × (a // b) + a % b is a, also inside a longer sum."""
    for factors, value in list(terms_of(index).items()):
        if len(factors) == 1 and isinstance(factors[0], Mod):
            a, b = factors[0].a, factors[0].b
            pair = terms_of(multiply(Int(value), add(multiply(b, floor_divide(a, b)), factors[0])))
            present = terms_of(index)
            if all(present.get(term) == count for term, count in pair.items()):
                rest = {term: count for term, count in present.items() if term not in pair}
                return _rejoin(add(from_terms(rest), multiply(Int(value), a)))
    return index
