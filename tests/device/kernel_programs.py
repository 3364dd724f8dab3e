"""How programs on compiled kernels are compared with the CPU; ``main`` runs all of a group in one process.

``strict`` programs run where a fallback is an error; ``lenient`` ones need fallbacks. They are in the files of
``load_programs``.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

import bringup

DEVICE = "sim"
STRICT: dict[str, Callable[[], None]] = {}
LENIENT: dict[str, Callable[[], None]] = {}

#: Beyond rounding: sums in another order. Halves as torch.testing has them.
TOLERANCE = {torch.float32: {"rtol": 2e-5, "atol": 2e-5}, torch.float64: {"rtol": 1e-10, "atol": 1e-10}}


def strict(function: Callable[[], None]) -> Callable[[], None]:
    STRICT[function.__name__] = function
    return function


def lenient(function: Callable[[], None]) -> Callable[[], None]:
    LENIENT[function.__name__] = function
    return function


# ---- comparing ----
def moved(value: Any, device: str) -> Any:
    """Copies on a device with the same strides, which share memory with nothing."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) + 1 if tensor.numel() else 0
        held = torch.as_strided(tensor.detach(), (span,), (1,), tensor.storage_offset()).clone()
        there = held.to(device).as_strided(tensor.shape, tensor.stride(), 0)
        return there.detach().requires_grad_(tensor.requires_grad)

    return tree_map_only(torch.Tensor, move, value)


def tensors(value: Any) -> list[torch.Tensor]:
    return [part for part in tree_flatten(value)[0] if isinstance(part, torch.Tensor)]


def close(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    assert found.device.type == DEVICE, f"{what}: on {found.device}"
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), (what, found, expected)
    limits = TOLERANCE.get(expected.dtype, {})
    torch.testing.assert_close(
        found.detach().cpu(), expected.detach(), equal_nan=True, msg=lambda m: f"{what}: {m}", **limits
    )


def agree(function: Callable[..., Any], *inputs: Any, strides: bool = False) -> None:
    """Same results, and same gradients of every input that wants one."""
    what = getattr(function, "__name__", "")
    sides = []
    for device in ("cpu", DEVICE):
        values = moved(inputs, device)
        results = tensors(function(*values))
        leaves = [x for x in tensors(values) if x.requires_grad]
        pairs = [(y, plain(*y.shape, seed=7 + n).to(y)) for n, y in enumerate(results) if y.requires_grad]
        if pairs:
            torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs])
        sides.append((results, [leaf.grad for leaf in leaves]))
    (expected, gradients), (found, found_gradients) = sides
    assert len(found) == len(expected), what
    for n, (a, b) in enumerate(zip(found, expected)):
        close(a, b, f"{what} result {n}")
        assert not strides or a.stride() == b.stride(), (what, a.stride(), b.stride())
    for n, (a, b) in enumerate(zip(found_gradients, gradients)):
        assert (a is None) == (b is None), (what, n)
        if b is not None:
            close(a, b, f"{what} gradient {n}")


def leaf(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return plain(*shape, dtype=dtype, seed=seed).requires_grad_()


def plain(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (values * 3).to(dtype) if not dtype.is_floating_point and not dtype.is_complex else values.to(dtype)


def positive(*shape: int, seed: int = 0) -> torch.Tensor:
    return (plain(*shape, seed=seed).abs() + 0.1).requires_grad_()


def same_message(function: Callable[..., Any], *inputs: Any) -> None:
    """Both sides raise the same class with the same words, but for the name of the device."""
    said = []
    for device in ("cpu", DEVICE):
        try:
            function(*moved(inputs, device))
        except Exception as error:
            said.append((type(error), str(error).replace(f"{DEVICE}:0", "cpu").split("\nException raised")[0]))
        else:
            said.append((None, f"no error on {device}"))
    assert said[0] == said[1], said
    assert said[0][0] is not None, "the CPU takes it"


def fallbacks() -> dict[str, int]:
    return {row.op: row.calls for row in bringup.fallbacks()}


# ---- one process ----
def load_programs() -> None:
    """Registers all programs."""
    for name in ("ops", "forms", "mode", "corners"):
        import_module(f"tests.device.programs_kernel_{name}")


def main(group: str) -> None:
    """Prints a JSON object: each program's traceback, or None, and its seconds."""
    load_programs()
    results = {}
    for name, run in {"strict": STRICT, "lenient": LENIENT}[group].items():
        start = time.perf_counter()
        try:
            run()
            problem = None
        except BaseException:
            problem = traceback.format_exc()
        results[name] = (problem, time.perf_counter() - start)
        print(f"{name}: {results[name][1]:.2f} s{'' if problem is None else ' FAILED'}", file=sys.stderr)
    print(json.dumps(results), flush=True)
