"""Ops that every device has, with or without kernels: made of other ops, registered when the first is opened."""

from __future__ import annotations

from typing import Any

from bringup.lowering.composed import EVERYWHERE
from bringup.lowering.ops import (  # noqa: F401  they fill the table
    distributions,
    recurrent,
    sync_batch_norm,
    wide_products,
    without_cpu,
)
from bringup.lowering.untraced import untraced


def register(core: Any) -> None:
    """Puts the functions behind PyTorch's dispatcher."""
    core.compose_ops({overload: untraced(function) for overload, function in EVERYWHERE.items()})
