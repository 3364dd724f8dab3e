"""Chapter 7. Tensors leave the process: files, pickles, other devices, facts about a storage that travel with it."""

import copy
import pickle

import torch

from bringup import _C


def test_a_checkpoint_comes_back_to_the_device(device, tmp_path):
    model = torch.nn.Linear(3, 2).to(device)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt")
    assert state["weight"].device == model.weight.device
    assert torch.equal(state["weight"].cpu(), model.weight.cpu())


def test_or_to_another_one(device, tmp_path):
    torch.save(torch.arange(3, device=device), tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt", map_location="cpu").tolist() == [0, 1, 2]


def test_it_loads_where_the_driver_is_one_of_several(device, tmp_path, run_python):
    if device != "sim":
        return
    torch.save(torch.arange(3, device="sim:1"), tmp_path / "x.pt")
    run_python(
        """
        import sys, bringup, torch

        assert torch.load(sys.argv[1]).device == bringup.device("sim", index=1) == torch.device("accel:3")
        """,
        str(tmp_path / "x.pt"),
        env={"BRINGUP_DRIVERS": "examples/drivers/dictmem.py,sim", "BRINGUP_SIM": None},
    )


def test_metadata_of_a_storage_goes_along(device):
    x = torch.ones(4, device=device)
    _C.set_storage_metadata(x.untyped_storage(), b"row-major, scale 0.5")
    for again in (x[2:], x.clone(), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert _C.storage_metadata(again.untyped_storage()) == b"row-major, scale 0.5"
