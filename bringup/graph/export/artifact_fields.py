"""Values of a manifest, believed only after a look: each reader says what it wanted and where."""

from __future__ import annotations

from typing import Any

from bringup.graph.export.artifact import ArtifactError

#: More sizes, launches or inputs than any model has.
MANY = 1 << 20
LARGEST = 1 << 62


def need(good: bool, where: str, what: str) -> None:
    """An ArtifactError unless ``good``.

    >>> need(False, "inputs[0]", "no dtype")
    Traceback (most recent call last):
    bringup.graph.export.artifact.ArtifactError: manifest: inputs[0]: no dtype
    """
    if not good:
        raise ArtifactError(f"manifest: {where}: {what}")


def whole(value: Any, where: str, low: int = 0, high: int = LARGEST) -> int:
    """An integer in a range.

    >>> whole(3, "version")
    3
    """
    need(type(value) is int and low <= value <= high, where, f"wanted a whole number in {low}…{high}")
    number: int = value
    return number


def text(value: Any, where: str, longest: int = 200) -> str:
    """A string.

    >>> text("x", "name")
    'x'
    """
    need(type(value) is str and len(value) <= longest, where, f"wanted a text of at most {longest} characters")
    found: str = value
    return found


def items(value: Any, where: str, least: int = 0, most: int = MANY) -> list[Any]:
    """A list.

    >>> items([1, 2], "pair", 2, 2)
    [1, 2]
    """
    counted = str(least) if least == most else f"{least}…{most}"
    need(type(value) is list and least <= len(value) <= most, where, f"wanted a list of {counted}")
    found: list[Any] = value
    return found


def fields(value: Any, where: str, *names: str) -> list[Any]:
    """The values of an object that has these keys and no others.

    >>> fields({"b": 2, "a": 1}, "object", "a", "b")
    [1, 2]
    """
    need(type(value) is dict and set(value) == set(names), where, f"wanted an object with the keys {', '.join(names)}")
    return [value[name] for name in names]
