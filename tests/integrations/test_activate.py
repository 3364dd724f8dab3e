"""``bringup.integrations.activate()``: what it sets, what it leaves alone, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.cases import WITH_PICTURES
from tests.integrations.torchvision_import import import_torchvision
from tests.optional_packages import missing

NOT_CHOSEN = dict.fromkeys(("ACCELERATE_TORCH_DEVICE", "PL_TRAINER_ACCELERATOR", "PL_TRAINER_STRATEGY"))


def need(*packages: str) -> None:
    if gone := missing(*packages):
        pytest.skip(f"{' and '.join(gone)} not installed: pip install 'bringup[integrations]'")
    if WITH_PICTURES & set(packages):
        import_torchvision()


@pytest.fixture
def pretended(tmp_path: Path):
    """Makes packages that are nothing but the given source; returns the environment in which they are found."""

    def make(**sources: str) -> dict[str, str | None]:
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
        return {**NOT_CHOSEN, "PRETENDED": str(tmp_path)}

    return make


START = """
import os, sys
sys.path.insert(0, os.environ["PRETENDED"])
import bringup.integrations
"""


def test_nothing_is_imported_with_the_package(run_python) -> None:
    code = """
    import sys
    import bringup.integrations

    assert not {"torch", "accelerate", "lightning", "safetensors"} & set(sys.modules)
    """
    run_python(code, fresh=True)


def test_a_wrong_name_and_a_missing_package(run_python, pretended) -> None:
    code = """
import pytest

with pytest.raises(ValueError, match="nothing for 'lightening': did you mean 'lightning'"):
    bringup.integrations.activate("lightening")
with pytest.raises(ValueError, match="there are accelerate, lightning"):
    bringup.integrations.activate("keras")
bringup.integrations.FRAMEWORKS["lightning"] = ("no_such_package",)
with pytest.raises(ImportError, match=r"lightning is not installed: pip install 'bringup\\[integrations\\]'"):
    bringup.integrations.activate("lightning")
"""
    run_python(START + code, env=pretended())


@pytest.mark.parametrize(
    "source", ["import no_such_dependency", "raise RuntimeError('operator torchvision::nms does not exist')"]
)
def test_a_half_installed_package(source: str, run_python, pretended) -> None:
    code = """
import pytest

bringup.integrations.FRAMEWORKS["lightning"] = ("lightning",)
with pytest.raises(ImportError, match="lightning is installed, but it or something it needs cannot") as raised:
    bringup.integrations.activate("lightning")
assert "no_such_dependency" in str(raised.value) or "torchvision::nms" in str(raised.value)
assert "pip install 'bringup[integrations]' --upgrade" in str(raised.value)
assert raised.value.__cause__ is not None
with pytest.warns(UserWarning, match="lightning is installed, but"):  # the others are set up
    assert bringup.integrations.activate() == ("accelerate",)
assert os.environ["ACCELERATE_TORCH_DEVICE"] == "sim"
assert "PL_TRAINER_ACCELERATOR" not in os.environ
"""
    run_python(START + code, env=pretended(lightning=source, accelerate=""))


def test_the_users_choice_stays(run_python, pretended) -> None:
    code = """
assert bringup.integrations.activate("accelerate") == ("accelerate",)
assert os.environ["ACCELERATE_TORCH_DEVICE"] == "cpu"
"""
    run_python(START + code, env={**pretended(accelerate=""), "ACCELERATE_TORCH_DEVICE": "cpu"})


def test_no_device(run_python, pretended) -> None:
    code = """
import pytest

with pytest.raises(RuntimeError, match="bringup is not active.*devices=0"):
    bringup.integrations.activate("accelerate")
