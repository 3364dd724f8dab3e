"""Random statements for random_kernel.py: one function for each construct, each leaves a value to use or a buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup.ir.dtypes import FLOATS, DType, float32, int64
from bringup.ir.expr import AsIndex, AsIndexMode, Binary, Expr, IndexValue, Load, Name, Where, const
from bringup.ir.index import Int, Size
from bringup.ir.kernel import Axis, Block, Combine, Contract, Let, Local, Loop, Reduce, Scan, Store

if TYPE_CHECKING:
    from tests.loops.random_kernel import Maker


def random_statement(maker: Maker) -> None:
    """Adds one construct to a kernel in the making.

    >>> import random
    >>> from tests.loops.random_kernel import Maker
    >>> maker = Maker(random.Random(0)); random_statement(maker); len(maker.body) + len(maker.values) > 0
    True
    """
    makers = (_let, _reduce, _arg_reduce, _scan, _loop, _contract, _gather, _scatter, _stage, _philox)
    maker.rng.choice(makers)(maker)


def _let(maker: Maker) -> None:
    maker.let(maker.value(maker.dtype(), maker.grid, 2))


def _philox(maker: Maker) -> None:
    maker.let(maker.draw_bits(maker.grid))


def _pair(maker: Maker, dtype: DType) -> tuple[Name, Name]:
    return Name(maker.name("l"), dtype), Name(maker.name("r"), dtype)


def _identity(op: str, dtype: DType) -> Expr:
    if op in ("min", "max") and dtype.is_float:
        return const(float("inf") if op == "min" else float("-inf"), dtype)
    if op == "min":
        return const(dtype.high, dtype)
    if op == "max":
        return const(dtype.low, dtype)
    return const(1 if op == "mul" else 0, dtype)


def _reduce(maker: Maker) -> None:
    """A sum, product, minimum or maximum over one or two axes."""
    rng = maker.rng
    axes = tuple(maker.axis("reduce", 70 if at == 0 else 3) for at in range(rng.randint(1, 2)))[::-1]
    dtype, op = maker.dtype(), rng.choice(["add", "mul", "min", "max"])
    left, right = _pair(maker, dtype)
    body: Block = ()
    value = maker.value(dtype, [*maker.grid, *axes], 2)
    if rng.random() < 0.3:
        inner = Name(maker.name("t"), dtype)
        body = (Let(inner.name, value),)
        value = Binary("add", inner, inner)
    name = maker.name("sum")
    combine = Combine((left.name,), (right.name,), (Binary(op, left, right),))
    lanes = rng.choice([1, 4, 32])
    maker.body.append(Reduce((name,), axes, body, (value,), (_identity(op, dtype),), combine, lanes))
    maker.values.append(Name(name, dtype))


def _arg_reduce(maker: Maker) -> None:
    """The largest value and its first position: a tuple, with ties decided by the position."""
    axis = maker.axis("reduce", 40)
    dtype = maker.rng.choice([float32, int64, *FLOATS])
    (best_l, best_r), (at_l, at_r) = _pair(maker, dtype), _pair(maker, int64)
    tie = Binary("and", Binary("eq", best_l, best_r), Binary("le", at_l, at_r))
    keep = Binary("or", Binary("gt", best_l, best_r), tie)
    combine = Combine(
        (best_l.name, at_l.name), (best_r.name, at_r.name), (Where(keep, best_l, best_r), Where(keep, at_l, at_r))
    )
    names = (maker.name("best"), maker.name("at"))
    values = (maker.value(dtype, [*maker.grid, axis], 1), IndexValue(axis.var))
    inits = (_identity("max", dtype), const(int64.high, int64))
    maker.body.append(Reduce(names, (axis,), (), values, inits, combine, maker.rng.choice([1, 8, 32])))
    maker.values += [Name(names[0], dtype), Name(names[1], int64)]


def _out_along(maker: Maker, axis: Axis, dtype: DType) -> tuple[str, tuple[Axis, ...]]:
    axes = (*maker.grid, axis)
    buffer = maker.buffer(maker.name("y"), dtype, tuple(a.extent for a in axes), "out")
    return buffer.name, axes


def _scan(maker: Maker) -> None:
    """Running sums, products or extrema, stored along the axis."""
    rng, axis, dtype = maker.rng, maker.axis("sequential"), maker.dtype()
    op = rng.choice(["add", "mul", "min", "max"])
    left, right = _pair(maker, dtype)
    value = maker.value(dtype, [*maker.grid, axis], 1)
    name = Name(maker.name("run"), dtype)
    out, axes = _out_along(maker, axis, dtype)
    then = (Store(out, tuple(a.var for a in axes), name),)
    combine = Combine((left.name,), (right.name,), (Binary(op, left, right),))
    init = (_identity(op, dtype),)
    maker.body.append(Scan((name.name,), axis, (), (value,), init, combine, then, rng.random() < 0.5))


def _loop(maker: Maker) -> None:
    """A sequential loop that carries a value and stores it at each step; some end early."""
    rng = maker.rng
    axis, dtype = maker.axis("sequential"), maker.dtype()
    carried = Name(maker.name("c"), dtype)
    init = maker.value(dtype, maker.grid, 1)
    outer = list(maker.values)
    maker.values.append(carried)
    update = maker.value(dtype, [*maker.grid, axis], 2)
    maker.values = outer
    out, axes = _out_along(maker, axis, dtype)
    body = (Store(out, tuple(a.var for a in axes), carried),)
    count = maker.value(int64, maker.grid, 1) if rng.random() < 0.3 else None
    maker.body.append(Loop(axis, body, (carried.name,), (init,), (update,), count))
    maker.values.append(carried)


def _contract(maker: Maker) -> None:
    """A sum of products over one or two axes."""
    rng = maker.rng
    axes = tuple(maker.axis("reduce", 40 if at == 0 else 3) for at in range(rng.randint(1, 2)))[::-1]
    dtype = maker.dtype()
    inside = [*maker.grid, *axes]
    a, b = maker.value(dtype, inside, 1), maker.value(dtype, inside, 1)
    init = maker.value(dtype.accumulate, maker.grid, 1) if rng.random() < 0.4 else None
    contract = Contract(maker.name("dot"), axes, a, b, init, rng.choice([1, 1, 8, 32]), rng.random() < 0.7)
    maker.body.append(contract)
    maker.values.append(Name(contract.name, contract.dtype))


def _gather(maker: Maker) -> None:
    """A load at positions that are values."""
    rng, dtype = maker.rng, maker.dtype()
    modes: tuple[AsIndexMode, ...] = ("check", "wrap", "skip")
    mode = rng.choice(modes)
    length = rng.randint(2, 5)
    low, high = {"check": (0, length - 1), "wrap": (-length, length - 1), "skip": (-2, length + 1)}[mode]
    place = AsIndex(maker.index_input(maker.grid, low, high), _size(maker, length), mode)
    table = maker.buffer(maker.name("x"), dtype, (place.extent,), "in")
    other = const(1, dtype) if mode == "skip" and rng.random() < 0.5 else None
    maker.let(Load(table.name, (place,), dtype, None, other))


def _size(maker: Maker, value: int) -> Size:
    name = maker.name("n")
    maker.sizes[name] = value
    return Size(name)


def _scatter(maker: Maker) -> None:
    """Ordered stores at positions that are values, duplicates among them."""
    rng, dtype = maker.rng, maker.dtype()
    length = rng.randint(2, 4)
    mode: AsIndexMode = rng.choice(["check", "skip"])
    high = length - 1 if mode == "check" else length
    place = AsIndex(maker.index_input(maker.grid, 0, high), _size(maker, length), mode)
    combine = rng.choice([None, "add", "mul", "min", "max"])
    out = maker.buffer(maker.name("y"), dtype, (place.extent,), "inout")
    value = maker.value(dtype, maker.grid, 1)
    maker.body.append(Store(out.name, (place,), value, "ordered", combine))


def _stage(maker: Maker) -> None:
    """A Local filled by a parallel loop and summed after it."""
    rng, dtype = maker.rng, maker.dtype()
    length = rng.randint(1, 40)
    local = Local(maker.name("s"), dtype, (length,))
    fill, take = Axis(maker.name("a"), Int(length)), Axis(maker.name("a"), Int(length), "reduce")
    value = maker.value(dtype, [*maker.grid, fill], 1)
    maker.locals.append(local)
    maker.body.append(Loop(fill, (Store(local.name, (fill.var,), value),)))
    left, right = _pair(maker, dtype)
    name = maker.name("sum")
    combine = Combine((left.name,), (right.name,), (Binary("max", left, right),))
    source = local[Int(length) - 1 - take.var]
    maker.body.append(Reduce((name,), (take,), (), (source,), (_identity("max", dtype),), combine, rng.choice([1, 32])))
    maker.values.append(Name(name, dtype))
