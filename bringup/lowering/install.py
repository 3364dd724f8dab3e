"""Puts the lowerings behind PyTorch's dispatcher, where a driver can compile kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from bringup import debug
from bringup.compile.failure import NotCompiled
from bringup.compile.loader import Loader
from bringup.driver import Driver
from bringup.lowering import ops
from bringup.lowering.output_layout import promoted_output
from bringup.lowering.overloads import Served, served_overloads
from bringup.lowering.registry import LATE, LOWERINGS, OUTPUTS, Lowering
from bringup.lowering.resolve import Resolver
from bringup.lowering.untraced import untraced

#: An eager clone is a copy of the core's, which takes the metadata of a storage along.
_ONLY_IN_GRAPHS = frozenset({"aten::clone"})

#: The resolver of this process, once a device that runs kernels is open: ``bringup explain`` watches it.
active: list[Resolver] = []


def _extend(core: Any, resolver: Resolver, names: Sequence[str]) -> None:
    """Serves ops that were defined after the first device was opened."""
    served = served_overloads({name: LOWERINGS[name] for name in names})
    resolver.add({one.name: (one.definition, one.arguments) for one in served})
    _register(core, resolver, served)


def _register(core: Any, resolver: Resolver, served: Sequence[Served]) -> None:
    """Registers overloads, with those whose outputs the definition says itself: not an in-place form that PyTorch has a
    meta kernel for, which would run the functional form and copy, nor such an out= that may have another type."""
    import torch

    own = set()
    for one in served:
        base = one.name.partition(".")[0]
        in_place = one.name != one.functional and base.endswith("_") and not base.endswith("__")
        casts = one.name != one.functional and OUTPUTS.get(one.functional) is promoted_output
        asks = (in_place or casts) and torch._C._dispatch_has_kernel_for_dispatch_key(one.name, "Meta")
        if one.functional in OUTPUTS and not asks:
            own.add(one.name)
        if one.functional in OUTPUTS and in_place:
            resolver.in_place[one.name] = OUTPUTS[one.functional]
    core.register_kernels([(one.name, "" if one.functional == one.name else one.functional) for one in served], own)


def install(
    core: Any,
    driver_of: Callable[[int], Driver],
    kernel_failed: Callable[[str, NotCompiled], None],
    choose: Callable[[Mapping[str, Lowering]], Mapping[str, Lowering]],
) -> list[Served]:
    """Registers every lowered overload with the core, and answers its misses.

    ``choose`` puts other definitions before the lowerings, such as those of op tables.
    """
    ops.load()
    definitions = {name: definition for name, definition in LOWERINGS.items() if name not in _ONLY_IN_GRAPHS}
    served = served_overloads(choose(definitions))
    loader = Loader(driver_of, core.load_kernel)
    lowerings = {one.name: (one.definition, one.arguments) for one in served}
    resolver = Resolver(lowerings, loader, core.make_plan, kernel_failed)
    if debug.level:
        from bringup.lowering.call_text import tell

        resolver.observers.append(tell)
    active[:] = [resolver]
    untraced(Resolver.resolve)
    core.set_kernel_resolver(resolver.resolve)
    _register(core, resolver, served)
    if all(driver_of(index).offers("launch") for index in range(core.device_count())):
        from bringup.lowering import composed

        composed.register(core)
    LATE[:] = [partial(_extend, core, resolver)]
    return served
