"""Cost formulas against counting: the scalar interpreter counts each flop and each element."""

import numpy as np
import pytest

from bringup.ir.cost import CostNumbers, cost
from bringup.ir.printer import index_text
from tests.loops.interpret_scalar import run_scalar
from tests.unit.ir.written_kernels import kernel

SIZES = {
    "add": {"n": 3, "m": 5, "x_s0": 5, "x_s1": 1},
    "softmax": {"n": 3, "m": 40},
    "layer_norm": {"n": 2, "m": 35},
    "argmax": {"n": 3, "m": 33},
    "cumsum": {"n": 3, "m": 6},
    "matmul": {"m": 3, "n": 4, "k": 5},
    "matmul_tile": {"m": 2, "n": 1, "k": 3},
    "dropout": {"n": 20},
    "conv": {"c": 2, "h": 4, "w": 5, "o": 3},
}


@pytest.mark.parametrize("name", SIZES)
def test_formula_equals_count(name):
    subject, sizes = kernel(name), SIZES[name]
    arrays = {}
    for buffer in subject.buffers:
        extents = [int(eval(index_text(i), {}, sizes)) for i in buffer.shape]
        arrays[buffer.name] = np.ones(extents, buffer.dtype.storage)
    params = {param.name: 1 for param in subject.params}
    counts = run_scalar(subject, arrays, sizes, params)
    bytes_of = {buffer.name: buffer.dtype.size for buffer in subject.buffers}
    numbers = cost(subject).evaluate(sizes)
    assert numbers == CostNumbers(
        counts.flops,
        counts.transcendentals,
        sum(bytes_of[b] for b, _ in counts.read) if name != "conv" else numbers.read,
        sum(bytes_of[b] for b, _ in counts.written),
    )


def test_formulas_are_readable():
    matmul = cost(kernel("matmul"))
    assert index_text(matmul.flops) == "2*k*m*n + m*n"
    assert index_text(matmul.written) == "4*m*n"
    assert index_text(matmul.read) == "2*k*m + 2*k*n + 4*n"
    assert cost(kernel("matmul_tile")).local_bytes == 64
