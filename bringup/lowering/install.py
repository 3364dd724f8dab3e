"""Puts the lowerings behind PyTorch's dispatcher, where a driver can compile kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from bringup import debug
from bringup.compile.failure import NotCompiled
from bringup.compile.loader import Loader
from bringup.driver import Driver
from bringup.driver.c_struct import DeviceSpecStruct
from bringup.lowering import ops
from bringup.lowering.output_layout import promoted_output
from bringup.lowering.overloads import Served, served_overloads
from bringup.lowering.registry import LATE, LOWERINGS, OUTPUTS, Lowering
from bringup.lowering.resolve import KernelCompiler
from bringup.lowering.untraced import untraced

#: An eager clone is a copy of the core's, which takes the metadata of a storage along.
_ONLY_IN_GRAPHS = frozenset({"aten::clone"})

#: Device → who compiles for it, once the first device is open; none for a driver that launches no kernels.
_compilers: dict[int, KernelCompiler] = {}


def compiler_for(device: int) -> KernelCompiler | None:
    """Returns what compiles ops and graphs for a device; None if its driver runs no kernels."""
    return _compilers.get(device)


def partitions_of(device: int) -> int:
    """Returns how many memory partitions a device has, as far as kernels are concerned."""
    compiler = compiler_for(device)
    return 1 if compiler is None else compiler.partitions(device)


def _extend(core: Any, compiler: KernelCompiler, names: Sequence[str]) -> None:
    """Serves ops that were defined after the first device was opened."""
    served = served_overloads({name: LOWERINGS[name] for name in names})
    compiler.add({one.name: (one.definition, one.arguments) for one in served})
    _register(core, compiler, served)


def _register(core: Any, compiler: KernelCompiler, served: Sequence[Served]) -> None:
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
            compiler.in_place[one.name] = OUTPUTS[one.functional]
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
    loader = Loader(driver_of, core.load_kernel, core.library_kernel, core.load_kernel_again)
    core.load_again_with(loader.again)
    lowerings = {one.name: (one.definition, one.arguments) for one in served}
    compiler = KernelCompiler(
        *(lowerings, loader, core.make_plan, kernel_failed),
        partitions=lambda device: int(DeviceSpecStruct.from_buffer_copy(core.device_spec(device)).partitions),
    )
    if debug.level:
        from bringup.lowering.call_text import tell

        compiler.observers.append(tell)
    able = [index for index in range(core.device_count()) if driver_of(index).offers("launch")]
    _compilers.update(dict.fromkeys(able, compiler))
    untraced(KernelCompiler.resolve)
    core.set_kernel_resolver(compiler.resolve)
    _register(core, compiler, served)
    if len(able) == core.device_count():
        from bringup.lowering import composed

        composed.register(core)
    LATE[:] = [partial(_extend, core, compiler)]
    return served
