"""How ops are taken apart before a model is exported: as for torch.compile, and so that constants can be folded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bringup.graph.decompositions import by_overload, decompositions
from bringup.graph.effects import inverse, solve
from bringup.lowering.registry import Defined, define


@define("export decomposition", "aten::_native_batch_norm_legit_no_training")
def batch_norm_in_evaluation(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """As the device computes it, with the scale as an op of its own: it depends on parameters only, and is folded."""
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    scale = torch.rsqrt(running_var.to(wide) + eps)
    if weight is not None:
        scale = scale * weight.to(wide)

    def across(channels: Tensor) -> Tensor:
        return channels.to(wide).view([-1, *(1 for _ in x.shape[2:])])

    y = (x.to(wide) - across(running_mean)) * across(scale)
    if bias is not None:
        y = y + across(bias)
    return y.to(x.dtype), running_mean.new_empty(0), running_mean.new_empty(0)


def _scaled(x: Tensor, size: Sequence[int] | None, factors: Sequence[float] | None) -> list[Any]:
    """The size of an upsampled picture."""
    if size is not None:
        return list(size)
    assert factors is not None
    # By a whole number the size stays a product, which kernels can compute with when it is open.
    return [n * int(f) if f == int(f) else torch.sym_int(n * f) for n, f in zip(x.shape[2:], factors)]


# PyTorch keeps these two whole, for backends that want to see them so.
@define("export decomposition", "aten::upsample_bilinear2d.vec")
def upsample_bilinear(x: Tensor, size: Any, align_corners: bool, factors: Any) -> Tensor:
    """The overload that takes a size or factors, as the one that takes both."""
    made: Tensor = torch.ops.aten.upsample_bilinear2d(
        x, _scaled(x, size, factors), align_corners, *(factors or (None, None))
    )
    return made


@define("export decomposition", "aten::upsample_nearest2d.vec")
def upsample_nearest(x: Tensor, size: Any, factors: Any) -> Tensor:
    """The same for the nearest element."""
    made: Tensor = torch.ops.aten.upsample_nearest2d(x, _scaled(x, size, factors), *(factors or (None, None)))
    return made


define("export decomposition", "aten::linalg_inv", "aten::inverse")(inverse)
define("export decomposition", "aten::linalg_solve")(solve)


def attention_in_products(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention as two matrix products and a softmax, which a small core's emitters know.

    As one kernel it keeps no scores in memory, and has two nested folds that no emitter cuts into tiles: a causal one
    of 24 tokens takes 493,000 instructions on a scalar core and 187,000 in products, with vectors 66,000 and 24,000.
    """
    made = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )
    result: Tensor = made[0]
    return result


def table(products_of_attention: bool = False) -> dict[Any, Callable[..., Any]]:
    """Our decompositions, and PyTorch's own of every op that is a composition in eager mode.

    ``products_of_attention``: attention is taken apart, too.
    """
    composite = {
        op: function
        for op, function in torch.export.default_decompositions().items()
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    }
    made = {**composite, **decompositions(), **by_overload(Defined("export decomposition"))}
    if products_of_attention:
        made[torch.ops.aten.scaled_dot_product_attention.default] = attention_in_products
    return made
