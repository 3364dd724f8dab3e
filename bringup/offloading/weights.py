"""Weights of a model on the CPU, with a copy of each on the device that is renewed when the weight has changed."""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn


class _OnDevice(torch.autograd.Function):
    """A weight's copy in the place of the weight: its gradient goes to the weight."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, copy: Tensor) -> Tensor:
        ctx.home = weight.device
        return copy.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].to(ctx.home), None


class Weights:
    """The parameters and buffers of a model, each at most once on the device, also where layers share it."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.device = device
        self.model = ref(model)
        #: id of a tensor → it, its version and address when it was copied, the copy and that one's version.
        self._copies: dict[int, tuple[ref[Tensor], int, int, Tensor, int]] = {}
        #: id of a buffer → its value when it was copied: batch_norm changes its statistics without a new version.
        self._values: dict[int, Tensor] = {}
        self.bytes_moved = 0
        self.moves = 0

    def on_device(self, weight: Tensor) -> Tensor:
        """The copy, made or renewed if need be; with grad mode on its gradients reach the weight."""
        if weight.device.type != "cpu":
            return weight
        copy = self._copy(weight)
        if weight.requires_grad and torch.is_grad_enabled():
            result: Tensor = _OnDevice.apply(weight, copy)  # type: ignore[no-untyped-call]
            return result
        return copy

    def _copy(self, weight: Tensor) -> Tensor:
        found = self._copies.get(id(weight))
        if found is not None:
            owner, version, address, copy, _ = found
            same = owner() is weight and version >= 0 and (version, address) == _state(weight)
            if same and (id(weight) not in self._values or torch.equal(self._values[id(weight)], weight)):
                return copy
        with torch.inference_mode(False), torch.no_grad():  # outlives the block it is made in
            copy = weight.detach().to(self.device)
            if not isinstance(weight, nn.Parameter):
                self._values[id(weight)] = weight.detach().clone()
        self._copies[id(weight)] = (ref(weight, self._forget(id(weight))), *_state(weight), copy, copy._version)
        self.bytes_moved += weight.numel() * weight.element_size()
        self.moves += 1
        return copy

    def take_back(self, weight: Tensor, training: bool) -> int:
        """Writes what the device has changed, such as running statistics, to the CPU's tensor; returns its bytes."""
        found = self._copies.get(id(weight))
        counted = found is not None and found[3]._version != found[4]
        if found is None or not (counted or (training and id(weight) in self._values)):
            return 0
        owner, _, _, copy, _ = found
        with torch.no_grad():
            weight.copy_(copy)
            if id(weight) in self._values:
                self._values[id(weight)].copy_(weight)
        self._copies[id(weight)] = (owner, *_state(weight), copy, copy._version)
        return weight.numel() * weight.element_size()

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is a weight of the model, not an activation."""
        if isinstance(tensor, nn.Parameter):
            return True
        model = self.model()
        return model is not None and any(tensor is buffer for buffer in model.buffers())

    @property
    def resident_bytes(self) -> int:
        """How many bytes of copies the device holds."""
        return sum(copy.numel() * copy.element_size() for _, _, _, copy, _ in self._copies.values())

    def clear(self) -> None:
        """Frees the copies."""
        self._copies.clear()
        self._values.clear()

    def _forget(self, key: int) -> Any:
        copies, values = self._copies, self._values

        def forget(gone: Any) -> None:
            if key in copies and copies[key][0] is gone:
                del copies[key]
                values.pop(key, None)

        return forget

    def __deepcopy__(self, memo: dict[int, Any]) -> Weights:
        raise TypeError("an offloaded model is not copied: offload.restore(model) first, then offload the copy")

    __reduce__ = None  # type: ignore[assignment]


def _state(tensor: Tensor) -> tuple[int, int]:
    """By what a change shows; a tensor of inference mode counts no changes, so its copy is always renewed."""
    return -1 if tensor.is_inference() else tensor._version, tensor.data_ptr()
