"""What simplification does, and what it must leave alone."""

import pytest

from bringup.ir.parser import parse
from bringup.ir.printer import kernel_text
from bringup.ir.simplify import simplify

HEAD = """kernel k
  size n
  param p: float32
  in x: float32[n] strides [1]
  in k: int64[n] strides [1]
  out y: float32[n] strides [1]
  grid i < n
  {
"""


def body(text):
    lines = kernel_text(simplify(parse(f"{HEAD}{text}\n}}"))).splitlines()
    return [line.strip() for line in lines[lines.index("  {") + 1 : -1]]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(x[i] * float32(1.0))", "x[i]"),
        ("(x[i] + float32(-0.0))", "x[i]"),
        ("(x[i] + float32(0.0))", "(x[i] + float32(0.0))"),  # turns -0.0 into 0.0
        ("(x[i] * float32(0.0))", "(x[i] * float32(0.0))"),  # NaN and -0.0
        ("((x[i] + p) + p)", "((x[i] + p) + p)"),  # never reordered
        ("(x[i] - float32(0.0))", "x[i]"),
        ("(float32(1.0) / float32(3.0))", "float32(0.3333333432674408)"),
        ("exp(float32(1.0))", "exp(float32(1.0))"),  # the target's own exp decides its bits
        ("sqrt(float32(2.0))", "float32(1.4142135381698608)"),
        ("where(bool(true), x[i], p)", "x[i]"),
        ("where((x[i] < p), p, p)", "p"),
        ("neg(neg(x[i]))", "x[i]"),
        ("float32(x[i])", "x[i]"),
        ("x[((i + n) % n)]", "x[i]"),
        ("x[min(i, n - 1)]", "x[i]"),
        ("(x[i] if (index(i) < index(n)))", "x[i]"),
        ("(x[i] if (index(i) < int64(0)) else p)", "p"),
        ("x[asindex(index(i), n, check)]", "x[i]"),
        ("float32(index(0))", "float32(0.0)"),
    ],
)
def test_values(before, after):
    assert body(f"store y[i] = {before}") == [f"store y[i] = {after}"]


def test_dead_statements_go_and_checks_stay():
    dead = "let t = exp(x[i]) reduce (s) over j < n lanes 32 { init (p) value (x[j]) combine (a), (b) -> ((a + b)) }"
    assert body(f"{dead} store y[i] = p") == ["store y[i] = p"]
    check = "let t = x[asindex(k[i], n, check)]"
    assert body(f"{check} store y[i] = p") == [check, "store y[i] = p"]


def test_values_are_shared_inside_a_block():
    assert body("store y[i] = (exp((x[i] + p)) * exp((x[i] + p)))") == [
        "let v0 = exp((x[i] + p))",
        "store y[i] = (v0 * v0)",
    ]
    assert body("let t = (x[i] + p) let u = t store y[i] = (u * (x[i] + p))") == [
        "let t = (x[i] + p)",
        "store y[i] = (t * t)",
    ]


def test_reads_of_written_memory_are_not_shared():
    text = """kernel k
  inout z: float32[4] strides [1]
  grid i < 4
  {
    store z[i] = (z[i] + z[i])
    store z[i] = (z[i] * z[i])
  }"""
    assert kernel_text(simplify(parse(text))) == text
