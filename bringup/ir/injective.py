"""Do two steps of parallel axes ever touch the same element? The proof behind unique stores and safe reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bringup.ir.expr import AsIndex
from bringup.ir.index import AxisVar, Index, Int, Mod, as_index, atoms, axes_in, coefficient, floor_divide, substitute
from bringup.ir.index_proof import Facts


def _join_divisions(indices: list[Index]) -> list[Index]:
    """(x // d, x % d) names the same element as x does."""
    for place in indices:
        if isinstance(place, Mod):
            quotient = floor_divide(place.a, place.b)
            if quotient in indices:
                rest = [index for index in indices if index not in (place, quotient)]
                return _join_divisions([*rest, place.a])
    return indices


def _separates(index: Index, unknown: list[str], facts: Facts) -> bool:
    """True if the index gives the unknown axes back: coefficients grow faster than the sums below them."""
    scales: list[tuple[Index, str]] = []
    rest = index
    for name in unknown:
        scale, rest = coefficient(rest, AxisVar(name))
        scales.append((scale, name))
    if any(axes_in(part) & set(unknown) for part in (rest, *(scale for scale, _ in scales))):
        return False  # an unknown axis inside a product or a division
    positive = []
    for scale, name in scales:
        if facts.non_negative(scale - 1):
            positive.append((scale, name))
        elif facts.non_negative(-scale - 1):
            positive.append((-scale, name))
        else:
            return False
    while positive:
        for top in positive:
            below = sum(((facts.axes[name] - 1) * scale for scale, name in positive if name != top[1]), as_index(0))
            if facts.always_less(below, top[0]):
                positive = [pair for pair in positive if pair is not top]
                break
        else:
            return False
    return True


def injective(indices: Iterable[Index], required: Iterable[str], facts: Facts) -> bool:
    """True if different positions on the required axes are proved to give different elements.

    Other axes in the indices (sequential ones) may take any position on either side.

    >>> from bringup.ir.index import Size
    >>> i, j, m = AxisVar("i"), AxisVar("j"), Size("m")
    >>> facts = Facts(axes={"i": Size("n"), "j": m}, sizes={"m": (1, None)})
    >>> injective([i * m + j], ["i", "j"], facts), injective([i + j], ["i", "j"], facts)
    (True, False)
    """
    places = _join_divisions([i for i in indices if not any(isinstance(a, AsIndex) for a in atoms(i))])
    known: set[str] = {name for name in required if facts.axes.get(name) == Int(1)}
    missing = set(required) - known
    progress = True
    while missing and progress:
        progress = False
        for index in places:
            unknown = sorted(axes_in(index) - known)
            if unknown and _separates(index, unknown, facts):
                known |= set(unknown)
                missing -= set(unknown)
                progress = True
    return not missing


def disjoint(a: tuple[Index, ...], b: tuple[Index, ...], facts: Facts) -> bool:
    """True if no position of a is ever a position of b, whatever the axes of either are.

    >>> from bringup.ir.index import Size
    >>> facts = Facts(axes={"i": Size("n")})
    >>> disjoint((AxisVar("i"),), (AxisVar("i") + Size("n"),), facts)
    True
    """
    renamed: Mapping[str, Index] = {name: AxisVar(f"{name}'") for name in facts.axes}
    both = facts.with_axes({f"{name}'": extent for name, extent in facts.axes.items()})
    other = [substitute(index, renamed) for index in b]
    return any(both.always_less(x, y) or both.always_less(y, x) for x, y in zip(a, other))
