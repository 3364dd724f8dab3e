"""Mixed precision: the dtype of every op on CUDA's autocast lists, GradScaler, custom functions, training."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.sweeps import swept_unless

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2] / "examples")]
import autocast_ops  # noqa: E402
import models  # noqa: E402

DTYPES = [torch.float16, torch.bfloat16]
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["float16", "bfloat16"])


def of_every(ops: Iterable[str]) -> pytest.MarkDecorator:
    """Every op in bfloat16, and every fourth in float16 too, which autocast treats alike: make test-all takes all."""
    cases = [(op, dtype) for op in ops for dtype in DTYPES]
    kept = swept_unless(lambda index, case: case[1] is torch.bfloat16 or index % 8 == 0, cases)
    return pytest.mark.parametrize(("op", "dtype"), kept, ids=[f"{op}-{str(dtype)[6:]}" for op, dtype in cases])


# The deprecated ops on torch's own lists say so.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated")


def maker(device: str, dtype: torch.dtype) -> autocast_ops.Make:
    """Makes random tensors on the device from CPU values, outside autocast's reach."""

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(device=device, dtype=dtype)

    return make


def float_dtypes(result: Any) -> set[torch.dtype]:
    results = result if isinstance(result, (tuple, list)) else (result,)
    return {one.dtype for one in results if isinstance(one, torch.Tensor) and one.is_floating_point()}


def listed(macro: str) -> set[str]:
    """The ops of one AT_FORALL_… list in torch's header, as name or name.overload."""
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    body = re.search(rf"#define {macro}\(_\)((?:.*\\\n)+.*)", header)
    assert body, f"{macro} is not in autocast_mode.h of torch {torch.__version__}"
    if macro == "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE":
        found = set(re.findall(r'"([\w.]+)"', body[1]))
    else:
        pairs = re.findall(r"_\((\w+)(?:, (\w+))?\)", body[1])
        found = {name + (f".{overload}" if overload else "") for name, overload in pairs}
    # Up to PyTorch 2.12 named tensors have overloads of their own.
    return {op for op in found if ".names" not in op and "imname" not in op}


LOWER = listed("AT_FORALL_LOWER_PRECISION_FP")
FLOAT32 = listed("AT_FORALL_FP32") | listed("AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE")
FLOAT32_UNLESS_ASKED = listed("AT_FORALL_FP32_SET_OPT_DTYPE")
PROMOTE = listed("AT_FORALL_PROMOTE") | {"cat", "stack"}  # these two promote without help


def test_no_listed_op_is_left_out() -> None:
    """Torch versions differ in a few ops; the table holds those of all, and a test runs where torch lists its op."""
    assert not LOWER - autocast_ops.LOWER.keys() - autocast_ops.CUDA_KERNELS.keys()
    assert not FLOAT32 - autocast_ops.FLOAT32.keys()
    assert not FLOAT32_UNLESS_ASKED - autocast_ops.FLOAT32_UNLESS_ASKED.keys()
    assert not PROMOTE - autocast_ops.PROMOTE.keys()


@of_every(op for op in autocast_ops.LOWER if op in LOWER)
def test_lower_precision_ops(op: str, dtype: torch.dtype, device: str) -> None:
    with torch.autocast(device, dtype=dtype):
        assert float_dtypes(autocast_ops.LOWER[op](maker(device, torch.float32))) == {dtype}


@of_every(autocast_ops.CUDA_KERNELS)
def test_ops_with_cuda_kernels_only_work_or_name_themselves(op: str, dtype: torch.dtype, device: str) -> None:
    try:
        with torch.autocast(device, dtype=dtype):
            result = autocast_ops.CUDA_KERNELS[op](maker(device, torch.float32))
    except (NotImplementedError, RuntimeError) as error:
        assert op in str(error)  # noqa: PT017 - both outcomes are right
    else:
        assert dtype in float_dtypes(result)


