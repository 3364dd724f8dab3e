"""Finds the op that a name such as ``aten::mm`` or ``aten::add.Tensor`` means, and its in-place and out= forms."""

from __future__ import annotations

from typing import Any

import torch


def find_overload(name: str) -> torch._ops.OpOverload:
    """The functional op of this name; ValueError says why there is none.

    >>> find_overload("aten::add")
    <OpOverload(op='aten.add', overload='Tensor')>
    """
    namespace, colons, rest = name.partition("::")
    packet_name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), packet_name, None) if colons and packet_name else None
    if packet is None:
        raise ValueError("PyTorch has no such op; names look like aten::mm or aten::add.Tensor")
    overloads = packet.overloads()
    if not overload:  # aten::add means aten::add.Tensor: its default overload adds two Python numbers
        plain = "default" in overloads and any(str(value.type) == "Tensor" for value in packet.default._schema.returns)
        overload = "Tensor" if "Tensor" in overloads and not plain else "default"
    if overload not in overloads:
        raise ValueError(f"name one of the overloads of {namespace}::{packet_name}: {', '.join(overloads)}")
    op: torch._ops.OpOverload = getattr(packet, overload)
    check_functional(op._schema)
    return op


def check_functional(schema: torch._C.FunctionSchema) -> None:
    """Raises ValueError for a schema that no function with new outputs can serve."""
    if schema.is_mutable:
        raise ValueError("name the functional op; its in-place and out= forms are derived")
    if not schema.returns or any(str(value.type) != "Tensor" for value in schema.returns):
        raise ValueError(f"only ops that return tensors can be library ops, not {schema}")
    if any(value.alias_info is not None for value in schema.returns):
        raise ValueError(f"a view op has no work for a library: {schema}")


def _inputs(op: torch._ops.OpOverload) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]


def out_form(op: torch._ops.OpOverload) -> Any:
    """The form that writes into ``out``, or None.

    >>> out_form(torch.ops.aten.add.Tensor)
    <OpOverload(op='aten.add', overload='out')>
    """
    packet = op.overloadpacket
    for overload in (getattr(packet, name) for name in packet.overloads()):
        outs = [a for a in overload._schema.arguments if a.is_out]
        if len(outs) == len(op._schema.returns) and _inputs(overload) == _inputs(op):
            return overload
    return None


def in_place_form(op: torch._ops.OpOverload) -> Any:
    """The form that writes over its first argument, or None.

    >>> in_place_form(torch.ops.aten.add.Tensor)
    <OpOverload(op='aten.add_', overload='Tensor')>
    """
    packet = getattr(getattr(torch.ops, op.namespace), op.overloadpacket.__name__ + "_", None)
    if packet is None or len(op._schema.returns) != 1:
        return None
    for overload in (getattr(packet, name) for name in packet.overloads()):
        arguments = overload._schema.arguments
        writes_self = bool(arguments) and arguments[0].alias_info is not None and arguments[0].alias_info.is_write
        if writes_self and _inputs(overload) == _inputs(op):
            return overload
    return None
