"""A graph on CPU tensors, run on a device: arguments go there, results and written arguments come back.

Arguments that did not change since the last call (weights) stay on the device: PyTorch counts a tensor's writes.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from bringup.graph.compiled import CompiledGraph
from bringup.graph.lowered import CONSTANTS


class _Copies:
    """Copies of CPU tensors on a device, each as of some version of its original."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._by_id: dict[int, tuple[weakref.ref[torch.Tensor], int, int, torch.Tensor]] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device; parameters and buffers are copied once per change."""
        if not isinstance(tensor, torch.nn.Parameter):
            return self._moved(tensor)
        kept = self._by_id.get(id(tensor))
        state = (tensor._version, tensor.data_ptr())
        if kept is not None and kept[0]() is tensor and kept[1:3] == state:
            return kept[3]
        copy = self._moved(tensor.detach())
        key = id(tensor)
        gone: weakref.ref[torch.Tensor] = weakref.ref(tensor, lambda _: self._by_id.pop(key, None))
        self._by_id[key] = (gone, *state, copy)
        return copy

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        # With its strides: the graph was traced with them.
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self._device)
        return copy.copy_(tensor)


class OffloadedGraph(CompiledGraph):
    """A compiled graph whose arguments and results are on the CPU."""

    traced_on = "cpu"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._copies = _Copies(self.device)
        with unset_fake_temporarily():  # a graph is compiled while PyTorch traces with fake tensors
            self._constants = [constant.to(self.device) for constant in self._constants]

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Runs the graph on the device."""
        there = [self._copies.of(one) if isinstance(one, torch.Tensor) else one for one in arguments]
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
