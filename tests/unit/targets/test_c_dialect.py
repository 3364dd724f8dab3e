"""A dialect of C from the emitter's parts: one thread for each grid point, where C has loops over a unit's points."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bringup.ir.kernel import Kernel, Store, extent_of, statements
from bringup.targets.c.contract_function import split_position
from bringup.targets.c.parts import Parts
from bringup.targets.c.target import CTarget
from bringup.targets.c.unit import Part, declare_arguments, entry_head, entry_name
from bringup.targets.c.value import storage_of
from bringup.targets.toolchain import host_target
from tests.loops.compiled import Compiled, compile_parts, disagreement
from tests.unit.targets.c_kernels import KERNELS, PARAMS, SIZES, ULP, arrays_for

TARGET = CTarget(vector_bytes=0, isa=host_target().isa)


def in_any_order(kernel: Kernel) -> bool:
    return all(stmt.mode == "unique" for stmt in statements(kernel.body) if isinstance(stmt, Store))


def threads(kernel: Kernel) -> Part:
    """The function of one thread, ``begin``."""
    parts = Parts(kernel, TARGET)
    w = parts.w
    declare_arguments(parts, kernel)
    for local in kernel.locals:
        w.line(f"{storage_of(local.dtype)}_m b_{local.name}[{local.nbytes // local.dtype.size}];")
    split_position(w, kernel.axes, "begin")
    w.stack[0].axes.update({axis.name: f"x_{axis.name}" for axis in kernel.axes})
    with w.scope(), w.pinned(), parts.loops.knowing(*kernel.axes):
        parts.statements.block(kernel.body)
    text = f"{entry_head(kernel)}{w.text()}}}\n"
    return Part(entry_name(kernel), extent_of(kernel.axes), text, frozenset(w.needs), w.snippets)


@pytest.fixture(scope="module")
def compiled() -> dict[str, Compiled]:
    kernels = {name: kernel for name, kernel in KERNELS.items() if in_any_order(kernel)}
    parts = [threads(replace(kernel, name=f"k{at}")) for at, kernel in enumerate(kernels.values())]
    return dict(zip(kernels, compile_parts(list(kernels.values()), parts, TARGET, ())))


@pytest.mark.parametrize("name", [name for name, kernel in KERNELS.items() if in_any_order(kernel)])
def test_agrees_with_the_interpreter(compiled: dict[str, Compiled], name: str) -> None:
    kernel = KERNELS[name]
    known = {**SIZES, "n": 17, "m": 33}
    sizes = {size.name: known[size.name] for size in kernel.sizes}
    arrays = [arrays_for(kernel, sizes) for _ in range(2)]
    ranges = [(at, at + 1) for at in reversed(range(compiled[name].count(sizes)))]
    found = disagreement(compiled[name], *arrays, sizes, PARAMS, ranges=ranges, ulp=ULP.get(name, 0))
    assert not found, found
