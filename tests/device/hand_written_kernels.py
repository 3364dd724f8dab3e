"""Kernels and plans written by hand, in place of the lowering.

``PLANS`` maps an overload to a function of its arguments and outputs. ``run_programs`` puts them behind the dispatcher,
runs programs and prints what went wrong with each.
"""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bringup import _C as core

SOURCE = r"""
#include <stdint.h>
#define KERNEL(name) void name(const uint64_t *a, int64_t begin, int64_t end, int64_t *report)
#define IN(i) ((const float *)a[i])
#define OUT(i) ((float *)a[i])
static float number(uint64_t bits) { union { uint32_t u; float f; } both = {(uint32_t)bits}; return both.f; }
KERNEL(add) { for (int64_t i = begin; i < end; ++i) OUT(2)[i] = IN(0)[i] + number(a[3]) * IN(1)[i]; }
KERNEL(mul) { for (int64_t i = begin; i < end; ++i) OUT(2)[i] = IN(0)[i] * IN(1)[i]; }
KERNEL(scale) { for (int64_t i = begin; i < end; ++i) OUT(1)[i] = IN(0)[i] * number(a[2]); }
KERNEL(cumsum) { float sum = 0; for (int64_t i = 0; i < (int64_t)a[2]; ++i) OUT(1)[i] = sum += IN(0)[i]; }
KERNEL(gather) {
  for (int64_t i = begin; i < end; ++i) {
    int64_t at = ((const int64_t *)a[1])[i];
    if (at < 0 || at >= (int64_t)a[3]) {
      if (!report[0]) report[0] = 1, report[1] = at, report[2] = (int64_t)a[3];
      at = 0;
    }
    OUT(2)[i] = IN(0)[at];
  }
}
KERNEL(draw) { ((int64_t *)a[0])[0] = a[1]; ((int64_t *)a[0])[1] = a[2]; }
KERNEL(fill) { for (int64_t i = begin; i < end; ++i) ((int8_t *)a[0])[i] = (int8_t)a[1]; }
"""
IMMEDIATE, TENSOR, OUTPUT, TEMPORARY, SCALAR, SEED, OFFSET = (
    core.SOURCES.index(kind) for kind in ("immediate", "tensor", "output", "temporary", "number", "seed", "offset")
)
POINTWISE, RANDOM, REFUSED, _ = core.PLAN_FLAGS
EQ, NE, LT, GE, GT, LE = (core.RELATIONS.index(name) for name in ("eq", "ne", "lt", "ge", "gt", "le"))
FLOAT, INT8 = 6, 1

REGISTERED = {
    "aten::add.Tensor": "",
    "aten::add_.Tensor": "aten::add.Tensor",
    "aten::add.out": "aten::add.Tensor",
    "aten::mul.Tensor": "",
    "aten::pow.Tensor_Scalar": "",
    "aten::cumsum": "",
    "aten::cumsum_": "aten::cumsum",
    "aten::cumsum.out": "aten::cumsum",
    "aten::gather": "",
    "aten::random_": "",
    "aten::fill_.Scalar": "",
    "aten::_foreach_add.List": "",
    "aten::_foreach_add_.List": "aten::_foreach_add.List",
    "aten::_adaptive_avg_pool2d": "",
    "aten::arange.start_out": "",
    "aten::index.Tensor": "",
    "kernel_route::twice": "",
}

Describe = Callable[[list[Any], "list[Any] | None"], Any]
PLANS: dict[str, Describe] = {}
seen: list[tuple[str, list[Any], list[Any] | None]] = []  # what the resolver was asked
loaded: dict[tuple[int, str], int] = {}
binary = b""


def plan(op: str) -> Callable[[Describe], Describe]:
    def register(make: Describe) -> Describe:
        PLANS[op] = make
        return make

    return register


# ---- the resolver ----
device_of_call = threading.local()


