"""A graph on CPU tensors, run on a device: arguments go there, results and written arguments come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from bringup.graph.compile.compiled import CompiledGraph
from bringup.graph.host_contents import moved
from bringup.graph.lowered import CONSTANTS


class OffloadedGraph(CompiledGraph):
    """A compiled graph whose arguments and results are on the CPU."""

    traced_on = "cpu"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        with unset_fake_temporarily():  # a graph is compiled while PyTorch traces with fake tensors
            self._constants = [constant.to(self.device) for constant in self._constants]

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Runs the graph on the device."""
        there = [moved(one, self.device) if isinstance(one, torch.Tensor) else one for one in arguments]
        results = super().__call__(there)
        for kind, n in self.structures[0].lowered.written:
            if kind == "tensor" and n < CONSTANTS:
                with torch.no_grad():
                    arguments[n].copy_(there[n])
        known = {id(copy): n for n, copy in enumerate(there) if isinstance(copy, torch.Tensor)}
        return [
            arguments[known[id(result)]] if id(result) in known else result.cpu() if _ours(result) else result
            for result in results
        ]


def _ours(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.device.type != "cpu"
