"""The inputs of a case: which sample inputs of an operator are taken, and how a copy of one gets onto a device.

Samples are made on the CPU with PyTorch's fixed seed and copied, so that the device sees the same bits: the whole
storage moves and the tensor is laid over it again, with the original's strides, offset, conjugate bit and aliasing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

#: In place of a device: the CPU, with every number in float64 or complex128.
WIDE = "float64"
#: Ops that PyTorch gives CPU tensors whatever the device of the first: sections to split by.
TAKES_CPU_ARGUMENTS = frozenset({"tensor_split"})


@dataclass(frozen=True)
class Call:
    """The arguments of one call; ``finish`` picks what of the result is unique and differentiable (says the OpInfo)."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    finish: Callable[[Any], Any]
    broadcasts_input: bool
    only_input_moves: bool = False

    @classmethod
    def of(cls, op: Any, sample: Any) -> Call:
        """The call that an OpInfo ``SampleInput`` describes."""
        args = (sample.input, *sample.args)
        finish, broadcasts = sample.output_process_fn_grad, bool(sample.broadcasts_input)
        return cls(args, dict(sample.kwargs), finish, broadcasts, op.name in TAKES_CPU_ARGUMENTS)

    def on(self, device: str) -> Call:
        """A copy whose tensors live on ``device``; always new memory, also on the CPU."""
        if self.only_input_moves:
            first, (rest, kwargs) = copy_to(self.args[0], device), copy_to((self.args[1:], self.kwargs), "cpu")
            args = (first, *rest)
        else:
            args, kwargs = copy_to((self.args, self.kwargs), device)
        return Call(args, kwargs, self.finish, self.broadcasts_input)

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor among the arguments, in a fixed order."""
        return list(tensors_in((self.args, self.kwargs)))


def take_samples(op: Any, dtype: torch.dtype, count: int, requires_grad: bool = False) -> list[tuple[int, Any]]:
    """``count`` samples spread evenly over all that the OpInfo has, with their indices; 0 takes all.

    The first samples of an op are often alike, and making all of them costs 4 s for the whole of op_db.
    """
    samples = list(enumerate(op.sample_inputs("cpu", dtype, requires_grad=requires_grad)))
    if count <= 0 or len(samples) <= count:
        return samples
    if count == 1:
        return samples[:1]
    return [samples[i * (len(samples) - 1) // (count - 1)] for i in range(count)]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors inside nested tuples, lists and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def copy_to(value: Any, device: str) -> Any:
    """A deep copy on ``device``: tensors, generators, ``torch.device`` values, and the word ``"cpu"``.

    >>> copy_to([torch.ones(4)[::2]], "cpu")[0].stride()
    (2,)
    """
    return _Copier(device).copy(value)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else torch.complex128 if dtype.is_complex else dtype


class _Copier:
    """One copy; tensors that share storage, or are one tensor, do so afterwards too."""

    def __init__(self, device: str) -> None:
        self.wide = device == WIDE
        self.device = "cpu" if self.wide else device
        self.tensors: dict[int, torch.Tensor] = {}
        self.storages: dict[Any, torch.Tensor] = {}

    def copy(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in self.tensors:
                self.tensors[id(value)] = self._tensor(value)
            return self.tensors[id(value)]
        if isinstance(value, dict):
            return {k: self.copy(v) for k, v in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self.copy(v) for v in value))
        if type(value) in (list, tuple):
            return type(value)(self.copy(v) for v in value)
        if value == "cpu" and isinstance(value, str):
            return self.device
        if isinstance(value, torch.device) and value.type == "cpu":
            return torch.device(self.device)
        if isinstance(value, torch.dtype) and self.wide:
            return _wide(value)
        if isinstance(value, torch.Generator):
            return torch.Generator(self.device).manual_seed(value.initial_seed())
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:
            return tensor
        with torch.no_grad():
            if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.device.type != "cpu":
                moved = tensor.detach().to(self.device, copy=True)
            else:
                moved = self._strided(tensor)
            if self.wide:
                moved = moved.to(_wide(moved.dtype))
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)
        return moved.requires_grad_(tensor.requires_grad)

    def _strided(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor.dtype if self.wide else None)
        if key not in self.storages:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            if self.wide:  # wide elements in the same places: a view of them reads what it read before
                usable = whole.numel() // tensor.element_size() * tensor.element_size()
                whole = whole[:usable].view(tensor.dtype).to(_wide(tensor.dtype), copy=True).view(torch.uint8)
            self.storages[key] = whole.to(self.device, copy=True)
        raw, dtype = self.storages[key], _wide(tensor.dtype) if self.wide else tensor.dtype
        usable = raw.numel() // dtype.itemsize * dtype.itemsize
        laid = raw[:usable].view(dtype).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        if tensor.is_conj():
            laid = laid.conj()
        if tensor.is_neg():
            laid = torch._neg_view(laid)
        return laid.detach()
