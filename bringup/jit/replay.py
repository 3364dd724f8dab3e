"""A group's TorchScript graph as a Python function of its tensors, for tracing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bringup.graph.host_contents import moved

#: aten::convolution with flags for cudnn behind its nine arguments: what torch.jit.trace records.
CONVOLUTIONS = (torch.ops.aten._convolution.default, torch.ops.aten._convolution.deprecated)


class Replay:
    """Calls the ops of a group one by one. Plain inputs are fixed; constant tensors become inputs after the others.

    >>> graph = torch._C.parse_ir("graph(%x : Tensor, %n : int):\\n  %y : Tensor = aten::mul(%x, %n)\\n  return (%y)")
    >>> Replay(graph, [torch.ones(2), 3], torch.device("cpu")).outputs(torch.ones(2))
    [tensor([3., 3.])]
    """

    def __init__(self, graph: torch._C.Graph, inputs: Sequence[Any], device: torch.device) -> None:
        self._graph, self.device = graph, device
        #: Tensors that the graph itself holds, where they are: their owner may write to them.
        self.constants: list[Tensor] = []
        self._plain: dict[int, Any] = {}
        self._slots: list[int] = []  # which value each argument of outputs() is
        self.tensors: list[Tensor] = []
        for value, given in zip(graph.inputs(), inputs):
            self._add(value.unique(), given)
        for node in graph.nodes():
            if node.kind() != "prim::Constant":
                continue
            held = node.output().toIValue()
            if isinstance(held, Tensor):
                self.constants.append(held)
                held = moved(held, device)
            self._add(node.output().unique(), held)

    def _add(self, value: int, given: Any) -> None:
        if isinstance(given, Tensor):
            self._slots.append(value)
            self.tensors.append(given)
        else:
            self._plain[value] = given

    def outputs(self, *tensors: Tensor) -> list[Tensor]:
        """The group's results for these tensors, which are like ``self.tensors``."""
        values = {**self._plain, **dict(zip(self._slots, tensors))}
        for node in self._graph.nodes():
            if node.kind() == "prim::Constant":
                continue
            arguments = [values[value.unique()] for value in node.inputs()]
            if node.kind() == "prim::ListConstruct":
                results: Sequence[Any] = [arguments]
            elif node.kind() == "prim::ListUnpack":
                (results,) = arguments
            elif node.kind() == "prim::ConstantChunk":
                results = torch.chunk(arguments[0], node.i("chunks"), node.i("dim"))
            else:
                result = _call(node, arguments)
                results = result if node.outputsSize() > 1 else [result]
            for value, one in zip(node.outputs(), results, strict=True):
                values[value.unique()] = one
        return [values[value.unique()] for value in self._graph.outputs()]

    def __str__(self) -> str:
        return ", ".join(node.kind() for node in self._graph.nodes() if not node.kind().startswith("prim::"))


def overload_of(schema: torch._C.FunctionSchema) -> torch._ops.OpOverload | None:
    """The op that Python can call; None for an op of TorchScript alone.

    >>> overload_of(torch.ops.aten.mm.default._schema)
    <OpOverload(op='aten.mm', overload='default')>
    """
    namespace, _, name = schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return getattr(packet, schema.overload_name or "default", None)


def _call(node: torch._C.Node, arguments: Sequence[Any]) -> Any:
    overload = overload_of(torch._C.parse_schema(node.schema()))
    if overload is None:
        raise TypeError(f"{node.kind()} is an op of TorchScript alone")
    if overload in CONVOLUTIONS:
        return torch.ops.aten.convolution(*arguments[:9])
    schema = overload._schema.arguments
    named = {argument.name: value for argument, value in zip(schema, arguments) if argument.kwarg_only}
    return overload(*arguments[: len(arguments) - len(named)], **named)
