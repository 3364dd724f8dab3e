"""Puts the lowerings behind PyTorch's dispatcher, where a driver can compile kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bringup import debug
from bringup.driver import Driver
from bringup.lowering import families
from bringup.lowering.loader import Loader
from bringup.lowering.output_layout import promoted_output
from bringup.lowering.overloads import Served, served_overloads
from bringup.lowering.registry import LOWERINGS, OUTPUTS
from bringup.lowering.resolve import Resolver
from bringup.untraced import untraced

if TYPE_CHECKING:
    from bringup.vendor.bound import Bound

#: An eager clone is a copy of the core's, which takes the metadata of a storage along.
_ONLY_IN_GRAPHS = frozenset({"aten::clone"})

#: The resolver of this process, once a device that runs kernels is open: ``bringup explain`` watches it.
active: list[Resolver] = []


def extend(names: Sequence[str], core: Any) -> None:
    """Serves ops that were defined after the first device was opened; before that there is nothing to do."""
    for resolver in active:
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


def install(core: Any, driver_of: Callable[[int], Driver], tables: Mapping[str, Sequence[Bound]]) -> list[Served]:
    """Registers every lowered overload with the core, and answers its misses; op tables come before lowerings."""
    families.load()
    definitions = {name: definition for name, definition in LOWERINGS.items() if name not in _ONLY_IN_GRAPHS}
    if tables:
        from bringup.vendor.routing import with_tables

        definitions = with_tables(definitions, tables, driver_of)
    served = served_overloads(definitions)
    loader = Loader(driver_of, core.load_kernel)
    resolver = Resolver({one.name: (one.definition, one.arguments) for one in served}, loader, core.make_plan)
    if debug.level:
        resolver.observers.append(debug.tell)
    active[:] = [resolver]
    untraced(Resolver.resolve)
    core.set_kernel_resolver(resolver.resolve)
    _register(core, resolver, served)
    if all(driver_of(index).offers("launch") for index in range(core.device_count())):
        from bringup.lowering import composed

        composed.register(core)
    return served
