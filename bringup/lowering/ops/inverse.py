"""The inverse of small matrices, for programs without LAPACK: Gauss-Jordan, with the largest pivot of each column.

No op of the device takes this way: eager and compiled graphs there have the CPU's LAPACK at hand.
"""

from __future__ import annotations

from collections.abc import Sequence

from bringup.ir.dtypes import int64
from bringup.ir.expr import AsIndex, Expr, IndexValue, Where, binary, const
from bringup.ir.index import AxisVar
from bringup.lowering.call import Call, NoKernel, Tensor
from bringup.lowering.formulas import absolute

#: Scratch of one matrix and its inverse: it lies on the stack of a small core.
_MOST_BYTES = 32 << 10


def inverse(call: Call, self: Tensor, *_: object) -> None:
    """Fills the inverse, and info: 0, or 1 + the column whose largest pivot is 0."""
    n = self.shape[-1]
    if not isinstance(n, int) or 2 * n * n * self.dtype.size > _MOST_BYTES:
        raise NoKernel(f"matrices of {n} × {n} are too large: their scratch may have {_MOST_BYTES} bytes")
    if not self.dtype.is_float or self.dtype.size < 4:
        raise NoKernel(f"no inverse of {self.dtype}")
    k = call.kernel("inverse")
    batch = [k.grid(extent) for extent in self.shape[:-2]]
    x, y, info = k.read(self), k.write(call.outs[0]), k.write(call.outs[1])
    held = k.local(self.dtype, (n, 2 * n))
    zero, one = const(0, self.dtype), const(1, self.dtype)
    with k.loop(n) as i, k.loop(n) as j:
        k.store(held, (i, j), x.at(*batch, i, j))
        k.store(held, (i, j + n), Where(binary("eq", IndexValue(i), IndexValue(j)), one, zero))

    def eliminated(c: AxisVar, state: tuple[Expr, ...]) -> Sequence[Expr]:
        def larger(r: AxisVar, best: tuple[Expr, ...]) -> Sequence[Expr]:
            size = k.let(absolute(held[r, c]))
            # a NaN stays the largest, as in LAPACK: the result is NaN, not another pivot's
            better = k.let(binary("ge", IndexValue(r), IndexValue(c)) & ~binary("le", size, best[0]))
            return Where(better, size, best[0]), Where(better, IndexValue(r), best[1])

        start = (const(-1, self.dtype), IndexValue(c))
        _, found = k.sequential(n, start, larger)
        row = AsIndex(found, k.size(n), "check")
        with k.loop(2 * n) as j:
            upper, lower = k.let(held[c, j]), k.let(held[row, j])
            k.store(held, (c, j), lower)
            k.store(held, (row, j), Where(binary("eq", found, IndexValue(c)), lower, upper))
        pivot = k.let(held[c, c])
        with k.loop(2 * n) as j:
            k.store(held, (c, j), held[c, j] / pivot)
        with k.loop(n, "sequential") as r:
            own = binary("eq", IndexValue(r), IndexValue(c))
            factor = k.let(Where(own, zero, held[r, c]))
            with k.loop(2 * n) as j:
                k.store(held, (r, j), held[r, j] - factor * held[c, j])
        failed = binary("eq", pivot, zero) & binary("eq", state[0], const(0, int64))
        return (Where(failed, IndexValue(c + 1), state[0]),)

    (status,) = k.sequential(n, (const(0, int64),), eliminated)
    with k.loop(n) as i, k.loop(n) as j:
        k.store(y, (*batch, i, j), held[i, j + n])
    k.store(info, tuple(batch), status)
    k.launch()
