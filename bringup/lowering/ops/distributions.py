"""Random ops of every device: their arguments are checked here, and host_draws.py makes the numbers.

Where a device compiles kernels, those of random_numbers.py come first: the numbers are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from bringup import user_code
from bringup.lowering.composed import composed_everywhere
from bringup.lowering.ops import host_draws
from bringup.lowering.ops.host_draws import Array, Draws
from bringup.lowering.ops.random_numbers import integer_limit
from bringup.lowering.scalar_types import BY_NAME

_Generator = torch.Generator | None


def _key(self: Tensor, generator: _Generator) -> tuple[int, int]:
    """The seed and the offset of one call."""
    from bringup import _C

    kind = torch._C._get_privateuse1_backend_name()
    if self.device.type != kind:  # a generator takes part in dispatch: a CPU tensor with ours arrives here too
        raise RuntimeError(f"Expected a '{self.device.type}' device type for generator but found '{kind}'")
    return _C.reserve_draw(self.device.index, generator)[:2]


def _draw(self: Tensor, generator: _Generator, value: Callable[[Draws], Array | Tensor]) -> Tensor:
    return host_draws.fill(self, _key(self, generator), value)


def _normal(self: Tensor, generator: _Generator, mean: float, std: float) -> Tensor:
    def value(draws: Draws) -> Array:
        unit = host_draws.normal(draws, self.dtype)
        if mean == 0 and std == 1:
            return unit
        return unit * unit.dtype.type(std) + unit.dtype.type(mean)

    return _draw(self, generator, value)


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


def _not_implemented(op: str, self: Tensor) -> NoReturn:
    raise NotImplementedError(f"\"{op}\" not implemented for '{self.dtype}'")


# ---- uniform, normal and what follows from them ----
@composed_everywhere("aten::uniform_")
def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0, *, generator: _Generator = None) -> Tensor:
    """In [low, high)."""
    _check(low <= high, f"uniform_ expects to return a [from, to) range, but found from={low:g} > to={high:g}")
    widest = torch.finfo(torch.float64 if self.dtype == torch.float64 else torch.float32).max
    _check(
        high - low <= widest,
        f"uniform_ expects to-from <= std::numeric_limits<{self.dtype}>::max(), but found to={high:g} and "
        f"from={low:g} which result in to-from to exceed the limit",
    )
    if self.is_complex():  # real and imaginary part each
        uniform_(torch.view_as_real(self), low, high, generator=generator)
        return self
    if not self.is_floating_point():
        _not_implemented("uniform_", self)
    return _draw(
        self, generator, lambda draws: host_draws.between(host_draws.uniform(draws, self.dtype), self.dtype, low, high)
    )


@composed_everywhere("aten::normal_")
def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: _Generator = None) -> Tensor:
    """Bell-shaped around a mean."""
    _check(std >= 0, f"normal expects std >= 0.0, but found std {std:g}")
    if self.is_complex():  # real and imaginary part share the variance, and each has the mean
        _normal(torch.view_as_real(self), generator, mean, std / math.sqrt(2.0))
        return self
    if not self.is_floating_point():
        _not_implemented("normal_", self)
    return _normal(self, generator, mean, std)


@composed_everywhere("aten::log_normal_")
def log_normal_(self: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: _Generator = None) -> Tensor:
    """e to the power of a normal number."""
    _check(std > 0, f"log_normal_ expects std > 0.0, but found std={std:g}")
    if not self.is_floating_point():
        _not_implemented("normal_", self)
    return _normal(self, generator, mean, std).exp_()


@composed_everywhere("aten::exponential_")
def exponential_(self: Tensor, lambd: float = 1.0, *, generator: _Generator = None) -> Tensor:
    """Waiting times."""
    _check(lambd > 0, f"exponential_ expects lambda > 0.0, but found lambda={lambd:g}")
    if not self.is_floating_point():
        _not_implemented("exponential_", self)
    return _draw(self, generator, lambda draws: host_draws.exponential(draws, self.dtype).astype(np.float64) / lambd)


@composed_everywhere("aten::cauchy_")
def cauchy_(self: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: _Generator = None) -> Tensor:
    """The tangent of an even angle."""
    _check(sigma > 0, f"cauchy_ expects sigma > 0.0, but found sigma={sigma:g}")
    _check(
        self.is_floating_point(),
        "Cauchy distribution is a continuous probability distribution. dtype must be a floating point but you "
        f"specified {self.dtype}",
    )
    return _draw(self, generator, lambda draws: median + sigma * np.tan(math.pi * (host_draws.inside(draws) - 0.5)))


@composed_everywhere("aten::geometric_")
def geometric_(self: Tensor, p: float, *, generator: _Generator = None) -> Tensor:
    """How many trials a success takes."""
    _check(0 < p < 1, f"geometric_ expects p to be in (0, 1), but got p={p:g}")
    if self.is_complex() or self.dtype == torch.bool:
        _not_implemented("geometric_", self)
    return _draw(self, generator, lambda draws: np.ceil(np.log(host_draws.inside(draws)) / math.log1p(-p)))


# ---- integers ----
_LOWEST = -(1 << 63)


def _limit(dtype: torch.dtype) -> int:
    """The largest integer up to which a type holds every integer: random_() without bounds draws from [0, this]."""
    return integer_limit(BY_NAME[str(dtype).removeprefix("torch.")])


def _check_bound(bound: int, name: str, dtype: torch.dtype) -> None:
    limit = _limit(dtype)
    if dtype.is_floating_point:
        largest = torch.finfo(dtype).max if dtype == torch.float16 else 3e38
        _check(abs(bound) <= largest, f"{name} is out of bounds for {dtype}")
        if abs(bound) > limit:
            user_code.warn(
                f"{name} is out of bounds [-{limit}, {limit}]. Due to precision limitations {dtype} can support "
                "discrete uniform distribution only within this range.",
                UserWarning,
            )
        return
    lowest = -limit - 1 if dtype.is_signed else 0
    _check(lowest <= bound <= limit, f"{name} is out of bounds for {dtype}")


def _integers(self: Tensor, low: int, end: int, generator: _Generator) -> Tensor:
    if self.is_complex():
        _not_implemented("random_", self)
    return _draw(self, generator, lambda draws: host_draws.integers(draws, low, (end - low) % (1 << 64)))


@composed_everywhere("aten::random_")
def random_(self: Tensor, *, generator: _Generator = None) -> Tensor:
    """Any integer from 0 to the limit of the type."""
    if self.is_complex():
        _not_implemented("random_", self)
    return _integers(self, 0, _limit(self.dtype) + 1, generator)


@composed_everywhere("aten::random_.from")
def random_from(self: Tensor, low: int, to: int | None, *, generator: _Generator = None) -> Tensor:
    """Integers from a bound to below another, or to the limit of the type."""
    if self.is_complex():
        _not_implemented("random_", self)
    if to is None and low == _LOWEST:
        return _integers(self, 0, 1 << 64, generator)
    _check(to is None or low < to, f"random_ expects 'from' to be less than 'to', but got from={low} >= to={to}")
    _check_bound(low, "from", self.dtype)
    if to is not None:
        _check_bound(to - 1, "to - 1", self.dtype)
    return _integers(self, low, _limit(self.dtype) + 1 if to is None else to, generator)


@composed_everywhere("aten::random_.to")
def random_to(self: Tensor, to: int, *, generator: _Generator = None) -> Tensor:
    """Integers from 0 to below a bound."""
    return random_from(self, 0, to, generator=generator)


# ---- coins ----
@composed_everywhere("aten::bernoulli_.float")
def bernoulli_float(self: Tensor, p: float = 0.5, *, generator: _Generator = None) -> Tensor:
    """1 with one probability everywhere."""
    _check(0 <= p <= 1, f"bernoulli_ expects p to be in [0, 1], but got p={p:g}")
    return _draw(self, generator, lambda draws: host_draws.below(draws, p))


@composed_everywhere("aten::bernoulli_.Tensor")
def bernoulli_tensor(self: Tensor, p: Tensor, *, generator: _Generator = None) -> Tensor:
    """1 with a probability of its own for each element."""
    _check(p.is_floating_point(), f"expected probabilities tensor to have floating type, got {p.dtype}")
    key = _key(self, generator)
    chances = p.to("cpu", torch.float64).expand(self.shape)
    inside = bool(((chances >= 0) & (chances <= 1)).all())
    _check(inside, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    words = host_draws.fill(
        torch.empty(self.shape, dtype=torch.int64, device="cpu"), key, lambda draws: draws.words().astype(np.int64)
    )
    return self.copy_(words < chances * 2.0**32)


@composed_everywhere("aten::bernoulli")
def bernoulli(self: Tensor, *, generator: _Generator = None) -> Tensor:
    """1 with the probability that the input has there."""
    result = torch.empty_like(self, memory_format=torch.contiguous_format)
    return bernoulli_tensor(result, self, generator=generator)


@composed_everywhere("aten::bernoulli.out")
def bernoulli_out(self: Tensor, *, generator: _Generator = None, out: Tensor) -> Tensor:
    """The same into a tensor."""
    return bernoulli_tensor(out.resize_(self.shape), self, generator=generator)


@composed_everywhere("aten::native_dropout")
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Zeroes a part p, scales the rest; the mask is the second result."""
    _check(0 <= p <= 1, f"dropout probability has to be between 0 and 1, but got {p:g}")
    if input.numel() == 0 or train is False:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(input), torch.zeros_like(input, dtype=torch.bool)
    mask = bernoulli_float(torch.empty_like(input, dtype=torch.bool), 1 - p)
    return input * mask * (1 / (1 - p)), mask


