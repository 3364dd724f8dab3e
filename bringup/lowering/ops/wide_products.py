"""Matrix products with a wider result (torch.mm(a, b, out_dtype=…)): only CUDA has them, so here they are composed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bringup.lowering.composed import composed_everywhere


def _widened(factor: Tensor, dtype: torch.dtype) -> Tensor:
    """A factor in the result's dtype: products of two half numbers are exact in float32, so nothing is lost."""
    if dtype != factor.dtype and not (factor.dtype in (torch.float16, torch.bfloat16) and dtype == torch.float32):
        raise RuntimeError(
            "out_dtype must be the dtype of the factors, or float32 for float16 and bfloat16; "
            f"got {dtype} for {factor.dtype}"
        )
    return factor.to(dtype)


def _into(out: Tensor, result: Tensor) -> Tensor:
    if out.dtype != result.dtype:
        raise RuntimeError(f"out has dtype {out.dtype}, expected {result.dtype}")
    return out.resize_(result.shape).copy_(result)


def _compose(name: str) -> None:
    product = getattr(torch.ops.aten, name)

    def wide(*arguments: Any, **scales: Any) -> Tensor:
        *added, a, b, dtype = arguments
        factors = (_widened(a, dtype), _widened(b, dtype))
        result: Tensor = product(*(c.to(dtype) for c in added), *factors, **scales)
        return result

    def wide_out(*arguments: Any, out: Tensor, **scales: Any) -> Tensor:
        return _into(out, wide(*arguments, **scales))

    composed_everywhere(f"aten::{name}.dtype")(wide)
    composed_everywhere(f"aten::{name}.dtype_out")(wide_out)


for _name in ("mm", "bmm", "addmm", "baddbmm"):
    _compose(_name)
