"""What tests of the TorchScript pass share: fresh functions, what became of them, a fair comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import bringup.jit


def fresh(function: Callable[..., Any]) -> Any:
    """A script function that has not run: torch.jit.script keeps what it made of a function, for other tests too."""
    scripted = torch.jit.script(function)
    scripted._debug_flush_compilation_cache()
    return scripted


def optimized(function: Callable[..., Any], *inputs: Any) -> Any:
    """The function as the JIT runs it after its second call, checked against eager at each of them."""
    scripted = fresh(function)
    for _ in range(3):
        check(scripted, function, *inputs)
    return scripted


def check(scripted: Any, function: Callable[..., Any], *inputs: Any) -> None:
    """Same results, and the same writes to the inputs."""
    own, eager = ([copied(value) for value in inputs] for _ in range(2))
    torch.testing.assert_close(scripted(*own), function(*eager), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(own, eager, rtol=2e-5, atol=2e-5)


def copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def groups_of(scripted: Any) -> list[list[str]]:
    return [[op.removeprefix("aten::") for op in group.ops] for group in bringup.jit.report(scripted).groups]


def reasons_of(scripted: Any) -> dict[str, str]:
    return {row.op.removeprefix("aten::"): row.reason for row in bringup.jit.report(scripted).left_out}


def never_op_by_op(scripted: Any) -> bool:
    return all(group.compiled and not group.op_by_op for group in bringup.jit.report(scripted).groups)
