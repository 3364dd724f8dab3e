"""Small PyTorch programs that any device must run: each takes a device string and compares with the CPU.

A process runs all programs of one driver variant and reports each as a line of JSON (``main``);
``test_other_drivers.py`` starts those processes. The programs themselves are in the ``programs_*.py`` files.
"""

from __future__ import annotations

import faulthandler
import json
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

#: Where programs are; importing one registers what it holds.
FILES = (
    "programs_tensors",
    "programs_copies",
    "programs_ops",
    "programs_networks",
    "programs_placement",
    "programs_runtime",
)
#: A program that takes longer hangs.
LIMIT_SECONDS = 60


@dataclass(frozen=True)
class Program:
    """A function of a device string; ``needs`` names the trait of a variant without which it makes no sense."""

    run: Callable[[str], Any]
    needs: str | None


PROGRAMS: dict[str, Program] = {}

EVERY_DTYPE = tuple(
    getattr(torch, name)
    for name in (
        "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex32 complex64 "
        "complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
    ).split()
)


def program(run: Callable[[str], Any] | None = None, *, needs: str | None = None) -> Any:
    """Registers a program under its function's name."""

    def register(run: Callable[[str], Any]) -> Callable[[str], Any]:
        assert run.__name__ not in PROGRAMS, run.__name__
        PROGRAMS[run.__name__] = Program(run, needs)
        return run

    return register if run is None else register(run)


def load_programs() -> dict[str, Program]:
    """All programs of all files."""
    for name in FILES:
        import_module(f"tests.device.{name}")
    return PROGRAMS


# ---- comparing ----
def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements in order, on the CPU: equal also where values are NaN or have no ``==``."""
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def identical(actual: torch.Tensor, expected: torch.Tensor, what: str = "") -> None:
    """The same shape, dtype and bits."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), (what, actual, expected)
    assert torch.equal(raw(actual), raw(expected)), f"{what}: {actual.cpu()} is not {expected}"


def close(actual: Any, expected: Any, device: str, exact: bool, what: str = "") -> None:
    """Results of a device and of the CPU, also in tuples, lists and dicts; tensors must be where they belong."""
    if isinstance(expected, torch.Tensor):
        assert actual.device == torch.device(device), f"{what}: result on {actual.device}, not on {device}"
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), (what, actual, expected)
        if exact:
            identical(actual, expected, what)
        else:
            # A kernel, or another CPU kernel (attention has several), adds sums up in another order.
            single = expected.dtype in (torch.float32, torch.complex64)
            tolerance = {"rtol": 2e-5, "atol": 2e-5} if single else {}
            torch.testing.assert_close(
                actual.detach().cpu(), expected.detach(), equal_nan=True, msg=lambda m: f"{what}: {m}", **tolerance
            )
    elif isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected), what
        for a, e in zip(actual, expected):
            close(a, e, device, exact, what)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected), what
        for key in expected:
            close(actual[key], expected[key], device, exact, f"{what} {key}")
    else:
        assert actual == expected, (what, actual, expected)


def move(value: Any, device: str) -> Any:
    """Copies of all tensors of a structure, on a device, that still share memory nowhere and keep their strides."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        there = tensor.detach().to(device, copy=True)
        return there.requires_grad_(tensor.requires_grad)

    return tree_map_only(torch.Tensor, moved, value)


def agree(device: str, function: Callable[..., Any], *inputs: Any, exact: bool = True, what: str = "") -> None:
    """The function gives the same on the device as on the CPU, from copies of the same inputs."""
    expected = function(*move(inputs, "cpu"))
    close(function(*move(inputs, device)), expected, device, exact, what or getattr(function, "__name__", ""))


def both_refuse(device: str, function: Callable[..., Any], *inputs: Any) -> None:
    """The CPU raises an error, and the device one of the same class."""
    try:
        function(*move(inputs, "cpu"))
    except Exception as error:
        refusal = error
    else:
        raise AssertionError(f"{function.__name__} works on the CPU")
    try:
        actual = function(*move(inputs, device))
    except type(refusal):
        return
    raise AssertionError(
        f"{function.__name__}: the CPU says {type(refusal).__name__}: {refusal}; {device} returned {actual!r}"
    )


@contextmanager
def refused(kind: type[BaseException], *words: str) -> Iterator[None]:
    """The block raises an error of this class whose message holds all the words."""
    try:
        yield
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        if missing:
            raise AssertionError(f"the error does not say {missing}: {error}") from error
    else:
        raise AssertionError(f"no {kind.__name__}")


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Small CPU numbers that every dtype holds, not all equal."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(0, 7, shape, generator=generator)
    if dtype.is_floating_point and dtype.itemsize >= 4:
        return whole.to(dtype) / 2 + torch.rand(shape, generator=generator, dtype=torch.float32).to(dtype)
    if dtype.is_complex and dtype.itemsize >= 8:
        return whole.to(dtype) * complex(1, -0.5)
    return whole.to(torch.float32).to(dtype)


# ---- one process ----
def main(device: str, results: str, names: list[str]) -> None:
    """Runs programs one after the other; ``results`` grows by a line at the start and at the end of each."""
    programs = load_programs()
    with open(results, "a", buffering=1, encoding="utf-8") as file:
        for name in names:
            print(json.dumps({"begin": name}), file=file)
            faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
            started, error, value = time.perf_counter(), None, None
            try:
                value = programs[name].run(device)
            except BaseException:
                error = traceback.format_exc()
            faulthandler.cancel_dump_traceback_later()
            seconds = round(time.perf_counter() - started, 3)
            print(json.dumps({"name": name, "error": error, "value": value, "seconds": seconds}), file=file)
