"""What is wrong in a formula or a kernel is said where it is written, with what was meant."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import bringup
from bringup import formulas as f
from bringup.ir.dtypes import float32
from bringup.ir.expr import Param
from bringup.lowering.call import Call
from bringup.lowering.symbolic import Trace

NUMBERS = itertools.count()


def define(formula: Callable[..., Any], arguments: str = "Tensor x", **options: Any) -> Any:
    return bringup.pointwise(f"formula_errors::op{next(NUMBERS)}({arguments}) -> Tensor", formula, **options)


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        (lambda x: x**2, r"\*\*: write x \* x"),
        (lambda x: 2**x, r"\*\*: write x \* x"),
        (lambda x: x % 2, r'write binary\("remainder"'),
        (lambda x: x // 2, r'write binary\("floordiv"'),
        (lambda x: abs(x), r'write unary\("abs"'),
        (lambda x: f.sigmod(x), "did you mean 'sigmoid'"),
        (lambda x: f.unary("tanhh", x), "did you mean 'tanh'"),
        (lambda x: f.binary("maximum", x, x), "did you mean 'max'"),
        (lambda x: f.atan2(x, x), r"write binary\('atan2', …\)"),
        (lambda x, y: x + y, r"must take 1 arguments \(x\)"),
        (lambda x: None, "gives None: it must be an expression"),
        (lambda x: (x, x), "gives 2 values: a pointwise op has one"),
        (lambda x: undefined(x), "'undefined' is not defined"),  # type: ignore[name-defined]  # noqa: F821
    ],
)
def test_a_formula_is_refused_where_it_is_defined(formula: Callable[..., Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as refusal:
        define(formula)
    assert "formula_errors::op" in str(refusal.value)


def test_backward_is_tried_as_well() -> None:
    with pytest.raises(ValueError, match=r"backward.*1 gradients for 2 tensors"):
        define(lambda x, y: x * y, "Tensor x, Tensor y", backward=lambda g, x, y: g * y)
    with pytest.raises(ValueError, match=r"backward.*\*\*"):
        define(lambda x: x * x * x, backward=lambda g, x: 3 * g * x**2)
    define(lambda x, y: x * y, "Tensor x, Tensor y", backward=lambda g, x, y: (g * y, None))


def test_values_that_only_a_call_knows_are_not_guessed_at() -> None:
    table = {"fast": 1.0, "exact": 2.0}
    define(lambda x, mode: x * table[mode], "Tensor x, str mode")
    with pytest.raises(ValueError, match="'quick'"):
        define(lambda x, mode: x * table[mode], "Tensor x, str mode='quick'")


def test_an_unknown_reduction_names_the_one_that_was_meant() -> None:
    k = Call("test::op", Trace(), ()).kernel()
    x = Param("x", float32)
    for name, meant in {"sum": "add", "prod": "mul", "amax": "max", "any": "or", "mx": "max"}.items():
        with pytest.raises(ValueError, match=f"'{name}' is not a reduction: did you mean '{meant}'"):
            k.reduce(4, lambda j: x, name)
        with pytest.raises(ValueError, match=f"did you mean '{meant}'"):
            k.scan(4, lambda j: (x,), name, [None], lambda j, states: None)
    buffer = k.local(float32, (4,))
    with pytest.raises(ValueError, match="did you mean 'add'"):
        k.store(buffer, (0,), x, combine="sum")


def test_nothing_is_not_stored_as_a_number() -> None:
    k = Call("test::op", Trace(), ()).kernel()
    buffer = k.local(float32, (4,))
    with pytest.raises(TypeError, match="None is neither a number nor an expression"):
        k.store(buffer, (0,), None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="None is neither a number nor an expression"):
        define(lambda x: x + None)
