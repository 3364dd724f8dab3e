"""Fractional max pooling: windows of one size that start where a random sample of each plane says."""

from __future__ import annotations

from bringup.ir.dtypes import int64
from bringup.ir.expr import AsIndex, Binary, Cast, Expr, IndexValue, Where, const
from bringup.ir.index import AxisVar, Index
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, NoKernel, Tensor
from bringup.lowering.ops.pooling import first_best
from bringup.lowering.ops.resampling import size_value
from bringup.lowering.registry import lowering
from bringup.lowering.symbolic import IntLike


def _start(k: KernelBuilder, u: Index, sample: Expr, source: IntLike, result: IntLike, taps: int) -> Expr:
    """Where window u starts: int((u + sample)·alpha) - int(sample·alpha) in the input's type, the last at the end."""
    end = IndexValue(k.size(source) - taps)
    if result == 1:
        return end
    kind = sample.dtype
    alpha = k.let(convert(end, kind) / size_value(k, result - 1, kind))
    at = Cast((convert(IndexValue(u), kind) + sample) * alpha, int64) - Cast(sample * alpha, int64)
    return k.let(Where(Binary("eq", IndexValue(u), IndexValue(k.size(result) - 1)), end, at))


@lowering("aten::fractional_max_pool2d", "aten::fractional_max_pool3d")
def fractional_max_pool(
    call: Call, self: Tensor, kernel_size: list[int], output_size: list[int], random_samples: Tensor
) -> None:
    """The largest element of each window, and where it is."""
    values, indices = call.outs
    dims, shape = len(kernel_size), self.shape[-len(kernel_size) :]
    if random_samples.dtype is not self.dtype:
        raise NoKernel(f"{call.op} has no kernel for samples of {random_samples.dtype}")
    k = call.kernel()
    axes = tuple(k.grid(extent) for extent in values.shape)
    plane, u = axes[:-dims], axes[-dims:]
    x = k.read(self, (*values.shape[:-dims], *shape))
    batch = () if self.ndim > dims + 1 else (1,)
    samples = k.read(random_samples, (*batch, *values.shape[:-dims], dims))
    y, z = k.write(values), k.write(indices, values.shape)
    starts = []
    for n in range(dims):
        # Of two dimensions the sample of the width comes first, of three that of the depth.
        drawn = samples.at(*(0 for _ in batch), *plane, 1 - n if dims == 2 else n)
        starts.append(_start(k, u[n], k.let(drawn), shape[n], values.shape[n - dims], kernel_size[n]))

    def body(*r: AxisVar) -> tuple[Expr, Expr]:
        at = [start + IndexValue(tap) for start, tap in zip(starts, r)]
        place = [AsIndex(value, k.size(extent)) for value, extent in zip(at, shape)]
        flat: Expr = const(0, int64)
        for value, extent in zip(at, shape):
            flat = flat * IndexValue(k.size(extent)) + value
        return x.at(*plane, *place), flat

    value, at = first_best(k, self.dtype, [k.size(taps) for taps in kernel_size], body)
    k.store(y, axes, value)
    k.store(z, axes, at)
    k.launch()
