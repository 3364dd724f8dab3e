"""A contraction inside windows: each output folds the few sums of a window, as pooling after a convolution does.

The kernel's grid is that of the windows; loops over the window store the sums to a Local, which one Reduce folds.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from bringup.ir.expr import Binary, Const, Load
from bringup.ir.kernel import Axis, Block, Contract, Kernel, Let, Loop, Reduce, Store, dense
from bringup.ir.walk import subexpressions
from bringup.targets.riscv.contraction import Contraction, Span, contraction_of


@dataclass(frozen=True)
class Window:
    """The contraction over grid and window, the axes of the window, the fold over it, and what follows."""

    contraction: Contraction
    columns: tuple[Span, ...]
    reduce: Reduce
    rest: Block

    @property
    def positions(self) -> list[tuple[int, ...]]:
        """The places in the window, in the order of the fold."""
        return list(itertools.product(*(range(span.extent) for span in self.columns)))


def starts_with_first(fold: Reduce) -> bool:
    """True for a maximum that starts from -inf: it may as well start from the first value."""
    result, init = fold.combine.results[0], fold.inits[0]
    return isinstance(result, Binary) and result.op == "max" and isinstance(init, Const) and init.value == -math.inf


def windowed_of(kernel: Kernel) -> Window | None:
    """Returns the kernel as windows over a contraction, or None if it does not match."""
    if len(kernel.locals) != 1 or len(kernel.body) < 2:
        return None
    local, (first, second, *rest) = kernel.locals[0], kernel.body
    axes: list[Axis] = []
    block: Block = (first,)
    while len(block) == 1 and isinstance(block[0], Loop) and block[0].axis.kind == "parallel":
        axes.append(block[0].axis)
        block = block[0].body
    fits = (
        bool(axes)
        and len(block) >= 2
        and isinstance(block[0], Contract)
        and all(isinstance(stmt, Let) for stmt in block[1:-1])
        and isinstance(block[-1], Store)
        and block[-1].buffer == local.name
        and block[-1].indices == tuple(axis.var for axis in axes)
        and isinstance(second, Reduce)
        and all(isinstance(stmt, (Let, Store)) for stmt in rest)
    )
    if not fits:
        return None
    assert isinstance(second, Reduce)
    assert isinstance(block[-1], Store)
    value = second.values[0]
    whole = len(second.names) == 1 and second.lanes == 1 and not second.body and isinstance(value, Load)
    if not whole or not isinstance(value, Load) or value.buffer != local.name or value.guard is not None:
        return None
    if value.indices != tuple(axis.var for axis in second.axes):
        return None
    # As if every sum of every window were stored: then it is an ordinary contraction.
    shape = tuple(axis.extent for axis in (*kernel.axes, *axes))
    sums = dense(local.name, local.dtype, shape, "out")
    store = replace(block[-1], indices=tuple(axis.var for axis in (*kernel.axes, *axes)))
    epilogue = [part for stmt in block[1:-1] if isinstance(stmt, Let) for part in subexpressions(stmt.value)]
    if any(isinstance(part, Load) and part.buffer == local.name for part in epilogue):
        return None
    grid = (*kernel.axes, *axes)
    flat = replace(kernel, buffers=(*kernel.buffers, sums), locals=(), axes=grid, body=(*block[:-1], store))
    contraction = contraction_of(flat)
    if contraction is None:
        return None
    names = {axis.name for axis in axes}
    columns = tuple(span for span in contraction.columns if span.axis.name in names)
    if len(columns) != len(axes) or any(span.axis.name in names for span in contraction.rows):
        return None
    return Window(contraction, columns, second, tuple(rest))