def resolve(op: str, device: int, arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
    seen.append((op, arguments, outputs))
    device_of_call.index = device
    make = PLANS.get(op)
    return make(arguments, outputs) if make else None


def launch(name: str, units: int, *args: tuple[int, int, int]) -> tuple[Any, ...]:
    key = (device_of_call.index, name)
    if key not in loaded:
        loaded[key] = core.load_kernel(key[0], binary, name)
    return (loaded[key], units, float(units), 8.0 * units, args)


def only(name: str, units: int, *args: tuple[int, int, int], flags: int = POINTWISE, guards: Any = ()) -> core.Plan:
    return core.make_plan([launch(name, units, *args)], [], guards, flags)


def dense_floats(*tensors: Any) -> bool:
    """Whether the arguments are equal, contiguous float32 tensors of the device."""
    return all(t[0] == "t" and t[2] == FLOAT and t[5] & 2 and t[3] == tensors[0][3] for t in tensors)


def numel(tensor: Any) -> int:
    return math.prod(tensor[3])


@plan("aten::add.Tensor")
def plan_add(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
    x, y, _alpha = arguments
    if not dense_floats(x, y):
        return None
    return only("add", numel(x), (TENSOR, 0, 0), (TENSOR, 1, 0), (OUTPUT, 0, 0), (SCALAR, 0, FLOAT))


@plan("aten::add_.Tensor")
def plan_add_(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
    return plan_add(arguments, outputs)


@plan("aten::add.out")
def plan_add_out(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
    return plan_add(arguments[:3], outputs)


@plan("aten::mul.Tensor")
def plan_mul(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
    x, y = arguments
    if y[0] == "n" and dense_floats(x):
        return only("scale", numel(x), (TENSOR, 0, 0), (OUTPUT, 0, 0), (SCALAR, 0, FLOAT))
    if not dense_floats(x, y):
        return None
    return only("mul", numel(x), (TENSOR, 0, 0), (TENSOR, 1, 0), (OUTPUT, 0, 0))


@plan("aten::pow.Tensor_Scalar")
def plan_pow(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
    x, exponent = arguments
    if exponent[3] == 2:
        args = ((TENSOR, 0, 0), (TENSOR, 0, 0), (OUTPUT, 0, 0))
        return only("mul", numel(x), *args, guards=[(0, EQ, 2)])
    if exponent[3] > 100:
        return core.make_plan([], [], [(0, GT, 100)], REFUSED)
    # Wrong on purpose: it shows which plan was taken.
    guards = [(0, NE, 2.0), (0, LE, 100)]
    return only("scale", numel(x), (TENSOR, 0, 0), (OUTPUT, 0, 0), (SCALAR, 0, FLOAT), guards=guards)


def plan_cumsum(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
    return only("cumsum", 1, (TENSOR, 0, 0), (OUTPUT, 0, 0), (IMMEDIATE, numel(arguments[0]), 0), flags=0)


for form in ("aten::cumsum", "aten::cumsum_", "aten::cumsum.out"):
    PLANS[form] = plan_cumsum


@plan("aten::gather")
def plan_gather(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
    source, _dim, index, _sparse = arguments
    args = ((TENSOR, 0, 0), (TENSOR, 1, 0), (OUTPUT, 0, 0), (IMMEDIATE, source[3][0], 0))
    return only("gather", numel(index), *args, flags=0)


@plan("aten::random_")
def plan_random_(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
    return only("draw", 1, (TENSOR, 0, 0), (SEED, 0, 0), (OFFSET, 0, 0), flags=POINTWISE | RANDOM)


@plan("aten::fill_.Scalar")
def plan_fill_(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
    if arguments[0][2] != INT8:
        return None
    return only("fill", numel(arguments[0]), (TENSOR, 0, 0), (SCALAR, 0, INT8))


@plan("aten::_foreach_add.List")
def plan_foreach_add(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
    left, right, _alpha = arguments
    launches = [
        launch("add", numel(x), (TENSOR, x[1], 0), (TENSOR, y[1], 0), (OUTPUT, i, 0), (SCALAR, 0, FLOAT))
        for i, (x, y) in enumerate(zip(left, right, strict=True))
    ]
    return core.make_plan(launches, [], [], POINTWISE)


@plan("aten::_foreach_add_.List")
def plan_foreach_add_(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
    return core.make_plan([], [], [], 0)


@plan("kernel_route::twice")
def plan_twice(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
    """Two launches with a temporary between them: x + x, then that times 1; the op has no meta kernel."""
    assert outputs is None
    (x,) = arguments
    count = numel(x)
    first = launch("add", count, (TENSOR, 0, 0), (TENSOR, 0, 0), (TEMPORARY, 0, 0), (IMMEDIATE, 0x3F800000, 0))
    second = launch("scale", count, (TEMPORARY, 0, 0), (OUTPUT, 0, 0), (IMMEDIATE, 0x3F800000, 0))
    return core.make_plan([first, second], [4 * count], [], POINTWISE, [(x[2], x[3], x[4])])


# ---- what programs ask ----
def info() -> dict[str, int]:
    return core.kernel_cache_info()


def fallbacks() -> dict[str, int]:
    return {op: calls for op, _, calls, *_ in core.ledger()}


def floats(*shape: int) -> torch.Tensor:
    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape) + 1


def on_device(*shape: int) -> torch.Tensor:
    return floats(*shape).to("sim")


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), (actual, expected)
    assert torch.equal(actual.cpu(), expected), (actual.cpu(), expected)


def both_say(function: Callable[..., Any], *tensors: torch.Tensor) -> None:
    """The device refuses with the CPU's class and words."""
    errors = []
    for device in ("cpu", "sim"):
        try:
            function(*(t.to(device) for t in tensors))
        except Exception as error:
            errors.append((type(error), str(error)))
        else:
            raise AssertionError(f"{device} does not refuse")
    assert errors[0] == errors[1], errors


@contextmanager
def raises(kind: type[BaseException], *words: str) -> Iterator[None]:
    text = None
    try:
        yield
    except kind as error:
        text = str(error)
    assert text is not None, f"no {kind.__name__}"
    assert all(word in text for word in words), text


def asked(op: str) -> list[tuple[list[Any], list[Any] | None]]:
    return [(arguments, outputs) for name, arguments, outputs in seen if name == op]


@contextmanager
def answered_by(op: str, make: Describe) -> Iterator[None]:
    before = PLANS[op]
    PLANS[op] = make
    try:
        yield
    finally:
        PLANS[op] = before


# ---- one process ----
def run_programs(programs: Mapping[str, Callable[[], None]]) -> None:
    global binary
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernels.c")
        source.write_text(SOURCE)
        command = ["cc", "-O2", "-shared", "-fPIC", "-nostdlib", "-o", f"{folder}/kernels.so", str(source)]
        subprocess.run(command, check=True)
        binary = Path(folder, "kernels.so").read_bytes()
    torch.library.define("kernel_route::twice", "(Tensor x) -> Tensor")
    core.ensure_open(0)  # registers the lowered ops, which the hand-written ones then replace
    core.set_kernel_resolver(resolve)
    core.register_kernels(list(REGISTERED.items()))
    results = {}
    for name, run in programs.items():
        core.kernel_cache_clear()
        core.ledger_reset()
        seen.clear()
        try:
            run()
            results[name] = None
        except BaseException:
            results[name] = traceback.format_exc()
    print(json.dumps(results), flush=True)
