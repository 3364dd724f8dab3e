"""Checkpoints, pickle and deepcopy of device tensors, also between processes that name the device differently."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from bringup import _C


def saved(value: Any, **options: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("weights_only", [True, False])
def test_save_and_load(device: str, zipped: bool, weights_only: bool) -> None:
    x = torch.arange(12.0, device=device).reshape(3, 4)
    loaded = torch.load(saved(x.t()[1:], _use_new_zipfile_serialization=zipped), weights_only=weights_only)
    assert loaded.device == x.device
    assert loaded.stride() == x.t()[1:].stride()
    assert torch.equal(loaded.cpu(), x.t()[1:].cpu())


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64]
)
def test_dtypes(device: str, dtype: torch.dtype) -> None:
    x = torch.arange(5).to(dtype)
    loaded = torch.load(saved(x.to(device)))
    assert loaded.dtype == dtype
    assert torch.equal(loaded.cpu(), x)


def test_map_location(device: str) -> None:
    x = torch.arange(4.0, device=device)
    expected = x.cpu()
    for where in ("cpu", torch.device("cpu"), lambda storage, location: storage, {str(x.device): "cpu"}):
        loaded = torch.load(saved(x), map_location=where)
        assert loaded.device.type == "cpu"
        assert torch.equal(loaded, expected)
    for where in (
        device,
        torch.device(device),
        f"{device}:0",
        {"cpu": f"{device}:0"},
        lambda s, _: s.to(device=device),
    ):
        loaded = torch.load(saved(expected), map_location=where)
        assert loaded.device.type == device
        assert torch.equal(loaded.cpu(), expected)
    assert torch.load(saved(x), map_location="meta").device.type == "meta"


def test_a_device_that_is_not_there(device: str, run_python, tmp_path: Path) -> None:
    count = torch.get_device_module(device).device_count()
    if count < 2:
        pytest.skip("needs two devices")
    path = tmp_path / "x.pt"
    torch.save(torch.ones(1, device=f"{device}:{count - 1}"), path)
    if device == "sim":
        run_python(
            """
            import sys, torch, pytest
            with pytest.raises(RuntimeError, match="map_location"):
                torch.load(sys.argv[1])
            assert torch.load(sys.argv[1], map_location="sim").device == torch.device("sim:0")
            """,
            str(path),
            env={"BRINGUP_SIM": "devices=1"},
        )


def test_modules_and_optimizers(device: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 3, device=device)).sum().backward()
    optimizer.step()
    state = torch.load(saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    other.load_state_dict(state["model"])
    assert torch.equal(other[0].weight, model[0].weight.cpu())
    assert all(value.device.type == device for value in state["model"].values())


def test_shared_storages_stay_shared(device: str) -> None:
    x = torch.zeros(4, device=device)
    for first, second in (
        torch.load(saved([x, x[2:]])),
        copy.deepcopy([x, x[2:]]),
        pickle.loads(pickle.dumps([x, x[2:]])),
    ):
        if first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr():
            first.fill_(1)
            assert second.cpu().tolist() == [1, 1]
        else:  # plain pickle copies each storage, on every device
            assert second.cpu().tolist() == [0, 0]
    loaded = torch.load(saved([x, x[2:]]))
    loaded[0].fill_(1)
    assert loaded[1].cpu().tolist() == [1, 1]


def test_pickle_and_deepcopy(device: str) -> None:
    x = torch.randn(3, device=device, requires_grad=True)
    parameter = torch.nn.Parameter(torch.randn(2, device=device))
    for original in (x, parameter):
        for again in (pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
            assert type(again) is type(original)
            assert again.device == original.device
            assert again.requires_grad
            assert torch.equal(again.cpu(), original.cpu())
            assert again.untyped_storage().data_ptr() != original.untyped_storage().data_ptr()
    x.sum().backward()
    assert torch.equal(copy.deepcopy(x).grad.cpu(), x.grad.cpu())


def test_conjugate_and_negative_views(device: str) -> None:
    x = torch.tensor([1 + 2j, 3 - 1j], device=device)
    for view in (x.conj(), x.conj().imag):
        assert torch.equal(torch.load(saved(view)).cpu(), view.cpu())


def test_sparse(device: str) -> None:
    x = torch.eye(3).to_sparse()
    try:
        moved = x.to(device)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"no sparse tensors: {error}")
    assert torch.equal(torch.load(saved(moved)).to("cpu").to_dense(), x.to_dense())


# ---- metadata a driver attached to a storage ----
def test_storage_metadata_survives(device: str) -> None:
    x = torch.ones(4, device=device)
    assert _C.storage_metadata(x.untyped_storage()) is None
    metadata = bytes(range(256))
    _C.set_storage_metadata(x.untyped_storage(), metadata)
    view = x[1:].view(3, 1)
    assert _C.storage_metadata(view.untyped_storage()) == metadata
    again = {
        "torch.save": torch.load(saved(view)),
        "legacy": torch.load(saved(view, _use_new_zipfile_serialization=False)),
        "weights_only=False": torch.load(saved(view), weights_only=False),
        "pickle": pickle.loads(pickle.dumps(view)),
        "parameter": torch.load(saved(torch.nn.Parameter(x))),
        "deepcopy": copy.deepcopy(view),
        "clone": x.clone(),
    }
    for how, tensor in again.items():
        assert _C.storage_metadata(tensor.untyped_storage()) == metadata, how
    on_cpu = torch.load(saved(x), map_location="cpu")
    assert torch.equal(on_cpu, x.cpu())
    _C.set_storage_metadata(x.untyped_storage(), None)
    assert _C.storage_metadata(x.untyped_storage()) is None


# ---- other processes, other names (rule: portable checkpoints) ----
SAVE = """
import sys, torch, bringup
for name, index, path in zip(*[iter(sys.argv[1:])] * 3):
    torch.save(torch.arange(3.0, device=bringup.device(name, int(index))), path)
