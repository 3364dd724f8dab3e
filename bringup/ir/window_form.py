"""Which kernels are windows over an image with a filter of its own for each channel: depthwise convolutions.

A Reduce of factor × value over one or two short axes of known extent (taps), where the value depends on a grid axis u
and its tap r through s·u + d·r alone. Nothing is shared between channels, so that there is nothing to pack for a matrix
product; what neighbouring outputs share is the image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bringup.ir.contraction_form import axes_used
from bringup.ir.dtypes import float32, float64
from bringup.ir.expr import Binary, Const, Expr, Load, Name
from bringup.ir.index import AxisVar, Index, Int, as_index
from bringup.ir.kernel import Axis, Block, Kernel, Let, Reduce, Store
from bringup.ir.walk import Substitution, subexpressions

#: More taps than this are a kernel that only a loop can hold.
_MOST_TAPS = 49
_SCALES, _STEPS = (1, 2, 3, 4), (1, -1, 2, -2, 3)


@dataclass(frozen=True)
class Window:
    """One dimension of the window: outputs ``u``, taps ``r``, and where they meet, ``scale·u + step·r``."""

    u: Axis
    r: Axis
    taps: int
    scale: int
    step: int

    @property
    def reach(self) -> int:
        """How far the last tap is from the first one."""
        return abs(self.step) * (self.taps - 1)

    def length(self, outputs: int) -> int:
        """How many positions some outputs read.

        >>> Window(None, None, 3, 2, 1).length(4)
        9
        """
        return self.scale * (outputs - 1) + self.reach + 1

    def tap_at(self, tap: int) -> int:
        """The distance of a tap from the first position that an output reads."""
        return self.step * tap if self.step > 0 else self.reach + self.step * tap

    def at(self, first: Index, position: Index) -> dict[str, Index]:
        """The axes of the value at a position, counted from where output ``first`` begins to read."""
        place = position + first * self.scale - (self.reach if self.step < 0 else 0)
        if self.scale == 1:
            return {self.u.name: place, self.r.name: Int(0)}
        return {self.u.name: Int(0), self.r.name: place * self.step}  # the step is 1 or -1 then


@dataclass(frozen=True)
class WindowForm:
    """A kernel as windows; ``before`` and ``after`` are the statements around the Reduce, which binds ``name``."""

    kernel: Kernel
    reduce: Reduce
    windows: tuple[Window, ...]
    value: Expr
    factor: Expr
    factor_first: bool
    before: Block
    after: Block

    @property
    def along(self) -> bool:
        """True if vectors run along the innermost window (rows of an image), False if across windows (channels)."""
        return self.windows[-1].u == self.kernel.axes[-1]

    @property
    def outer(self) -> tuple[Axis, ...]:
        """The axes of the grid that are neither a window's nor the one that vectors run along."""
        inside = {window.u for window in self.windows} | {self.kernel.axes[-1]}
        return tuple(axis for axis in self.kernel.axes if axis not in inside)


def recognise_window(kernel: Kernel) -> WindowForm | None:
    """The kernel as windows, or None."""
    if kernel.locals or not kernel.axes or kernel.axes[-1].extent == Int(1):
        return None
    folds = [(at, stmt) for at, stmt in enumerate(kernel.body) if isinstance(stmt, Reduce)]
    if len(folds) != 1 or not all(isinstance(stmt, (Let, Store, Reduce)) for stmt in kernel.body):
        return None
    ((at, reduce),) = folds
    before, after = kernel.body[:at], kernel.body[at + 1 :]
    value = _product(reduce, before)
    if value is None or any(isinstance(stmt, Store) and stmt.mode != "unique" for stmt in after):
        return None
    for x, factor, first in ((value.b, value.a, True), (value.a, value.b, False)):
        windows = _windows(kernel, reduce, x, factor)
        if windows is not None:
            return WindowForm(kernel, reduce, windows, x, factor, first, before, after)
    return None


def _product(reduce: Reduce, before: Block) -> Binary | None:
    """What the Reduce sums, if it is a sum of few products in order that starts at 0."""
    taps = [axis.extent.value if isinstance(axis.extent, Int) else 0 for axis in reduce.axes]
    if reduce.lanes != 1 or len(reduce.values) != 1 or not 1 <= len(taps) <= 2:
        return None
    if not 1 <= math.prod(taps) <= _MOST_TAPS or not all(isinstance(stmt, Let) for stmt in (*before, *reduce.body)):
        return None
    (init,), combine = reduce.inits, reduce.combine
    dtype = init.dtype
    added = Binary("add", Name(combine.left[0], dtype), Name(combine.right[0], dtype))
    if dtype not in (float32, float64) or combine.results != (added,):
        return None
    if not isinstance(init, Const) or init.value != 0 or math.copysign(1, init.value) < 0:
        return None
    known: dict[str, Expr] = {}
    for stmt in (*before, *reduce.body):
        assert isinstance(stmt, Let)
        known[stmt.name] = Substitution(names=known).value(stmt.value)
    value = Substitution(names=known).value(reduce.values[0])
    return value if isinstance(value, Binary) and value.op == "mul" else None


def _windows(kernel: Kernel, reduce: Reduce, x: Expr, factor: Expr) -> tuple[Window, ...] | None:
    in_factor = axes_used(kernel, factor)
    written = kernel.written
    found = []
    for r in reduce.axes:
        window = next((w for axis in kernel.axes if (w := _window(x, axis, r)) is not None), None)
        if window is None or window.u.name in in_factor:
            return None
        found.append(window)
    inner = kernel.axes[-1]
    if len({window.u for window in found}) < len(found) or any(window.u == inner for window in found[:-1]):
        return None
    if found[-1].u == inner and found[-1].scale > 2:
        return None
    if any(isinstance(part, Load) and part.buffer in written for e in (x, factor) for part in subexpressions(e)):
        return None  # a value packed early could be one that is written
    return tuple(found)


def _window(x: Expr, u: Axis, r: Axis) -> Window | None:
    """How a value depends on an output axis and a tap: through s·u + d·r alone, or None."""
    for scale in _SCALES:
        for step in _STEPS:
            if scale > 1 and abs(step) > 1:
                continue
            common = math.gcd(scale, step)
            moved: dict[str, Index] = {
                r.name: as_index(AxisVar(r.name) + scale // common),
                u.name: as_index(AxisVar(u.name) - step // common),
            }
            if Substitution(axes=moved).value(x) == x:
                assert isinstance(r.extent, Int)
                return Window(u, r, r.extent.value, scale, step)
    return None
