"""Programs on compiled kernels about how ops behave: layouts, types, targets, errors, threads, caches."""

from __future__ import annotations

import itertools
import math
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import bringup
from bringup import _C as core
from tests.device.device_programs import both_refuse, identical, refused
from tests.device.kernel_programs import (
    DEVICE,
    agree,
    close,
    fallbacks,
    leaf,
    lenient,
    plain,
    same_message,
    strict,
)

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

#: A sample of each family that has a loop of its own.
SAMPLE: dict[str, Callable[..., Any]] = {
    "add": lambda x: x + x.flip(0),
    "gelu": functional.gelu,
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "amax": lambda x: x.amax(1),
    "var": lambda x: x.var(-1),
    "softmax": lambda x: x.softmax(-1),
    "matmul": lambda x: x @ x.mT,
    "cumsum": lambda x: x.cumsum(0),
    "sort": lambda x: x.sort(-1)[0],
    "cat": lambda x: torch.cat([x, x], 0),
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
}


@strict
def every_layout() -> None:
    base = plain(12, 10, 14)
    views = {
        "transposed": base[0].t(),
        "steps": base[1, ::2, 1::3],
        "offset": base[2, 3:8, 2:9],
        "expanded": base[3, :1].expand(6, 14),
        "columns": base[:, :, 3],
        "permuted": base.permute(2, 0, 1),
        "one row": base[4, :1],
        "one column": base[4, :, :1],
    }
    for name, view in views.items():
        for function in SAMPLE.values():
            agree(function, view.detach().requires_grad_(name in ("transposed", "steps", "expanded")))


@strict
def zero_sizes_and_no_dimensions() -> None:
    for shape in ((0, 4), (3, 0), (0, 0), (2, 0, 3)):
        for name in ("add", "gelu", "sum", "softmax", "cumsum", "cat", "matmul", "sort"):
            agree(SAMPLE[name], plain(*shape))
    assert torch.zeros(0, 3, device=DEVICE).sum().item() == 0
    agree(lambda x: x.prod(0), plain(0, 3))
    both_refuse(DEVICE, lambda x: x.amax(0), plain(0, 3))
    for function in (torch.exp, torch.sum, lambda x: x.softmax(0), lambda x: x.cumsum(0), lambda x: x + x, torch.sort):
        agree(function, leaf())
    agree(lambda x, y: x * y, leaf(), leaf(3, 4))
    agree(lambda x: x.expand(3).sum(), leaf())


@strict
def broadcasting() -> None:
    for a, b in (((3, 1), (1, 4)), ((5, 3, 4), (4,)), ((1,), (2, 3)), ((2, 1, 3), (7, 1)), ((), (2, 2))):
        for op in (torch.add, torch.mul, torch.atan2, torch.maximum):
            agree(op, leaf(*a), leaf(*b, seed=1))
        agree(torch.where, plain(*a) > 0, leaf(*a), leaf(*b, seed=1))


@strict
def special_values() -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 3.4e38, 1e-45])
    functions = [torch.exp, torch.log, torch.sqrt, torch.tanh, torch.sigmoid, torch.relu, torch.sign, torch.floor]
    functions += [torch.isnan, torch.isinf, torch.abs, torch.reciprocal, torch.erf, torch.nan_to_num]
    for function in functions:
        agree(function, x)
    assert functional.gelu(x.to(DEVICE)).cpu()[1] == math.inf  # ATen's vectors say NaN
    pair = torch.cartesian_prod(x, x)
    for op in (
        torch.add,
        torch.sub,
        torch.mul,
        torch.div,
        torch.maximum,
        torch.minimum,
        torch.fmax,
        torch.eq,
        torch.lt,
    ):
        agree(lambda p, op=op: op(p[:, 0], p[:, 1]), pair)
    for op in (torch.max, torch.min, torch.sum, torch.argmax, torch.any, torch.logsumexp):
        with_dim = (lambda t, op=op: op(t, 0)) if op is torch.logsumexp else op
        agree(with_dim, x)
        agree(with_dim, x[1:])
    agree(lambda t: t.softmax(0), x[3:])


