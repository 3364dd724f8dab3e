"""Programs about the eager kernel route, with kernels and plans written by hand: ``main`` runs all in one process.

The resolver here stands in for the lowering: ``PLANS`` maps an overload to a function of its arguments and outputs.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

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
IMMEDIATE, TENSOR, OUTPUT, TEMPORARY, SCALAR, SEED, OFFSET = range(7)
POINTWISE, RANDOM, FUNCTIONAL, REFUSED = 1, 2, 4, 8
EQ, NE, LT, GE, GT, LE = range(6)
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
PROGRAMS: dict[str, Callable[[], None]] = {}
seen: list[tuple[str, list[Any], list[Any] | None]] = []  # what the resolver was asked
loaded: dict[tuple[int, str], int] = {}
binary = b""


def program(run: Callable[[], None]) -> Callable[[], None]:
    PROGRAMS[run.__name__] = run
    return run


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
    return core.make_plan([], [], [], FUNCTIONAL)


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


def asked(op: str) -> list[tuple[list[Any], list[Any] | None]]:
    return [(arguments, outputs) for name, arguments, outputs in seen if name == op]


def fallbacks() -> dict[str, int]:
    return {row["op"]: row["calls"] for row in core.ledger()}


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


@contextmanager
def answered_by(op: str, make: Describe) -> Iterator[None]:
    before = PLANS[op]
    PLANS[op] = make
    try:
        yield
    finally:
        PLANS[op] = before


# ---- programs ----
@program
def a_signature_is_resolved_once() -> None:
    x, y = on_device(4), on_device(4)
    for _ in range(5):
        same(x.add(y, alpha=3), floats(4) * 4)
    assert len(asked("aten::add.Tensor")) == 1
    assert (info()["hits"], info()["misses"], info()["plans"]) == (4, 1, 1), info()
    arguments, outputs = asked("aten::add.Tensor")[0]
    tensor = ("t", 0, FLOAT, (4,), (1,), 2)
    assert arguments == [tensor, ("t", 1, *tensor[2:]), ("s", 0, None, 3, 0)]
    assert outputs == [("new", FLOAT, (4,), (1,))]
    assert fallbacks() == {}
    assert core.routes()["aten::add.Tensor"] == "kernel"


@program
def new_shapes_are_new_signatures() -> None:
    for n in range(1, 6):
        same(on_device(n).add(on_device(n)), floats(n) * 2)
    same(on_device(2, 0).add(on_device(2, 0)), floats(2, 0))
    assert info()["entries"] == 6, info()


@program
def scalars_are_data() -> None:
    x, y = on_device(3), on_device(3)
    for i in range(10_000):
        x.add(y, alpha=i * 0.5)
    same(x.add(y, alpha=0.25), floats(3) * 1.25)
    assert (info()["entries"], info()["misses"]) == (1, 1), info()
    x.add(y, alpha=2)  # an int is another kind of number: it takes part in promotion
    assert info()["entries"] == 2


@program
def signatures_are_forgotten_in_turn() -> None:
    y = on_device(1)
    kept = on_device(2000)
    for n in range(600):
        x = torch.empty(n + 1, device="sim")
        x.add(x)
        kept.add(kept)
    del y
    assert info()["entries"] == 512, info()
    before = info()["misses"]
    kept.add(kept)
    assert info()["misses"] == before, "the one in use was forgotten"


@program
def guards_choose_between_plans() -> None:
    x = on_device(3)
    for _ in range(3):
        same(x.pow(2), floats(3) ** 2)
        same(x.pow(3), floats(3) * 3)
        same(x.pow(5), floats(3) * 5)
        same(x.pow(101), floats(3) ** 101)
        same(x.pow(102), floats(3) ** 102)
    counts = {"entries": 1, "plans": 2, "refused": 1, "misses": 3, "hits": 12}
    assert info() == counts, info()
    assert fallbacks() == {"aten::pow.Tensor_Scalar": 6}
    before = info()["misses"]
    for _ in range(3):
        x.pow(math.nan)
    assert info()["misses"] == before + 1, "of a NaN no relation holds but those that begin with not"


@program
def in_place_writes_where_it_lies() -> None:
    x, y = on_device(4), on_device(4)
    address = x.data_ptr()
    for _ in range(2):
        assert x.add_(y) is x
    same(x, floats(4) * 3)
    assert x.data_ptr() == address
    assert asked("aten::add_.Tensor")[0][1] == [("arg", 0)]
    same(x.add_(x), floats(4) * 6)


@program
def out_is_resized_with_a_warning() -> None:
    x, y = on_device(4), on_device(4)
    for _ in range(2):  # a miss, then a hit
        for size, wanted in ((0, 0), (3, 1), (4, 0), (9, 1)):
            out = torch.empty(size, device="sim")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert torch.add(x, y, out=out) is out
            assert sum("was resized" in str(w.message) for w in caught) == wanted, (size, [str(w) for w in caught])
            same(out, floats(4) * 2)
    assert info()["entries"] == 4
    for arguments, outputs in asked("aten::add.out"):  # shown as it will be
        assert arguments[3] == ("t", 2, FLOAT, (4,), (1,), 2), arguments
        assert outputs == [("arg", 2)], outputs
    assert fallbacks() == {}


@program
def overlaps_are_pytorchs_errors() -> None:
    for _ in range(2):
        both_say(lambda x: x[1:].add_(x[:-1]), floats(6))
        both_say(lambda x: torch.add(x[:-1], x[:-1], out=x[1:]), floats(6))
    both_say(lambda x: x.expand(4).add_(1), floats(1))
    x = on_device(6)
    same(torch.add(x[:3], x[3:], out=x[:3]), floats(6)[:3] + floats(6)[3:])


@program
def a_kernel_that_reads_what_it_wrote_gets_a_copy() -> None:
    for _ in range(2):
        x = on_device(4)
        assert torch.cumsum(x, 0, out=x) is x
        same(x, floats(4).cumsum(0))
        x = on_device(6)
        torch.cumsum(x[:4], 0, out=x[2:])
        same(x[2:], floats(4).cumsum(0))
        x = on_device(4)
        same(x.cumsum_(0), floats(4).cumsum(0))
    apart = torch.empty(4, device="sim")
    same(torch.cumsum(on_device(4), 0, out=apart), floats(4).cumsum(0))
    assert fallbacks() == {}


@program
def meta_promotes_and_refuses() -> None:
    whole = torch.arange(4).to("sim")
    same(on_device(4).add(whole), floats(4) + torch.arange(4))
    assert asked("aten::add.Tensor")[0][1] == [("new", FLOAT, (4,), (1,))]
    both_say(lambda a, b: a + b, floats(3), floats(4))
    both_say(lambda a, b: a.add_(b), floats(3), floats(2, 3))
    both_say(lambda a, b: a.add_(b), torch.arange(3), floats(3))
    both_say(lambda a: a.add(a, alpha=1.5), torch.arange(3))
    both_say(lambda a, i: a.gather(0, i), floats(3), floats(3))


@program
def strides_come_from_meta() -> None:
    x = floats(2, 3, 4, 5).to(memory_format=torch.channels_last)
    result = x.to("sim").add(x.to("sim"))
    assert result.stride() == x.stride()
    same(result, x + x)


@program
def cpu_numbers_are_scalars() -> None:
    x = on_device(4)
    for value in (2.0, 3, torch.tensor(0.5), torch.tensor(4, dtype=torch.int8), torch.tensor(1.5, dtype=torch.half)):
        for _ in range(2):
            same(x.mul(value), floats(4) * value)
    numbers = [arguments[1] for arguments, _ in asked("aten::mul.Tensor")]
    assert [(n[0], n[1], n[3], n[4]) for n in numbers] == [
        ("n", 0, 2.0, 1),
        ("n", 0, 3, 1),
        ("n", 0, 0.5, 0),
        ("n", 0, 4, 0),
        ("n", 0, 1.5, 0),
    ], numbers
    assert fallbacks() == {}


@program
def scalars_that_do_not_fit_are_errors() -> None:
    x = torch.zeros(3, dtype=torch.int8, device="sim")
    same(x.fill_(-5), torch.full((3,), -5, dtype=torch.int8))
    both_say(lambda x: x.fill_(300), torch.zeros(3, dtype=torch.int8))
    same(x.fill_(7), torch.full((3,), 7, dtype=torch.int8))


@program
def mixed_devices_are_an_error() -> None:
    x = on_device(3)
    for other in (floats(3), floats(3).to("sim:1")):
        with raises(RuntimeError, "Expected all tensors to be on the same device", "sim:0", str(other.device)):
            x.add(other)
    with raises(RuntimeError, "Expected all tensors to be on the same device", "cpu"):
        torch.add(x, x, out=torch.empty(3))
    same(floats(3).to("sim:1").add(floats(3).to("sim:1")), floats(3) * 2)


@program
def no_plan_is_a_counted_fallback() -> None:
    x = torch.arange(4).to("sim")
    for _ in range(3):
        same(x.add(x), torch.arange(4) * 2)
    assert fallbacks() == {"aten::add.Tensor": 3}
    assert (info()["refused"], info()["misses"], info()["hits"]) == (1, 1, 2), info()
    x = on_device(3)
    with answered_by("aten::_foreach_add.List", lambda *_: None):  # a composite: its parts have kernels
        torch._foreach_add([x], [x])
    assert fallbacks() == {"aten::add.Tensor": 3}


@program
def what_the_resolver_raises_is_raised() -> None:
    def fail(*_: Any) -> None:
        raise KeyError("no luck")

    x = on_device(5)
    with answered_by("aten::add.Tensor", fail):
        for _ in range(2):
            with raises(KeyError, "no luck"):
                x.add(x)
    with answered_by("aten::add.Tensor", lambda *_: "nonsense"), raises(TypeError, "Plan or None"):
        x.add(x)
    with (
        answered_by("aten::add.Tensor", lambda *_: only("add", 5, (TENSOR, 7, 0))),
        raises(ValueError, "tensor 7 of 2"),
    ):
        x.add(x)
    same(x.add(x), floats(5) * 2)

    leaf = on_device(7).requires_grad_()
    product = (leaf * leaf).sum()
    with answered_by("aten::mul.Tensor", fail), raises(KeyError, "no luck"):
        product.backward(torch.ones((), device="sim"))


@program
def a_resolver_may_call_ops() -> None:
    def recurse(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
        x = on_device(6)
        same(x.add(x), floats(6) * 2)
        return plan_add(arguments, outputs)

    x = on_device(6)
    with answered_by("aten::add.Tensor", recurse):
        same(x.add(x), floats(6) * 2)
    assert fallbacks() == {"aten::add.Tensor": 1}


@program
def eight_threads_resolve_once() -> None:
    calls = []

    def slowly(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
        calls.append(arguments[0][3])
        time.sleep(0.05)
        return plan_add(arguments, outputs)

    failures: list[str] = []

    def work(number: int) -> None:
        try:
            for n in range(1, 9):
                x = on_device(n)
                for _ in range(200):
                    same_sum = x.add(x)
                same(same_sum, floats(n) * 2)
        except BaseException:
            failures.append(traceback.format_exc())

    with answered_by("aten::add.Tensor", slowly):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not failures, failures[0]
    assert sorted(calls) == [(n,) for n in range(1, 9)], calls
    assert fallbacks() == {}


@program
def backward_misses_on_autograds_thread() -> None:
    threads = []

    def note(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
        threads.append(threading.get_ident())
        return plan_mul(arguments, outputs)

    with answered_by("aten::mul.Tensor", note):
        x, y = on_device(9).requires_grad_(), on_device(9)
        z = x * y
        core.kernel_cache_clear()
        z.backward(on_device(9))
    same(x.grad, floats(9) ** 2)
    assert len(set(threads)) == 2, threads


@program
def an_index_out_of_range_names_the_op() -> None:
    x = on_device(5)
    for _ in range(2):
        with raises(IndexError, "aten::gather: index 9 is out of range for a dimension of 5"):
            x.gather(0, torch.tensor([1, 9, 2]).to("sim"))
        same(x.gather(0, torch.tensor([4, 0]).to("sim")), floats(5)[[4, 0]])
    torch.accelerator.synchronize()


@program
def random_plans_draw_from_the_generator() -> None:
    x = torch.zeros(2, dtype=torch.int64, device="sim")
    drawn = []
    for generator in (None, None, torch.Generator("sim").manual_seed(77), None):
        torch.manual_seed(5) if not drawn else None
        drawn.append(x.random_(generator=generator).tolist())
    (seed, first), (again, second), (other, begin), (_, third) = drawn
    assert (seed, again, other, begin) == (5, 5, 77, 0), drawn
    assert first < second < third, drawn
    assert second - first == third - second, drawn
    assert len(asked("aten::random_")) == 1


@program
def lists_are_flattened() -> None:
    left, right = [on_device(2), on_device(3)], [on_device(2), on_device(3)]
    for _ in range(2):
        for result, n in zip(torch._foreach_add(left, right, alpha=2), (2, 3), strict=True):
            same(result, floats(n) * 3)
    arguments, outputs = asked("aten::_foreach_add.List")[0]
    assert [tensor[1] for part in arguments[:2] for tensor in part] == [0, 1, 2, 3]
    assert outputs == [("new", FLOAT, (2,), (1,)), ("new", FLOAT, (3,), (1,))]
    torch._foreach_add_(left, right)
    same(left[1], floats(3) * 2)
    assert fallbacks() == {}


@program
def an_op_without_a_meta_kernel_says_what_comes_out() -> None:
    for _ in range(2):
        same(torch.ops.kernel_route.twice(on_device(3, 2)), floats(3, 2) * 2)


@program
def sizes_that_numbers_decide_are_keys() -> None:
    for end in (3, 5, 3.5):
        same(torch.arange(end, device="sim"), torch.arange(end))
    assert [outputs for _, outputs in asked("aten::arange.start_out")] == [[("arg", 0)]] * 3


@program
def indices_may_come_from_the_cpu() -> None:
    same(on_device(4)[torch.tensor([2, 0])], floats(4)[[2, 0]])
    (arguments, outputs), *_ = asked("aten::index.Tensor")
    assert arguments[1][0][:3] == ("t", 1, 4), arguments
    assert outputs == [("new", FLOAT, (2,), (1,))]


@program
def modes_do_not_see_the_miss() -> None:
    ops = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ops.append(str(op))
            return op(*args, **(kwargs or {}))

    x, image = on_device(11), on_device(1, 2, 4, 4)
    with Watch(), Watch():
        x.add(x)
        torch.ops.aten._adaptive_avg_pool2d(image, [2, 2])
    assert ops == ["aten.add.Tensor"] * 2 + ["aten._adaptive_avg_pool2d.default"] * 2, ops
    assert asked("aten::_adaptive_avg_pool2d")[0][1] == [("new", FLOAT, (1, 2, 2, 2), (8, 4, 2, 1))]


# ---- one process ----
def main() -> None:
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
    for name, run in PROGRAMS.items():
        core.kernel_cache_clear()
        core.ledger_reset()
        seen.clear()
        try:
            run()
            results[name] = None
        except BaseException:
            results[name] = traceback.format_exc()
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    assert "mode=kernels" in os.environ.get("BRINGUP_SIM", "")
    main()
