"""Kernels for the tests of the C emitter: each construct and each way to run in vectors, and arrays for any of them."""

from __future__ import annotations

import numpy as np

from bringup.ir.dtypes import boolean, to_storage
from bringup.ir.index import evaluate_sizes
from bringup.ir.parser import parse

#: name → text; sizes n and m vary in the tests, the others are in SIZES.
TEXTS: dict[str, str] = {}


def _add(text: str) -> None:
    TEXTS[text.split()[1]] = text


for _dtype in ("float32", "float64", "float16", "bfloat16", "int8", "uint16", "int32", "int64", "bool"):
    _add(
        f"kernel add_{_dtype} size n in x: {_dtype}[n] strides [1] in z: {_dtype}[n] strides [1] "
        f"out y: {_dtype}[n] strides [1] grid i < n {{ store y[i] = ((x[i] + z[i]) * x[i]) }}"
    )
    _add(
        f"kernel strided_{_dtype} size n size s: .. in x: {_dtype}[n] strides [3] in z: {_dtype}[n] strides [s] "
        f"out y: {_dtype}[n] strides [2] grid i < n {{ store y[i] = max(x[-i + n - 1], z[i]) }}"
    )
    _add(
        f"kernel less_{_dtype} size n in x: {_dtype}[n] strides [1] in z: {_dtype}[n] strides [1] "
        f"out y: bool[n] strides [1] out w: {_dtype}[n] strides [1] grid i < n "
        f"{{ let c = (x[i] < z[i]) store y[i] = c store w[i] = where(c, z[i], x[i]) }}"
    )
    _add(
        f"kernel rows_{_dtype} size n size m in x: {_dtype}[n, m] strides [m, 1] out y: {_dtype}[n] strides [1] "
        f"grid i < n {{ reduce (s) over j < m lanes 32 {{ init ({_dtype}({'false' if _dtype == 'bool' else '0'})) "
        "value (x[i, j]) combine (a), (b) -> ((a + b)) } store y[i] = s }"
    )
    _add(
        f"kernel columns_{_dtype} size n size m in x: {_dtype}[m, n] strides [n, 1] out y: {_dtype}[n] strides [1] "
        f"grid i < n {{ reduce (s) over j < m lanes 32 {{ init ({_dtype}({'false' if _dtype == 'bool' else '0'})) "
        "value (x[j, i]) combine (a), (b) -> (max(a, b)) } store y[i] = s }"
    )
for _lanes in (1, 2, 8, 64):
    _add(
        f"kernel lanes_{_lanes} size n size m in x: float32[n, 3, m] strides [3*m, m, 1] out y: float32[n] strides [1] "
        f"grid i < n {{ reduce (s) over k < 3, j < m lanes {_lanes} {{ let t = (x[i, k, j] * x[i, k, j]) init "
        f"(float32(1.5)) "
        "value ((t - x[i, k, 0])) combine (a), (b) -> ((a + b)) } store y[i] = s }"
    )
    _add(
        f"kernel dot_{_lanes} size n size m in x: float32[n, m] strides [m, 1] in w: float32[m] strides [1] "
        f"out y: float32[n] strides [1] grid i < n {{ contract s over j < m lanes {_lanes} = x[i, j] by w[j] "
        f"from float32(0.5) store y[i] = s }}"
    )
