"""Index formulas over sizes as JSON values, for files: numbers, names, and lists that begin with an operator.

A sum is written as its terms, so what is read back is canonical already and a short text cannot stand for a formula of
a million terms.

>>> to_json(Size("n") * Size("m") * 2 + 1), to_json(Size("n") // 4)
(['+', [1], [2, 'm', 'n']], ['//', 'n', 4])
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from bringup.ir.index import MAKERS, FloorDiv, Index, Int, Max, Min, Mod, OfTwo, Size, Sum, from_terms

_SIGNS: dict[type[OfTwo], str] = {FloorDiv: "//", Mod: "%", Min: "min", Max: "max"}
_OPERATORS = {sign: MAKERS[kind] for kind, sign in _SIGNS.items()}
#: Formulas of lowerings nest 6 deep; the generated function that evaluates one must stay in Python's limits.
MAX_DEPTH = 32
MAX_TERMS = 4096
_LARGEST = 1 << 62


class BadFormula(ValueError):
    """JSON that is not a formula over the sizes there are."""


def to_json(index: Index) -> Any:
    """A formula as JSON.

    >>> to_json(Int(3))
    3
    """
    if isinstance(index, Int):
        return index.value
    if isinstance(index, Size):
        return index.name
    if isinstance(index, Sum):
        return ["+", *([value, *map(to_json, factors)] for factors, value in index.terms)]
    assert isinstance(index, OfTwo), f"{index} is not a formula over sizes"
    return [_SIGNS[type(index)], to_json(index.a), to_json(index.b)]


def from_json(value: Any, sizes: Container[str], depth: int = MAX_DEPTH) -> Index:
    """The formula of a JSON value; only the given names are sizes.

    >>> from_json(["+", [1], [2, "n"]], {"n"}) == Size("n") * 2 + 1
    True
    >>> from_json("m", {"n"})
    Traceback (most recent call last):
    bringup.ir.index_json.BadFormula: 'm' is not a size
    """
    if type(value) is int:
        return Int(_number(value))
    if type(value) is str:
        if value not in sizes:
            raise BadFormula(f"{value[:40]!r} is not a size")
        return Size(value)
    if type(value) is not list or not value or depth == 0:
        raise BadFormula(
            "nested too deeply" if depth == 0 else "neither a number, a name nor an operator with operands"
        )
    if value[0] == "+":
        return _sum(value[1:], sizes, depth)
    operator = _OPERATORS.get(value[0]) if type(value[0]) is str else None
    if operator is None or len(value) != 3:
        raise BadFormula(f"no operator of two operands: {str(value[0])[:40]!r}")
    a, b = (from_json(part, sizes, depth - 1) for part in value[1:])
    try:
        return operator(a, b)
    except ZeroDivisionError as error:
        raise BadFormula("a division by 0") from error


def _number(value: int) -> int:
    if abs(value) > _LARGEST:
        raise BadFormula("a number of more than 62 bits")
    return value


def _sum(parts: list[Any], sizes: Container[str], depth: int) -> Index:
    if len(parts) > MAX_TERMS:
        raise BadFormula(f"a sum of {len(parts)} terms")
    terms: dict[tuple[Index, ...], int] = {}
    for part in parts:
        if type(part) is not list or not part or type(part[0]) is not int:
            raise BadFormula("a term is a list of a number and factors")
        factors = [from_json(factor, sizes, depth - 1) for factor in part[1:]]
        if any(isinstance(factor, (Int, Sum)) for factor in factors) or len(factors) > MAX_DEPTH:
            raise BadFormula("a factor is a size, a division, a minimum or a maximum")
        key = tuple(sorted(factors, key=lambda factor: factor.key))
        if key in terms:
            raise BadFormula("a term is there twice")
        terms[key] = _number(part[0])
    return from_terms(terms)
