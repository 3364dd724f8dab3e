"""Legendre's and Laguerre's polynomials: the largest degree is read back, then one kernel takes as many steps."""

from __future__ import annotations

import torch
from torch import Tensor

from bringup.lowering.composed import into
from bringup.lowering.registry import composed

#: No sensible degree is larger; it bounds the loop of a wrong one.
_MOST = 1 << 20


def _register(overload: str, kind: str) -> None:
    def polynomial(self: Tensor | float, n: Tensor | float) -> Tensor:  # PyTorch unwraps the number of a form with one
        devices = [given.device for given in (self, n) if isinstance(given, Tensor)]
        device = next((one for one in devices if one.type != "cpu"), devices[0])
        dtype = torch.result_type(self, n)
        if not dtype.is_floating_point:
            dtype = torch.get_default_dtype()
        x, degree = (torch.as_tensor(given, device=device, dtype=dtype) for given in (self, n))
        result = x + degree  # of the right shape and layout
        if result.numel():
            largest = float(degree.nan_to_num().amax().item())
            degrees = x.new_empty(1).expand(int(min(max(largest, 1.0), _MOST)))
            torch.ops.bringup.polynomial_(result, x, degree, degrees, kind)
        return result

    def polynomial_out(self: Tensor | float, n: Tensor | float, *, out: Tensor) -> Tensor:
        return into(out, polynomial(self, n), cast=True)

    composed(overload)(polynomial)
    composed(f"{overload}.out")(polynomial_out)


_register("aten::special_legendre_polynomial_p", "legendre")
_register("aten::special_laguerre_polynomial_l", "laguerre")
