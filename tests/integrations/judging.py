"""Runs a program of a library on the CPU and on the device, and compares both with the CPU in float64.

A program is a function ``run(device, dtype)`` that builds everything from a seed and returns named tensors. It runs
three times: in float64 on the CPU, and in the case's precision on the CPU and on the device. The device's error against
float64 may be twice the CPU's own, plus a little; integers must be equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Tensors = Mapping[str, torch.Tensor]
Run = Callable[[str, torch.dtype], Tensors]
#: Twice the CPU's own error: its sums have another order.
FACTOR = 2.0


def floor_of(precision: torch.dtype) -> float:
    """Returns the error that is always allowed, as a part of the largest element: the CPU may hit a result exactly."""
    return max(16 * torch.finfo(torch.float32).eps, torch.finfo(precision).eps / 2)


@dataclass(frozen=True)
class Case:
    """A program of one library; ``precision`` is what it runs in where it does not run in float64."""

    library: str
    what: str
    run: Run
    precision: torch.dtype

    @property
    def name(self) -> str:
        return self.run.__name__


@dataclass(frozen=True)
class Verdict:
    """``error`` and ``cpu_error`` are of the tensor that came closest to its limit, in units of its largest element."""

    tensors: int
    error: float
    cpu_error: float
    of_limit: float
    worst: str
    fallbacks: tuple[str, ...]
    seconds: float


CASES: list[Case] = []


def case(library: str, what: str, precision: torch.dtype = torch.float32) -> Callable[[Run], Run]:
    """Adds a program to the list."""

    def add(run: Run) -> Run:
        CASES.append(Case(library, what, run, precision))
        return run

    return add


def judge(case: Case, device: str) -> Verdict:
    """Runs a case three times; raises AssertionError where the device's result is not the CPU's."""
    import bringup

    exact, usual = case.run("cpu", torch.float64), case.run("cpu", case.precision)
    bringup.reset_fallbacks()
    start = time.perf_counter()
    ours = case.run(device, case.precision)
    seconds = time.perf_counter() - start
    fallbacks = tuple(sorted({record.op for record in bringup.fallbacks()}))
    assert exact, "a program returns what it computed"
    assert exact.keys() == usual.keys() == ours.keys()
    wrong = {name: tensor.device for name, tensor in ours.items() if tensor.device.type != device}
    assert not wrong, f"not on {device}: {wrong}"
    # Some gradients are zero but for rounding, as that of a key's bias; their errors count at the others' scale.
    least = 0.01 * max((float(t.abs().max()) for t in exact.values() if t.is_floating_point() and t.numel()), default=0)
    found = [_compare(name, exact[name], usual[name], ours[name].cpu(), case.precision, least) for name in exact]
    of_limit, error, cpu_error, worst = max(found)
    too_far = [line for line in sorted(found, reverse=True) if not line[0] <= 1]
    assert not too_far, f"error over limit, error, the CPU's error, tensor: {too_far[:5]}"
    return Verdict(len(found), error, cpu_error, of_limit, worst, fallbacks, seconds)


def _compare(
    name: str, exact: torch.Tensor, usual: torch.Tensor, ours: torch.Tensor, precision: torch.dtype, least: float
) -> tuple[float, float, float, str]:
    """Returns (error over its limit, error, the CPU's error, name)."""
    assert ours.shape == usual.shape, f"{name}: {tuple(ours.shape)}, on the CPU {tuple(usual.shape)}"
    assert ours.dtype == usual.dtype, f"{name}: {ours.dtype}, on the CPU {usual.dtype}"
    if not ours.is_floating_point():
        assert torch.equal(ours, usual), f"{name} differs: {ours}, on the CPU {usual}"
        return 0.0, 0.0, 0.0, name
    if exact.numel() == 0:
        return 0.0, 0.0, 0.0, name
    scale = max(float(exact.abs().max()), least) or 1.0
    cpu_error = float((usual.double() - exact).abs().max()) / scale
    error = float((ours.double() - exact).abs().max()) / scale
    limit = FACTOR * cpu_error + floor_of(precision)
    return error / limit if error == error else float("inf"), error, cpu_error, name
