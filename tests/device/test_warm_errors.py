"""Numbers that PyTorch refuses, after valid calls of the same signature: what is remembered skips no check."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing._internal.opinfo.core import ErrorInput, SampleInput

from bringup import _C as core
from bringup.kit.op_cases import Case, CaseResult
from bringup.kit.op_errors import WrongError, check_errors, error_differences, is_refusal, raised, varied
from bringup.kit.op_samples import Call, take_samples

#: A few ops of op_db whose numbers are checked; the sweep runs all.
SAMPLED = "renorm nn.functional.huber_loss nn.functional.softshrink nn.functional.leaky_relu histc".split()


#: What the device takes and the CPU refuses: beginnings of lines.
TAKEN = (
    "nn.functional.rrelu: in place, lower = -inf",  # a slope between infinities: NaN, and no number is lost
    "nn.functional.rrelu: in place, upper = inf",
    "nn.functional.pixel_unshuffle: downscale_factor = 2: None",  # of an image of one pixel: an empty result
    "nn.functional.pixel_unshuffle: downscale_factor = 3: None",
)


def _leaky_gradient(x: Tensor, slope: float) -> Tensor:
    leaf = x.clone().requires_grad_()
    F.leaky_relu_(leaf * 1, slope).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def _elu_gradient(x: Tensor, alpha: float) -> Tensor:
    leaf = x.clone().requires_grad_()
    F.elu_(leaf * 1, alpha).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


#: (a function of a matrix and a number, a number that is right, one that is wrong)
CASES: dict[str, tuple[Callable[[Tensor, Any], Any], Any, Any]] = {
    "softshrink": (lambda x, v: F.softshrink(x, v), 0.5, -0.5),
    "softshrink, no number": (lambda x, v: F.softshrink(x, v), 0.5, math.nan),
    "smooth_l1_loss": (lambda x, v: F.smooth_l1_loss(x, x + 1, beta=v), 1.0, -1.0),
    "huber_loss": (lambda x, v: F.huber_loss(x, x + 1, delta=v), 1.0, -1.0),
    "histc": (lambda x, v: x.histc(4, 0.0, v), 2.0, math.inf),
    "celu": (lambda x, v: F.celu(x, v), 1.0, 0.0),
    "celu_": (lambda x, v: F.celu(x.clone(), v, inplace=True), 1.0, 0.0),
    "multi_margin_loss": (lambda x, v: F.multi_margin_loss(x, torch.zeros(4, device=x.device).long(), p=v), 1, 3),
    "renorm, largest": (lambda x, v: x.renorm(2, 0, v), 1.0, -1.0),
    "renorm, power": (lambda x, v: x.renorm(v, 0, 1.0), 2.0, -1.0),
    "renorm_": (lambda x, v: x.clone().renorm_(2, 0, v), 1.0, -1.0),
    "pow of integers": (lambda x, v: x.long() ** v, 2, -1),
    "normal_": (lambda x, v: x.clone().normal_(0, v), 1.0, -1.0),
    "uniform_": (lambda x, v: x.clone().uniform_(0, v), 1.0, -1.0),
    "bernoulli_": (lambda x, v: x.clone().bernoulli_(v), 0.5, 1.5),
    "exponential_": (lambda x, v: x.clone().exponential_(v), 0.5, -1.0),
    "leaky_relu_ and its gradient": (_leaky_gradient, 0.1, -0.1),
    "elu_ and its gradient": (_elu_gradient, 1.0, -1.0),
}


def error_of(function: Callable[[Tensor, Any], Any], x: Tensor, value: Any) -> Exception | None:
    try:
        function(x, value)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_number_after_a_right_one(name: str) -> None:
    function, right, wrong = CASES[name]
    on_cpu = torch.linspace(-1, 1, 20).view(4, 5)
    x = on_cpu.to("sim")
    expected = error_of(function, on_cpu, wrong)
    assert expected is not None
    for _ in range(2):
        assert error_of(function, x, right) is None
        got = error_of(function, x, wrong)
        assert (type(got), str(got)) == (type(expected), str(expected))


@pytest.mark.parametrize("name", ["huber_loss", "softshrink", "smooth_l1_loss", "renorm, power"])
def test_numbers_near_a_bound(name: str) -> None:
    """A meta kernel in Python is not asked about every number: those next to a bound are told apart all the same."""
    function = CASES[name][0]
    on_cpu = torch.linspace(-1, 1, 20).view(4, 5)
    x = on_cpu.to("sim")
    for value in (1.0, 0.25, 1e-3, -1e-3, 0.0, 0.75, 1e-40, 2.25, 1e31, -1e-40, math.inf, 7.0, math.nan, -7.0, 0.5):
        refused = error_of(function, x, value) is not None
        assert refused == (error_of(function, on_cpu, value) is not None), value


def test_right_numbers_are_one_signature() -> None:
    """Checked numbers are not part of the key: 100 of them make one entry, and each counts as a hit."""
    x = torch.linspace(-1, 1, 11, device="sim")
    F.softshrink(x, 0.25)
    before = core.kernel_cache_info()
    for n in range(100):
        F.softshrink(x, n / 100)
    after = core.kernel_cache_info()
    assert after["entries"] == before["entries"]
    assert after["misses"] == before["misses"]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("chance", [2.0, -1.0, float("inf"), float("nan")])
def test_a_dropout_of_attention_is_a_probability(compiled: bool, chance: float) -> None:
    """2.0 was taken, without a word, also by a compiled graph."""
    x = torch.randn(1, 2, 4, 8, device="sim")
    attend = F.scaled_dot_product_attention
    torch._dynamo.reset()
    attend = torch.compile(attend, backend="bringup") if compiled else attend
    with pytest.raises(Exception, match=r"between 0 and 1, but got"):
        attend(x, x, x, dropout_p=chance)


def forms_of(op: Any) -> dict[str, Callable[..., Any]]:
    """The ways to call an op whose checks may differ: as it is, and in place on a copy (gradients read the result)."""
    forms = {"": op.op}
    if inplace := op.get_inplace():
        forms["in place, "] = lambda x, *args, **kwargs: inplace(x.clone(), *args, **kwargs)
    return forms


def warm_differences(op: Any, call: Call, device: str) -> Iterator[str]:
    """Numbers that the CPU refuses and the device takes, after the valid call on the device."""
    for form_name, form in forms_of(op).items():
        if raised(form, call.on("cpu")) is not None:
            continue
        refused = [
            (name, bad, error) for name, bad in varied(call) if (error := raised(form, bad.on("cpu"))) is not None
        ]
        if not refused or raised(form, call.on(device)) is not None:
            continue  # the check of valid calls judges the last
        for name, bad, on_cpu in refused:
            if not is_refusal(on_device := raised(form, bad.on(device)), on_cpu):
                yield f"{op.name}: {form_name}{name}: {on_device!r:.200}; the CPU: {on_cpu!r:.200}"


def sampled_calls(op: Any, count: int) -> Iterator[Call]:
    """Samples of an op in float32, with gradients where it has them, and in int64 where it takes that."""
    grad = torch.float32 in op.supported_backward_dtypes("cpu")
    for dtype in (torch.float32, torch.int64):
        if op.supports_dtype(dtype, "cpu"):
            for _, sample in take_samples(op, dtype, count, requires_grad=grad and dtype.is_floating_point):
                yield Call.of(op, sample)


def test_the_probe_finds_a_check_that_is_skipped() -> None:
    """The net itself: a function that checks its number on the first call only is caught."""
    seen: list[float] = []

    class Forgetful:
        name, error_inputs_func = "forgetful", None

        @staticmethod
        def op(x: Tensor, bound: float) -> Tensor:
            if x.device.type == "cpu" or not seen:
                torch._check_value(bound >= 0, lambda: "bound must not be negative")
            seen.append(bound)
            return x

        @staticmethod
        def get_inplace() -> None:
            return None

    call = Call((torch.ones(2), 1.0), {}, lambda value: value, False)
    assert raised(Forgetful.op, next(bad for _, bad in varied(call)).on("cpu")) is not None
    assert list(warm_differences(Forgetful, call, "sim"))


def differences_of(op: Any) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in sampled_calls(op, 2):
            yield from warm_differences(op, call, "sim")
        yield from error_differences(op, "sim")


def test_sampled_operators() -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    assert not [line for op in op_db if op.name in SAMPLED for line in differences_of(op)]


@pytest.mark.sweep
@pytest.mark.timeout(3600)
def test_all_operators() -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    lines = [line for op in op_db for line in differences_of(op)]
    assert not [line for line in lines if not line.startswith(TAKEN)]


def test_the_check_of_errors_asks_again_after_valid_calls() -> None:
    """``bringup check --kinds error``: an op that refuses a bad number only as long as it has served nothing."""
    seen: list[float] = []

    class Forgetful:
        name = "forgetful"

        @staticmethod
        def op(x: Tensor, bound: float) -> Tensor:
            if x.device.type == "cpu" or not seen:
                torch._check_value(bound >= 0, lambda: "bound must not be negative")
            if x.device.type != "cpu":
                seen.append(bound)
            return x

        @staticmethod
        def error_inputs_func(*_: Any) -> None: ...

        @staticmethod
        def error_inputs(device: str) -> list[ErrorInput]:
            bad = SampleInput(torch.ones(2, device=device), args=(-1.0,))
            return [ErrorInput(bad, error_type=ValueError, error_regex="negative")]

    result = CaseResult(Case("forgetful", "error", "float32"), "pass")
    with pytest.raises(WrongError, match="after a valid call: forgetful: error input 0"):
        check_errors(Forgetful(), "sim", result)
