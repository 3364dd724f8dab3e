"""Several kernels in one translation unit are the kernels they are alone."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from bringup.ir.parser import parse
from bringup.targets.c.render import render
from bringup.targets.c.unit import together
from bringup.targets.source import Source
from bringup.targets.toolchain import compile_c, host_target, is_contraction

#: Two kernels of one name and different work, and one that needs the math library, as the first does.
ELEMENTWISE = """kernel {name} size n in x: float32[n] strides [1] out y: float32[n] strides [1] grid i < n
{{ store y[i] = {value} }}"""
KERNELS = [
    parse(ELEMENTWISE.format(name=name, value=value))
    for name, value in (("same", "exp(x[i])"), ("same", "(x[i] + x[i])"), ("other", "exp((x[i] + x[i]))"))
]


def results(binary: bytes, entry: str, x: np.ndarray, folder: Path) -> np.ndarray:
    """What an elementwise kernel makes of x."""
    path = folder / f"{entry}{len(list(folder.iterdir()))}.so"  # a new file: one that is loaded may not be written
    path.write_bytes(binary)
    y, report = np.zeros_like(x), np.zeros(8, np.int64)
    args = np.array([x.ctypes.data, y.ctypes.data, x.size], np.uint64)
    run = ctypes.CDLL(str(path))[entry]
    run(ctypes.c_void_p(args.ctypes.data), ctypes.c_int64(0), ctypes.c_int64(1), ctypes.c_void_p(report.ctypes.data))
    return y


def test_each_kernel_gives_the_bits_it_gives_alone(tmp_path: Path) -> None:
    target = host_target()
    sources = [render(kernel, target) for kernel in KERNELS]
    text, entries = together(sources)
    binary = compile_c(text, target)
    x = np.linspace(-5, 5, 1003, dtype=np.float32)
    assert len(set(entries)) == len(KERNELS)
    found = [results(binary, entry, x, tmp_path) for entry in entries]
    alone = [results(compile_c(one.text, target), one.entry, x, tmp_path) for one in sources]
    for one, other in zip(found, alone):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(found[1], 2 * x)


@pytest.mark.parametrize("count", [1, 3])
def test_a_contraction_is_known_among_others(count: int) -> None:
    matmul = parse(
        "kernel mm size m size n size k in a: float32[m, k] strides [k, 1] in b: float32[k, n] strides [n, 1] "
        "out y: float32[m, n] strides [n, 1] grid i < m, j < n "
        "{ contract acc over p < k lanes 1 = a[i, p] by b[p, j] store y[i, j] = acc }"
    )
    source = render(matmul, host_target())
    assert is_contraction(together([source] * count)[0])
    assert not is_contraction(together([render(one, host_target()) for one in KERNELS])[0])


def test_names_of_one_kernel_never_meet_those_of_another() -> None:
    from bringup.ir.index import Int

    text, entries = together([Source("void bringup_k_1(void) {}", "bringup_k_1", Int(1))] * 2)
    assert entries == ["bringup_k_1_0", "bringup_k_1_1"]
    assert all(text.count(f"void {entry}(") == 1 for entry in entries)