@strict
def odd_and_large_sizes() -> None:
    for n in (1, 3, 7, 31, 33, 127, 1025):
        agree(lambda x: functional.gelu(x).sum(), plain(n))
        agree(lambda x: x.softmax(-1), plain(3, n))
    for m, k, n in ((1, 7, 13), (17, 1, 3), (13, 129, 31), (65, 33, 1)):
        agree(torch.matmul, leaf(m, k), leaf(k, n, seed=1))
        agree(torch.matmul, leaf(3, m, k), leaf(3, k, n, seed=1))
    count = 20_000_003
    x = torch.arange(count, dtype=torch.int32, device=DEVICE)
    y = x + 1
    assert y[-1].item() == count
    assert y.sum().item() == count * (count + 1) // 2
    assert y.max().item() == count
    assert y.argmax().item() == count - 1
    assert y.flip(0)[0].item() == count
    assert torch.ones(count, device=DEVICE).sum().item() == float(torch.ones(count).sum())


@strict
def every_dtype() -> None:
    """What the CPU computes of a type the device computes, exactly where the type is exact; what it refuses, too."""
    sample = dict(SAMPLE)
    sample |= {
        "mul": lambda x: x * 3,
        "div": lambda x: x / 3,
        "floor_divide": lambda x: x // 2,
        "remainder": lambda x: x % 3,
        "compare": lambda x: x > 1,
        "not": lambda x: x.logical_not(),
        "prod": lambda x: x.prod(),
        "any": lambda x: x.any(1),
        "argmax": lambda x: x.argmax(1),
        "to float": lambda x: x.float(),
        "to int": lambda x: x.to(torch.int32),
        "where": lambda x: torch.where(x > 0, x, 2),
        "addmm": lambda x: torch.addmm(x[:, :4], x, x.mT[:, :4]),
        "fill": lambda x: torch.full_like(x, 2),
        "arange": lambda x: torch.arange(7, dtype=x.dtype, device=x.device),
    }
    for dtype in (*FLOATS, *INTEGERS, torch.bool):
        x = plain(6, 8, dtype=dtype)
        for name, function in sample.items():
            try:
                function(x)
            except RuntimeError:  # NotImplementedError is one
                with refused(RuntimeError):
                    function(x.to(DEVICE))
                continue
            try:
                agree(function, x)
            except NotImplementedError as error:
                raise AssertionError(f"{name} of {dtype}: {error}") from error


# ---- types, targets, formats ----
@strict
def promotion() -> None:
    kinds = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)
    for a, b in itertools.product(kinds, kinds):
        for op in (torch.add, torch.true_divide, torch.lt) if a in (torch.uint8, torch.float32) else (torch.add,):
            agree(op, plain(3, dtype=a), plain(3, dtype=b, seed=1))
        if a != b and torch.float64 not in (a, b):
            agree(torch.add, plain(3, dtype=a), plain(dtype=b, seed=1))
    for a in kinds:
        for number in (2, 2.5, True):
            agree(lambda x, n=number: x * n, plain(3, dtype=a))
        for number in (torch.tensor(2), torch.tensor(2.5, dtype=torch.float64)):
            # 0-dim CPU tensors stay where they are.
            close(plain(3, dtype=a).to(DEVICE) * number, plain(3, dtype=a) * number, f"{a} {number.dtype}")
            close(number - plain(3, dtype=a).float().to(DEVICE), number - plain(3, dtype=a).float(), f"{number} - {a}")


