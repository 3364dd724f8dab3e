"""What torch.amp.GradScaler asks of a device: gradients unscaled and looked at for infinities, and the next scale."""

from __future__ import annotations

from bringup.ir.dtypes import float32, float64
from bringup.ir.expr import Binary, Expr, Where, const, unary
from bringup.lowering.builder import convert
from bringup.lowering.call import Call, NoKernel, Number, Tensor
from bringup.lowering.elementwise import elementwise
from bringup.lowering.ops.folding import Elements, Reduction, fold
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath


def _not_finite(piece: Elements) -> tuple[Expr, ...]:
    """1 if an element is infinite or NaN."""
    one, zero = const(1.0, float32), const(0.0, float32)
    return (piece.reduce(lambda *j: Where(unary("isfinite", piece(*j)), zero, one), "max"),)


@lowering("aten::_amp_foreach_non_finite_check_and_unscale_")
def check_and_unscale(call: Call, self: list[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    """Multiplies every gradient by 1 / scale; ``found_inf`` becomes 1 if one of them is not finite."""
    call.pointwise = True
    for tensor in (found_inf, inv_scale):
        if tensor.numel != 1 or tensor.dtype is not float32:
            raise NoKernel("the scale and what was found are one float32 each")
    gradients = [tensor for tensor in self if tensor.numel != 0]
    if not all(tensor.dtype.is_float for tensor in gradients):
        raise NoKernel("a gradient that is not of a float type")
    if not gradients:
        return
    flags = call.temporary(float32, (len(gradients),))
    for n, x in enumerate(gradients):
        fold(call, [x], range(x.ndim), False, Reduction(_not_finite, "max"), [flags.select(0, n)])
        wide = opmath(x.dtype)
        scale = inv_scale.view([1] * x.ndim, [0] * x.ndim)
        elementwise(call, [x], [x, scale], lambda v, s, wide=wide: v * convert(s, wide), [wide, None], "unscale")
    k = call.kernel("found_inf")
    each, found = k.read(flags), k.update(found_inf.view((), ()))
    k.store(found, (), k.reduce(len(gradients), lambda j: each[j], "max"), combine="max")
    k.launch()


@lowering("aten::_amp_update_scale_")
def update_scale(
    call: Call,
    self: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    scale_growth_factor: Number,
    scale_backoff_factor: Number,
    growth_interval: int,
) -> None:
    """A smaller scale after an infinity, a larger one after ``growth_interval`` steps without."""
    if any(x.numel != 1 for x in (self, growth_tracker, found_inf)):
        raise NoKernel("the CPU says what is wrong with tensors of more than one element")
    call.pointwise = True

    def formula(scale: Expr, steps: Expr, found: Expr, growth: Expr, backoff: Expr) -> tuple[Expr, Expr]:
        bad = Binary("ne", found, const(0.0, found.dtype))
        count = steps + 1
        full = Binary("eq", count, const(growth_interval, steps.dtype))
        larger = convert(scale * growth, self.dtype)
        grown = Where(full & unary("isfinite", larger), larger, convert(scale, self.dtype))
        none = const(0, steps.dtype)
        return Where(bad, convert(scale * backoff, self.dtype), grown), Where(bad | full, none, count)

    kinds = [float64, None, None, float64, float64]
    operands = [self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor]
    elementwise(call, [self, growth_tracker], operands, formula, kinds, "update_scale")
