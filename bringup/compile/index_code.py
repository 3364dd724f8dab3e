"""Index formulas as Python source, which evaluates them in microseconds; parts that occur again are computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bringup.ir.index import FloorDiv, Index, Int, Max, Min, Mod, Size, Sum


def code_of(index: Index, places: Mapping[str, str], parts: dict[str, str] | None = None) -> str:
    """An index as Python source over the numbers of a call.

    >>> code_of(Size("n") * 2 + 1, {"n": "v[0]"})
    '(1 + 2*v[0])'

    With ``parts`` every division, minimum and maximum gets a name there, which the code then uses: the number of work
    units of a matrix product is 2,000 characters as one expression, and 300 with names.

    >>> parts = {}
    >>> code_of((Size("n") // 2) * (Size("n") // 2 + 1), {"n": "n"}, parts), parts
    ('(t0 + t0*t0)', {'(n // 2)': 't0'})
    """
    if isinstance(index, Int):
        return str(index.value)
    if isinstance(index, Size):
        return places[index.name]
    if isinstance(index, Sum):
        terms = []
        for factors, value in index.terms:
            words = [code_of(factor, places, parts) for factor in factors]
            terms.append("*".join(words if value == 1 and words else [str(value), *words]))
        return f"({' + '.join(terms)})"
    assert isinstance(index, (FloorDiv, Mod, Min, Max)), f"{index} is not a formula over sizes"
    a, b = code_of(index.a, places, parts), code_of(index.b, places, parts)
    if isinstance(index, (FloorDiv, Mod)):
        text = f"({a} {'//' if isinstance(index, FloorDiv) else '%'} {b})"
    else:
        text = f"{'min' if isinstance(index, Min) else 'max'}({a}, {b})"
    return text if parts is None else parts.setdefault(text, f"t{len(parts)}")


def function_code(name: str, sizes: Sequence[str], results: Sequence[Index]) -> str:
    """A Python function from the sizes of a kernel to some formulas over them.

    >>> print(function_code("double", ["n"], [Size("n") * 2]), end="")
    def double(s_n):
        return (2*s_n),
    """
    places = {size: f"s_{size}" for size in sizes}  # a size may be called as a word of Python is
    parts: dict[str, str] = {}
    values = [code_of(result, places, parts) for result in results]
    lines = [f"    {part} = {text}\n" for text, part in parts.items()]
    return f"def {name}({', '.join(places.values())}):\n{''.join(lines)}    return {', '.join(values)},\n"


def made_function(code: str, name: str) -> Callable[..., Any]:
    """The function that ``function_code`` wrote.

    >>> made_function(function_code("double", ["n"], [Size("n") * 2]), "double")(4)
    (8,)
    """
    space: dict[str, Any] = {}
    exec(compile(code, f"<{name}>", "exec"), space)
    made: Callable[..., Any] = space[name]
    return made
