"""Traps 23–27: device indices, checkpoints, storage metadata, trapped host access, and what torch 2.13 cannot do."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import dlpack

Run = Callable[..., Any]


# ---- 23: indices and autocast dtypes ----
def test_trap_23_at_most_127_devices(device: str) -> None:
    module = getattr(torch, device)
    assert 1 <= module.device_count() <= 127
    for index in (module.device_count(), 126):
        with pytest.raises((RuntimeError, ValueError, AssertionError), match=rf"{index}|index|ordinal"):
            torch.ones(1, device=f"{device}:{index}")
    assert {torch.float16, torch.bfloat16} <= set(module.get_amp_supported_dtype())


# ---- 24: checkpoints ----
def test_trap_24_checkpoints_remember_the_device_and_can_be_mapped(device: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    x = {"weight": torch.randn(3, 4, device=device), "strided": torch.randn(4, 4, device=device)[::2, 1:].t()}
    torch.save(x, path)
    for weights_only in (True, False):
        same = torch.load(path, weights_only=weights_only)
        on_cpu = torch.load(path, weights_only=weights_only, map_location="cpu")
        mapped = torch.load(path, weights_only=weights_only, map_location={f"{device}:0": "cpu"})
        back = torch.load(path, weights_only=weights_only, map_location=device)
        for key, value in x.items():
            assert same[key].device == back[key].device == value.device
            assert on_cpu[key].device == mapped[key].device == torch.device("cpu")
            for other in (same, on_cpu, mapped, back):
                assert torch.equal(other[key].cpu(), value.cpu())
                assert other[key].stride() == value.stride()


def test_trap_24_cpu_checkpoints_load_onto_the_device(device: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    x = torch.randn(5)
    torch.save(x, path)
    assert torch.equal(torch.load(path, map_location=device).cpu(), x)
    with torch.device(device):
        assert torch.equal(torch.load(path).cpu(), x)
    assert torch.load(path, map_location="meta").device.type == "meta"
    assert torch.equal(torch.load(path, mmap=True, map_location=device).cpu(), x)


def test_trap_24_shared_storages_stay_shared(device: str) -> None:
    base = torch.arange(6.0, device=device)
    buffer = io.BytesIO()
    torch.save([base, base[2:]], buffer)
    buffer.seek(0)
    loaded, view = torch.load(buffer)
    view.zero_()
    assert loaded.cpu().tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_trap_24_a_checkpoint_of_a_device_that_is_not_there_says_so(
    device: str, tmp_path: Path, run_python: Run
) -> None:
    if device != "sim":
        pytest.skip("the number of devices is the simulator's to choose")
    path = tmp_path / "x.pt"
    save = f"import torch; torch.save(torch.ones(3, device='sim:3'), {str(path)!r})"
    run_python(save, env={"BRINGUP_SIM": "devices=4", "BRINGUP_DRIVERS": "sim"})
    load = f"""
        import torch
        try:
            torch.load({str(path)!r})
        except RuntimeError as error:
            assert "map_location" in str(error) and "3" in str(error), error
        else:
            raise SystemExit("loaded onto a device that does not exist")
        assert torch.load({str(path)!r}, map_location="sim:1").device == torch.device("sim:1")
        """
    run_python(load, env={"BRINGUP_SIM": "devices=2", "BRINGUP_DRIVERS": "sim"})


# ---- 25: metadata lives on the storage ----
def test_trap_25_metadata_survives_views_copies_and_files(device: str) -> None:
    from bringup import _C

    x = torch.arange(6.0, device=device)
    assert _C.storage_metadata(x.untyped_storage()) is None
    _C.set_storage_metadata(x.untyped_storage(), b"layout=tiled")
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    for other in (
        x[2:],
        x.view(2, 3).t(),
        x.detach(),
        copy.deepcopy(x),
        pickle.loads(pickle.dumps(x)),
        torch.load(buffer, weights_only=True),
    ):
        assert _C.storage_metadata(other.untyped_storage()) == b"layout=tiled"
    assert _C.storage_metadata((x + 1).untyped_storage()) is None
    _C.set_storage_metadata(x.untyped_storage(), None)
    assert _C.storage_metadata(x.untyped_storage()) is None


# ---- 26: the host is caught when it touches device memory ----
def test_trap_26_host_access_becomes_a_python_interrupt(device: str, run_python: Run) -> None:
    if device != "sim":
        pytest.skip("only the simulator traps")
    run_python(
        """
        import ctypes, torch
        x = torch.full((16,), 3, dtype=torch.uint8, device="sim")
        y = (x + 1).sum().item()                      # the device's own work is not host access
        assert y == 64, y
        try:
            ctypes.string_at(x.data_ptr(), 4)
            for _ in range(10_000):
                pass
        except BaseException as error:
            assert not isinstance(error, SystemExit)
            print("caught", type(error).__name__, error)
        else:
            raise SystemExit("host access to device memory went unnoticed")
        assert (x + 1).sum().item() == 64             # the process and the device go on
        """,
        env={"BRINGUP_SIM": "trap=1", "BRINGUP_DRIVERS": "sim"},
    )


# ---- 27: declared gaps ----
def test_trap_27_from_dlpack_of_a_tensor_is_a_gap_and_the_capsule_works(device: str) -> None:
    x = torch.arange(3.0, device=device)
    assert dlpack.from_dlpack(dlpack.to_dlpack(x)).data_ptr() == x.data_ptr()
    with pytest.raises((RuntimeError, BufferError, ValueError, AssertionError, TypeError)):
        torch.from_dlpack(x)


def test_trap_27_share_memory_is_no_silent_no_op(device: str) -> None:
    """The tensor can be sent to another process, or the driver says that it cannot share."""
    from multiprocessing.reduction import ForkingPickler

    x = torch.ones(3, device=device)
    x.share_memory_()
    try:
        assert ForkingPickler.dumps(x)
    except NotImplementedError as error:
        assert "share" in str(error)  # noqa: PT017 - both outcomes are right
