"""Binary ops of a tensor and a number, in both orders, as one function with many results."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

DTYPES = tuple("bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split())
#: ``zb``, ``zi`` and ``zf`` are tensors without dimensions.
NUMBERS = tuple("True 3 (-2) 300 0.5 (-2.5) zb zi zf".split())
#: What ``make test`` takes of the forms, and the others.
FEW = """
    {a}+{b} {a}-{b} {a}*{b} {a}/{b} {a}//{b} {a}%{b} {a}**{b} {a}<{b} {a}=={b} {a}&{b} torch.where(m,{a},{b})
    torch.fmod({a},{b}) torch.copysign({a},{b}) x.clone().mul_({b})
""".split()
MORE = """
    {a}<={b} {a}!={b} {a}>{b} {a}>={b} {a}|{b} {a}^{b} torch.maximum({a},{b}) torch.minimum({a},{b}) torch.fmax({a},{b})
    torch.div({a},{b},rounding_mode='trunc') torch.div({a},{b},rounding_mode='floor') torch.remainder({a},{b})
    torch.float_power({a},{b}) torch.xlogy({a},{b}) torch.rsub({a},{b}) torch.add({a},{b},alpha=2) torch.gcd({a},{b})
    torch.sub({a},{b},alpha=3) torch.atan2({a},{b}) ~m*{b} torch.logical_and({a},{b}) torch.true_divide({a},{b})
    torch.floor_divide({a},{b}) torch.clamp({a},{b}) torch.clamp({a},max={b}) torch.hypot({a},{b})
    torch.heaviside({a},{b}) torch.masked_fill({a},m,{b}) torch.bitwise_and({a},{b}) torch.ldexp({a},{b})
    torch.lerp({a},{a},{b}) torch.full_like({a},{b}) torch.eq({a},{b}) ({a}+(~m)*{b}).float().softmax(-1)
    torch.addcmul({a},{a},{a},value={b}) x.clone().add_({b}) x.clone().fill_({b}) torch.where(m,{b},2)
    torch.where(m,{b},2.5) torch.isclose({a},{a}*{b})
""".split()


def inputs(dtype: str) -> dict[str, torch.Tensor]:
    """The tensors that programs name, on the CPU: no zeros, which integers cannot be divided by."""
    values = [1, 1, 0, 1, 0, 0] if dtype == "bool" else [1, 2, 5, 1, 7, 3]
    return {
        "x": torch.tensor(values, dtype=getattr(torch, dtype)),
        "m": torch.tensor([True, False, True, True, False, False]),
        "zb": torch.tensor(True),
        "zi": torch.tensor(3),
        "zf": torch.tensor(0.7, dtype=torch.float64),
    }


def expressions(dtype: str, numbers: Sequence[str], forms: Sequence[str], kernels: bool = False) -> list[str]:
    """Those that PyTorch's CPU runs for a dtype; with ``kernels`` without ordinary ops, as bool to the power of
    bool is, and what reads no tensor's value, as filling with a 0-dim tensor does."""
    if kernels and dtype == "bool":
        forms = [form for form in forms if "**" not in form and "clamp(" not in form]
    pairs = [pair for number in numbers for pair in (("x", number), (number, "x"))]
    found = [form.format(a=a, b=b) for a, b in pairs for form in forms]
    if kernels:
        found = [one for one in found if not re.search(r"full_like\(x,z|full_like\(z.,x|value=z", one)]
    return [one for one in dict.fromkeys(found) if _runs(one, inputs(dtype))]


def _runs(expression: str, given: dict[str, torch.Tensor]) -> bool:
    try:
        eval(expression, {"torch": torch}, given)
    except (RuntimeError, TypeError, AttributeError, NotImplementedError):
        return False
    return True


def source(names: Sequence[str]) -> str:
    """A function ``run`` of x, m, zb, zi and zf that gives the value of every expression."""
    values = ", ".join(names)
    return f"def run(x, m, zb, zi, zf):\n    return [{values}]\n"


def program(names: Sequence[str]) -> Callable[..., Any]:
    """The same as a Python function."""
    space: dict[str, Any] = {"torch": torch}
    exec(source(names), space)
    made: Callable[..., Any] = space["run"]
    return made


def scripted(names: Sequence[str]) -> Any:
    """The same as TorchScript."""
    return torch.jit.CompilationUnit(source(names)).run


def scriptable(names: Sequence[str], given: Sequence[torch.Tensor]) -> list[str]:
    """Those that TorchScript has and that mean the same there: it has no type for a bool that is a number, and its
    parser of texts takes ~m*x for ~(m*x)."""
    found = []
    for name in names:
        try:
            (theirs,), (ours,) = scripted([name])(*given), program([name])(*given)
        except (RuntimeError, NotImplementedError):
            continue
        if theirs.dtype == ours.dtype and torch.allclose(theirs.double(), ours.double(), equal_nan=True):
            found.append(name)
    return found
