"""Loops over elements that lie side by side: one look at the windows for as many steps as they show.

A load or store whose offset grows by one element with the axis is a *run*. Before the first step each window is asked
how far it reaches, and the steps up to the nearest end use plain pointers: a sum of two rows takes 8 instructions for
an element that way, and 35 with a look at three windows for each (RV32IM, gcc 12).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from bringup.ir.expr import Expr, Load
from bringup.ir.index import AxisVar, Index, Int, coefficient
from bringup.ir.kernel import Axis, Block, Buffer, Contract, Kernel, Stmt, Store, axes_of, blocks_of, offset_of
from bringup.ir.walk import axes_inside, bridges, own_values, subexpressions
from bringup.targets.c.loops import Loops
from bringup.targets.c.value import storage_of

SPANS = """
// How many elements of a size the window shows from an address on, at most *steps, as a pointer; both are changed.
static __attribute__((noinline, unused))
const void *bu_span(bu_window *w, uint32_t address, uint32_t size, uint32_t *steps) {
  if (address - w->base >= w->valid) bu_move(w, address, bu_wanted(address, *steps * size), 1);
  const uint32_t count = (w->base + w->valid - address) / size;
  if (count < *steps) *steps = count;
  return w->bytes + (address - w->base);
}

static __attribute__((noinline, unused))
void *bu_span_out(bu_window *w, uint32_t address, uint32_t size, int reads, uint32_t *steps) {
  if (address != w->high || address - w->base >= w->valid) {
    if (w->low < w->high) bu_write_back(w);
    if (address - w->base >= w->valid) bu_move(w, address, bu_wanted(address, *steps * size), reads);
    w->low = w->high = address;
  }
  const uint32_t count = (w->base + w->valid - address) / size;
  if (count < *steps) *steps = count;
  return w->bytes + (address - w->base);
}
"""


@dataclass(frozen=True)
class Run:
    """One buffer in a loop: its offset, in elements, and whether it is written."""

    buffer: Buffer
    offset: Index
    written: bool


def runs_of(kernel: Kernel, axis: Axis, values: Sequence[Expr], block: Block) -> list[Run]:
    """Returns the buffers whose elements lie side by side along an axis, in a loop of these values and statements.

    A window has one place: all accesses of the buffer in the loop must be to the same element. Guarded ones are left
    out, since where a guard does not hold there may be no memory.
    """
    if any(axes_of(stmt) for stmt in block):
        return []
    stores = [stmt for stmt in block if isinstance(stmt, Store)]
    exprs = [
        part for value in (*values, *(v for stmt in block for v in own_values(stmt))) for part in subexpressions(value)
    ]
    loads = [expr for expr in exprs if isinstance(expr, Load)]
    found: list[Run] = []
    for buffer in kernel.buffers:
        reading = [load for load in loads if load.buffer == buffer.name]
        writing = [stmt for stmt in stores if stmt.buffer == buffer.name]
        if not reading and not writing:
            continue
        touching: list[Load | Store] = [*reading, *writing]
        offsets = {offset_of(buffer, access.indices) for access in touching}
        guarded = any(access.guard is not None for access in touching)
        if len(offsets) > 1 or guarded or any(stmt.mode != "unique" for stmt in writing):
            continue
        (offset,) = offsets
        scale, rest = coefficient(offset, AxisVar(axis.name))
        if scale == Int(1) and axis.name not in axes_inside(rest) and not bridges(offset):
            found.append(Run(buffer, offset, bool(writing)))
    return found


@dataclass
class RunLoops(Loops):
    """Loops whose innermost axis goes by runs where it can.

    ``changing`` is the memory that is read and written; ``stmt`` is the statement whose loop opens next.
    """

    kernel: Kernel
    changing: frozenset[str]
    stmt: Stmt | None = None

    def __post_init__(self) -> None:
        #: Pointers of the runs that are open: the C text of the element at this step.
        self.elements: dict[str, str] = {}

    @contextmanager
    def nest(self, axes: Sequence[Axis], count: str | None = None) -> Iterator[str]:
        """Loops over axes, the first one outermost, by runs where that is possible."""
        stmt, self.stmt = self.stmt, None
        runs = [] if stmt is None else runs_of(self.kernel, axes[-1], _inside(stmt), _block(stmt))
        if not runs:
            with super().nest(axes, count) as at:
                yield at
            return
        with super().nest(axes[:-1]) if axes[:-1] else nullcontext(), self.around(axes[-1]) as extent:
            start = self.w.fresh("a")
            if count is not None:
                stop = self.w.fresh("c")
                self.w.line(f"const int64_t {stop} = {count} < {extent} ? {count} : {extent};")
                extent = stop
            self.w.line(f"int64_t {start} = 0;")
            with self.along(axes[-1], start, extent, runs) as at:
                yield at

    @contextmanager
    def along(self, axis: Axis, start: str, stop: str, runs: Sequence[Run]) -> Iterator[str]:
        """Steps of an axis from the variable ``start`` to ``stop``; afterwards ``start`` is ``stop``."""
        w = self.w
        if not runs:
            with w.scope(f"for (; {start} < {stop}; {start}++) {{") as scope:
                scope.axes[axis.name] = start
                yield start
            return
        with w.scope(f"while ({start} < {stop}) {{"):
            steps, k, at = w.fresh("n"), w.fresh("k"), w.fresh("a")
            w.line(f"uint32_t {steps} = {stop} - {start} < 2048 ? (uint32_t)({stop} - {start}) : 2048;")
            w.stack[-1].axes[axis.name] = start
            pointers: dict[str, str] = {}
            for run in runs:
                pointers[run.buffer.name] = self._span(run, steps)
            for run in runs:
                if run.written:
                    window = f"windows[{self.kernel.buffers.index(run.buffer)}]"
                    w.line(f"{window}.high += {steps} * {run.buffer.dtype.size};")
            del w.stack[-1].axes[axis.name]
            before = self.elements
            self.elements = {**before, **{name: f"{pointer}[{k}]" for name, pointer in pointers.items()}}
            with w.scope(f"for (uint32_t {k} = 0; {k} < {steps}; {k}++) {{") as scope, w.pinned():
                w.line(f"const int64_t {at} = {start} + {k};")
                scope.axes[axis.name] = at
                yield at
            self.elements = before
            w.line(f"{start} += {steps};")

    def _span(self, run: Run, steps: str) -> str:
        """Opens a run; returns its pointer."""
        w, buffer = self.w, run.buffer
        pointer, storage = w.fresh("p"), storage_of(buffer.dtype)
        text, _ = w.index(run.offset)
        window = f"windows + {self.kernel.buffers.index(buffer)}"
        place = f"{window}, b_{buffer.name} + (uint32_t){text} * {buffer.dtype.size}u, {buffer.dtype.size}"
        if run.written:
            reads = int(buffer.name in self.changing)
            w.line(f"{storage}_m *const {pointer} = bu_span_out({place}, {reads}, &{steps});")
        else:
            w.line(f"const {storage}_m *const {pointer} = bu_span({place}, &{steps});")
        return pointer


def _inside(stmt: Stmt) -> tuple[Expr, ...]:
    """What a statement computes at each step of its axes, without its blocks."""
    if isinstance(stmt, Contract):
        return (stmt.a, stmt.b)
    return own_values(stmt)


def _block(stmt: Stmt) -> Block:
    return tuple(inner for block in blocks_of(stmt) for inner in block)
