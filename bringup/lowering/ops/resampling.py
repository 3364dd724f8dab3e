"""Resizing images: along each dimension an output element is a weighted sum of a few input elements (ATen's formulas).

The same taps serve forward (gather) and backward (scatter, plane by plane).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from bringup.ir.dtypes import DType, float32, float64, int32, int64
from bringup.ir.expr import AsIndex, Cast, Expr, IndexValue, binary, const, unary
from bringup.ir.index import AxisVar, Index
from bringup.ir.kernel import Buffer
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, NoKernel, Number, Tensor
from bringup.lowering.ops.image_loops import grid_by_memory, scatter_planes
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike, product

Kind = Literal["nearest", "exact", "linear", "cubic"]
#: One input element of a dimension and its weight (None: 1).
Tap = tuple[Index, "Expr | None"]


def source_scale(
    k: KernelBuilder, source: IntLike, result: IntLike, align: bool, scale: Number | None, wide: DType
) -> Expr:
    """How far the input moves per output element: area_pixel_compute_scale."""
    if align:
        if result == 1:
            return const(0.0, wide)
        return size_value(k, source - 1, wide) / size_value(k, result - 1, wide)
    if scale is not None:
        return convert(const(1.0, float64) / k.number(scale, float64), wide)
    return size_value(k, source, wide) / size_value(k, result, wide)


def size_value(k: KernelBuilder, number: IntLike, dtype: DType) -> Expr:
    """A size as a value."""
    return Cast(IndexValue(k.size(number)), dtype)


def source_position(u: Index, scale: Expr, align: bool, cubic: bool) -> Expr:
    """Where an output element lies in the input: area_pixel_compute_source_index."""
    at = Cast(IndexValue(u), scale.dtype)
    if align:
        return scale * at
    found = scale * (at + 0.5) - 0.5
    return found if cubic else binary("max", found, 0.0)


def clamped(value: Expr, extent: Index) -> Expr:
    """An int64 held within 0 … extent - 1."""
    return binary("max", binary("min", value, IndexValue(extent - 1)), 0)


def taps_of(
    k: KernelBuilder,
    kind: Kind,
    u: Index,
    source: IntLike,
    result: IntLike,
    align: bool,
    scale: Number | None,
    wide: DType,
    keep: bool,
) -> list[Tap]:
    """The input elements of output u along one dimension, with weights.

    ``keep``: nearest elements of an equal size are the same ones, whatever scale is given.
    """
    extent = k.size(source)
    if kind != "cubic" and source == result and (kind == "linear" or scale is None or keep):
        return [(u, None)]
    step = k.let(source_scale(k, source, result, align, scale, wide))
    if kind in ("nearest", "exact"):
        at = source_position(u, step, kind == "nearest", False)
        at = at + 0.5 if kind == "exact" else at
        return [(AsIndex(clamped(Cast(unary("floor", at), int64), extent), extent), None)]
    at = k.let(source_position(u, step, align, kind == "cubic"))
    low = k.let(binary("min", Cast(unary("floor", at), int64), IndexValue(extent - 1)))
    part = k.let(binary("min", binary("max", at - Cast(low, wide), 0.0), 1.0))
    if kind == "linear":
        high = clamped(low + 1, extent)
        return [(AsIndex(low, extent), 1.0 - part), (AsIndex(high, extent), part)]
    weights = cubic_weights(part)
    return [(AsIndex(clamped(low + n, extent), extent), k.let(w)) for n, w in zip((-1, 0, 1, 2), weights)]


def cubic_weights(t: Expr) -> list[Expr]:
    """The four weights of cubic convolution with A = -0.75 at distance t from the second tap."""
    a = -0.75

    def near(x: Expr) -> Expr:
        return (x * (a + 2) - (a + 3)) * x * x + 1.0

    def far(x: Expr) -> Expr:
        return ((x * a - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1.0), near(t), near(1.0 - t), far(1.0 - t + 1.0)]


def weighted(x: Buffer, outer: Sequence[Index], taps: Sequence[Sequence[Tap]], wide: DType) -> Expr:
    """The sum over all taps of all dimensions, the last one innermost."""
    if not taps:
        return convert(x.at(*outer), wide)
    total: Expr | None = None
    for at, weight in taps[0]:
        part = weighted(x, (*outer, at), taps[1:], wide)
        part = part if weight is None else weight * part
        total = part if total is None else total + part
    assert total is not None
    return total


def same_sizes(sizes: Sequence[IntLike], others: Sequence[IntLike]) -> list[IntLike]:
    """The sizes, where they are equal as the others: one size of the kernel for both."""
    return [other if size == other else size for size, other in zip(sizes, others)]


def resize(call: Call, x: Tensor, kind: Kind, align: bool, scales: Sequence[Number | None]) -> None:
    """Launches the forward op."""
    (out,) = call.outs
    dims = len(scales)
    nearest = kind in ("nearest", "exact")
    if not nearest and not x.dtype.is_float:
        raise NoKernel(f"{call.op} has no kernel for {x.dtype}")
    wide = opmath(x.dtype) if x.dtype.is_float else float32
    keep = kind == "nearest" and dims == 2  # the CPU's other kernels, and "exact", go by the scale
    inputs = same_sizes(x.shape[-dims:], out.shape[-dims:])
    sizes = list(zip(inputs, out.shape[-dims:], scales))

    def looked_up(dim: int) -> Table | None:
        source, result, scale = sizes[dim]
        return _table(call, kind, source, result, align, scale, wide, keep)

    # A dimension that vectors do not run along has its taps computed once for a row. Channels last there is no row.
    last = looked_up(dims - 1)
    tables: list[Table | None] = [None] * (dims - 1)
    lead = out.shape[:-dims]
    held = x
    if dims > 1 and out.strides[-1] != 1:
        tables = [looked_up(dim) for dim in range(dims - 1)]
    elif dims > 1 and last is not None and product(inputs[:-1]) <= product(out.shape[-dims:-1]):
        # Columns are gathered, one lane after the other: so once for each row of the input, and then whole rows are
        # mixed. 1 x 64 x 56 x 56 to twice the size: nearest 11.8 ms all at once, 0.3 like this; bilinear 9.5 and 1.0.
        held = call.temporary(x.dtype if nearest else wide, (*lead, *inputs[:-1], out.shape[-1]))
        k = call.kernel()
        axes = grid_by_memory(k, held)
        source = k.read(x, (*lead, *inputs))
        taps = [_looked_up(k, last, axes[-1], inputs[-1])]
        k.store(k.write(held), axes, weighted(source, axes[:-1], taps, x.dtype if nearest else wide))
        k.launch()
        last, inputs = None, [*inputs[:-1], out.shape[-1]]
    k = call.kernel()
    axes = grid_by_memory(k, out)
    source = k.read(held, (*lead, *inputs))
    taps = []
    for u, table, (m, n, scale) in zip(axes[-dims:], [*tables, last], sizes):
        if table is not None:
            taps.append(_looked_up(k, table, u, m))
        else:
            taps.append(taps_of(k, kind, u, m, n, align, scale, wide, keep))
    if last is None:  # each column is where it belongs
        taps[-1] = [(axes[-1], None)]
    k.store(k.write(out), axes, weighted(source, axes[:-dims], taps, x.dtype if nearest else wide))
    k.launch()


#: The taps of each position of a dimension: places as int32, and weights where there are any.
Table = list[tuple[Tensor, "Tensor | None"]]


def _table(
    call: Call,
    kind: Kind,
    source: IntLike,
    result: IntLike,
    align: bool,
    scale: Number | None,
    wide: DType,
    keep: bool,
) -> Table | None:
    """Launches a kernel that computes the taps of the last dimension once, for all rows; None where it is kept."""
    k = call.kernel()
    u = k.grid(result)
    taps = taps_of(k, kind, u, source, result, align, scale, wide, keep)
    if taps[0][1] is None and taps[0][0] == u:
        return None
    table: Table = []
    for at, weight in taps:
        assert isinstance(at, AsIndex)
        places = call.temporary(int32, (result,))
        weights = None if weight is None else call.temporary(wide, (result,))
        k.store(k.write(places), (u,), Cast(at.value, int32))
        if weights is not None:
            assert weight is not None
            k.store(k.write(weights), (u,), weight)
        table.append((places, weights))
    k.launch()
    return table


def _looked_up(k: KernelBuilder, table: Table, u: Index, source: IntLike) -> list[Tap]:
    """The taps of a position, from a table."""
    extent = k.size(source)
    return [
        (AsIndex(k.read(places).at(u), extent), None if weights is None else k.read(weights).at(u))
        for places, weights in table
    ]


def resize_backward(call: Call, grad: Tensor, kind: Kind, align: bool, scales: Sequence[Number | None]) -> None:
    """Launches the gradient: every output element gives its taps their share."""
    (out,) = call.outs
    dims = len(scales)
    wide = opmath(out.dtype) if out.dtype.is_float else float32
    if not out.dtype.is_float:
        raise NoKernel(f"{call.op} has no kernel for {out.dtype}")
    results = same_sizes(grad.shape[-dims:], out.shape[-dims:])
    # As the CPU: a cubic gradient of equal size is a copy, which "linear" is then.
    way: Kind = "linear" if kind == "cubic" and all(m is n for m, n in zip(results, out.shape[-dims:])) else kind
    sizes = list(zip(out.shape[-dims:], results, scales))
    # Taps are computed once for a row and a column, not for every element of every plane: a scale is a quotient.
    tables = [_table(call, way, m, n, align, scale, wide, way == "nearest") for m, n, scale in sizes]

    def terms(k: KernelBuilder, plane: Sequence[AxisVar], u: Sequence[AxisVar]) -> list[tuple[Sequence[Index], Expr]]:
        given = k.read(grad, (*out.shape[:-dims], *results))
        taps: list[list[Tap]] = []
        for at, table, (m, _, _) in zip(u, tables, sizes):
            if table is None:
                taps.append([(at, None)])
            else:
                taps.append([(place, w if w is None else k.let(w)) for place, w in _looked_up(k, table, at, m)])
        shares: list[tuple[tuple[Index, ...], Expr]] = [((), k.let(convert(given.at(*plane, *u), wide)))]
        for dimension in taps:
            shares = [
                ((*place, at), value if weight is None else value * weight)
                for place, value in shares
                for at, weight in dimension
            ]
        return list(shares)

    scatter_planes(call, out, dims, results, terms)


def _register(name: str, kind: Kind, dims: int, aligned: bool) -> None:
    def forward(call: Call, self: Tensor, output_size: list[int], *rest: Any) -> None:
        resize(call, self, kind, rest[0] if aligned else False, rest[1 if aligned else 0 :])

    def backward(call: Call, grad_output: Tensor, output_size: list[int], input_size: list[int], *rest: Any) -> None:
        resize_backward(call, grad_output, kind, rest[0] if aligned else False, rest[1 if aligned else 0 :])

    lowering(f"aten::{name}{dims}d")(forward)
    lowering(f"aten::{name}{dims}d_backward")(backward)


for _dims in (1, 2, 3):
    _register("upsample_nearest", "nearest", _dims, aligned=False)
    _register("_upsample_nearest_exact", "exact", _dims, aligned=False)
_register("upsample_linear", "linear", 1, aligned=True)
_register("upsample_bilinear", "linear", 2, aligned=True)
_register("upsample_trilinear", "linear", 3, aligned=True)
_register("upsample_bicubic", "cubic", 2, aligned=True)
