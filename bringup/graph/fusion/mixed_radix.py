"""Where an access lies, digit by digit: base + Σ position × stride, with strides as places of a mixed-radix number.

Two kernels meet at an element where their digits agree. Axes of equal stride and extent are the same digit, whatever
the kernels call them and in whatever order they loop; an axis that spans several digits of the other kernel is split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from bringup.graph.fusion.formulas import Formulas, exact_quotient
from bringup.ir.index import AxisVar, Bounded, Index, Int, Size, add, from_terms, multiply, terms_of


@dataclass(frozen=True)
class Digit:
    """One axis (or a value taken as an index) of an access: how far a step moves, and how many steps there are."""

    atom: Index
    stride: Index
    extent: Index

    @cached_property
    def end(self) -> Index:
        """Where the next digit begins, if nothing lies between."""
        return multiply(self.stride, self.extent)


@dataclass(frozen=True)
class MixedRadix:
    """An access as base + Σ digits; the digits come with the largest stride first, those of extent 1 are left out."""

    base: Index
    digits: tuple[Digit, ...]

    def of(self, name: str) -> Digit | None:
        """The digit of an axis."""
        return next((d for d in self.digits if isinstance(d.atom, AxisVar) and d.atom.name == name), None)

    @property
    def axes(self) -> list[str]:
        """The axes that are digits."""
        return [digit.atom.name for digit in self.digits if isinstance(digit.atom, AxisVar)]


def place(linear: Index, extents: Mapping[str, Index], formulas: Formulas) -> MixedRadix | None:
    """The digits of an element's number; None if it is not a sum of positions times strides.

    >>> i, j = AxisVar("i"), AxisVar("j")
    >>> found = place(i * 5 + j + 2, {"i": Int(3), "j": Int(5)}, Formulas({}))
    >>> found.base, [(digit.atom.name, digit.stride.value) for digit in found.digits]
    (Int(value=2), [('i', 5), ('j', 1)])
    """
    base: dict[tuple[Index, ...], int] = {}
    strides: dict[Index, dict[tuple[Index, ...], int]] = {}
    for factors, value in terms_of(linear).items():
        moving = [factor for factor in factors if not isinstance(factor, Size)]
        if not moving:
            base[factors] = value
            continue
        if len(moving) > 1 or not isinstance(moving[0], (AxisVar, Bounded)):
            return None
        at = factors.index(moving[0])
        strides.setdefault(moving[0], {})[factors[:at] + factors[at + 1 :]] = value
    digits = []
    for atom, terms in strides.items():
        extent = extents[atom.name] if isinstance(atom, AxisVar) else atom.extent  # type: ignore[attr-defined]
        if extent != Int(1):
            digits.append(Digit(atom, from_terms(terms), extent))
    digits.sort(key=lambda digit: (-formulas.hint(digit.stride), digit.atom.key))
    return MixedRadix(from_terms(base), tuple(digits))


class Dimensions(Protocol):
    """Memory laid out by shape and strides."""

    @property
    def shape(self) -> tuple[Index, ...]:
        """The extents."""

    @property
    def strides(self) -> tuple[Index, ...]:
        """Elements from one position to the next."""

    @property
    def offset(self) -> Index:
        """The first element."""


def layout(view: Dimensions) -> MixedRadix:
    """The dimensions of a view as digits, in their order."""
    sides = zip(view.strides, view.shape)
    digits = [Digit(AxisVar(f"dimension:{n}"), stride, extent) for n, (stride, extent) in enumerate(sides)]
    return MixedRadix(view.offset, tuple(digit for digit in digits if digit.extent != Int(1)))


def exact(found: MixedRadix, formulas: Formulas) -> bool:
    """True if every digit is (number // stride) % extent: no gaps that another layout could fall into.

    >>> i, j = AxisVar("i"), AxisVar("j")
    >>> spaced = place(i * 6 + j, {"i": Int(3), "j": Int(5)}, Formulas({}))
    >>> exact(spaced, Formulas({}))
    False
    """
    for outer, inner in zip(found.digits, found.digits[1:]):
        if exact_quotient(outer.stride, inner.end) is None:
            return False
    return all(formulas.hint(digit.stride) > 0 for digit in found.digits)


def same_point(a: MixedRadix, b: MixedRadix, grid: Iterable[str], formulas: Formulas) -> bool:
    """True if two accesses that touch one element do so at the same position on every given axis."""
    if a.base != b.base:
        return False
    for name in grid:
        one, two = a.of(name), b.of(name)
        if one is None or two is None or one.stride != two.stride:
            return False
    if exact(a, formulas) and exact(b, formulas):
        return True
    return sorted(_size(d) for d in a.digits) == sorted(_size(d) for d in b.digits)


def _size(digit: Digit) -> tuple[str, str]:
    return digit.stride.key, digit.extent.key


def cuts(digit: Digit, against: MixedRadix, formulas: Formulas) -> list[Index] | None:
    """The extents, outermost first, that a digit falls into where another layout has its digits; None: it stays whole.

    >>> i, j = AxisVar("i"), AxisVar("j")
    >>> other = place(i * 5 + j, {"i": Int(3), "j": Int(5)}, Formulas({}))
    >>> cuts(Digit(AxisVar("k"), Int(1), Int(15)), other, Formulas({}))
    [Int(value=3), Int(value=5)]
    """
    if any(other.stride == digit.stride and other.extent == digit.extent for other in against.digits):
        return None
    low, high = formulas.hint(digit.stride), formulas.hint(digit.end)
    points: dict[Index, int] = {}
    for other in against.digits:
        for point in (other.stride, other.end):
            at = formulas.hint(point)
            if low < at < high:
                points[point] = at
    extents: list[Index] = []
    below = digit.stride
    for point, _ in sorted(points.items(), key=lambda pair: (pair[1], pair[0].key)):
        inner, outer = exact_quotient(point, below), exact_quotient(digit.end, point)
        if inner is None or outer is None:
            continue
        if inner != Int(1):
            extents.insert(0, inner)
        below = point
    last = exact_quotient(digit.end, below)
    if not extents or last is None:
        return None
    return [last, *extents] if last != Int(1) else extents


def solved(
    linear: Index, want: MixedRadix, formulas: Formulas, extents: Mapping[str, Index], guards: Iterable[Index] = ()
) -> dict[str, Index] | None:
    """Where on its axes a kernel that stores at ``want`` makes the element that ``linear`` names.

    Digits that agree in stride and extent are matched; what is left must be whole steps of one axis. None: there is no
    such place, or only one with a division in it. ``guards`` are ≥ 0 wherever the element is asked for.

    >>> i, j, k = AxisVar("i"), AxisVar("j"), AxisVar("k")
    >>> flat = place(k, {"k": Int(15)}, Formulas({}))
    >>> solved(i * 5 + j, flat, Formulas({}), {"i": Int(3), "j": Int(5)})["k"] == i * 5 + j
    True
    """
    rest = add(linear, multiply(Int(-1), want.base))
    have = place(rest, extents, formulas)
    if have is None:
        return None
    found: dict[str, Index] = {}
    missing = []
    by_size = {(d.stride, d.extent): d for d in have.digits}
    for number, digit in enumerate(want.digits):
        assert isinstance(digit.atom, AxisVar)
        partner = by_size.pop((digit.stride, digit.extent), None)
        if partner is None:
            missing.append(number)
        else:
            found[digit.atom.name] = partner.atom
            rest = add(rest, multiply(Int(-1), multiply(partner.atom, partner.stride)))
    if len(missing) > 1:
        return None
    if not missing:
        return found if rest == Int(0) else None
    digit = want.digits[missing[0]]
    position = exact_quotient(rest, digit.stride)
    if position is None:
        return None
    # Above exact lower digits the position is what the element's number says. Elsewhere it could belong to the digit
    # above, unless it is proved to stay inside its own.
    if missing[0] != 0 or not exact(want, formulas):
        facts = formulas.facts.with_axes(extents).with_inequalities(guards)
        if not facts.in_range(position, digit.extent):
            return None
    assert isinstance(digit.atom, AxisVar)
    found[digit.atom.name] = position
    return found
