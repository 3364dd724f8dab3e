"""Known ops, written as kernels, against NumPy in float64."""

import numpy as np
import pytest

from bringup.ir.interpret import run
from bringup.ir.philox import philox
from bringup.ir.printer import kernel_text
from bringup.ir.simplify import simplify
from bringup.ir.verify import verify
from tests.loops.bits import same_bits
from tests.loops.interpret_scalar import run_scalar
from tests.unit.ir.written_kernels import TEXTS, kernel

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", TEXTS)
def test_text_and_verifier(name):
    assert kernel_text(kernel(name)) == TEXTS[name]
    verify(kernel(name))
    verify(simplify(kernel(name)))


def check(name, arrays, out, expected, params=None, tolerance=2e-6, sizes=None):
    """Vectorised, scalar and simplified runs give the same bits, close to the reference."""
    ran = kernel(name)
    copies = [{key: value.copy() for key, value in arrays.items()} for _ in range(3)]
    run(ran, copies[0], sizes, params)
    run_scalar(ran, copies[1], sizes, params)
    run(simplify(ran), copies[2], sizes, params)
    (buffer,) = (b for b in ran.buffers if b.name == out)
    assert same_bits(copies[0][out], copies[1][out], buffer.dtype)
    assert same_bits(copies[0][out], copies[2][out], buffer.dtype)
    np.testing.assert_allclose(copies[0][out], expected, rtol=tolerance, atol=tolerance)


def test_add_with_strides():
    x = normal(10, 6)[::2, ::3].T
    arrays = {"x": x, "b": normal(1, 5), "y": np.zeros((2, 5), np.float32)}
    check("add", arrays, "y", x + 0.5 * arrays["b"].astype(np.float64), {"alpha": 0.5})


@pytest.mark.parametrize("columns", [1, 7, 32, 75])
def test_softmax(columns):
    x = normal(4, columns)
    exact = np.exp(x.astype(np.float64))
    arrays = {"x": x, "y": np.zeros_like(x)}
    check("softmax", arrays, "y", exact / exact.sum(1, keepdims=True))


def test_layer_norm():
    x, w, b = normal(4, 50), normal(50), normal(50)
    wide = x.astype(np.float64)
    exact = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * w + b
    check("layer_norm", {"x": x, "w": w, "b": b, "y": np.zeros_like(x)}, "y", exact, {"eps": 1e-5})


def test_argmax_takes_the_first_of_equals():
    x = RNG.integers(0, 4, (5, 70)).astype(np.float32)
    check("argmax", {"x": x, "y": np.zeros(5, np.int64)}, "y", x.argmax(1))


def test_cumsum():
    x = normal(3, 20)
    check("cumsum", {"x": x, "y": np.zeros_like(x)}, "y", x.astype(np.float64).cumsum(1))


def test_matmul_of_halves_accumulates_in_float32():
    a, b, bias = normal(3, 40).astype(np.float16), normal(40, 5).astype(np.float16), normal(5)
    exact = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    check("matmul", {"a": a, "b": b, "bias": bias, "c": np.zeros((3, 5), np.float32)}, "c", exact)


def test_matmul_tile():
    a, b = normal(8, 7), normal(7, 4)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    check("matmul_tile", {"a": a, "b": b, "c": np.zeros((8, 4), np.float32)}, "c", exact, sizes={"m": 2, "n": 1})


def test_conv_with_padding():
    x, f = normal(2, 5, 4), normal(3, 2, 3, 3)
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    exact = np.einsum("chwuv,ocuv->ohw", windows, f)
    check("conv", {"x": x, "f": f, "y": np.zeros((3, 5, 4), np.float32)}, "y", exact)


def test_gather_wraps_and_checks():
    table, at = normal(6, 3), np.array([0, 5, -1, -6])
    check("gather", {"table": table, "at": at, "y": np.zeros((4, 3), np.float32)}, "y", table[at])
    for wrong in (6, -7):
        arrays = {"table": table, "at": np.array([0, wrong]), "y": np.zeros((2, 3), np.float32)}
        for runs in (run, run_scalar):
            with pytest.raises(IndexError, match=f"gather: index {wrong} is out of bounds for a dimension of 6"):
                runs(kernel("gather"), arrays)


def test_scatter_add_sums_in_order():
    x, at = (normal(100) * 1e4).astype(np.float32), RNG.integers(0, 3, 100)
    expected = np.zeros(3, np.float32)
    for value, place in zip(x, at):
        expected[place] += value
    check("scatter_add", {"x": x, "at": at, "y": np.zeros(3, np.float32)}, "y", expected, tolerance=0)


def test_dropout_draws_what_the_core_draws():
    x = normal(50)
    params = {"seed": 2**63 + 5, "offset": 7, "p": 0.3}
    draws = philox(np.uint64(2**63 + 5), np.uint64(7), np.arange(50, dtype=np.uint64), 32)
    kept = (draws >> np.uint32(8)) * 2.0**-24 >= np.float32(0.3)
    check("dropout", {"x": x, "y": np.zeros_like(x)}, "y", np.where(kept, x / 0.7, 0), params)


def test_a_hundred_thousand_elements_are_fast():
    import time

    x = normal(300, 334)
    y = np.zeros_like(x)
    start = time.perf_counter()
    run(kernel("softmax"), {"x": x, "y": y})
    assert time.perf_counter() - start < 0.5


def test_empty_extents():
    x = np.zeros((0, 5), np.float32)
    run(kernel("softmax"), {"x": x, "y": x.copy()})
    wide = {"x": np.zeros((2, 0), np.float32), "y": np.zeros((2, 0), np.float32)}
    run(kernel("softmax"), wide)
