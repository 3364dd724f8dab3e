"""Choosing among things: permutations as sorted draws, and samples of a distribution.

With replacement a sample is a search in the running sums; without, it is the largest of p / e with exponential draws e,
so that k samples are the k largest. What is wrong with the probabilities only the device can see: it reports an index
out of range, and the kernel's name says what it is about.
"""

from __future__ import annotations

from typing import Any

from bringup.ir.dtypes import float64, int64, uint64
from bringup.ir.expr import AsIndex, Expr, IndexValue, Where, binary, const
from bringup.ir.index import AxisVar
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, NoKernel, Tensor
from bringup.lowering.ops.draws import Draws, checked, exponential_unit, fill, uniform_unit
from bringup.lowering.ops.random_numbers import integer_limit
from bringup.lowering.ops.sorting import deliver, sorted_lines
from bringup.lowering.registry import lowering, new_output
from bringup.lowering.scalar_types import CODE_OF, opmath
from bringup.lowering.symbolic import IntLike, hint_of

_BAD = "multinomial_of_negative_infinite_or_nan_probabilities"
_EMPTY = "multinomial_of_probabilities_that_sum_to_0"


@lowering("aten::randperm.generator_out")
def randperm(call: Call, n: int, generator: None) -> None:
    """0 … n - 1 in the order of 64-bit draws; of equal draws the smaller number comes first."""
    out = call.outs[0]
    if n < 0 or n > integer_limit(out.dtype) + 1:
        raise NoKernel("the core says what is wrong with this number")
    draws = call.temporary(uint64, (out.shape[0],))
    fill(call, draws, lambda k, drawn: drawn.double_word(drawn.number), name="randperm_draws")
    _, places = sorted_lines(call, draws, 0, False)
    deliver(call, out, 0, places)


def _multinomial_outputs(x: Any, num_samples: int, *_: Any) -> list[Any]:
    """As the CPU does; PyTorch's meta kernel asks less, and for an empty output no lowering is asked."""
    if len(x[3]) not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if num_samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    return [new_output(CODE_OF[int64], (*x[3][:-1], num_samples))]


@lowering("aten::multinomial", outputs=_multinomial_outputs)
def multinomial(call: Call, self: Tensor, num_samples: int, replacement: bool, generator: None) -> None:
    """Positions drawn with the probabilities of a row, which need not sum to 1."""
    if call.outs[0].dtype is not int64:
        raise RuntimeError(f"multinomial expects int64 for out, got: {call.outs[0].dtype}")
    rows, out = _in_rows(self), _in_rows(call.outs[0])
    if not self.dtype.is_float or not 0 < rows.shape[1] <= 1 << 24:
        raise NoKernel("the CPU says what is wrong with these arguments")
    if not replacement and num_samples > rows.shape[1]:
        raise NoKernel("the CPU says that there are not so many to choose from")
    if replacement and num_samples > 1:
        _with_replacement(call, rows, out)
        return
    keys = _keys(call, rows)
    if num_samples > 1:
        _, places = sorted_lines(call, keys, 1, True)
        deliver(call, out, 1, places)
        return
    k = call.kernel("multinomial_largest")
    i, x, y = k.grid(rows.shape[0]), k.read(keys), k.write(out, (rows.shape[0], 1))

    def larger(left: tuple[Expr, ...], right: tuple[Expr, ...]) -> tuple[Expr, ...]:
        taken = (right[0] > left[0]) | (binary("eq", right[0], left[0]) & (right[1] < left[1]))
        return tuple(Where(taken, b, a) for a, b in zip(left, right))

    start = (const(-1, x.dtype), const(int64.high, int64))
    _, place = k.reduce_many(rows.shape[1], lambda j: (x[i, j], IndexValue(j)), larger, start)
    k.store(y, (i, 0), place)
    k.launch()


def _in_rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.ndim == 2 else tensor.view((1, *tensor.shape), (0, *tensor.strides))


def _valid(p: Expr) -> Expr:
    return (p >= 0.0) & (p < float("inf"))


def _keys(call: Call, rows: Tensor) -> Tensor:
    """p / e of each element, with exponential draws e."""
    wide = opmath(rows.dtype)
    sums = call.temporary(wide, (rows.shape[0],))
    k = call.kernel(_EMPTY)
    i, x = k.grid(rows.shape[0]), k.read(rows)
    total = k.reduce(rows.shape[1], lambda j: convert(x[i, j], wide))
    k.store(k.write(sums), (i,), checked(total, ~binary("le", total, 0.0)))  # a NaN is reported by the next kernel
    k.launch()
    keys = call.temporary(wide, rows.shape)

    def value(k: KernelBuilder, draws: Draws, given: Expr) -> Expr:
        p = k.let(convert(given, wide))
        return checked(p / exponential_unit(k, draws, wide), _valid(p))

    fill(call, keys, value, [rows], _BAD)
    return keys


def _with_replacement(call: Call, rows: Tensor, out: Tensor) -> None:
    count: IntLike = rows.shape[1]
    sums = call.temporary(float64, rows.shape)
    k = call.kernel(_BAD)
    i, x, running = k.grid(rows.shape[0]), k.read(rows), k.write(sums)

    def probability(j: AxisVar) -> tuple[Expr]:
        p = convert(x[i, j], float64)
        return (checked(p, _valid(p)),)

    k.scan(count, probability, "add", (0.0,), lambda j, states: k.store(running, (i, j), states[0]))
    k.launch()

    steps = hint_of(count).bit_length()
    if not count < 1 << steps:
        raise NoKernel("the structure holds for every count of as many steps")
    k = call.kernel(_EMPTY)
    i, s = k.grid(rows.shape[0]), k.grid(out.shape[1])
    y, known, extent = k.write(out, (rows.shape[0], out.shape[1])), k.read(sums), k.size(count, low=1)
    total = k.let(known[i, extent - 1])
    unit = uniform_unit(Draws(k, i * k.size(out.shape[1]) + s), float64)
    # Below the last sum, whatever rounding does: the place found is one where the sums grow.
    target = k.let(binary("min", unit * total, binary("nextafter", total, 0.0)))

    def halve(_: AxisVar, state: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        low, high = state
        middle = k.let(binary("shr", low + high, 1))
        behind = k.let(known[i, AsIndex(middle, extent, "skip")] <= target)
        searching = low < high
        return Where(searching & behind, middle + 1, low), Where(searching & ~behind, middle, high)

    place, _ = k.sequential(steps, (const(0, int64), IndexValue(extent)), halve)
    k.store(y, (i, s), checked(place, total > 0.0))
    k.launch()