@strict
def in_place_and_out() -> None:
    x, y = plain(4, 3), plain(4, 3, seed=1)
    for name in ("add_", "mul_", "div_", "pow_", "atan2_", "copy_", "lt_"):
        agree(lambda a, b, name=name: getattr(a.clone(), name)(b), x.abs(), y)
    agree(lambda a: a.clone().exp_().clamp_(0, 1).cumsum_(0), x)
    agree(lambda a, b: torch.add(a, b, out=torch.empty(4, 3, dtype=torch.float64, device=a.device)), x, y)
    agree(lambda a, b: torch.mm(a, b.t(), out=torch.empty(4, 4, device=a.device).t()), x, y, strides=True)
    agree(lambda a: torch.sum(a, 0, out=torch.empty(3, device=a.device)), x)
    agree(
        lambda a: torch.sort(a, out=(torch.empty(0, device=a.device), torch.empty(0, dtype=torch.long).to(a.device))), x
    )
    same_message(lambda a, b: torch.add(a, b, out=torch.empty(4, 3, dtype=torch.int64, device=a.device)), x, y)
    same_message(lambda a, b: a.add_(b), x.long(), y)
    same_message(lambda a, b: a.add_(b), x[0], y)
    same_message(lambda a: torch.mm(a, a.t(), out=torch.empty(4, 4, dtype=torch.float64, device=a.device)), x)
    for size, expected in (((4, 3), 0), ((0,), 0), ((5,), 1)):
        for _ in range(2):
            out = torch.empty(size, device=DEVICE)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.mul(x.to(DEVICE), y.to(DEVICE), out=out)
                torch.sum(x.to(DEVICE), 0, out=torch.empty(3, device=DEVICE))
            assert sum("was resized" in str(w.message) for w in caught) == expected, [str(w.message) for w in caught]
            close(out, x * y, "resized")


@strict
def overlaps() -> None:
    line = plain(8)
    same_message(lambda a: a[1:].mul_(a[:-1]), line)
    same_message(lambda a: torch.exp(a[:-1], out=a[1:]), line)
    same_message(lambda a: a[:1].expand(8).add_(1), line)
    same_message(lambda a: torch.add(a, a, out=a[:1].expand(8)), line)
    agree(lambda a: torch.exp(a, out=a), line)
    agree(lambda a: torch.mul(a[::2], a[1::2], out=a[::2]), line)
    agree(lambda a: torch.cumsum(a, 0, out=a), line)


@strict
def channels_last_stays() -> None:
    x = plain(8, 4, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
    w = plain(4, 4, 3, 3, seed=1).to(memory_format=torch.channels_last)
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: functional.conv2d(t, w.to(t.device), padding=1),
        lambda t: functional.batch_norm(t, None, None, training=True),
        functional.relu,
        lambda t: t + t,
        lambda t: t * torch.ones(4, 1, 1, device=t.device),
        lambda t: functional.max_pool2d(t, 2),
        lambda t: functional.avg_pool2d(t, 2),
        lambda t: functional.interpolate(t, scale_factor=2),
        lambda t: functional.dropout(t, 0.0),
        lambda t: t.to(torch.bfloat16),
        torch.clone,
        torch.zeros_like,
    ]
    for function in functions:
        agree(function, x, strides=True)
    agree(lambda t: functional.relu(t), plain(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d), strides=True)


# ---- threads and modes ----
def on_threads(count: int, work: Callable[[int], None]) -> None:
    """Runs work(0), work(1) … at the same time; fails with the first of their errors."""
    failures: list[str] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


@strict
def eight_threads_with_new_shapes() -> None:
    def work(number: int) -> None:
        for n in range(1, 12):
            x = plain(n + number % 3, n + 1, seed=number)
            for function in (SAMPLE["add"], SAMPLE["gelu"], SAMPLE["softmax"], SAMPLE["matmul"], SAMPLE["sum"]):
                close(function(x.to(DEVICE)), function(x), f"thread {number}, {n}")

    on_threads(8, work)


@strict
def backward_on_many_threads() -> None:
    def work(number: int) -> None:
        for n in range(2, 8):
            agree(lambda x: (functional.gelu(x) @ x.mT).logsumexp(0), leaf(n, number + 2))

    on_threads(4, work)


