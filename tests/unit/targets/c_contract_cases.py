"""Contractions as IR text, and a runner that compares the compiled C with the interpreter bit for bit."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bringup.ir.arguments import bind_sizes
from bringup.ir.dtypes import Array, DType, to_storage
from bringup.ir.index import evaluate_sizes
from bringup.ir.interpret import run
from bringup.ir.kernel import Kernel
from bringup.ir.parser import parse
from bringup.ir.verify import verify
from bringup.targets.c.contract import contraction
from bringup.targets.c.render import render
from bringup.targets.c.target import CTarget
from bringup.targets.c.window import windowed
from bringup.targets.source import Source
from bringup.targets.toolchain import compile_c, host_target

HOST = host_target()


def matrix_kernel(
    layout: str = "nn", dtype: str = "float32", lanes: int = 1, value: str = "acc", more: str = "", init: str = ""
) -> str:
    """y[m, n] = a × b. Layout n: the last dimension has stride 1, t: the first has, s: neither is known to."""
    strides = {"n": "{0}_s0, 1", "t": "1, {0}_s1", "s": "{0}_s0, {0}_s1"}
    a, b = (strides[letter].format(name) for letter, name in zip(layout, "ab"))
    sizes = " ".join(f"size {name}" for name in f"{a}, {b}".split(", ") if name != "1")
    result = "float64" if dtype == "float64" else "float32"
    return f"""kernel matrix size m size n size k {sizes} {more}
      in a: {dtype}[m, k] strides [{a}] in b: {dtype}[k, n] strides [{b}]
      inout y: {result}[m, n] strides [n, 1]
      grid i < m, j < n
      {{ contract acc over p < k lanes {lanes} = a[i, p] by b[p, j]{init}
        store y[i, j] = {value} }}"""


def within(index: str, extent: str) -> str:
    return f"((index({index}) >= int64(0)) & (index({index}) < index({extent})))"


def conv_kernel(
    stride: int = 1, dilation: int = 1, layout: str = "nchw", kind: str = "forward", dtype: str = "float32"
) -> str:
    """A grouped 2-d convolution, or one of its gradients; padding ph, pw are sizes."""
    h, w = f"{stride}*u + {dilation}*r - ph", f"{stride}*v + {dilation}*s - pw"
    image = {"nchw": "[g*ci*h*w, ci*h*w, h*w, w, 1]", "nhwc": "[g*ci*h*w, ci, 1, g*ci*w, g*ci]"}[layout]
    result = {"nchw": "[g*co*oh*ow, co*oh*ow, oh*ow, ow, 1]", "nhwc": "[g*co*oh*ow, co, 1, g*co*ow, g*co]"}[layout]
    weight = {"nchw": "[co*ci*kh*kw, ci*kh*kw, kh*kw, kw, 1]", "nhwc": "[co*ci*kh*kw, ci*kh*kw, 1, kw*ci, ci]"}[layout]
    x = f"(x[b, e, c, {h}, {w}] if ({within(h, 'h')} & {within(w, 'w')}))"
    f, y = "f[e, o, c, r, s]", "y[b, e, o, u, v]"
    taps = "c < ci, r < kh, s < kw" if layout == "nchw" else "r < kh, s < kw, c < ci"
    if kind == "forward":
        roles, grid, over = ("in", "in", "inout"), "e < g, b < nb, o < co, u < oh, v < ow", taps
        sums, target = f"{f} by {x}", y
    else:
        roles, grid, over = ("in", "inout", "in"), "e < g, o < co, c < ci, r < kh, s < kw", "b < nb, u < oh, v < ow"
        sums, target = f"{y} by {x}", f
    cast = f"{dtype}(acc)" if dtype not in ("float32", "float64") else "acc"
    names = "nb g ci h w co oh ow kh kw ph pw"
    return f"""kernel conv {" ".join(f"size {name}" for name in names.split())}
      {roles[0]} x: {dtype}[nb, g, ci, h, w] strides {image}
      {roles[1]} f: {dtype}[g, co, ci, kh, kw] strides {weight}
      {roles[2]} y: {dtype}[nb, g, co, oh, ow] strides {result}
      grid {grid}
      {{ contract acc over {over} lanes 1 = {sums}
        store {target} = {cast} }}"""


@functools.cache
def parsed(text: str) -> Kernel:
    kernel = parse(text)
    verify(kernel)
    return kernel


def rendered(text: str, target: CTarget = HOST) -> Source:
    known = contraction(parsed(text), target) or windowed(parsed(text), target)
    assert known is not None, "the kernel is recognised neither as a contraction nor as windows"
    return render(parsed(text), target)


@functools.cache
def built(text: str, target: CTarget, flags: tuple[str, ...] = ()) -> tuple[Source, ctypes._CFuncPtr]:
    source = rendered(text, target)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.so"
        path.write_bytes(compile_c(source.text, target, flags))
        function = getattr(ctypes.CDLL(os.fspath(path)), source.entry)
    function.restype = None
    return source, function


def numbers(shape: Sequence[int], dtype: DType, seed: int, order: Sequence[int] | None = None) -> Array:
    """Random values, with the memory order of some dimensions (outermost first)."""
    order = list(range(len(shape))) if order is None else list(order)
    values = np.random.default_rng(seed).standard_normal([shape[d] for d in order]).astype(np.float32)
    return np.ascontiguousarray(to_storage(values.astype(dtype.compute), dtype)).transpose(np.argsort(order))


def launch(
    text: str,
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int],
    params: Mapping[str, float] | None = None,
    target: CTarget = HOST,
    parts: int = 1,
) -> list[int]:
    """Runs the compiled kernel in place, its units in ``parts`` ranges, the last one first; returns the report."""
    kernel = parsed(text)
    source, function = built(text, target)
    known = bind_sizes(kernel, arrays, sizes)
    words = [array.ctypes.data for array in (arrays[buffer.name] for buffer in kernel.buffers)]
    words += [known[size.name] % 2**64 for size in kernel.sizes]
    for param in kernel.params:
        value = (params or {})[param.name]
        bits = np.float64(value).view(np.uint64) if param.dtype.size == 8 else np.float32(value).view(np.uint32)
        words.append(int(bits))
    args, report = (ctypes.c_uint64 * len(words))(*words), (ctypes.c_int64 * 3)()
    units = evaluate_sizes(source.units, known)
    cuts = [units * part // parts for part in range(parts + 1)]
    for begin, end in reversed(list(itertools.pairwise(cuts))):
        function(args, ctypes.c_int64(begin), ctypes.c_int64(end), report)
    return list(report)


def assert_same_bits(
    text: str,
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    params: Mapping[str, float] | None = None,
    target: CTarget = HOST,
    parts: int = 1,
) -> None:
    """The compiled kernel and the interpreter leave the same bits in every buffer."""
    expected = {name: np.copy(array, order="K") for name, array in arrays.items()}
    run(parsed(text), expected, sizes, params)
    assert launch(text, arrays, sizes or {}, params, target, parts) == [0, 0, 0]
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name, strict=True)