@of_every(op for op in autocast_ops.FLOAT32 if op in FLOAT32)
def test_float32_ops(op: str, dtype: torch.dtype, device: str) -> None:
    with torch.autocast(device, dtype=dtype):
        assert float_dtypes(autocast_ops.FLOAT32[op](maker(device, dtype))) == {torch.float32}


@of_every(op for op in autocast_ops.FLOAT32_UNLESS_ASKED if op in FLOAT32_UNLESS_ASKED)
def test_float32_ops_that_take_a_dtype(op: str, dtype: torch.dtype, device: str) -> None:
    call = autocast_ops.FLOAT32_UNLESS_ASKED[op]
    with torch.autocast(device, dtype=dtype):
        assert call(maker(device, dtype)).dtype == torch.float32
        assert call(maker(device, dtype), dtype=torch.float64).dtype == torch.float64


@of_every(op for op in autocast_ops.PROMOTE if op in PROMOTE)
def test_promoting_ops(op: str, dtype: torch.dtype, device: str) -> None:
    low, full = maker(device, dtype), maker(device, torch.float32)
    call = autocast_ops.PROMOTE[op]
    with torch.autocast(device, dtype=dtype):
        assert call(low, full).dtype == torch.float32
        assert call(full, low).dtype == torch.float32
        if op != "tensordot":  # which is a matrix product inside, and that is lowered on purpose
            assert call(full, full).dtype == torch.float32
        assert call(low, low).dtype == dtype


def test_binary_cross_entropy_is_refused(device: str) -> None:
    probability = torch.rand(4).to(device)
    with torch.autocast(device, dtype=torch.float16), pytest.raises(RuntimeError, match="unsafe to autocast"):
        functional.binary_cross_entropy(probability, probability)


def test_float64_integers_and_other_ops_are_left_alone(device: str) -> None:
    full = maker(device, torch.float32)
    double = maker(device, torch.float64)
    whole = torch.ones(4, 4, dtype=torch.int64).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert double(4, 4).mm(double(4, 4)).dtype == torch.float64
        assert whole.sum().dtype == torch.int64
        assert full(4).add(full(4)).dtype == torch.float32
        assert full(4).relu().dtype == torch.float32


def test_switches(device: str) -> None:
    full = maker(device, torch.float32)
    assert not torch.is_autocast_enabled(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.is_autocast_enabled(device)
        assert torch.get_autocast_dtype(device) == torch.bfloat16
        assert not torch.is_autocast_enabled("cpu")
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32
        with torch.autocast(device, enabled=False):
            assert full(2, 2).mm(full(2, 2)).dtype == torch.float32
        with torch.autocast(device, dtype=torch.float16):
            assert full(2, 2).mm(full(2, 2)).dtype == torch.float16
    assert full(2, 2).mm(full(2, 2)).dtype == torch.float32
    assert torch.amp.is_autocast_available(device)


def test_a_dtype_autocast_cannot_use_is_not_used(device: str) -> None:
    full = maker(device, torch.float32)
    with pytest.warns(UserWarning, match="[Aa]utocast"), torch.autocast(device, dtype=torch.float64):
        assert full(2, 2).mm(full(2, 2)).dtype == torch.float32


@both_dtypes
def test_gradients_of_float32_weights_are_float32(dtype: torch.dtype, device: str) -> None:
    layer = torch.nn.Linear(4, 2).to(device)
    with torch.autocast(device, dtype=dtype):
        output = layer(maker(device, torch.float32)(3, 4))
    assert output.dtype == dtype
    output.sum().backward()
    assert layer.weight.grad.dtype == layer.bias.grad.dtype == torch.float32


def test_custom_functions(device: str) -> None:
    seen: dict[str, Any] = {}

    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device, cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            seen["forward"] = (x.dtype, torch.is_autocast_enabled(device))
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.amp.custom_bwd(device_type=device)
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            seen["backward"] = (x.dtype, torch.is_autocast_enabled(device))
            return 2 * x * gradient

    x = maker(device, torch.float16)(4).requires_grad_()
    with torch.autocast(device, dtype=torch.float16):
        y = Square.apply(x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert seen == {"forward": (torch.float32, False), "backward": (torch.float32, False)}

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device)
        def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(a, b)
            return a.mm(b)

        @staticmethod
        @torch.amp.custom_bwd(device_type=device)
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            a, b = ctx.saved_tensors
            seen["product"] = torch.is_autocast_enabled(device)
            return gradient.mm(b.t()), a.t().mm(gradient)

    a = maker(device, torch.float32)(3, 3).requires_grad_()
    with torch.autocast(device, dtype=torch.float16):
        y = Product.apply(a, a)
    assert y.dtype == torch.float16
    y.sum().backward()
    assert seen["product"]
    assert a.grad.dtype == torch.float32


def fused_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, fused=True)


