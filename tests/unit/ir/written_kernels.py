"""Kernels written by hand as text: the ops that a reader knows, for the tests of every part of the IR."""

from bringup.ir.kernel import Kernel
from bringup.ir.parser import parse

ADD = """kernel add
  size n
  size m
  size x_s0: ..
  size x_s1: ..
  param alpha: float32
  in x: float32[n, m] strides [x_s0, x_s1]
  in b: float32[1, m] strides [m, 1]
  out y: float32[n, m] strides [m, 1]
  grid i < n, j < m
  {
    store y[i, j] = (x[i, j] + (alpha * b[0, j]))
  }"""

SOFTMAX = """kernel softmax
  size n
  size m
  in x: float32[n, m] strides [m, 1]
  out y: float32[n, m] strides [m, 1]
  grid i < n
  {
    reduce (peak) over j < m lanes 32 {
      init (float32(-inf))
      value (x[i, j])
      combine (a), (b) -> (max(a, b))
    }
    reduce (total) over k < m lanes 32 {
      init (float32(0.0))
      value (exp((x[i, k] - peak)))
      combine (c), (d) -> ((c + d))
    }
    loop l < m parallel {
      store y[i, l] = (exp((x[i, l] - peak)) / total)
    }
  }"""

# Welford in one pass: the state is (count, mean, sum of squared differences), and so is each value.
LAYER_NORM = """kernel layer_norm
  size n
  size m: 1..
  param eps: float32
  in x: float32[n, m] strides [m, 1]
  in w: float32[m] strides [1]
  in b: float32[m] strides [1]
  out y: float32[n, m] strides [m, 1]
  grid i < n
  {
    reduce (count, mean, square) over j < m lanes 32 {
      init (float32(0.0), float32(0.0), float32(0.0))
      value (float32(1.0), x[i, j], float32(0.0))
      combine (n1, m1, s1), (n2, m2, s2) -> ((n1 + n2), \
(m1 + ((m2 - m1) * (n2 / max((n1 + n2), float32(1.0))))), \
((s1 + s2) + (((m2 - m1) * (m2 - m1)) * ((n1 * n2) / max((n1 + n2), float32(1.0))))))
    }
    let scale = rsqrt(((square / count) + eps))
    loop k < m parallel {
      store y[i, k] = fma(((x[i, k] - mean) * scale), w[k], b[k])
    }
  }"""

ARGMAX = """kernel argmax
  size n
  size m
  in x: float32[n, m] strides [m, 1]
  out y: int64[n] strides [1]
  grid i < n
  {
    reduce (best, at) over j < m lanes 32 {
      init (float32(-inf), int64(9223372036854775807))
      value (x[i, j], index(j))
      combine (a, ia), (b, ib) -> (where(((a > b) | ((a == b) & (ia < ib))), a, b), \
where(((a > b) | ((a == b) & (ia < ib))), ia, ib))
    }
    store y[i] = at
  }"""

CUMSUM = """kernel cumsum
  size n
  size m
  in x: float32[n, m] strides [m, 1]
  out y: float32[n, m] strides [m, 1]
  grid i < n
  {
    scan (total) along j < m {
      init (float32(0.0))
      value (x[i, j])
      combine (a), (b) -> ((a + b))
      then {
        store y[i, j] = total
      }
    }
  }"""

MATMUL = """kernel matmul
  size m
  size n
  size k
  in a: float16[m, k] strides [k, 1]
  in b: float16[k, n] strides [n, 1]
  in bias: float32[n] strides [1]
  out c: float32[m, n] strides [n, 1]
  grid i < m, j < n
  {
    contract sum over l < k lanes 1 = a[i, l] by b[l, j] from bias[j]
    store c[i, j] = max(sum, float32(0.0))
  }"""

# A tile of the product in a Local, as templates will write it.
MATMUL_TILE = """kernel matmul_tile
  size m
  size n
  size k
  in a: float32[4*m, k] strides [k, 1]
  in b: float32[k, 4*n] strides [4*n, 1]
  out c: float32[4*m, 4*n] strides [4*n, 1]
  local t: float32[4, 4]
  grid i < m, j < n
  {
    loop u < 4 parallel {
      loop v < 4 parallel {
        contract sum over l < k lanes 1 = a[4*i + u, l] by b[l, 4*j + v]
        store t[u, v] = sum
      }
    }
    loop p < 4 parallel {
      loop q < 4 parallel {
        store c[4*i + p, 4*j + q] = t[p, q]
      }
    }
  }"""

CONV = """kernel conv
  size c
  size h
  size w
  size o
  in x: float32[c, h, w] strides [h*w, w, 1]
  in f: float32[o, c, 3, 3] strides [9*c, 9, 3, 1]
  out y: float32[o, h, w] strides [h*w, w, 1]
  grid p < o, i < h, j < w
  {
    contract sum over q < c, u < 3, v < 3 lanes 1 = (x[q, i + u - 1, j + v - 1] if \
(((index(i + u - 1) >= index(0)) & (index(i + u - 1) < index(h))) & \
((index(j + v - 1) >= index(0)) & (index(j + v - 1) < index(w))))) by f[p, q, u, v]
    store y[p, i, j] = sum
  }"""

GATHER = """kernel gather
  size rows
  size n
  size m
  in table: float32[rows, m] strides [m, 1]
  in at: int64[n] strides [1]
  out y: float32[n, m] strides [m, 1]
  grid i < n, j < m
  {
    store y[i, j] = table[asindex(at[i], rows, wrap), j]
  }"""

SCATTER_ADD = """kernel scatter_add
  size rows
  size n
  in x: float32[n] strides [1]
  in at: int64[n] strides [1]
  inout y: float32[rows] strides [1]
  grid i < n
  {
    store ordered add y[asindex(at[i], rows, check)] = x[i]
  }"""

DROPOUT = """kernel dropout
  size n
  param seed: uint64
  param offset: uint64
  param p: float32
  in x: float32[n] strides [1]
  out y: float32[n] strides [1]
  grid i < n
  {
    let draw = (float32(shr(philox32(seed, offset, uint64(index(i))), uint32(8))) * float32(5.960464477539063e-08))
    store y[i] = where((draw >= p), (x[i] / (float32(1.0) - p)), float32(0.0))
  }"""

TEXTS = {
    text.split()[1]: text
    for text in (
        ADD,
        SOFTMAX,
        LAYER_NORM,
        ARGMAX,
        CUMSUM,
        MATMUL,
        MATMUL_TILE,
        CONV,
        GATHER,
        SCATTER_ADD,
        DROPOUT,
    )
}


def kernel(name: str) -> Kernel:
    return parse(TEXTS[name])
