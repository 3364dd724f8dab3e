"""Operators that are wrong on purpose, for the op-level check to catch.

The check runs the CPU twice (itself, again) and then the device. These tests use the CPU as the
device, so an operator breaks from its third call on: there the "device" begins.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_dtype import _dispatch_dtypes
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput

from bringup.kit.op_random import RUNS

CPU_CALLS = 2
_CALLS = itertools.count(1)


def _samples(op: Any, device: str, dtype: torch.dtype, requires_grad: bool, **_: Any) -> Iterator[SampleInput]:
    yield SampleInput(torch.arange(1.0, 13.0, device=device).view(3, 4).t().detach().requires_grad_(requires_grad))


def _long_sample(op: Any, device: str, dtype: torch.dtype, requires_grad: bool, **_: Any) -> Iterator[SampleInput]:
    yield SampleInput(torch.ones(40, device=device, requires_grad=requires_grad))


def _op(name: str, function: Callable[..., Any], **options: Any) -> OpInfo:
    options = {"supports_out": False, "method_variant": None, "inplace_variant": None, **options}
    options.setdefault("sample_inputs_func", _samples)
    return OpInfo(name, op=function, dtypes=_dispatch_dtypes((torch.float32,)), **options)


class _FromCall:
    """``right`` for the first calls, ``wrong`` from then on."""

    def __init__(self, right: Callable[..., Any], wrong: Callable[..., Any], calls: int = CPU_CALLS) -> None:
        self.right, self.wrong, self.left = right, wrong, calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        return (self.right if self.left >= 0 else self.wrong)(*args, **kwargs)


class _DrawnOnDevice(_FromCall):
    """For random operators, of which the CPU then draws many seeds, before the device does."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        again = -2 - self.left  # the device's two calls with one seed are -1 and 0 here
        return (self.right if self.left >= 0 or 0 < again < RUNS else self.wrong)(*args, **kwargs)


def _raise(*_: Any) -> None:
    raise RuntimeError("no kernel for this")


def _raise_type_error(*_: Any) -> None:
    raise TypeError("not like that")


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang(*_: Any) -> None:
    time.sleep(600)


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _double_spoiling_input(x: torch.Tensor) -> torch.Tensor:
    result = x * 2
    x.zero_()
    return result


def _out_of_place(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _double_out(x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    return torch.mul(x, 2, out=out)


def _wrong_out(x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    return x * 2


def _spoiled_out(x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    return torch.mul(x, 2 if out is None else 3, out=out)


class _WrongGradient(torch.autograd.Function):
    factor = 3.0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @classmethod
    def backward(cls, ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * cls.factor


class _CoarseGradient(_WrongGradient):
    factor = 1.99


def _different_each_call(x: torch.Tensor) -> torch.Tensor:
    return x * next(_CALLS)


def _noise(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x)


def _noise_without_seed(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x, generator=torch.Generator().manual_seed(time.perf_counter_ns()))


def _constant_noise(x: torch.Tensor) -> torch.Tensor:
    torch.rand_like(x)
    return torch.full_like(x, 0.5)


def _one_number(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x).copy_(torch.rand(()))


def _halved(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.5) * torch.tensor([1.0, 1.0, 0.98]).expand(x.shape)


def _maybe_random(x: torch.Tensor, training: bool = False) -> torch.Tensor:
    """Tagged random, and draws nothing."""
    return torch.nn.functional.rrelu(x - 6, training=training)


def _error_inputs(op: Any, device: str, **_: Any) -> Iterator[ErrorInput]:
    yield ErrorInput(SampleInput(torch.ones(1, device=device)), error_type=RuntimeError, error_regex="no kernel")


#: No gradient, so that nothing but the error inputs uses up the calls of such an operator.
_ERRORS: dict[str, Any] = {"error_inputs_func": _error_inputs, "supports_autograd": False}

OPS = [
    _op("good", _double, inplace_variant=lambda x: x.mul_(2)),
    _op("good_out", _double_out, supports_out=True),
    _op("cpu_spoils_out", _FromCall(_spoiled_out, _double_out, calls=5), supports_out=True),
    _op("good_random", _noise),
    _op("good_error", _raise, **_ERRORS),
    _op("wrong_value", _FromCall(_double, lambda x: x * 2.001)),
    _op("wrong_dtype", _FromCall(_double, lambda x: (x * 2).double())),
    _op("wrong_shape", _FromCall(_double, lambda x: (x * 2).t())),
    _op("wrong_nan", _FromCall(_double, lambda x: (x * 2).index_fill(0, torch.tensor(0), float("nan")))),
    _op("wrong_structure", _FromCall(_double, lambda x: (x * 2,))),
    _op("raises", _FromCall(_double, _raise)),
    _op("spoils_input", _FromCall(_double, _double_spoiling_input)),
    _op("inplace_elsewhere", _double, inplace_variant=_FromCall(lambda x: x.mul_(2), _out_of_place)),
    _op("ignores_out", _FromCall(_double_out, _wrong_out, calls=5), supports_out=True),
    _op("wrong_gradient", _FromCall(_double, _WrongGradient.apply)),
    _op("exact_gradient", _FromCall(_CoarseGradient.apply, _double), sample_inputs_func=_long_sample),
    _op("wrong_strides", _FromCall(_double, lambda x: (x * 2).contiguous())),
    _op("constant_noise", _DrawnOnDevice(_noise, _constant_noise)),
    _op("one_number", _DrawnOnDevice(_noise, _one_number)),
    _op("wrong_scale", _DrawnOnDevice(lambda x: torch.nn.functional.dropout(x, 0.5), _halved)),
    _op("not_random", _FromCall(_maybe_random, lambda x: _maybe_random(x) + 0.01)),
    _op("wrong_number", _FromCall(lambda x: float(x.sum()), lambda x: float(x.sum()) + 1)),
    _op("ignores_seed", _FromCall(_noise, _noise_without_seed)),
    _op("other_error", _FromCall(_raise, _raise_type_error, calls=1), **_ERRORS),
    _op("no_error", _FromCall(_raise, _double, calls=1), **_ERRORS),
    _op("cpu_raises", _raise),
    _op("cpu_disagrees", _different_each_call),
    _op("crashes", _die),
    _op("hangs", _hang),
]