def plain_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, foreach=False)


@pytest.mark.parametrize("optimizer", [plain_sgd, fused_sgd])
def test_scaler_skips_infinite_gradients(optimizer: Callable[[Any], torch.optim.Optimizer], device: str) -> None:
    weight = torch.nn.Parameter(torch.ones(4, device=device))
    update = optimizer([weight])
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2)

    def step(factor: float) -> None:
        update.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(update)
        scaler.update()

    step(1.0)
    assert torch.allclose(weight.detach().cpu(), torch.full((4,), 0.9))
    assert scaler.get_scale() == 1024.0
    step(float("inf"))
    assert torch.allclose(weight.detach().cpu(), torch.full((4,), 0.9)), "a step with infinite gradients was taken"
    assert scaler.get_scale() == 512.0
    step(float("nan"))
    assert scaler.get_scale() == 256.0
    step(1.0)
    step(1.0)  # the second good step in a row: the scale grows
    assert scaler.get_scale() == 512.0
    assert torch.allclose(weight.detach().cpu(), torch.full((4,), 0.7))


def test_scaler_unscales_for_clipping_and_saves_its_state(device: str) -> None:
    weight = torch.nn.Parameter(torch.ones(4, device=device))
    update = plain_sgd([weight])
    scaler = torch.amp.GradScaler(device, init_scale=8.0)
    scaler.scale((weight * 3).sum()).backward()
    assert torch.equal(weight.grad.cpu(), torch.full((4,), 24.0))
    scaler.unscale_(update)
    assert torch.equal(weight.grad.cpu(), torch.full((4,), 3.0))
    norm = torch.nn.utils.clip_grad_norm_([weight], 1.0)
    assert norm.item() == pytest.approx(6.0)
    scaler.step(update)
    scaler.update()
    assert torch.allclose(weight.detach().cpu(), torch.full((4,), 0.95))
    restored = torch.amp.GradScaler(device)
    restored.load_state_dict(scaler.state_dict())
    assert restored.get_scale() == scaler.get_scale() == 8.0


def losses(model_name: str, device: str, dtype: torch.dtype | None) -> list[float]:
    model, data = models.build(model_name).to(device), models.Data(model_name)
    update = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16, init_scale=256.0)
    result = []
    for index in range(10):
        inputs, targets = (tensor.to(device) for tensor in data.batch(index))
        update.zero_grad()
        with torch.autocast(device, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = functional.cross_entropy(model(inputs), targets)
        assert loss.dtype == torch.float32
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        result.append(loss.item())
    return result


@both_dtypes
@pytest.mark.parametrize("model", list(models.MODELS))
def test_training_stays_close_to_float32(model: str, dtype: torch.dtype, device: str) -> None:
    full, mixed = losses(model, "cpu", None), losses(model, device, dtype)
    assert max(abs(a - b) for a, b in zip(full, mixed, strict=True)) <= 2e-2
    assert mixed[-1] < mixed[0]
