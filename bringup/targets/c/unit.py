"""Translation units of C: functions of kernels, what they take, and what they share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bringup.ir.index import Index
from bringup.ir.kernel import Kernel
from bringup.targets.c.math_library import functions, typedefs
from bringup.targets.c.memory import memory_typedefs
from bringup.targets.c.options import COptions
from bringup.targets.c.parts import Parts
from bringup.targets.c.value import Value, ctype, kind_of, storage_of
from bringup.targets.source import Source

_OWN_NAME = re.compile(r"\b(?:bu|bringup)_\w+")


@dataclass(frozen=True)
class Part:
    """One kernel's function, and which library functions and snippets it calls."""

    entry: str
    units: Index
    function: str
    needs: frozenset[tuple[str, str, int]]
    snippets: Mapping[str, str]


def unit(parts: Iterable[Part], target: COptions) -> str:
    """One translation unit of several kernels with different names; what they share is in it once."""
    parts = list(parts)
    snippets: dict[str, str] = {}
    for part in parts:
        snippets.update(part.snippets)
    needs = {need for part in parts for need in part.needs}
    text = functions(needs, target) + "".join(snippets.values()) + "".join(part.function for part in parts)
    return "#include <stdint.h>\n" + typedefs(text) + memory_typedefs(text) + text


def together(sources: Sequence[Source]) -> tuple[str, list[str]]:
    """One text of all sources, so that one run of the compiler makes them all, and the entry of each.

    What a kernel has for itself at file scope is called ``bu_…`` or ``bringup_…``; here these names get its number.
    Types and macros are the same in all kernels, or defined again before they are used.

    >>> from bringup.ir.index import Int
    >>> together([Source("void bringup_k(void) {}", "bringup_k", Int(1))] * 2)
    ('void bringup_k_0(void) {}\\nvoid bringup_k_1(void) {}', ['bringup_k_0', 'bringup_k_1'])
    """
    texts = [_OWN_NAME.sub(rf"\g<0>_{n}", source.text) for n, source in enumerate(sources)]
    return "\n".join(texts), [f"{source.entry}_{n}" for n, source in enumerate(sources)]


def entry_name(kernel: Kernel) -> str:
    """The name of the function that a driver calls.

    >>> entry_name(Kernel("mm"))
    'bringup_mm'
    """
    return "bringup_" + re.sub(r"\W", "_", kernel.name)


def entry_head(kernel: Kernel) -> str:
    """The first line of that function."""
    return f"void {entry_name(kernel)}(const uint64_t *args, int64_t begin, int64_t end, int64_t *report) {{\n"


def declare_arguments(parts: Parts, kernel: Kernel) -> None:
    """Declares what a launch passes in ``args``: buffers, sizes, numbers."""
    w, written = parts.w, kernel.written
    for at, buffer in enumerate(kernel.buffers):
        const = "const " if buffer.name not in written else ""
        storage = storage_of(buffer.dtype)
        w.line(f"{const}{storage}_m *const b_{buffer.name} = ({const}{storage}_m *)(uintptr_t)args[{at}];")
    declare_numbers(parts, kernel)


def declare_numbers(parts: Parts, kernel: Kernel) -> None:
    """Declares what ``args`` has behind the buffers: sizes, then scalars."""
    w = parts.w
    sizes, params = len(kernel.buffers), len(kernel.buffers) + len(kernel.sizes)
    for at, size in enumerate(kernel.sizes, sizes):
        w.line(f"const int64_t n_{size.name} = (int64_t)args[{at}];")
    for at, param in enumerate(kernel.params, params):
        kind = kind_of(param.dtype)
        if kind[0] == "f":
            w.line(f"union {{ uint{kind[1:]}_t bits; {ctype(kind)} value; }}")
            w.line(f"    u_{param.name} = {{(uint{kind[1:]}_t)args[{at}]}};")
            text = f"u_{param.name}.value"
        else:
            text = f"args[{at}] != 0" if kind == "bool" else f"({ctype(kind)})args[{at}]"
        w.stack[0].names[param.name] = parts.ops.narrowed(Value("", kind), param.dtype, text, 1, 0)
