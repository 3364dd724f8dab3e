"""Which axis runs in vectors: what must not, because grid points go different ways, and what should not."""

from __future__ import annotations

import pytest

from bringup.ir.parser import parse
from bringup.ir.verify import verify
from bringup.targets.c.options import COptions
from bringup.targets.c.plan import plan

_ENDS_EARLY = """kernel ends_early size n size m
in x: float32[m, n] strides [n, 1] in k: int64[n] strides [1] out y: float32[m, n] strides [n, 1]
grid i < n { loop j < m until k[i] { store y[j, i] = x[j, i] } }"""
_RUNS_THROUGH = _ENDS_EARLY.replace(" until k[i]", "").replace("in k: int64[n] strides [1] ", "")
_ALONG_ROWS = """kernel scatter size n size m
in k: int64[n, m] strides [m, 1] in x: float32[n, m] strides [m, 1] inout y: float32[n, m] strides [m, 1]
grid i < n { loop j < m { store add y[i, asindex(k[i, j], m, check)] = x[i, j] } }"""
_ALONG_COLUMNS = """kernel scatter size n size m
in k: int64[m, n] strides [n, 1] in x: float32[m, n] strides [n, 1] inout y: float32[m, n] strides [n, 1]
grid i < n { loop j < m { store add y[asindex(k[j, i], m, check), i] = x[j, i] } }"""


@pytest.mark.parametrize(
    ("text", "style"),
    [(_ENDS_EARLY, "scalar"), (_RUNS_THROUGH, "grid"), (_ALONG_ROWS, "scalar"), (_ALONG_COLUMNS, "grid")],
    ids=["a loop that ends early", "one that does not", "scatter along rows", "scatter along columns"],
)
def test_the_axis_that_runs_in_vectors(text: str, style: str) -> None:
    kernel = parse(text)
    verify(kernel)
    assert plan(kernel, COptions()).style == style
