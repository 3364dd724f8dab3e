"""Wrong results: each mutation takes a right tensor of the device and makes one mistake, or says why it cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Mutation = Callable[[torch.Tensor], torch.Tensor]


class NotApplicable(Exception):
    """This tensor cannot be wrong in this way."""


def _element(tensor: torch.Tensor, at: int, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A copy of the same strides with one element changed, counted in the order of indices."""
    if tensor.layout != torch.strided or not tensor.numel():
        raise NotApplicable("no element")
    host = tensor.detach().cpu().resolve_conj().resolve_neg()
    values = host.flatten().clone()
    values[at] = change(values)
    changed = torch.empty_strided(tensor.size(), _dense(tensor), dtype=tensor.dtype, device=tensor.device)
    return changed.copy_(values.view(tensor.shape).to(tensor.device))


def _dense(tensor: torch.Tensor) -> list[int]:
    """Strides without overlap, in the order of the tensor's own."""
    strides, step = [1] * tensor.dim(), 1
    for dim in sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), -d)):
        strides[dim] = step
        step *= max(tensor.size(dim), 1)
    return strides


def _off(at: int) -> Mutation:
    """An element off by one unit (integers), or by 1 % of the largest number (of 1 where all are zero)."""

    def change(values: torch.Tensor) -> torch.Tensor:
        value = values[at]
        if value.dtype == torch.bool:
            return ~value
        if not value.is_floating_point() and not value.is_complex():
            return (value.to(torch.int64) + 1).to(value.dtype)  # the CPU does not add uint64
        wide = values.to(torch.complex128 if value.is_complex() else torch.float64).abs()
        if not bool(wide[at].isfinite()):
            return torch.ones((), dtype=value.dtype)
        largest = float(wide[wide.isfinite()].max())
        off = value.to(torch.float32 if value.element_size() == 1 else value.dtype) + (0.01 * largest or 0.01)
        return off.to(value.dtype)

    return lambda tensor: _element(tensor, at, change)


def _negated(tensor: torch.Tensor) -> torch.Tensor:
    """The largest number with the other sign."""
    if tensor.layout != torch.strided or tensor.dtype == torch.bool or not (tensor.dtype.is_signed and tensor.numel()):
        raise NotApplicable("no signed element")
    host = tensor.detach().cpu().resolve_conj().resolve_neg().flatten()
    wide = host.to(torch.complex128 if host.is_complex() else torch.float64).abs().nan_to_num(0, 0, 0)
    at = int(wide.argmax())
    if not float(wide[at]):
        raise NotApplicable("zero has no other sign")
    widest = torch.complex128 if host.is_complex() else torch.float64 if host.is_floating_point() else torch.int64
    return _element(tensor, at, lambda values: (-values[at].to(widest)).to(values.dtype))


def _other_dtype(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided:
        raise NotApplicable("a sparse tensor")
    if tensor.is_complex():
        return tensor.detach().to(torch.complex64 if tensor.dtype == torch.complex128 else torch.complex128)
    return tensor.detach().to(torch.float64 if tensor.dtype != torch.float64 else torch.float32)


def _other_shape(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided:
        raise NotApplicable("a sparse tensor")
    return tensor.detach().unsqueeze(0)


def _other_strides(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers with two dimensions in the other memory order."""
    wide = [d for d in range(tensor.dim()) if tensor.size(d) > 1] if tensor.layout == torch.strided else []
    if len(wide) < 2 or not tensor.numel():
        raise NotApplicable("one order of strides only")
    order = sorted(wide, key=lambda d: -tensor.stride(d))
    first, second = order[0], order[-1]
    return tensor.detach().permute(*_swapped(tensor, first, second)).contiguous().permute(*_back(tensor, first, second))


def _swapped(tensor: torch.Tensor, first: int, second: int) -> list[int]:
    """Dimensions from the widest stride to the narrowest, but with two of them exchanged."""
    order = sorted(range(tensor.dim()), key=lambda d: (-tensor.stride(d), d))
    one, other = order.index(first), order.index(second)
    order[one], order[other] = order[other], order[one]
    return order


def _back(tensor: torch.Tensor, first: int, second: int) -> list[int]:
    order = _swapped(tensor, first, second)
    return [order.index(dim) for dim in range(tensor.dim())]


def _other_device(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu()


#: Name → what it does to one tensor of the result.
MUTATIONS: dict[str, Mutation] = {
    "first value": _off(0),
    "last value": _off(-1),
    "sign": _negated,
    "dtype": _other_dtype,
    "shape": _other_shape,
    "strides": _other_strides,
    "device": _other_device,
}
#: Those that change nothing but numbers.
VALUES = ("first value", "last value", "sign")
#: Random results only: every seed gives what the first gives; every element is the first one.
CONSTANT = ("one result for all seeds", "one number for all elements")


def plain_mutation(value: Any) -> Any:
    """Another number of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float, complex)):
        return value + (1 if isinstance(value, int) else 0.01 * abs(value) or 0.01)
    raise NotApplicable("neither a tensor nor a number")


def parts(value: Any) -> list[Any]:
    """Tensors and numbers inside a result, in order."""
    if isinstance(value, (list, tuple)):
        return [part for item in value for part in parts(item)]
    if isinstance(value, dict):
        return [part for item in value.values() for part in parts(item)]
    return [value]


def with_part(value: Any, at: int, new: Any) -> Any:
    """The same structure with one of its ``parts`` exchanged."""
    if isinstance(value, (list, tuple)):
        items = []
        for item in value:
            count = len(parts(item))
            items.append(with_part(item, at, new) if 0 <= at < count else item)
            at -= count
        if isinstance(value, list):
            return items
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        pairs = {}
        for key, item in value.items():
            count = len(parts(item))
            pairs[key] = with_part(item, at, new) if 0 <= at < count else item
            at -= count
        return pairs
    return new
