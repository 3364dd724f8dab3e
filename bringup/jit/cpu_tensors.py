"""A device function for CPU tensors: copies them in at every call, and the results back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bringup.graph.host_contents import moved


def for_cpu_tensors(function: Callable[..., Sequence[Tensor]], device: torch.device) -> Callable[..., list[Tensor]]:
    """``function`` on the device, with arguments and results on the CPU; an argument that comes through is itself."""

    def call(*tensors: Tensor) -> list[Tensor]:
        given = [moved(tensor, device) for tensor in tensors]
        own = {id(copy): tensor for copy, tensor in zip(given, tensors)}
        return [own[id(result)] if id(result) in own else result.cpu() for result in function(*given)]

    return call
