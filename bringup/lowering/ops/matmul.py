"""Matrix products: one Contract whose operands are read where they lie (transposed or strided: only other strides)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from bringup.ir.dtypes import DType, boolean, float32, float64, uint16, uint32, uint64
from bringup.ir.expr import Expr, binary, const, unary
from bringup.lowering.builder import KernelBuilder, convert
from bringup.lowering.call import Call, NoKernel, Number, Tensor, dense_strides
from bringup.lowering.elementwise import elementwise
from bringup.lowering.registry import lowering
from bringup.lowering.scalar_types import opmath
from bringup.lowering.symbolic import IntLike

#: What becomes of a sum before it is stored: (kernel, sum, element of the tensor that is added) → value.
Finish = Callable[[KernelBuilder, Expr, "Expr | None"], Expr]


def is_unit(stride: IntLike) -> bool:
    """True for a stride of 1: strides of the call are asked (a guard); a formula of sizes is 1 only where it says so.

    >>> is_unit(1)
    True
    """
    return stride == 1 if isinstance(stride, int) or stride.is_stride else False


def numbers_only(call: Call, *tensors: Tensor) -> None:
    """PyTorch multiplies no matrices of truth values or wide unsigned integers: its own error is the right answer."""
    for tensor in tensors:
        if tensor.dtype in (boolean, uint16, uint32, uint64):
            raise NoKernel(f"{call.op} has no kernel for {tensor.dtype}")


def _column(matrix: Tensor) -> Tensor:
    """A matrix of one column (or a batch of them) as a vector."""
    column = matrix.select(matrix.ndim - 1, 0)
    return replace(column, strides=dense_strides(column.shape), contiguous=True) if matrix.contiguous else column


def _sum_itself(k: KernelBuilder, total: Expr, added: Expr | None) -> Expr:
    return total


def matrix_vector(
    call: Call, out: Tensor, a: Tensor, v: Tensor, added: Tensor | None = None, finish: Finish = _sum_itself
) -> None:
    """Launches ``out[…, i] = finish(sum over p of a[…, i, p] × v[…, p])``."""
    numbers_only(call, a, v)
    *batch, rows, depth = a.shape
    k = call.kernel()
    place = (*(k.grid(extent) for extent in batch), k.grid(rows))
    x, w = k.read(a), k.read(v, (*batch, depth))
    y = k.write(out, (*batch, rows))
    lanes = 32 if is_unit(a.strides[-1]) and is_unit(v.strides[-1]) else 1
    total = k.contract([depth], lambda p: (x.at(*place, p), w.at(*place[:-1], p)), lanes=lanes)
    k.store(y, place, finish(k, total, None if added is None else k.read(added, (*batch, rows))[place]))
    k.launch()


def matrix_matrix(
    call: Call, out: Tensor, a: Tensor, b: Tensor, added: Tensor | None = None, finish: Finish = _sum_itself
) -> None:
    """Launches ``out[…, i, j] = finish(sum over p of a[…, i, p] × b[…, p, j])``; ``added`` has the output's shape."""
    numbers_only(call, a, b)
    *batch, rows, depth = a.shape
    columns = b.shape[-1]
    if columns == 1:
        matrix_vector(call, _column(out), a, _column(b), None if added is None else _column(added), finish)
        return
    k = call.kernel()
    e, i, j = tuple(k.grid(extent) for extent in batch), k.grid(rows), k.grid(columns)
    x, w = k.read(a), k.read(b, (*batch, depth, columns))
    y = k.write(out, (*batch, rows, columns))
    # A few rows times rows of weights: 32 partial sums along both; from 9 rows on packing is faster.
    lanes = 32 if rows <= 8 and is_unit(a.strides[-1]) and is_unit(b.strides[-2]) else 1
    total = k.contract([depth], lambda p: (x.at(*e, i, p), w.at(*e, p, j)), lanes=lanes)
    value = None if added is None else k.read(added, (*batch, rows, columns)).at(*e, i, j)
    k.store(y, (*e, i, j), finish(k, total, value))
    k.launch()


def scaled_sum(beta: Number, alpha: Number, out: Tensor | None = None) -> Finish:
    """alpha × sum + beta × added, where a factor of 1 is not a multiplication; with beta 0 nothing is added at all.

    With alpha 0 BLAS does not look at the factors, so that their NaN do not count: in ops that the CPU leaves to it,
    whose result is ``out``; its halves are multiplied.
    """
    by_blas = out is not None and out.dtype in (float32, float64)

    def finish(k: KernelBuilder, total: Expr, added: Expr | None) -> Expr:
        scaled = total if alpha.equals(1) else k.number(alpha, total.dtype) * total
        left_out = by_blas and not alpha.equals(1) and alpha.equals(0)
        if added is None:
            return const(0.0, total.dtype) if left_out else scaled
        other = convert(added, total.dtype)
        other = other if beta.equals(1) else k.number(beta, total.dtype) * other
        return other if left_out else scaled + other

    return finish