"""
LOAD = """
import sys, torch, bringup
for name, index, path in zip(*[iter(sys.argv[1:])] * 3):
    x = torch.load(path)
    assert x.device == bringup.device(name, int(index)), (x.device, path)
    assert x.cpu().tolist() == [0, 1, 2]
    assert torch.load(path, map_location="cpu", weights_only=True).tolist() == [0, 1, 2]
"""
CHIP = str(Path(__file__).with_name("chip_driver.py"))


def test_a_checkpoint_moves_between_chip_and_accel(run_python, tmp_path: Path) -> None:
    """Each that an environment saves is loaded in each that has its driver; one process an environment."""
    chip, sim = ("chip", "1"), ("sim", "0")
    environments = {CHIP: [chip], f"sim,{CHIP}": [chip, sim], f"{CHIP},sim": [chip, sim]}
    saved = {
        (device, number): str(tmp_path / f"{number}_{device[0]}.pt")
        for number, devices in enumerate(environments.values())
        for device in devices
    }
    for number, (drivers, devices) in enumerate(environments.items()):
        files = [word for device in devices for word in (*device, saved[device, number])]
        run_python(SAVE, *files, env={"BRINGUP_DRIVERS": drivers})
    for drivers, devices in environments.items():
        files = [word for (device, _), path in saved.items() if device in devices for word in (*device, path)]
        run_python(LOAD, *files, env={"BRINGUP_DRIVERS": drivers})


def test_a_checkpoint_of_an_inactive_driver_says_what_to_do(run_python, tmp_path: Path) -> None:
    path = str(tmp_path / "x.pt")
    run_python(SAVE, "sim", "0", path, env={"BRINGUP_DRIVERS": "sim"})
    code = """
    import sys, torch, pytest
    with pytest.raises(RuntimeError, match="saved on sim:0.*BRINGUP_DRIVERS=sim.*map_location"):
        torch.load(sys.argv[1])
    """
    run_python(code, path, env={"BRINGUP_DRIVERS": CHIP})
