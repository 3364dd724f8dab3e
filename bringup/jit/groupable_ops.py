"""Which ops go into groups: those with a lowering, views of them, and ops that PyTorch makes of such ops."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from bringup.jit.replay import CONVOLUTIONS, overload_of

_TENSORS = ("Tensor", "List[Tensor]")


def groupable_ops(allow: Collection[str] | None = None) -> dict[str, str]:
    """Overload → why it is not grouped, empty where it is; overloads that are not in it have no lowering.

    >>> ops = groupable_ops(["aten::relu"])
    >>> ops["aten::relu"], ops["aten::tanh"]
    ('', 'is not on the allow-list')
    """
    table: dict[str, str] = {}
    lowered = _lowered()
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        if schema.is_mutable or not schema.returns or any(str(r.type) not in _TENSORS for r in schema.returns):
            continue
        if name in lowered or _is_view(schema) or _is_composite(name):
            table[name] = _refusal(schema)
    if allow is not None:
        _check(allow, table)
        for name in table:
            if name not in allow and name.partition(".")[0] not in allow:
                table[name] = "is not on the allow-list"
    return table


def _lowered() -> set[str]:
    from bringup.graph.decompositions import decompositions
    from bringup.graph.graph_ops import GRAPH_LOWERINGS
    from bringup.lowering import ops
    from bringup.lowering.registry import LOWERINGS

    ops.load()
    return {*LOWERINGS, *GRAPH_LOWERINGS, *(overload.name() for overload in (*decompositions(), *CONVOLUTIONS))}


def _is_view(schema: Any) -> bool:
    return any(result.alias_info is not None for result in schema.returns) and schema.name.startswith("aten::")


def _is_composite(name: str) -> bool:
    """PyTorch takes these apart while a graph is traced."""
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))
    except RuntimeError:  # an op of TorchScript alone
        return False


def _refusal(schema: Any) -> str:
    if any(argument.name == "device" for argument in schema.arguments):
        return "may name another device"
    overload = overload_of(schema)
    if overload is None:
        return "is an op of TorchScript alone"
    tags = set(overload.tags)
    if torch.Tag.nondeterministic_seeded in tags and not _draws_only_in_training(schema, overload):
        return "draws random numbers"
    if tags & {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}:
        return "gives a result whose size depends on the data"
    return ""


def _draws_only_in_training(schema: Any, overload: Any) -> bool:
    """Dropout, attention with dropout: a call that does draw is found when its group is traced."""
    names = {argument.name for argument in schema.arguments}
    return bool(names & {"train", "dropout_p"}) and _is_composite(overload.name())


def _check(allow: Collection[str], table: dict[str, str]) -> None:
    bases = {name.partition(".")[0] for name in table}
    for name in allow:
        if not isinstance(name, str):
            raise TypeError(f"allow: an op is named as aten::conv2d, not {name!r}")
        if name in table or name in bases:
            continue
        if not torch._C._jit_get_schemas_for_operator(name.partition(".")[0]):
            raise ValueError(f"allow: PyTorch has no op {name!r}; names look like aten::conv2d or aten::add.Tensor")
        raise ValueError(f"allow: {name} has no lowering and is not made of ops that have one")
