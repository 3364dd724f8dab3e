"""Memory that crosses a border: pinned host memory, peer devices, DLPack, NumPy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import dlpack


@pytest.fixture
def module(device: str) -> Any:
    """torch.<device>"""
    return getattr(torch, device)


@pytest.fixture
def two_devices(device: str, module: Any) -> tuple[str, str]:
    """The names of two devices of the same type."""
    if module.device_count() < 2:
        pytest.skip(f"only one {device} device")
    return f"{device}:0", f"{device}:1"


# ---- pinned ----
def test_pinned_memory_is_known_by_its_pointer(device: str) -> None:
    plain = torch.ones(100)
    assert not plain.is_pinned()
    pinned = plain.pin_memory()
    assert pinned.is_pinned()
    assert torch.equal(pinned, plain)
    assert pinned[10:].is_pinned()
    assert pinned.pin_memory().data_ptr() == pinned.data_ptr()
    assert torch.empty(4, pin_memory=True).is_pinned()
    assert torch.zeros(4, pin_memory=True).is_pinned()
    assert not torch.ones(4, device=device).is_pinned()


def test_device_tensors_cannot_be_pinned(device: str) -> None:
    with pytest.raises(RuntimeError, match="pin"):
        torch.ones(4, device=device).pin_memory()


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 7), (2, 3, 4, 5)])
@pytest.mark.parametrize("non_blocking", [False, True])
def test_round_trip(shape: tuple[int, ...], non_blocking: bool, device: str, module: Any) -> None:
    x = torch.randn(shape).pin_memory() if shape != (0,) else torch.empty(0)
    there = x.to(device, non_blocking=non_blocking)
    back = torch.empty_like(x).copy_(there, non_blocking=non_blocking)
    module.synchronize()
    assert torch.equal(back, x)


@pytest.mark.parametrize("source", [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("target", [torch.float64, torch.float16, torch.int8, torch.bool, torch.complex128])
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_copy_converts_and_restrides(source: torch.dtype, target: torch.dtype, device: str) -> None:
    """copy_ between devices, dtypes and layouts at once gives what the CPU gives."""
    x = (torch.randn(4, 6) * 3).to(source)
    expected = torch.zeros(6, 4, dtype=target).t().copy_(x)
    on_device = torch.zeros(6, 4, dtype=target, device=device).t()
    assert torch.equal(on_device.copy_(x).cpu(), expected)
    assert torch.equal(on_device.copy_(x.to(device)).cpu(), expected)
    assert torch.equal(torch.zeros(6, 4, dtype=target).t().copy_(x.to(device)), expected)
    assert torch.equal(x.to(device)[:, ::2].to(target).cpu(), expected[:, ::2])


# ---- peers ----
def test_peer_copies(two_devices: tuple[str, str]) -> None:
    first, second = two_devices
    x = torch.randn(1000, device=first)
    y = x.to(second)
    assert str(y.device) == second
    assert torch.equal(y.cpu(), x.cpu())
    assert torch.equal(y.to(first), x)
    strided = torch.zeros(2000, device=second)[::2].copy_(x)
    assert torch.equal(strided.cpu(), x.cpu())
    converted = torch.zeros(1000, dtype=torch.float64, device=second).copy_(x)
    assert torch.equal(converted.cpu(), x.cpu().double())


def test_peer_copies_wait_for_both_sides(two_devices: tuple[str, str], module: Any) -> None:
    """Work before and after a peer copy keeps its order, although it runs on two devices' streams."""
    first, second = two_devices
    with module.device(0):
        module._sleep(50)
    x = torch.full((1000,), 3.0).to(first, non_blocking=True)
    y = x.to(second, non_blocking=True)
    z = (y + 1).to(first, non_blocking=True)
    x.zero_()
    assert z.sum().item() == 4000


def test_gradients_flow_between_devices(two_devices: tuple[str, str]) -> None:
    first, second = two_devices
    x = torch.ones(4, device=first, requires_grad=True)
    ((x * 2).to(second) * 3).sum().backward()
    assert x.grad.device == torch.device(first)
    assert x.grad.tolist() == [6.0] * 4


def test_two_devices_do_not_mix(two_devices: tuple[str, str]) -> None:
    first, second = two_devices
    with pytest.raises(RuntimeError, match="same device") as error:
        torch.ones(3, device=first) + torch.ones(3, device=second)
    assert first in str(error.value)
    assert second in str(error.value)


def test_the_current_device_decides(two_devices: tuple[str, str], device: str, module: Any) -> None:
    _, second = two_devices
    with module.device(1):
        assert torch.empty(1, device=device).device == torch.device(second)
        with module.device(0):
            assert module.current_device() == 0
        assert module.current_device() == 1
    assert module.current_device() == 0
    with torch.device(second):
        assert torch.empty(1).device == torch.device(second)
    with pytest.raises((RuntimeError, AssertionError, ValueError), match=r"99|index|ordinal"):
        torch.empty(1, device=f"{device}:99")


# ---- DLPack and NumPy ----
def test_dlpack_by_capsule_shares_memory_both_ways(device: str) -> None:
    x = torch.arange(12.0, device=device).reshape(3, 4)
    y = dlpack.from_dlpack(dlpack.to_dlpack(x.t()))
    assert y.device == x.device
    assert y.shape == (4, 3)
    assert y.stride() == (1, 4)
    y[0, 0] = 99
    assert x[0, 0].item() == 99
    x[2, 3] = -1
    assert y[3, 2].item() == -1
    del x
    assert y.sum().item() == sum(range(12)) + 99 - 11 - 1


def test_numpy_needs_a_copy_and_says_so(device: str) -> None:
    x = torch.ones(3, device=device)
    with pytest.raises(TypeError, match="cpu"):
        x.numpy()
    assert x.cpu().numpy().tolist() == [1.0] * 3
    assert torch.from_numpy(x.cpu().numpy()).to(device).device.type == device
    assert x.numpy(force=True).sum() == 3
