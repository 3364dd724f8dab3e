"""What surrounds the sums of a tile: C functions that set them to the init, and that run the epilogue on them.

The columns of a tile are cut into runs along the innermost column axis (axes that all accesses see as one are merged),
and each run is written with the general emitter, as vectors along that axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bringup.ir.contraction_form import Form, steps_of
from bringup.ir.expr import IndexValue, Load, Name
from bringup.ir.index import Index, Int
from bringup.ir.kernel import Axis, Block, Buffer, Kernel, Let, Store, offset_of
from bringup.ir.walk import Substitution, accesses, all_values, bridges
from bringup.targets.c.contract_function import split_position
from bringup.targets.c.contract_micro import Tile
from bringup.targets.c.parts import Parts
from bringup.targets.c.scope import Scopes, Vector
from bringup.targets.c.value import Value

_INIT, _SUM = " init", " sum"  # names that no kernel has
_LINE_BYTES = 64


def _offsets(kernel: Kernel, block: Block) -> list[Index] | None:
    """The offsets of all accesses of a block; None if positions are also used otherwise (as values)."""
    memories = {memory.name: memory for memory in kernel.memories}
    found = [offset_of(memories[buffer], indices) for buffer, indices in accesses(block)]
    as_values = any(isinstance(expr, IndexValue) for expr in all_values(block))
    return None if as_values or any(bridges(index) for index in found) else found


def merged_axes(kernel: Kernel, axes: tuple[Axis, ...], block: Block) -> tuple[tuple[Axis, ...], Block]:
    """The axes with neighbours joined that every access of the block sees as one, and the block in those axes."""
    offsets = _offsets(kernel, block)
    out: list[Axis] = []
    gone: dict[str, Index] = {}
    for axis in reversed(axes):
        if out and offsets is not None:
            inner = out[-1]
            pairs = [steps_of(offset, (axis, inner)) for offset in offsets]
            if all(pair is not None and pair[0][0] == pair[0][1] * inner.extent for pair in pairs):
                out[-1] = Axis(inner.name, axis.extent * inner.extent)
                gone[axis.name] = Int(0)
                continue
        out.append(axis)
    return tuple(reversed(out)), Substitution(axes=gone).block(block)


def _split(w: Scopes, axes: tuple[Axis, ...], start: str) -> None:
    split_position(w, axes, start)
    w.stack[-1].axes.update({axis.name: f"x_{axis.name}" for axis in axes})


@contextmanager
def _each_run(w: Scopes, rows: tuple[Axis, ...], columns: tuple[Axis, ...]) -> Iterator[None]:
    """C loops over the runs of a tile: ``r`` is the row, ``c`` the first column, ``run`` the number of columns."""
    inner = columns[-1]
    with w.scope("for (int64_t c = 0, run; c < cols; c += run) {"):
        _split(w, columns, "col0 + c")
        if len(columns) == 1:
            w.line("run = cols;")
        else:
            left = f"{w.index(inner.extent)[0]} - x_{inner.name}"
            w.line(f"run = {left} < cols - c ? {left} : cols - c;")
        with w.scope("for (int64_t r = 0; r < rows; r++) {"):
            _split(w, rows, "row0 + r")
            yield


def tile_function(name: str, form: Form, tile: Tile, parts: Parts, initial: bool) -> str:
    """``name(args, report, at, row0, rows, col0, cols, stride, tile)``: the init of a tile's sums, or its epilogue."""
    contract, raw = form.contract, form.contract.name
    block: Block = form.before + form.after
    if initial:
        assert contract.init is not None
        block = (*form.before, Let(_INIT, contract.init))
    elif contract.init is not None and contract.lanes > 1:  # it comes last; with one lane it was the start
        raw = _SUM
        block = (*form.before, Let(contract.name, contract.init + Name(raw, form.dtype)), *form.after)
    columns, block = merged_axes(form.kernel, form.columns.axes, block)
    rows, block = merged_axes(form.kernel, form.rows.axes, block)
    w, inner, lanes = parts.w, columns[-1], tile.lanes
    with _each_run(w, rows, columns):
        w.line(f"{tile.scalar} *const sums = tile + r * stride + c;")
        with w.scope(f"for (int64_t z = 0; z < run; z += {lanes}) {{") as body:
            w.line(f"const int64_t x = x_{inner.name} + z, live = run - z < {lanes} ? run - z : {lanes};")
            body.axes[inner.name] = "x"
            with w.along(Vector(inner.name, lanes, "live") if lanes > 1 else None):
                if not initial:
                    w.line(f"const {tile.vector} acc = *(const {tile.memory} *)(sums + z);")
                    body.names[raw] = Value("acc", tile.kind, lanes, w.depth)
                parts.statements.block(block)
                if initial:
                    value = parts.ops.spread(body.names[_INIT], lanes)
                    if lanes > 1:
                        w.line(parts.accesses.memory("store", tile.kind, lanes, "sums", "z", value.text, "live") + ";")
                    else:
                        w.line(f"sums[z] = {value.text};")
    head = (
        f"static void {name}(const uint64_t *args, int64_t *report, const int64_t *at, int64_t row0, int64_t rows, "
        f"int64_t col0, int64_t cols, int64_t stride, {tile.scalar} *tile) {{\n"
    )
    return f"{head}{w.text()}}}\n"


def ahead_function(name: str, form: Form, w: Scopes) -> str | None:
    """``name(args, at, row0, rows, col0, cols)`` asks for the lines of memory that a tile's epilogue reads and writes.

    A tile has two lines in each row, and the rows are far apart: no processor foresees that. Behind a product of
    200 x 192 x 768 (Zen 4, data in the third cache) gelu's gradient took 400 µs without this and takes 130 with it;
    alone it takes 120. The product itself gains 2 % by it. None if there is nothing to ask for.
    """
    columns, block = merged_axes(form.kernel, form.columns.axes, form.before + form.after)
    rows, block = merged_axes(form.kernel, form.rows.axes, block)
    inner = columns[-1]
    wanted: dict[tuple[Buffer, Index], bool] = {}  # whether it is written
    for access in (*all_values(block), *block):
        if isinstance(access, (Load, Store)):
            memory = form.kernel.buffer(access.buffer)
            assert isinstance(memory, Buffer)
            offset = offset_of(memory, access.indices)
            steps = steps_of(offset, (inner, *rows))
            # What all rows share is near after the first of them.
            if steps is not None and steps[0][0] == Int(1) and any(step != Int(0) for step in steps[0][1:]):
                wanted[memory, offset] = isinstance(access, Store)
    if not wanted:
        return None
    with _each_run(w, rows, columns):
        for (memory, offset), written in wanted.items():
            with w.scope(f"for (int64_t z = 0; z < run; z += {_LINE_BYTES // memory.dtype.size}) {{") as body:
                body.axes[inner.name] = f"(x_{inner.name} + z)"
                w.line(f"__builtin_prefetch(b_{memory.name} + {w.index(offset)[0]}, {int(written)});")
    head = f"static void {name}(const uint64_t *args, const int64_t *at, int64_t row0, int64_t rows, int64_t col0, "
    return f"{head}int64_t cols) {{\n{w.text()}}}\n"
