"""segment_reduce: the segment of each element by bisection, then a reduction by index."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bringup.lowering.reduction import checked_dim
from bringup.lowering.registry import composed

_KINDS = {"sum": ("sum", 0.0), "mean": ("sum", 0.0), "prod": ("prod", 1.0), "max": ("amax", -math.inf)} | {
    "min": ("amin", math.inf)
}


class _Segments:
    """Which segment each element belongs to, as an index of data's shape; the number of segments for those outside."""

    def __init__(self, data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int) -> None:
        if lengths is None:
            if offsets is None:
                raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
            lengths = offsets.diff(dim=-1)
        axis = checked_dim(axis, data.ndim)
        self.axis, self.count = axis, lengths.shape[axis]
        self.lengths = lengths.view(*lengths.shape, *[1] * (data.ndim - axis - 1))
        ends = lengths.to(torch.int64).cumsum(axis)
        positions = torch.arange(data.shape[axis], device=data.device).expand(data.shape[: axis + 1])
        found = torch.searchsorted(ends, positions.contiguous(), right=True)
        self.index = found.view(*found.shape, *[1] * (data.ndim - axis - 1)).expand(data.shape)

    def reduce(self, data: Tensor, reduce: str, start: float) -> Tensor:
        """One value per segment."""
        shape = [self.count + 1 if d == self.axis else size for d, size in enumerate(data.shape)]
        result = torch.full(shape, start, dtype=data.dtype, device=data.device)
        return result.scatter_reduce_(self.axis, self.index, data, reduce).narrow(self.axis, 0, self.count)

    def spread(self, values: Tensor) -> Tensor:
        """Each segment's value at its elements; 0 outside."""
        none = torch.zeros_like(values.narrow(self.axis, 0, 1)) if self.count else values.new_zeros(())
        return torch.cat((values, none), self.axis).gather(self.axis, self.index)


@composed("aten::segment_reduce")
def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """sum, mean, prod, max or min of neighbours."""
    if indices is not None:
        raise RuntimeError("segment_reduce(): indices based reduction is not supported yet.")
    segments = _Segments(data, lengths, offsets, axis)
    if not unsafe and lengths is not None:
        low, total_low, total_high = _checked(lengths)
        if low < 0 or total_low != data.shape[segments.axis] or total_high != data.shape[segments.axis]:
            raise RuntimeError("segment_reduce(): Expected all rows of lengths along axis to sum to data.size(axis).")
    name, start = _KINDS[reduce]
    result = segments.reduce(data, name, start if initial is None else initial).contiguous()
    if reduce == "mean":
        many = segments.lengths.to(data.dtype)
        empty = torch.full((), math.nan, dtype=data.dtype, device=data.device) if initial is None else result
        result = torch.where(many > 0, result / many, empty)
    return result


def _checked(lengths: Tensor) -> list[int]:
    """[the smallest length, the smallest and the largest sum]."""
    if lengths.numel() == 0:
        return [0, 0, 0]
    total = lengths.sum(-1)
    found: list[int] = torch.stack((lengths.amin().to(total.dtype), total.amin(), total.amax())).tolist()
    return found


@composed("aten::_segment_reduce_backward")
def segment_reduce_backward(
    grad: Tensor,
    output: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> Tensor:
    """Gradients go to all elements of a segment; of max and min, to those equal to the result, in equal parts."""
    segments = _Segments(data, lengths, offsets, axis)
    if reduce in ("max", "min"):
        chosen = data == segments.spread(output)
        chosen |= data.isnan() & segments.spread(output.isnan().to(data.dtype)).bool()
        many = segments.spread(segments.reduce(chosen.to(data.dtype), "sum", 0.0))
        return torch.where(chosen, segments.spread(grad) / many, 0)
    if reduce == "prod":
        zero = data == 0
        zeros = segments.spread(segments.reduce(zero.to(data.dtype), "sum", 0.0)) - zero.to(data.dtype)
        others = segments.reduce(torch.where(zero, 1, data), "prod", 1.0 if initial is None else initial)
        return torch.where(zeros > 0, 0, segments.spread(grad * others) / torch.where(zero, 1, data))
    return segments.spread(grad / segments.lengths.to(grad.dtype) if reduce == "mean" else grad)
