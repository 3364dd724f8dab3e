"""Ops whose result has as many elements as the data say, or that give Python values: made of other ops of the device.

Each function is the op's kernel at PrivateUse1: it calls ops, reads a number back where it must (the host waits there),
and calls more ops. The order of results never depends on the order in which work runs.

@composed("mychip::run_starts")
def run_starts(x): ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bringup.lowering.registry import Defined, composed, define
from bringup.lowering.untraced import untraced

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
#: Overload ("aten::nonzero.out") → the function that serves it, where every device runs kernels.
COMPOSED: Mapping[str, Callable[..., Any]] = Defined("composed")
#: The same for ops that PyTorch has no CPU kernel for, or that draw the device's own random numbers: on every device.
EVERYWHERE: Mapping[str, Callable[..., Any]] = Defined("composed everywhere")
#: Keeps the registrations alive.
_libraries: list[torch.library.Library] = []

#: Elements of a mask that are counted together (ops/compaction.py).
BLOCK = 1024

composed_everywhere = partial(define, "composed everywhere")


def register(core: Any) -> None:
    """Puts the functions behind PyTorch's dispatcher, in the place of the core's."""
    core.compose_ops({overload: untraced(function) for overload, function in COMPOSED.items()})
    parts = torch.library.Library("bringup", "IMPL")  # without a kernel they go to the CPU, as every other op does
    for part, on_cpu in Defined("on CPU").items():
        parts.impl(part.removeprefix("bringup::"), on_cpu, "CPU")
    _libraries.append(parts)


def registered() -> bool:
    """True in a process whose devices run kernels."""
    return bool(_libraries)


def into(out: Tensor, result: Tensor, cast: bool = False) -> Tensor:
    """A result in the tensor that the caller gave for it; with ``cast`` promotion decides which types that may have."""
    if out.device != result.device:
        raise RuntimeError(f"Expected out on {result.device}, but it is on {out.device}")
    if cast and not torch.can_cast(result.dtype, out.dtype):
        raise RuntimeError(f"result type {result.dtype} can't be cast to the desired output type {out.dtype}")
    if not cast and out.dtype != result.dtype:
        raise RuntimeError(f"Expected out tensor to have dtype {result.dtype}, but got {out.dtype} instead")
    if out.shape != result.shape:
        from torch._prims_common.wrappers import _maybe_resize_out  # imports much

        _maybe_resize_out(out, result.shape)  # type: ignore[arg-type]
        out.as_strided_(result.shape, result.stride())
    return out.copy_(result)


def _fills_a_range(tensor: Tensor) -> bool:
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def apart(out: Tensor, *inputs: Tensor) -> None:
    """Refuses an out= that overlaps itself, or an input where PyTorch can tell: both fill a range without gaps."""
    if any(stride == 0 and size > 1 for stride, size in zip(out.stride(), out.shape)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )
    if out.numel() == 0 or not _fills_a_range(out):
        return
    start, end = out.data_ptr(), out.data_ptr() + out.numel() * out.element_size()
    for tensor in inputs:
        first, last = tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()
        if tensor.device == out.device and first < end and start < last and _fills_a_range(tensor):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
                "memory location. Please clone() the tensor before performing the operation."
            )


def only(self: Tensor, dtypes: tuple[torch.dtype, ...], what: str) -> None:
    """Refuses other types, as ATen's CPU kernels do."""
    if self.dtype not in dtypes:
        raise NotImplementedError(f"\"{what}\" not implemented for '{self.dtype}'")


# ---- the parts that are ops of our own, on the CPU ----
@define("on CPU", "bringup::nonzero_")
def nonzero_on_cpu(self: Tensor, running: Tensor, tensor: Tensor) -> None:
    """The places of the truths."""
    self.copy_(tensor.nonzero())


@define("on CPU", "bringup::polynomial_")
def polynomial_on_cpu(self: Tensor, x: Tensor, n: Tensor, degrees: Tensor, kind: str) -> None:
    """Legendre's or Laguerre's polynomial of some degrees."""
    known = {"legendre": torch.special.legendre_polynomial_p, "laguerre": torch.special.laguerre_polynomial_l}
    self.copy_(known[kind](x, n))


@define("on CPU", "bringup::copy_elements_")
def copy_on_cpu(self: Tensor, src: Tensor) -> None:
    """A copy."""
    self.copy_(src)


# ---- where something holds ----
def places(mask: Tensor) -> Tensor:
    """(n, ndim) indices of the n truths of a mask, column by column."""
    flat = mask.reshape(-1)
    whole = flat.numel() // BLOCK * BLOCK
    counts = flat[:whole].view(-1, BLOCK).sum(1)
    if whole != flat.numel():
        last = flat[whole:].sum(0, keepdim=True)
        counts = torch.cat((counts, last)) if whole else last
    ends = counts.cumsum(0) if counts.numel() > 1 else counts
    count = int(ends[-1].item()) if counts.numel() else 0
    found = torch.empty_strided((count, mask.ndim), (1, count), dtype=torch.int64, device=mask.device)
    torch.ops.bringup.nonzero_(found, ends - counts, mask)
    return found


