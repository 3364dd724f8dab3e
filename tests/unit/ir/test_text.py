"""The text form: errors that show the line, words that are names, and the examples in the docstrings."""

import doctest
import importlib
import pkgutil

import pytest

import bringup.ir
from bringup.ir.parser import ParseError, parse
from bringup.ir.printer import kernel_text
from bringup.ir.verify import VerifyError, verify

MODULES = [module.name for module in pkgutil.iter_modules(bringup.ir.__path__)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: wanted 'kernel'"),
        ("kernel k { store }", "wanted a name, found '}'"),
        ("kernel k {\n let t = nowhere\n}", "line 2: wanted a bound name, found 'nowhere' in: let t = nowhere"),
        ("kernel k {\n let t = x[0]\n}", "wanted a declared buffer"),
        ("kernel k { let t = exp(float32(1.0), float32(1.0)) }", "wanted an op of 2 values"),
        ("kernel k { let t = (float32(1.0) ? float32(1.0)) }", "wanted an operator"),
        ("kernel k in x: float99[1] strides [1] { }", "wanted a type"),
        ("kernel k { } more", "wanted the end"),
        ("kernel k what { }", "wanted a declaration"),
        ("kernel k param p { }", "wanted ':'"),
        ("kernel k { let t = int8(index(sum(1, 2))) }", "wanted min, max or asindex"),
        ("kernel k in x: int8[4] strides [1] { let t = x[asindex(int8(1), 4, maybe)] }", "check, wrap or skip"),
    ],
)
def test_errors_show_the_place(text, message):
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert message in str(caught.value)


def test_constants_keep_their_bits():
    values = "float32(-0.0) float32(nan) float32(-inf) float64(1e-320) bfloat16(0.0078125) bool(true) int8(-128)"
    lines = "\n".join(f"    let t{at} = {value}" for at, value in enumerate(values.split()))
    text = f"kernel constants\n  {{\n{lines}\n  }}"
    assert kernel_text(parse(text)) == text


def test_the_error_marks_the_statement():
    text = """kernel k
  size n
  out y: float32[n] strides [1]
  grid i < n
  {
    let t = float32(1.0)
    store y[i] = (t + int32(1))
  }"""
    with pytest.raises(VerifyError) as caught:
        verify(parse(text))
    lines = str(caught.value).splitlines()
    assert lines[0] == "k: type: (t + int32(1)): add of float32 and int32"
    assert [line for line in lines if line.startswith("-->")] == ["-->     store y[i] = (t + int32(1))"]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(f"bringup.ir.{name}")
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    assert doctest.testmod(module, optionflags=flags).failed == 0