_add(
    "kernel column_variance size n size m: 1.. param c: float32 in x: float32[m, n] strides [n, 1] "
    "out y: float32[n] strides [1] out z: float32[n] strides [1] grid i < n {"
    " reduce (s) over j < m lanes 32 { init (float32(0.0)) value (x[j, i]) combine (a), (b) -> ((a + b)) }"
    " let mean = (s * c)"
    " reduce (q) over k < m lanes 32 { init (float32(0.0)) value (((x[k, i] - mean) * (x[k, i] - mean)))"
    " combine (u), (v) -> ((u + v)) } store y[i] = q store z[i] = mean }"
)
_add(
    "kernel column_dot size n size m in x: float16[m, n] strides [n, 1] in w: float16[m] strides [1] "
    "out y: float32[n] strides [1] grid i < n { contract s over j < m lanes 32 = x[j, i] by w[j] from float32(2.0) "
    "store y[i] = s }"
)
_add(
    "kernel argmax_columns size n size m in x: float32[m, n] strides [n, 1] out y: int64[n] strides [1] grid i < n { "
    "reduce (best, at) over j < m lanes 32 { init (float32(-inf), int64(9223372036854775807)) value (x[j, i], "
    "index(j)) "
    "combine (a, ia), (b, ib) -> (where(((a > b) | ((a == b) & (ia < ib))), a, b), "
    "where(((a > b) | ((a == b) & (ia < ib))), ia, ib)) } store y[i] = at }"
)
_add(
    "kernel pad size n in x: float32[n] strides [1] out y: float32[n + 3] strides [1] grid i < n + 3 { store y[i] = "
    "(x[i - 2] if ((index(i - 2) >= index(0)) & (index(i - 2) < index(n))) else float32(9.0)) }"
)
_add(
    "kernel orders size n in x: float32[n] strides [1] out y: float32[n, 4] strides [4, 1] grid i < n { "
    "store y[i, 0] = where((index(i) <= index(7)), x[i], float32(-0.0)) "
    "store y[i, 1] = where((index(-i + n) < index(5)), x[i], float32(-0.0)) "
    "store y[i, 2] = where((index(-2*i + n) > index(-i + 9)), x[i], float32(-0.0)) "
    "store y[i, 3] = where((index(2*i) >= index(i + 16)), x[i], float32(-0.0)) }"
)
_add(
    "kernel guarded size n in x: float32[n] strides [1] inout y: float32[n] strides [1] grid i < n "
    "{ store y[i] = (x[i] * float32(2.0)) if (x[i] > float32(0.0)) }"
)
_add(
    "kernel divided size n in x: float32[n, 5] strides [5, 1] out y: float32[5*n] strides [1] grid i < 5*n "
    "{ store y[i] = (x[(i // 5), (i % 5)] + float32(index(((i + 7) // 3)))) }"
)
_add(
    "kernel one_of_each size n size m in x: float32[n, m] strides [m, 1] in w: float32[m] strides [1] "
    "out y: float32[n, m] strides [m, 1] grid i < n, j < m { store y[i, j] = ((x[i, j] + w[j]) - x[i, 0]) }"
)
_add(
    "kernel empty_loops size n size m in x: float32[n, m] strides [m, 1] inout y: float32[n, m] strides [m, 1] "
    "out z: float32[n] strides [1] grid i < n { "
    "reduce (s) over k < m lanes 32 { init (float32(7.0)) value ((x[i, k] + x[i, 0])) combine (a), (b) -> "
    "(min(a, b)) } "
    "loop j < m parallel { store y[i, j] = (x[i, 0] - s) } store z[i] = s }"
)
_add(
    "kernel scanned size n size m in x: int32[n, m] strides [m, 1] out y: int32[n, m] strides [m, 1] "
    "out z: int32[m, n] strides [n, 1] grid i < n { scan (s) along j < m { init (int32(3)) value (x[i, j]) "
    "combine (a), (b) -> ((a + b)) then { store y[i, j] = s } } "
    "scan (p) along k < m exclusive { init (int32(1)) value (x[i, k]) combine (c), (d) -> ((c * d)) "
    "then { store z[k, i] = p } } }"
)
_add(
    "kernel carried size n size m in x: float64[m, n] strides [n, 1] out y: float64[n] strides [1] grid i < n { "
    "loop j < m carry (a, b) from (float64(1.0), float64(2.0)) { next (b, (a + x[j, i])) } store y[i] = (a - b) }"
)
_add(
    "kernel staged size n in x: float16[n, 20] strides [20, 1] out y: float16[n, 20] strides [20, 1] "
    "local t: float16[20] grid i < n { loop j < 20 parallel { store t[j] = (x[i, j] + x[i, 0]) } "
    "loop k < 20 parallel { store y[i, k] = t[-k + 19] } }"
)
_add(
    "kernel private size n in x: float32[6, n] strides [n, 1] in at: int64[n] strides [1] out y: float32[n] "
    "strides [1] "
    "local t: float32[6] grid i < n { loop j < 6 parallel { store t[j] = x[j, i] } "
    "store y[i] = t[asindex(remainder(at[i], int64(6)), 6, check)] }"
)
_add(
    "kernel indexed size n size rows in t: float32[rows] strides [1] in at: int32[n] strides [1] "
    "out y: float32[n] strides [1] out z: float32[n] strides [1] grid i < n { "
    "store y[i] = t[asindex(remainder(at[i], int32(5)), rows, wrap)] "
    "store z[i] = (t[asindex(at[i], rows, skip)] else float32(4.0)) }"
)
_add(
    "kernel scattered size n size rows in x: float32[n] strides [1] in at: int32[n] strides [1] "
    "inout y: float32[rows] strides [1] grid i < n { "
    "store ordered add y[asindex(remainder(at[i], int32(5)), rows, check)] = x[i] }"
)
_add(
    "kernel atomic size n size rows in x: int32[n] strides [1] in at: int32[n] strides [1] "
    "inout y: int32[rows] strides [1] grid i < n { "
    "store atomic max y[asindex(remainder(at[i], int32(5)), rows, check)] = x[i] }"
)
_add(
    "kernel nested_order size n in x: float32[n, 4] strides [4, 1] in at: int32[n, 4] strides [4, 1] "
    "inout y: float32[6] strides [1] grid i < n { loop j < 4 parallel { "
    "store ordered mul y[asindex(remainder(at[i, j], int32(6)), 6, check)] = x[i, j] } }"
)
_add(
    "kernel accumulate size n in x: bfloat16[n] strides [1] inout y: bfloat16[n] strides [1] grid i < n "
    "{ store add y[i] = x[i] }"
)
_add(
    "kernel mixed size n in x: float32[n] strides [1] in z: float64[n] strides [1] in k: int8[n] strides [1] "
    "in b: bool[n] strides [1] out y: float64[n] strides [1] out w: int64[n] strides [1] out u: uint8[n] strides [1] "
    "grid i < n { let s = where(b[i], float64(x[i]), z[i]) store y[i] = (s * float64(k[i])) store w[i] = int64(s) "
    "store u[i] = uint8(x[i]) }"
)
_add(
    "kernel draws size n param seed: uint64 param offset: uint64 out y: uint32[n] strides [1] "
    "out z: uint64[n] strides [1] grid i < n { store y[i] = philox32(seed, offset, uint64(index(i))) "
    "store z[i] = philox64(seed, offset, uint64(index(2*i + 1))) }"
)
for _bits in (32, 64):  # draws that follow each other, from every place in a block
    _add(
        f"kernel row_draws{_bits} size n size m param seed: uint64 param offset: uint64 "
        f"out y: uint{_bits}[n, m] strides [m, 1] grid i < n, j < m "
        f"{{ store y[i, j] = philox{_bits}(seed, offset, uint64(index(m*i + j + 3))) }}"
    )