assert "ACCELERATE_TORCH_DEVICE" not in os.environ
"""
    run_python(START + code, env={**pretended(accelerate=""), "BRINGUP_SIM": "devices=0"})


def test_accelerate_that_has_chosen_already(run_python) -> None:
    need("accelerate")
    code = """
    import pytest, torch
    import bringup.integrations
    from accelerate import Accelerator

    assert Accelerator().device == torch.device("cpu")  # what the integration is there for
    with pytest.raises(RuntimeError, match="has chosen its device already.*before Accelerator"):
        bringup.integrations.activate("accelerate")
    """
    run_python(code, env=NOT_CHOSEN)


def test_accelerate_says_itself_what_it_refuses(run_python) -> None:
    """The reasons docs/integrations.md gives: where upstream lets one of these pass, that page has to change."""
    need("accelerate", "transformers")
    code = """
    import pytest, tempfile, torch
    import bringup.integrations

    bringup.integrations.activate("accelerate")
    from accelerate import Accelerator
    from accelerate.utils import TorchDynamoPlugin, get_max_memory
    from tests.integrations.torchvision_import import import_torchvision
    import_torchvision()
    from transformers import TrainingArguments

    with pytest.raises(ValueError, match="fp16 mixed precision requires a device in .* \\\\(not 'sim'\\\\)"):
        Accelerator(mixed_precision="fp16")
    with pytest.raises(ValueError, match="'BRINGUP' is not a valid DynamoBackend"):
        TorchDynamoPlugin(backend="bringup")
    with pytest.raises(ValueError, match="doesn't support bf16/gpu"):
        TrainingArguments(output_dir=tempfile.gettempdir(), bf16=True)
    assert TrainingArguments(output_dir=tempfile.gettempdir()).device == torch.device("sim")
    assert list(get_max_memory()) == ["cpu"]  # what device_map="auto" asks
    """
    run_python(code, env=NOT_CHOSEN)


@pytest.mark.sweep
def test_lightning(run_python) -> None:
    need("lightning")
    code = """
    import pytest, torch
    import bringup.integrations
    from tests.integrations.torchvision_import import import_torchvision
    import_torchvision()
    import lightning

    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    assert lightning.Trainer(**quiet).strategy.root_device == torch.device("cpu")  # what the integration is there for
    assert bringup.integrations.activate("lightning") == ("lightning",)
    assert lightning.Trainer(**quiet).strategy.root_device == torch.device("sim", 0)
    assert lightning.Trainer(devices=[1], **quiet).strategy.root_device == torch.device("sim", 1)
    assert lightning.Trainer(devices="1,", **quiet).strategy.root_device == torch.device("sim", 1)
    assert lightning.Trainer(accelerator="cpu", **quiet).strategy.root_device == torch.device("cpu")
    assert lightning.Trainer(accelerator="sim", strategy="sim", **quiet).accelerator.name() == "sim"
    for devices in (2, -1, [0, 1], "0,1"):
        with pytest.raises(ValueError, match="one sim device in a process. Take devices=1"):
            lightning.Trainer(devices=devices, **quiet)
    with pytest.raises(ValueError, match="there are 2 sim devices"):
        lightning.Trainer(devices=[2], **quiet)
    with pytest.raises(ValueError, match="one device, not 2: say strategy='ddp' for cpu"):
        lightning.Trainer(accelerator="cpu", devices=2, **quiet)
    import pytorch_lightning  # the same under its other name, with registries of its own

    assert pytorch_lightning.Trainer(**quiet).strategy.root_device == torch.device("sim", 0)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, index):
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    with pytest.raises(RuntimeError, match="would train on cpu, not on sim: say strategy='sim'"):
        lightning.Trainer(strategy="auto", **quiet).fit(Module(), torch.utils.data.DataLoader(torch.ones(2, 2)))
    """
    run_python(code, env=NOT_CHOSEN, timeout=300)


def test_safetensors(run_python, tmp_path: Path) -> None:
    need("safetensors")
    code = """
    import sys

    import pytest, torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file as plain, save_model

    from bringup.integrations.safetensors import load_file, load_model, location

    model = torch.nn.Linear(3, 2)
    save_model(model, sys.argv[1])
    with pytest.raises(SafetensorError, match="device sim is invalid"):  # what the integration is there for
        plain(sys.argv[1], device="sim")
    for asked, found in ((None, "sim:0"), ("sim:1", "sim:1"), (torch.device("sim", 1), "sim:1"), ("cpu", "cpu")):
        loaded = load_file(sys.argv[1], device=asked)
        assert {str(tensor.device) for tensor in loaded.values()} == {found}
        assert torch.equal(loaded["weight"].cpu(), model.weight)
    torch.sim.set_device(1)
    assert (location("sim"), location("cuda:1")) == (1, "cuda:1")
    other = torch.nn.Linear(3, 2).to("sim:1")
    assert load_model(other, sys.argv[1]) == (set(), [])
    assert torch.equal(other.weight.cpu(), model.weight)
    """
    run_python(code, str(tmp_path / "model.safetensors"))


def test_safetensors_is_missing(run_python) -> None:
    code = """
    import sys

    import pytest

    sys.modules["safetensors"] = None  # as if it were not there
    from bringup.integrations.safetensors import load_file

    with pytest.raises(ImportError, match=r"safetensors.*pip install 'bringup\\[integrations\\]'"):
        load_file("model.safetensors")
    """
    run_python(code)
