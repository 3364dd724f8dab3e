"""Packed matrix products: the bits of the interpreter for every layout, type, vector width, epilogue and partition."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from bringup.ir.dtypes import Array, DType, bfloat16, float16, float32, float64, int16, int32, int64
from bringup.ir.index import evaluate_sizes
from bringup.ir.parser import parse
from bringup.targets.c.contract import contraction
from bringup.targets.c.render import render
from bringup.targets.c.target import CTarget
from tests.unit.targets.c_contract_cases import HOST, assert_same_bits, built, launch, matrix_kernel, numbers, rendered

V3 = "x86-64-v3"
X86 = HOST.isa.startswith("x86-64-v")
NARROW = (
    [CTarget(vector_bytes=size, isa=V3) for size in (32, 16, 0)] if X86 else [CTarget(vector_bytes=0, isa=HOST.isa)]
)
SHAPES = [(1, 3, 1), (1, 40, 150), (5, 9, 33), (29, 17, 35), (0, 3, 4), (3, 0, 5), (3, 4, 0)]


def matrices(layout: str, m: int, k: int, n: int, dtype: DType = float32) -> dict[str, Array]:
    orders = [(1, 0) if letter == "t" else (0, 1) for letter in layout]
    return {
        "a": numbers((m, k), dtype, 1, orders[0]),
        "b": numbers((k, n), dtype, 2, orders[1]),
        "y": numbers((m, n), float64 if dtype is float64 else float32, 3),
    }


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt", "ss"])
def test_layouts(layout: str) -> None:
    for shape in SHAPES:
        assert_same_bits(matrix_kernel(layout), matrices(layout, *shape), parts=3)


@pytest.mark.parametrize("dtype", [float64, bfloat16, float16])
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_types(layout: str, dtype: DType) -> None:
    for shape in SHAPES[:4]:
        assert_same_bits(matrix_kernel(layout, dtype.name), matrices(layout, *shape, dtype))


@pytest.mark.parametrize("target", NARROW, ids=str)
@pytest.mark.parametrize(("layout", "dtype", "lanes"), [("nn", float32, 1), ("nt", float64, 1), ("nt", float32, 32)])
def test_vector_widths(target: CTarget, layout: str, dtype: DType, lanes: int) -> None:
    for shape in SHAPES[1:4]:
        assert_same_bits(matrix_kernel(layout, dtype.name, lanes), matrices(layout, *shape, dtype), target=target)


@pytest.mark.skipif(not X86, reason="names an x86 instruction set")
def test_without_hardware_fma() -> None:
    target = CTarget(vector_bytes=16, fma=False, isa="x86-64-v2")
    assert_same_bits(matrix_kernel("nn"), matrices("nn", 5, 9, 33), target=target)


@pytest.mark.parametrize("k", [800, 1600])
def test_cut_sums_keep_their_order(k: int) -> None:
    """Beyond 768 steps k is cut, and the accumulators wait in memory."""
    init = " from float32(y[i, j])"
    assert_same_bits(matrix_kernel("nt", init=init), matrices("nt", 14, k, 40), parts=2)
    assert_same_bits(matrix_kernel("nn"), matrices("nn", 1, k, 150))


def test_large_products_have_many_units() -> None:
    """Several blocks of rows, each kept packed while the columns pass by."""
    for parts in (1, 4, 7):
        assert_same_bits(matrix_kernel("nn"), matrices("nn", 275, 760, 140), parts=parts)
    source, _ = built(matrix_kernel("nn"), HOST)
    sizes = {"m": 512, "n": 512, "k": 512, "a_s0": 512, "b_s0": 512}
    assert evaluate_sizes(source.units, sizes) >= 8


@pytest.mark.parametrize("lanes", [1, 32])
def test_epilogues(lanes: int) -> None:
    more = "param alpha: float32 param beta: float32 in bias: float32[n] strides [1] in c: bfloat16[m] strides [1]"
    value = "max(((alpha * acc) + (beta * bias[j])), float32(c[i]))"
    text = matrix_kernel("nt", lanes=lanes, value=value, more=more, init=" from (y[i, j] * beta)")
    for m, k, n in SHAPES[:4]:
        arrays = {**matrices("nt", m, k, n), "bias": numbers((n,), float32, 5), "c": numbers((m,), bfloat16, 6)}
        assert_same_bits(text, arrays, params={"alpha": 0.3, "beta": -1.7})


def test_several_stores_and_lets() -> None:
    text = """kernel k size m size n size k size q_s0 size q_s1
      in a: float32[m, k] strides [k, 1] in b: float32[k, n] strides [n, 1]
      out y: bfloat16[m, n] strides [n, 1] inout z: float32[m, n] strides [n, 1] out q: int64[m, n] strides [q_s0, q_s1]
      grid i < m, j < n
      { let scale = float32(index(i + 1))
        contract acc over p < k lanes 1 = (a[i, p] * scale) by max(b[p, j], float32(0.0))
        let half = (acc / scale)
        store y[i, j] = bfloat16(half)
        store add z[i, j] = acc if (half > float32(0.0))
        store q[i, j] = (int64(acc) + index(j)) }"""
    for m, k, n in SHAPES[:4]:
        arrays = matrices("nn", m, k, n)
        arrays = {"a": arrays["a"], "b": arrays["b"], "y": numbers((m, n), bfloat16, 4), "z": arrays["y"]}
        arrays["q"] = np.zeros((n, m), np.int64).T
        assert_same_bits(text, arrays)


@pytest.mark.parametrize("shared", [False, True])
def test_batches(shared: bool) -> None:
    """Two batch axes; a factor shared by one of them (stride 0) makes that axis rows."""
    stride = "0" if shared else "k*n"
    text = f"""kernel batch size f size g size m size n size k
      in a: float32[f, g, m, k] strides [g*m*k, m*k, k, 1] in b: float32[f, g, k, n] strides [g*k*n, {stride}, n, 1]
      out y: float32[m, f, g, n] strides [f*g*n, g*n, n, 1]
      grid e < f, h < g, i < m, j < n
      {{ contract acc over p < k lanes 1 = a[e, h, i, p] by b[e, h, p, j]
        store y[i, e, h, j] = acc }}"""
    a, b = numbers((2, 3, 5, 7), float32, 1), numbers((2, 3, 7, 20), float32, 2)
    if shared:
        b[:] = b[:, :1]
    assert_same_bits(text, {"a": a, "b": b, "y": numbers((5, 2, 3, 20), float32, 3)}, parts=4)


def test_transposed_output_swaps_the_sides() -> None:
    text = matrix_kernel("nn").replace("strides [n, 1]\n      grid", "strides [1, m]\n      grid")
    arrays = matrices("nn", 37, 12, 9)
    arrays["y"] = numbers((37, 9), float32, 3, (1, 0))
    assert_same_bits(text, arrays)


def test_negative_strides() -> None:
    text = matrix_kernel("ns").replace("size b_s0 size b_s1", "size b_s0: .. size b_s1: ..")
    arrays = matrices("nn", 6, 11, 40)
    arrays["b"] = arrays["b"][::-1, ::-1]
    assert_same_bits(text, arrays)


def test_matrix_times_vector() -> None:
    text = """kernel mv size m size k size lda in a: float32[m, k] strides [lda, 1] in x: float32[k] strides [1]
      out y: float32[m] strides [1] grid i < m
      { contract acc over p < k lanes LANES = a[i, p] by x[p] store y[i] = acc }"""
    for lanes in ("1", "32"):
        arrays = {"a": numbers((70, 45), float32, 1), "x": numbers((45,), float32, 2), "y": numbers((70,), float32, 3)}
        assert_same_bits(text.replace("LANES", lanes), arrays)


def test_taken_rows_are_checked() -> None:
    """A factor that takes its place from values is evaluated while packing; a bad index is reported."""
    text = """kernel take size m size n size k size t
      in table: float32[t, k] strides [k, 1] in b: float32[k, n] strides [n, 1]
      in rows: int64[m] strides [1] out y: float32[m, n] strides [n, 1] grid i < m, j < n
      { contract acc over p < k lanes 1 = table[asindex(rows[i], t, check), p] by b[p, j] store y[i, j] = acc }"""
    arrays = {
        "table": numbers((6, 9), float32, 1),
        "b": numbers((9, 21), float32, 2),
        "rows": np.array([5, 0, 3], np.int64),
        "y": numbers((3, 21), float32, 3),
    }
    assert_same_bits(text, arrays)
    arrays["rows"][1] = 6
    assert launch(text, arrays, {})[1:] == [6, 6]


def test_unfused_sums_round_twice() -> None:
    text = matrix_kernel("nn").replace("lanes 1", "lanes 1 unfused")
    assert_same_bits(text, matrices("nn", 5, 60, 40))


def test_tails_of_dot_products_leave_other_lanes_alone() -> None:
    """A lane that is -0.0 stays so: the incomplete last step must not add 0 to it."""
    tiny = np.float32(1e-30)
    for k in (33, 40):
        a, b = np.full((1, k), tiny, np.float32), np.full((3, k), -tiny, np.float32)
        arrays = {"a": a, "b": b.T, "y": np.zeros((1, 3), np.float32)}
        text = matrix_kernel("nt", lanes=32)
        launch(text, arrays, {})
        assert np.all(np.signbit(arrays["y"]))
        assert_same_bits(text, arrays)


@pytest.mark.parametrize(
    "body",
    [
        "store y[i, j] = a[i, j]",
        "contract acc over p < m lanes 1 = y[i, p] by a[p, j] store y[i, j] = acc",
        "contract acc over p < m lanes 8 = a[i, p] by a[p, j] store y[i, j] = acc",
        "contract acc over p < m lanes 1 = a[i, p] by a[i, p] store y[i, j] = acc",
    ],
    ids=["no contract", "reads its output", "8 lanes", "no columns"],
)
def test_other_kernels_are_left_to_the_general_emitter(body: str) -> None:
    text = f"""kernel k size m in a: float32[m, m] strides [m, 1] in q: int32[m, m] strides [m, 1]
      inout y: float32[m, m] strides [m, 1] grid i < m, j < m {{ {body} }}"""
    assert contraction(parse(text), HOST) is None


def test_units_need_no_library(tmp_path: Path) -> None:
    """The object refers to nothing outside itself, and its text does not depend on anything but the kernel."""
    source = rendered(matrix_kernel("nt"))
    assert source == render(parse(matrix_kernel("nt")), HOST)
    (tmp_path / "k.c").write_text(source.text)
    march = [f"-march={HOST.isa}"] if HOST.isa else []
    flags = ["-O2", "-ffreestanding", "-fPIC", "-shared", "-nostdlib", "-w", *march]
    subprocess.run(["cc", *flags, "-o", tmp_path / "k.so", tmp_path / "k.c"], check=True)
    command = ["nm", "-D", "--undefined-only", tmp_path / "k.so"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


@pytest.mark.parametrize("layout", ["nn", "tn", "nt", "ss"])
@pytest.mark.parametrize("dtype", [int64, int32, int16])
def test_integers_wrap(dtype: DType, layout: str) -> None:
    """Sums in int64, of numbers so large that they go around; what is stored is the low part."""
    text = matrix_kernel(layout, dtype.name, value="acc" if dtype is int64 else f"{dtype.name}(acc)")
    text = text.replace("inout y: float32", f"inout y: {dtype.name}")
    for m, k, n in SHAPES:
        arrays = matrices(layout, m, k, n, dtype)
        random = np.random.default_rng(m + k + n)
        arrays["y"] = numbers((m, n), dtype, 3)
        for array in arrays.values():
            array[...] = random.integers(dtype.low, dtype.high, array.shape, array.dtype)
        assert_same_bits(text, arrays)
