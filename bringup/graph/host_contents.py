"""CPU tensors that programs elsewhere use: moved at every call, or compared by their bytes with what was built in.

PyTorch counts a tensor's writes, but not those through ``tensor.data``, a NumPy array or another library: no count and
no address says that a tensor is what it was. Copying takes 40 µs per MB from cache and 80 from memory, comparing bytes
40 and 200; so only what costs seconds when it changes (a program with weights in it) is compared.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bringup.graph.program import span

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Contents:
    """The bytes of a CPU tensor as they were.

    >>> weight = torch.ones(3)
    >>> held = Contents(weight)
    >>> weight.data.mul_(3)
    tensor([3., 3., 3.])
    >>> held.same_as(weight), Contents(weight).same_as(weight)
    (False, True)
    """

    def __init__(self, tensor: Tensor) -> None:
        self._layout = layout_of(tensor)
        self._bytes = _in_one_piece(tensor).clone()

    def same_as(self, tensor: Tensor) -> bool:
        """True if a tensor has the same type, layout and bytes."""
        if layout_of(tensor) != self._layout:
            return False
        now = _in_one_piece(tensor)
        return bool(_memcmp(now.data_ptr(), self._bytes.data_ptr(), self._bytes.nbytes) == 0)


def layout_of(tensor: Tensor) -> tuple[Any, ...]:
    """What decides, beside the bytes, which numbers a tensor holds."""
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg()


def _in_one_piece(tensor: Tensor) -> Tensor:
    """The tensor without gaps between its elements: itself, in most cases."""
    tensor = tensor.detach()
    return tensor if _is_dense(tensor) else tensor.contiguous()


def _is_dense(tensor: Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on a device, with its strides, which graphs are traced with; one that is there stays itself.

    Weights are copied at every call, too: to find out that 8 MB have not changed takes as long as to copy them.
    """
    if tensor.device == device:
        return tensor
    tensor = tensor.detach()
    if tensor.is_conj():
        return moved(tensor.conj(), device).conj()
    if tensor.is_neg():
        return torch._neg_view(moved(torch._neg_view(tensor), device))
    if _is_dense(tensor) or not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device).copy_(tensor)
    # gaps between elements, or elements that share memory: the memory as it lies
    memory = tensor.as_strided((span(tensor.shape, tensor.stride()),), (1,), tensor.storage_offset())
    return memory.to(device).as_strided(tensor.shape, tensor.stride(), 0)


def brought_back(results: Sequence[Any], there: Sequence[Any], here: Sequence[Any]) -> list[Any]:
    """Results on the CPU, where ``there`` are copies of ``here``: an argument that comes through is itself."""
    own = {id(copy): given for copy, given in zip(there, here)}
    return [
        own[id(result)] if id(result) in own else result.cpu() if isinstance(result, Tensor) else result
        for result in results
    ]
