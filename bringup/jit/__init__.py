"""TorchScript on a device: a pass of the JIT gives the parts of a model that a driver can compile to that driver.

    import bringup.jit
    bringup.jit.enable(driver="sim")
    model = torch.jit.trace(model.eval(), example)   # or torch.jit.script, or torch.jit.load
    model(example), model(example)                   # the JIT optimizes a model when it is called the second time
    print(bringup.jit.report(model))

Tensors may be on the device or on the CPU; a group of CPU tensors copies them there and its results back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import bringup
from bringup.jit import grouping
from bringup.jit.report import GroupReport as GroupReport
from bringup.jit.report import Report as Report
from bringup.jit.report import report as report

__all__ = ["GroupReport", "Report", "disable", "enable", "report"]

_lock = threading.Lock()


@dataclass(frozen=True)
class _Settings:
    driver: str | None
    min_group_size: int
    allow: frozenset[str] | None


_enabled: _Settings | None = None


def enable(driver: str | None = None, *, min_group_size: int = 2, allow: Iterable[str] | None = None) -> None:
    """From now on the JIT groups what ``driver`` can run in every model that it optimizes; default: the first driver.

    >>> import bringup.jit
    >>> bringup.jit.enable(driver="sim", allow=["aten::conv2d", "aten::relu"])  # doctest: +SKIP

    ``min_group_size``: fewer ops than that (views and lists are not counted) stay where they are. ``allow``: only
    these ops are grouped, "aten::add" with all its overloads or "aten::add.Tensor". The same settings again are fine;
    others are a RuntimeError until ``disable``.
    """
    global _enabled
    if isinstance(min_group_size, bool) or not isinstance(min_group_size, int):
        raise TypeError(f"min_group_size is a number of ops, not {min_group_size!r}")
    if min_group_size < 1:
        raise ValueError(f"min_group_size is at least 1, not {min_group_size}")
    if isinstance(allow, str):
        raise TypeError(f'allow is a list of ops: ["{allow}"]')
    wanted = _Settings(driver, min_group_size, None if allow is None else frozenset(allow))
    with _lock:
        if _enabled == wanted:
            return
        if _enabled is not None:
            raise RuntimeError(f"bringup.jit is enabled with {_enabled}: call bringup.jit.disable() before {wanted}")
        device = bringup.device(driver)  # an unknown driver, or one without a device, fails here
        from bringup import _C
        from bringup.driver.in_use import driver_of
        from bringup.jit.compile_group import Group
        from bringup.jit.groupable_ops import groupable_ops

        owner = driver_of(device.index)
        settings = grouping.Settings(groupable_ops(wanted.allow), min_group_size)
        grouping.enabled = settings
        make_groups = partial(grouping.make_groups, settings=settings)
        _C.jit_enable(make_groups, Group, device.index, owner.first, owner.count)
        _enabled = wanted


def disable() -> None:
    """Takes the pass out of the JIT; groups that models have already run their ops one by one."""
    global _enabled
    with _lock:
        if _enabled is not None:
            from bringup import _C

            _C.jit_disable()
            grouping.enabled = _enabled = None
