"""Puts the lowerings behind PyTorch's dispatcher, where a driver can compile kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bringup.driver import Driver
from bringup.lowering import families
from bringup.lowering.loader import Loader
from bringup.lowering.overloads import Served, served_overloads
from bringup.lowering.registry import LOWERINGS
from bringup.lowering.resolve import Resolver


def install(core: Any, driver_of: Callable[[int], Driver]) -> list[Served]:
    """Registers every lowered overload with the core, and answers its misses."""
    families.load()
    served = served_overloads(LOWERINGS)
    loader = Loader(driver_of, core.load_kernel)
    resolver = Resolver({one.name: (one.definition, one.arguments) for one in served}, loader, core.make_plan)
    core.set_kernel_resolver(resolver.resolve)
    core.register_kernels([(one.name, "" if one.functional == one.name else one.functional) for one in served])
    return served
