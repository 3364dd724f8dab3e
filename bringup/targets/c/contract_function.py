"""What the C functions of a contraction share: how they begin, how flat positions are split, and the whole unit."""

from __future__ import annotations

from bringup.ir.index import Index
from bringup.ir.kernel import Axis, Kernel
from bringup.targets.c.options import COptions
from bringup.targets.c.parts import Parts
from bringup.targets.c.scope import Scopes
from bringup.targets.c.unit import Part, declare_arguments, entry_name


def opened(kernel: Kernel, target: COptions, batch: tuple[Axis, ...]) -> Parts:
    """Parts whose outermost scope knows the arguments (of ``args``) and the batch axes (of ``at``).

    >>> opened(Kernel("k"), COptions(), (Axis("e", None),)).w.text()
    '  const int64_t x_e = at[0];\\n'
    """
    parts = Parts(kernel, target)
    declare_arguments(parts, kernel)
    for number, axis in enumerate(batch):
        parts.w.line(f"const int64_t x_{axis.name} = at[{number}];")
        parts.w.stack[0].axes[axis.name] = f"x_{axis.name}"
    return parts


def split_position(w: Scopes, axes: tuple[Axis, ...], start: str, const: str = "const ") -> None:
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


def batch_position(w: Scopes, batch: tuple[Axis, ...], start: str) -> str:
    """C that writes the position on each batch axis to ``at``.

    >>> batch_position(Scopes(COptions()), (), "block")
    '{ int64_t t = block; at[0] = t; }'
    """
    text = f"{{ int64_t t = {start};"
    for number in range(len(batch) - 1, 0, -1):
        extent = w.index(batch[number].extent)[0]
        text += f" at[{number}] = t % {extent}; t /= {extent};"
    return text + " at[0] = t; }"


class Unit:
    """Collects what the functions of one translation unit need, and puts it together."""

    def __init__(self, target: COptions) -> None:
        self.target = target
        self.needs: set[tuple[str, str, int]] = set()
        self.snippets: dict[str, str] = {}

    def collect(self, w: Scopes) -> None:
        """Takes over what a writer needs."""
        self.needs |= w.needs
        self.snippets |= w.snippets

    def part(self, kernel: Kernel, units: Index, body: str) -> Part:
        """The functions of a kernel, the one that a driver calls among them, with what they need."""
        return Part(entry_name(kernel), units, body, frozenset(self.needs), self.snippets)