def flat_places(mask: Tensor) -> Tensor:
    """The places of the truths of a flat mask."""
    return places(mask).view(-1)


@composed("aten::nonzero")
def nonzero(self: Tensor) -> Tensor:
    """The indices of all elements that are not zero, in order."""
    return places(self if self.dtype == torch.bool else self != 0)


@composed("aten::nonzero.out")
def nonzero_out(self: Tensor, *, out: Tensor) -> Tensor:
    """The same into a tensor, which gets the size."""
    return into(out, nonzero(self))


@composed("aten::nonzero_static")
def nonzero_static(self: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first ``size`` of them; what is missing is filled up."""
    if size < 0:
        raise RuntimeError("nonzero_static: 'size' must be an non-negative integer")
    found = nonzero(self)[:size]
    result = torch.full((size, self.ndim), fill_value, dtype=torch.int64, device=self.device)
    result[: found.shape[0]] = found
    return result


@composed("aten::nonzero_static.out")
def nonzero_static_out(self: Tensor, *, size: int, fill_value: int = -1, out: Tensor) -> Tensor:
    """The same into a tensor."""
    return into(out, nonzero_static(self, size=size, fill_value=fill_value))


@composed("aten::masked_select")
def masked_select(self: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask holds, in order."""
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    self, mask = torch.broadcast_tensors(self, mask.to(self.device))
    return self.reshape(-1).index_select(0, flat_places(mask.reshape(-1)))


@composed("aten::masked_select.out")
def masked_select_out(self: Tensor, mask: Tensor, *, out: Tensor) -> Tensor:
    """The same into a tensor, which gets the size."""
    apart(out, self, mask)
    return into(out, masked_select(self, mask))


# ---- counts ----
@composed("aten::repeat_interleave.Tensor")
def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    """0 … n-1, each as often as it says."""
    only(repeats, (torch.int32, torch.int64), "repeat_interleave")
    if repeats.ndim != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.numel() == 0:
        return torch.empty_like(repeats, memory_format=torch.contiguous_format)
    ends = repeats.cumsum(0, dtype=torch.int64)
    fewest, total = torch.stack((repeats.amin().to(torch.int64), ends[-1])).tolist()
    if fewest < 0:
        raise RuntimeError("repeats can not be negative")
    if output_size is not None and output_size != total:
        raise RuntimeError("allocated size does not match required size")
    # Every place has the number of those that end at or before it: counted where they end, and summed.
    marks = torch.zeros(total + 1, dtype=repeats.dtype, device=repeats.device)
    marks.scatter_add_(0, ends, torch.ones((), dtype=repeats.dtype, device=repeats.device).expand(ends.shape))
    return marks[:total].cumsum(0, dtype=repeats.dtype)


@composed("aten::bincount")
def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each number occurs, or what the occurrences weigh."""
    only(self, _INTEGERS, "bincount")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    dtype = torch.int64
    if weights is not None:
        dtype = torch.float32 if weights.dtype == torch.float32 else torch.float64
    if self.ndim == 1 and self.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=self.device)
    if self.ndim != 1:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    low, high = (int(bound) for bound in torch.stack(torch.aminmax(self)).tolist())
    if low < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    result = torch.zeros(max(high + 1, minlength), dtype=dtype, device=self.device)
    if weights is None:
        return result.scatter_(0, self.to(torch.int64), 1, reduce="add")
    return result.scatter_add_(0, self.to(torch.int64), weights.to(dtype))


# ---- Python values ----
@composed("aten::equal")
def equal(self: Tensor, other: Tensor) -> bool:
    """True if both have the same shape and elements."""
    if self.device != other.device:
        raise RuntimeError(f"Cannot compare two tensors on different devices. Got: {self.device} and {other.device}")
    return self.shape == other.shape and bool((self == other).all().item())


# ---- gradients of embedding bags ----
@composed("aten::_embedding_bag_backward")
def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """The dense or the sparse form."""
    aten = torch.ops.aten
    if indices.numel() and not offset2bag.numel():  # the CPU's forward leaves it empty, to be found here
        words = torch.arange(indices.numel(), device=indices.device, dtype=offsets.dtype)
        offset2bag = torch.searchsorted(offsets[: grad.shape[0]], words, right=True).to(indices.dtype) - 1
    last = (num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx)
    if sparse:
        found: Tensor = aten._embedding_bag_sparse_backward(grad, indices, offsets, offset2bag, bag_size, *last)
    else:
        found = aten._embedding_bag_dense_backward(grad, indices, offset2bag, bag_size, maximum_indices, *last)
    return found