# ---- tensors of means and deviations ----
def _around(mean: Any, std: Any, generator: _Generator) -> Tensor:
    tensors = [part for part in (mean, std) if isinstance(part, Tensor)]
    if isinstance(std, Tensor):
        _check(not std.is_complex(), "normal expects standard deviation to be non-complex")
        _check(std.numel() == 0 or float(std.min()) >= 0, "normal expects all elements of std >= 0.0")
    else:
        _check(std >= 0, f"normal expects std >= 0.0, but found std {std:g}")
    like = next((part for part in tensors if part.device.type != "cpu"), tensors[0])  # another may be a CPU number
    shape = torch.broadcast_shapes(*(part.shape for part in tensors))
    drawn = normal_(torch.empty(shape, dtype=like.dtype, device=like.device), generator=generator)
    return drawn.mul_(std).add_(mean)


@composed_everywhere("aten::normal.Tensor_float")
def normal_tensor_float(mean: Tensor, std: float = 1.0, *, generator: _Generator = None) -> Tensor:
    """A mean of its own for each element."""
    return _around(mean, std, generator)


@composed_everywhere("aten::normal.float_Tensor", "aten::normal.Tensor_Tensor")
def normal_around(mean: float | Tensor, std: Tensor, *, generator: _Generator = None) -> Tensor:
    """A deviation of its own for each element, and a mean for all or for each."""
    return _around(mean, std, generator)


@composed_everywhere("aten::normal.Tensor_float_out", "aten::normal.float_Tensor_out", "aten::normal.Tensor_Tensor_out")
def normal_around_out(mean: Any, std: Any, *, generator: _Generator = None, out: Tensor) -> Tensor:
    """The same into a tensor."""
    result = _around(mean, std, generator)
    _check(out.dtype == result.dtype, f"out has dtype {out.dtype}, expected {result.dtype}")
    return out.resize_(result.shape).copy_(result)
