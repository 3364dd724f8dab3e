"""A driver with an op table and a library of its own, which the test builds from LIBRARY beside the table."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import numpy as np

from bringup.drivers.sim import Driver as Sim

FOLDER = Path(os.environ.get("VENDOR_CHIP", "."))

LIBRARY = """
#include <stdint.h>
int64_t calls;
void chip_gemm(const float *a, const float *b, float *c, int m, int n, int k) {
  ++calls;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      c[i * n + j] = 0;
      for (int p = 0; p < k; ++p) c[i * n + j] += a[i * k + p] * b[p * n + j];
    }
}
void chip_add(int64_t n, const float *x, const float *y, double alpha, float *out) {
  __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] + (float)alpha * y[i];
}
void chip_split(int64_t n, int columns, const float *x, float *low, float *high) {
  ++calls;
  for (int64_t i = 0; i < n; ++i) {
    low[i] = x[i] < 0 ? x[i] : 0;
    high[i] = x[i] > 0 ? x[i] : 0;
  }
}
"""

TABLE = """
library = "libchip.so"
declare = '''
void chip_gemm(const float *a, const float *b, float *c, int m, int n, int k);
void chip_add(int64_t n, const float *x, const float *y, double alpha, float *out);
void chip_split(int64_t n, int columns, const float *x, float *low, float *high);
'''

[[op]]
schema = "aten::mm"
call = "chip_gemm({self}, {mat2}, {out}, {self.shape[0]}, {mat2.shape[1]}, {self.shape[1]})"
dtypes = ["float32"]
when = "self.shape[0] >= 4"
examples = [{ self = [5, 3], mat2 = [3, 2] }]

[[op]]
schema = "aten::add.Tensor"
call = "chip_add({end} - {begin}, {self} + {begin}, {other} + {begin}, {alpha}, {out} + {begin})"
units = "self.numel"
dtypes = ["float32"]
when = "self.shape == other.shape"
elementwise = true
examples = [{ self = [5, 3], other = [5, 3], alpha = 2 }]

[[op]]
schema = "chip::split(Tensor x) -> (Tensor low, Tensor high)"
call = "chip_split({x.numel}, 1, {x}, {low}, {high})"
dtypes = ["float32"]
output = ["like x", "like x"]
examples = [{ x = [4, 3] }]

[[op]]
schema = "chip::twice(Tensor x) -> Tensor"
function = "vendor_chip:twice"
dtypes = ["float32", "int32"]
output = "like x"
require = ["x.ndim == 2"]
reference = "x + x"
backward = "chip::twice_backward"
examples = [{ x = [4, 3] }]

[[op]]
schema = "chip::twice_backward(Tensor grad, Tensor x) -> Tensor"
function = "vendor_chip:twice"
dtypes = ["float32"]
ignore = ["x"]
output = "like x"
reference = "grad + grad"
examples = [{ grad = [4, 3], x = [4, 3] }]

[[op]]
schema = "aten::neg"
function = "vendor_chip:neg"
dtypes = ["float32"]
examples = [{ self = [4, 3] }]
"""

calls: list[str] = []


def array(tensor: Any) -> Any:
    flat = (ctypes.c_char * (int(np.prod(tensor.shape)) * 4)).from_address(tensor.address)
    return np.frombuffer(flat, tensor.dtype).reshape(tensor.shape)


def twice(out: Any, x: Any, *rest: Any) -> None:
    calls.append("twice")
    array(out)[...] = 2 * array(x)


def neg(out: Any, x: Any) -> None:
    calls.append("neg")
    array(out)[...] = -array(x)


class Driver(Sim):
    name = "vendor_chip"
    op_table = FOLDER / "ops.toml"

    def __init__(self) -> None:
        super().__init__("mode=kernels,devices=1")