_add(
    "kernel integers size n in x: int32[n] strides [1] in z: int32[n] strides [1] out y: int32[n, 6] strides [6, 1] "
    "grid i < n { store y[i, 0] = floordiv(x[i], z[i]) store y[i, 1] = truncdiv(x[i], z[i]) "
    "store y[i, 2] = remainder(x[i], z[i]) store y[i, 3] = pow(x[i], z[i]) store y[i, 4] = shl(x[i], z[i]) "
    "store y[i, 5] = shr(x[i], z[i]) }"
)
_add(
    "kernel softmax_rows size n size m in x: float32[n, m] strides [m, 1] out y: float32[n, m] strides [m, 1] "
    "grid i < n { reduce (peak) over j < m lanes 32 { init (float32(-inf)) value (x[i, j]) "
    "combine (a), (b) -> (max(a, b)) } reduce (total) over k < m lanes 32 { init (float32(0.0)) "
    "value (exp((x[i, k] - peak))) combine (c), (d) -> ((c + d)) } "
    "loop l < m parallel { store y[i, l] = (exp((x[i, l] - peak)) / total) } }"
)
_add(
    "kernel exponential size n in x: float32[n] strides [1] out y: float32[n] strides [1] "
    "grid i < n { store y[i] = exp(x[i]) }"
)

SIZES = {"s": 2, "rows": 7}
PARAMS = {"c": 0.25, "seed": 123456789012345, "offset": 7}
#: How far kernels with functions may be apart, in ulp: the function's own error, through what follows it.
ULP = {"softmax_rows": 16, "exponential": 2}
KERNELS = {name: parse(text) for name, text in TEXTS.items()}


def arrays_for(kernel, sizes, seed=0):
    """Random arrays of a kernel's shapes and strides."""
    generator = np.random.default_rng(seed)
    made = {}
    for buffer in kernel.buffers:
        shape = [evaluate_sizes(extent, sizes) for extent in buffer.shape]
        strides = [evaluate_sizes(stride, sizes) for stride in buffer.strides]
        count = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides)) if all(shape) else 0
        dtype = buffer.dtype
        if dtype is boolean:
            memory = generator.integers(0, 2, count).astype(np.bool_)
        elif dtype.is_integer:
            memory = generator.integers(max(dtype.low, -100), 100, count).astype(dtype.storage)
        else:
            values = np.round(generator.standard_normal(count) * 4, 3)
            values[generator.random(count) < 0.05] = np.nan
            memory = to_storage(values.astype(dtype.compute), dtype)
        made[buffer.name] = np.lib.stride_tricks.as_strided(memory, shape, [s * memory.itemsize for s in strides])
    return made
