"""Tensors of a device through DLPack capsules: ``bringup check --level dlpack``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bringup.kit.driver_checks import Skip, expect

if TYPE_CHECKING:
    import torch


def _through(x: torch.Tensor) -> Any:
    import torch

    return torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))  # type: ignore[attr-defined]


def _flat(device: torch.device) -> None:
    import torch

    if torch.get_device_module(device).get_device_properties(device).partitions > 1:
        raise Skip("the memory is partitioned: an address says nothing of where the bytes lie")


def values_come_back(device: torch.device) -> None:
    """A tensor of each dtype has the same values, shape and strides on the other side."""
    import torch

    _flat(device)
    dtypes = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32)
    for dtype in (*dtypes, torch.int64, torch.uint8, torch.bool, torch.complex64):
        here = torch.arange(24).reshape(4, 6).to(dtype)
        try:
            there = here.to(device)
        except NotImplementedError:
            continue  # the device has no such numbers
        for back, expected in zip(map(_through, _views(there)), _views(here), strict=True):
            expect(back.device == device, f"{dtype}: it came back on {back.device}")
            same = back.shape == expected.shape and back.dtype == dtype and torch.equal(back.cpu(), expected)
            expect(same, f"{dtype}, {tuple(expected.shape)}: {back.cpu()} instead of {expected}")
            strides = expected.numel() < 2 or back.stride() == expected.stride()
            expect(strides, f"{dtype}: strides {back.stride()} instead of {expected.stride()}")


def _views(x: torch.Tensor) -> list[torch.Tensor]:
    return [x, x.t(), x[1:, ::2], x[2, 3], x[:0]]


def memory_is_shared(device: torch.device) -> None:
    """What is written on one side is there on the other."""
    import torch

    _flat(device)
    x = torch.zeros(10, device=device)
    y = _through(x[2:])
    y.fill_(3)
    expect(x.cpu().tolist() == [0.0] * 2 + [3.0] * 8, f"it was not written through: {x.cpu().tolist()}")


def memory_lives_as_long_as_its_last_user(device: torch.device) -> None:
    """The memory stays while either side holds it, and goes with the last, also when a capsule is never used."""
    import torch

    _flat(device)
    module = torch.get_device_module(device)
    before = module.memory_allocated(device)
    x = torch.arange(100, device=device)
    y = _through(x)
    del x
    filler = torch.zeros(100, dtype=torch.int64, device=device)
    expect(torch.equal(y.cpu(), torch.arange(100)), "the memory was given out again while it was in use")
    unused = torch.utils.dlpack.to_dlpack(filler)  # type: ignore[attr-defined]
    del y, filler, unused
    now = module.memory_allocated(device)
    expect(now == before, f"{now - before} bytes are still allocated")


CHECKS = (
    values_come_back,
    memory_is_shared,
    memory_lives_as_long_as_its_last_user,
)