@strict
def modes_of_autograd() -> None:
    x = plain(3, 4).to(DEVICE).requires_grad_()
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        y = functional.gelu(x) + 1
        assert y.is_inference()
        y.mul_(2)
        close(y, (functional.gelu(plain(3, 4)) + 1) * 2, "inference")
    (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    close(second, 6 * plain(3, 4), "second derivative")
    checked = torch.utils.checkpoint.checkpoint(lambda t: functional.gelu(t).sum(), x, use_reentrant=False)
    checked.backward()
    assert x.grad is not None


@strict
def function_transforms() -> None:
    x, w = plain(5, 3), plain(3, 4, seed=1)
    agree(lambda a, b: torch.vmap(lambda row: functional.softmax(row @ b, -1))(a), x, w)
    agree(lambda a, b: torch.vmap(torch.dot)(a, a.flip(0)) + b.sum(), x, w)
    agree(lambda a: torch.func.grad(lambda t: (t.sin() * t).sum())(a), x)
    agree(lambda a: torch.func.jvp(torch.tanh, (a,), (torch.ones_like(a),))[1], x)
    agree(lambda a: torch.func.jacrev(lambda t: t.cumsum(0).exp())(a[0]), x)
    agree(lambda a: torch.func.hessian(lambda t: (t**3).sum())(a[0]), x)


# ---- indices that do not fit ----
@strict
def index_errors_name_the_op() -> None:
    table, bad = plain(5, 3).to(DEVICE), torch.tensor([1, 7, 2]).to(DEVICE)
    for _ in range(2):
        with refused(IndexError, "aten::embedding", "index 7 is out of range for a dimension of 5"):
            functional.embedding(bad, table).cpu()
        with refused(IndexError, "aten::gather", "index 7"):
            table.gather(0, bad[:, None].expand(3, 3)).cpu()
        with refused(IndexError, "index"):
            table[bad].cpu()
        close(functional.embedding(bad.clamp(max=4), table), plain(5, 3)[[1, 4, 2]], "after the error")
    torch.accelerator.synchronize()


@strict
def late_index_errors_name_the_op() -> None:
    """Behind work that is still running, the error comes with the next wait, once."""
    table, bad = plain(5, 3).to(DEVICE), torch.tensor([1, 7, 2]).to(DEVICE)
    for name, call in (
        ("embedding", lambda: functional.embedding(bad, table)),
        ("gather", lambda: table.gather(0, bad[:, None].expand(3, 3))),
    ):
        torch.sim._sleep(50)
        result = call()
        with refused(IndexError, name, "index 7 is out of range for a dimension of 5"):
            result.cpu()
        close(table + 1, plain(5, 3) + 1, f"after the late error of {name}")
        torch.accelerator.synchronize()


# ---- the caches ----
@strict
def ten_thousand_scalars_are_one_entry() -> None:
    x = plain(6).to(DEVICE)
    calls: list[Callable[[float], torch.Tensor]] = [
        lambda n: x.add(x, alpha=n),
        lambda n: x * n,
        lambda n: x.clamp(n, n + 1),
        lambda n: functional.leaky_relu(x, n),
    ]
    for call in calls:
        call(2.5)
        before = core.kernel_cache_info()
        for step in range(10_000):
            call(1.25 + step * 0.37)
        after = core.kernel_cache_info()
        assert after["entries"] == before["entries"], (before, after)
        assert after["plans"] == before["plans"], (before, after)
        assert after["misses"] == before["misses"], (before, after)
    close(x * 3.25, plain(6) * 3.25, "a scalar is data")


@strict
def new_shapes_compile_nothing() -> None:
    from bringup.compile.kernel_cache import default_cache

    def work(n: int) -> None:
        x = plain(n, n + 2).to(DEVICE)
        functional.gelu(x).softmax(-1).sum(0)
        x @ x.mT

    work(40)
    asked = default_cache().hits + default_cache().misses
    for n in range(41, 60):
        work(n)
    assert default_cache().hits + default_cache().misses == asked


# ---- without a kernel ----
@lenient
def complex_numbers_fall_back() -> None:
    x = plain(3, dtype=torch.complex64)
    bringup.reset_fallbacks()
    close(x.to(DEVICE) * x.to(DEVICE), x * x, "complex")
    assert fallbacks().get("aten::mul.Tensor") == 1, fallbacks()
    with bringup.fallback_policy("error"), refused(NotImplementedError, "aten::mul.Tensor", "fallback policy"):
        x.to(DEVICE) * x.to(DEVICE)
    agree(torch.abs, x)
    agree(torch.fft.fft, x)
    agree(lambda t: t.real + t.imag, x)


@lenient
def small_floats_fall_back() -> None:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        x = plain(8).to(dtype)
        there = x.to(DEVICE)
        bringup.reset_fallbacks()
        identical(there.to(torch.float32).cpu(), x.to(torch.float32))
        identical((there.to(torch.float32) * 2).to(dtype).cpu(), (x.to(torch.float32) * 2).to(dtype))
        assert fallbacks(), "nothing was counted"


@lenient
def ops_without_a_kernel_fall_back() -> None:
    x = plain(4, 4)
    bringup.reset_fallbacks()
    agree(torch.linalg.eigvalsh, x @ x.mT)
    assert fallbacks(), "nothing was counted"


@lenient
def error_messages() -> None:
    x, whole = plain(3, 4), torch.arange(6).view(2, 3)
    calls: list[tuple[Any, ...]] = [
        (torch.add, x, plain(5)),
        (torch.mm, x, x),
        (torch.bmm, plain(2, 3, 4), plain(2, 3, 4)),
        (lambda t: t.sum(2), x),
        (lambda t: t.softmax(-3), x),
        (lambda t: t.amax(5), x),
        (lambda t: t.argmax(2), x),
        (lambda t: t.cumsum(4), x),
        (lambda t: torch.cat([t, t[:, :2]], 0), x),
        (lambda t: torch.cat([t, t[0]], 0), x),
        (lambda t: torch.stack([t, t[0]]), x),
        (lambda t: t.gather(0, t), x),
        (lambda t, i: t.gather(2, i), x, whole),
        (lambda t, i: t.index_select(0, i), x, whole),
        (lambda t: t.view(5, 5), x),
        (lambda t: t.reshape(5, -1), x),
        (lambda t: t.expand(2, 2), x),
        (lambda t: t.permute(0, 0), x),
        (lambda t: functional.conv2d(t[None], t[None, :2, None]), x),
        (lambda t: functional.nll_loss(t, t), x),
        (lambda t: t.topk(9), x),
        (lambda t: t.kthvalue(0), x),
        (lambda t: torch.linspace(0, 1, -1, device=t.device), x),
        (lambda t: torch.arange(1, 0, 1, device=t.device), x),
        (lambda t: t.bitwise_and(t), x),
        (lambda t: t.clamp(), x),
        (lambda t: t.add(t, alpha=0.5), whole),
        (lambda t: torch.addmm(t, t, t), x),
        (lambda t: functional.max_pool2d(t, 2, padding=2), x),
    ]
    wrong = []
    for n, (function, *inputs) in enumerate(calls):
        try:
            same_message(function, *inputs)
        except AssertionError as error:
            wrong.append(f"call {n}: {error}")
    assert not wrong, "\n".join(wrong)
    # PyTorch has these checks a second time in Python, in other words.
    reworded: list[tuple[Any, ...]] = [
        (torch.matmul, x, plain(3)),
        (lambda t: functional.layer_norm(t, (5,)), x),
        (lambda t: torch.where(t, t, t), x),
        (lambda t: t.masked_fill(t, 0), x),
        (lambda t: torch.dot(t[0], t[1, :2]), x),
    ]
    for function, *inputs in reworded:
        both_refuse(DEVICE, function, *inputs)
    # PyTorch's check of mean in Python raises RuntimeError; on the CPU it is the subclass since 2.15.
    classes: dict[str, type] = {}
    for device in ("cpu", DEVICE):
        try:
            whole.to(device).mean()
        except RuntimeError as error:
            classes[device] = type(error)
    on_cpu = NotImplementedError if torch.__version__ >= (2, 15) else RuntimeError
    assert classes == {"cpu": on_cpu, DEVICE: RuntimeError}
