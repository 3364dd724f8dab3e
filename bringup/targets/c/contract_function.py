"""What the C functions of a contraction share: how they begin, how flat positions are split, and the whole unit."""

from __future__ import annotations

import re

from bringup.ir.index_proof import Facts
from bringup.ir.kernel import Axis, Kernel
from bringup.targets.c.access import Accesses
from bringup.targets.c.math_library import functions, typedefs
from bringup.targets.c.memory import memory_typedefs
from bringup.targets.c.options import COptions
from bringup.targets.c.value import Value, ctype, kind_of, storage_of


def opened(kernel: Kernel, target: COptions, batch: tuple[Axis, ...]) -> Accesses:
    """A writer whose outermost scope knows the arguments (of ``args``) and the batch axes (of ``at``).

    >>> text_of(opened(Kernel("k"), COptions(), ()))
    ''
    """
    w = Accesses(kernel, target)
    w.facts = Facts(sizes={size.name: (size.low, size.high) for size in kernel.sizes})
    for at, buffer in enumerate(kernel.buffers):
        const = "const " if buffer.name not in w.written else ""
        storage = storage_of(buffer.dtype)
        w.line(f"{const}{storage}_m *const b_{buffer.name} = ({const}{storage}_m *)(uintptr_t)args[{at}];")
    for at, size in enumerate(kernel.sizes, len(kernel.buffers)):
        w.line(f"const int64_t n_{size.name} = (int64_t)args[{at}];")
    for at, param in enumerate(kernel.params, len(kernel.buffers) + len(kernel.sizes)):
        kind = kind_of(param.dtype)
        if kind[0] == "f":
            w.line(f"union {{ uint{kind[1:]}_t bits; {ctype(kind)} value; }} u_{param.name} =")
            w.line(f"    {{(uint{kind[1:]}_t)args[{at}]}};")
            text = f"u_{param.name}.value"
        else:
            text = f"args[{at}] != 0" if kind == "bool" else f"({ctype(kind)})args[{at}]"
        w.stack[0].names[param.name] = w.narrowed(Value("", kind), param.dtype, text, 1, 0)
    for number, axis in enumerate(batch):
        w.line(f"const int64_t x_{axis.name} = at[{number}];")
        w.stack[0].axes[axis.name] = f"x_{axis.name}"
    return w


def text_of(w: Accesses) -> str:
    """What a writer has written so far, as the inside of a function.

    >>> text_of(opened(Kernel("k"), COptions(), (Axis("e", None),)))
    '  const int64_t x_e = at[0];\\n'
    """
    return "".join(f"  {line}\n" for line in w.stack[0].lines)


def split_position(w: Accesses, axes: tuple[Axis, ...], start: str, const: str = "const ") -> None:
    """Declares the C variable x_NAME of each axis from a flat position over all of them, the last axis fastest."""
    if len(axes) > 1:
        rest = w.fresh("rest")
        w.line(f"int64_t {rest} = {start};")
        for axis in axes[:0:-1]:
            extent = w.index(axis.extent)[0]
            w.line(f"{const}int64_t x_{axis.name} = {rest} % {extent}; {rest} /= {extent};")
        start = rest
    if axes:
        w.line(f"{const}int64_t x_{axes[0].name} = {start};")


def batch_position(w: Accesses, batch: tuple[Axis, ...], start: str) -> str:
    """C that writes the position on each batch axis to ``at``.

    >>> batch_position(opened(Kernel("k"), COptions(), ()), (), "block")
    '{ int64_t t = block; at[0] = t; }'
    """
    text = f"{{ int64_t t = {start};"
    for number in range(len(batch) - 1, 0, -1):
        extent = w.index(batch[number].extent)[0]
        text += f" at[{number}] = t % {extent}; t /= {extent};"
    return text + " at[0] = t; }"


def entry_name(kernel: Kernel) -> str:
    """The name of the function that a driver calls.

    >>> entry_name(Kernel("mm"))
    'bringup_mm'
    """
    return "bringup_" + re.sub(r"\W", "_", kernel.name)


class Unit:
    """Collects what the functions of one translation unit need, and puts it together."""

    def __init__(self, target: COptions) -> None:
        self.target = target
        self.needs: set[tuple[str, str, int]] = set()
        self.snippets: dict[str, str] = {}

    def collect(self, w: Accesses) -> None:
        """Takes over what a writer needs."""
        self.needs |= w.needs
        self.snippets |= w.snippets

    def text(self, body: str) -> str:
        """The complete text: types, library functions, and the unit's own."""
        text = functions(self.needs, self.target) + "".join(self.snippets.values()) + body
        return "#include <stdint.h>\n" + typedefs(text) + memory_typedefs(text) + text
