"""torch.<name>.amp: autocast and GradScaler bound to our device type."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from bringup.driver import in_use


class autocast(torch.amp.autocast_mode.autocast):
    """``torch.autocast`` for our device.

    >>> with torch.sim.amp.autocast(dtype=torch.bfloat16):  # doctest: +SKIP
    ...     y = model(x)
    """

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool | None = None
    ) -> None:
        super().__init__(in_use.device_type(), dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler`` for our device."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__(
            in_use.device_type(),
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            enabled=enabled,
        )


def custom_fwd(fwd: Callable[..., Any] | None = None, *, cast_inputs: torch.dtype | None = None) -> Any:
    """``torch.amp.custom_fwd`` for our device: decorates the forward of an autograd.Function."""
    decorate = functools.partial(torch.amp.custom_fwd, device_type=in_use.device_type(), cast_inputs=cast_inputs)
    return decorate if fwd is None else decorate(fwd)


def custom_bwd(bwd: Callable[..., Any]) -> Any:
    """``torch.amp.custom_bwd`` for our device: decorates the backward of an autograd.Function."""
    return torch.amp.custom_bwd(bwd, device_type=in_use.device_type())
