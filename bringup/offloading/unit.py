"""A unit of offloading: a module whose calls run on the device when they are worth it, else where they were."""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from bringup.offloading.weights import Weights


class _FlopCount(TorchDispatchMode):
    """Counts what is computed: products by PyTorch's formulas, everything else one operation for each result."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        formula = flop_registry.get(function._overloadpacket)
        if formula is not None:
            self.flops += float(formula(*args, **(kwargs or {}), out_val=result))
        elif not function.is_view:
            self.flops += sum(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return result


def count_flops(body: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | str:
    """Estimates the operations of a call from its shapes, without computing; or says why PyTorch cannot."""

    def meta(value: Any) -> Any:
        return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value

    try:
        with torch.no_grad():
            state = {name: meta(tensor) for name, tensor in _state(body).items()}
            moved = tree_map(meta, (args, kwargs))
            count = _FlopCount()
            with count:
                functional_call(body, state, *moved)
    except Exception as error:  # whatever a program's own module does with tensors without data
        return f"{type(error).__name__}: {error}"
    return count.flops


def _state(body: nn.Module) -> dict[str, Tensor]:
    return dict(itertools.chain(body.named_parameters(), body.named_buffers()))


class Unit:
    """One or more ops that go to the device together, and the account of their calls."""

    def __init__(
        self,
        name: str,
        ops: tuple[str, ...],
        body: nn.Module,
        weights: Weights,
        min_flops: float,
        on_device: Callable[..., Any] | None = None,
        replacement: nn.Module | None = None,
    ) -> None:
        self.name, self.ops, self.body = name, ops, body
        self.weights, self.min_flops = weights, min_flops
        self.compiled, self.replacement = on_device, replacement
        self.device_calls = self.cpu_calls = self.bytes_to = self.bytes_from = 0
        #: Of the last call; None where it cannot be estimated.
        self.flops: float | None = 0.0
        self._unknown = ""  # why it cannot
        self._flops_of: dict[Hashable, float | str] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a call where the account of its flops says."""
        self.flops = self._estimate(args, kwargs)
        if self.flops is not None and self.flops < self.min_flops:
            self.cpu_calls += 1
            return self.body(*args, **kwargs)
        self.device_calls += 1
        return self._on_device(args, kwargs)

    def _estimate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
        leaves = tree_leaves((args, kwargs))
        key = tuple((x.shape, x.dtype) if isinstance(x, Tensor) else (type(x), str(x)) for x in leaves)
        if key not in self._flops_of:
            self._flops_of[key] = count_flops(self.body, args, kwargs)
        found = self._flops_of[key]
        self._unknown = found if isinstance(found, str) else ""
        return None if isinstance(found, str) else found

    def _on_device(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inputs: dict[int, tuple[Tensor, Tensor, int]] = {}
        held = []

        def move(value: Any) -> Any:
            if not isinstance(value, Tensor) or value.device.type != "cpu":
                return value
            if self.weights.holds(value):
                held.append(value)
                return self.weights.on_device(value)
            if id(value) not in inputs:
                moved = self._moved(value)
                inputs[id(value)] = value, moved, moved._version
            return inputs[id(value)][1]

        moved_args, moved_kwargs = tree_map(move, (args, kwargs))
        state = _state(self.body)
        placed = {name: self.weights.on_device(tensor) for name, tensor in state.items()}
        if self.replacement is not None:
            result = self.replacement(*moved_args, **moved_kwargs)
        elif self.compiled is not None:
            result = self.compiled(placed, moved_args, moved_kwargs)
        else:
            result = functional_call(self.body, placed, moved_args, moved_kwargs)
        changed = {}  # id of an input on the device → the CPU's own, which now has the new value
        for here, there, version in inputs.values():
            if there._version != version:
                here.copy_(there)
                self.bytes_from += _nbytes(here)
                changed[id(there)] = here
        for tensor in (*state.values(), *held):
            self.bytes_from += self.weights.take_back(tensor, self.body.training)
        here_before = not inputs and any(isinstance(x, Tensor) for x in tree_leaves((args, kwargs)))
        if here_before and not held:
            return result  # its tensors were on the device already, so they stay
        unchanged = {id(there): here for here, there, _ in inputs.values()}

        def back(value: Any) -> Any:
            if not isinstance(value, Tensor) or value.device.type == "cpu":
                return value
            same = changed.get(id(value), unchanged.get(id(value)))
            if same is not None:
                return same
            self.bytes_from += _nbytes(value)
            return value.to("cpu")

        return tree_map(back, result)

    def _moved(self, value: Tensor) -> Tensor:
        self.bytes_to += _nbytes(value)
        if torch.is_inference_mode_enabled():  # a tensor made inside counts no changes
            with torch.inference_mode(False), torch.no_grad():
                return value.to(self.weights.device)
        return value.to(self.weights.device)

    @property
    def reason(self) -> str:
        """Why its calls ran where they did."""
        if not (self.device_calls or self.cpu_calls):
            return "not called yet"
        if self.flops is None:
            return f"flops unknown ({self._unknown})"
        sign = "<" if self.flops < self.min_flops else "≥"
        return f"{self.flops:,.0f} flops {sign} {self.min_flops:,.0f}"


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def without_hooks(module: nn.Module) -> nn.Module:
    """Returns a module with the same parameters, buffers and children whose calls run no hooks of its own."""
    bare = copy.copy(module)
    bare.__dict__.update({name: OrderedDict() for name in _HOOKS})
    return bare


class Offloaded(nn.Module):
    """What stands in the place of a module: the same parameters, names and hooks, another way to compute."""

    def __init__(self, original: nn.Module, run: Callable[..., Any], bare: nn.Module) -> None:
        super().__init__()
        self.__dict__.update(original.__dict__)  # the dicts themselves: state_dict, to() and train() see one module
        self.__dict__.update(_offload_original=original, _offload_run=run, _offload_bare=bare)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs what was offloaded."""
        self.__dict__["_offload_bare"].training = self.training
        return self.__dict__["_offload_run"](*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_offload_original"], name)

    def _get_name(self) -> str:
        return f"Offloaded{self.__dict__['_offload_original']._get_name()}"

    def extra_repr(self) -> str:
        """The original's."""
        return str(self.__dict__["_offload_original"].extra_repr())

    def __reduce__(self) -> Any:
        raise TypeError("an offloaded model is not copied or pickled: bringup.offload.restore(model) first")
