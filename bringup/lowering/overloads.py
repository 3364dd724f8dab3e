"""Which overloads one definition serves: the functional one, and the in-place and out= forms that PyTorch has of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bringup.lowering.registry import Lowering


@dataclass(frozen=True)
class Served:
    """An overload that has a kernel: its definition, and how many arguments that takes (an out= is none)."""

    name: str
    definition: Lowering
    arguments: int
    #: The functional overload; the same for the functional one itself.
    functional: str


def _full(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def _inputs(schema: Any) -> tuple[tuple[str, str], ...]:
    return tuple((a.name, str(a.type)) for a in schema.arguments if not a.is_out)


def served_overloads(definitions: Mapping[str, Lowering]) -> list[Served]:
    """Every overload that the definitions serve, from PyTorch's own list of schemas.

    >>> [served.name for served in served_overloads({"aten::exp": print})]
    ['aten::exp', 'aten::exp.out', 'aten::exp_']
    """
    import torch

    wanted = {name.partition(".")[0] for name in definitions}
    by_base: dict[str, list[Any]] = {}
    for schema in torch._C._jit_get_all_schemas():
        base = schema.name.removesuffix("_")
        if schema.name in wanted or base in wanted:
            by_base.setdefault(base, []).append(schema)
    found: dict[str, Served] = {}
    for name, definition in definitions.items():
        family = by_base.get(name.partition(".")[0].removesuffix("_"), [])
        own = next((schema for schema in family if _full(schema) == name), None)
        if own is None:
            continue  # this torch does not have the op
        inputs = _inputs(own)
        found[name] = Served(name, definition, len(inputs), name)
        for schema in family:
            other = _full(schema)
            if other in definitions or other in found or _inputs(schema) != inputs or not _writes(schema):
                continue
            found[other] = Served(other, definition, len(inputs), name)
    return sorted(found.values(), key=lambda served: served.name)


def _writes(schema: Any) -> bool:
    """True for an in-place or out= form: every result is an argument that is written (foreach: none is returned)."""
    if not schema.returns:
        return bool(schema.arguments) and _is_written(schema.arguments[0])
    return all(_is_written(result) for result in schema.returns)


def _is_written(part: Any) -> bool:
    return part.alias_info is not None and bool(part.alias_info.is_write)