def _added(self: Tensor, beta: Number, out: Tensor) -> Tensor | None:
    """What is added, in the shape of the output; not even read where beta is 0, so that its NaN do not count."""
    return None if beta.equals(0) else self.expand(out.shape)


@lowering("aten::mm", "aten::bmm", "aten::_int_mm", "aten::mm.dtype", "aten::bmm.dtype")
def mm(call: Call, self: Tensor, mat2: Tensor, out_dtype: int | None = None) -> None:
    """The product of two matrices, or of two batches of them; of halves also in the type of its sum, float32."""
    matrix_matrix(call, call.outs[0], self, mat2)


@lowering("aten::addmm")
def addmm(call: Call, self: Tensor, mat1: Tensor, mat2: Tensor, beta: Number, alpha: Number) -> None:
    """beta × self + alpha × (mat1 × mat2)."""
    out = call.outs[0]
    matrix_matrix(call, out, mat1, mat2, _added(self, beta, out), scaled_sum(beta, alpha, out))


@lowering("aten::baddbmm")
def baddbmm(call: Call, self: Tensor, batch1: Tensor, batch2: Tensor, beta: Number, alpha: Number) -> None:
    """beta × self + alpha × (batch1 × batch2)."""
    out = call.outs[0]
    matrix_matrix(call, out, batch1, batch2, _added(self, beta, out), scaled_sum(beta, alpha))


@lowering("aten::addmm.dtype", "aten::baddbmm.dtype")
def addmm_dtype(
    call: Call, self: Tensor, mat1: Tensor, mat2: Tensor, out_dtype: int, beta: Number, alpha: Number
) -> None:
    """beta × self + alpha × (mat1 × mat2) in the type of the sum."""
    baddbmm(call, self, mat1, mat2, beta, alpha)


@lowering("aten::_addmm_activation")
def addmm_activation(
    call: Call, self: Tensor, mat1: Tensor, mat2: Tensor, beta: Number, alpha: Number, use_gelu: bool
) -> None:
    """gelu or relu of addmm, after its rounding."""
    out = call.outs[0]
    scaled = scaled_sum(beta, alpha, out)

    def finish(k: KernelBuilder, total: Expr, added: Expr | None) -> Expr:
        x = k.let(convert(convert(scaled(k, total, added), out.dtype), opmath(out.dtype)))
        if not use_gelu:
            return binary("max", x, 0)
        return x * 0.5 * (unary("erf", x * math.sqrt(0.5)) + 1.0)

    matrix_matrix(call, out, mat1, mat2, _added(self, beta, out), finish)


@lowering("aten::addbmm")
def addbmm(call: Call, self: Tensor, batch1: Tensor, batch2: Tensor, beta: Number, alpha: Number) -> None:
    """beta × self + alpha × the sum of all products of a batch."""
    numbers_only(call, batch1, batch2)
    batch, rows, depth = batch1.shape
    shape = (rows, batch2.shape[2])
    k = call.kernel()
    i, j = k.grid(shape[0]), k.grid(shape[1])
    x, w, y = k.read(batch1), k.read(batch2, (batch, depth, shape[1])), k.write(call.outs[0], shape)
    total = k.contract([batch, depth], lambda e, p: (x[e, i, p], w[e, p, j]))
    added = _added(self, beta, call.outs[0])
    value = None if added is None else k.read(added, shape)[i, j]
    k.store(y, (i, j), scaled_sum(beta, alpha, call.outs[0])(k, total, value))
    k.launch()


@lowering("aten::mv")
def mv(call: Call, self: Tensor, vec: Tensor) -> None:
    """A matrix times a vector."""
    matrix_vector(call, call.outs[0], self, vec)


@lowering("aten::addmv")
def addmv(call: Call, self: Tensor, mat: Tensor, vec: Tensor, beta: Number, alpha: Number) -> None:
    """beta × self + alpha × (mat × vec)."""
    out = call.outs[0]
    matrix_vector(call, out, mat, vec, _added(self, beta, out), scaled_sum(beta, alpha, out))


@lowering("aten::dot", "aten::vdot")
def dot(call: Call, self: Tensor, other: Tensor) -> None:
    """The product of two vectors."""
    numbers_only(call, self, other)
    k = call.kernel()
    (depth,) = self.shape
    x, w, y = k.read(self), k.read(other, (depth,)), k.write(call.outs[0])
    k.store(y, (), k.contract([depth], lambda p: (x[p], w[p]), lanes=32))
    k.launch()


@lowering("aten::addr")
def addr(call: Call, self: Tensor, vec1: Tensor, vec2: Tensor, beta: Number, alpha: Number) -> None:
    """beta × self + alpha × (vec1 by vec2): pointwise; of truth values: or of ands."""
    column = vec1.view((*vec1.shape, 1), (*vec1.strides, 1))
    kind: DType = opmath(call.outs[0].dtype)
    if beta.equals(0):
        elementwise(call, call.outs, [column, vec2, alpha], lambda x, y, scale: scale * x * y, kind)
        return
    elementwise(call, call.outs, [self, column, vec2, beta, alpha], lambda z, x, y, b, a: b * z + a * x * y, kind)
