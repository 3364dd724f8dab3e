"""Training on the device that stops and goes on from a framework's checkpoint ends where it would have without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integrations.programs_models import gpt2_model, tokens
from tests.integrations.programs_training import batches, chosen, network
from tests.integrations.test_activate import need

pytestmark = pytest.mark.sweep


def equal(one: torch.nn.Module, other: torch.nn.Module) -> None:
    ours, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter.cpu(), theirs[name].cpu(), rtol=0, atol=0, msg=name)


def test_the_transformers_trainer(device: str, tmp_path: Path) -> None:
    need("transformers", "accelerate")
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": row, "labels": row} for row in tokens(8, 12)]

    def train(folder: str, steps: int, resume: bool = False) -> torch.nn.Module:
        arguments = TrainingArguments(
            output_dir=str(tmp_path / folder), max_steps=steps, per_device_train_batch_size=2, save_steps=2,
            learning_rate=0.01, lr_scheduler_type="constant", report_to=[], disable_tqdm=True, eval_strategy="steps",
            eval_steps=2,
        )  # fmt: skip
        trainer = Trainer(model=gpt2_model(), args=arguments, train_dataset=rows, eval_dataset=rows)
        trainer.train(resume_from_checkpoint=resume or None)
        assert trainer.state.global_step == steps
        assert trainer.model.device.type == device
        return trainer.model

    with chosen(device):
        whole = train("whole", 4)
        train("parts", 2)
        equal(train("parts", 4, resume=True), whole)


def test_from_pretrained(device: str, tmp_path: Path) -> None:
    need("transformers", "accelerate")
    from transformers import GPT2LMHeadModel

    model = gpt2_model().to(device)
    model.save_pretrained(tmp_path)
    for loaded in (GPT2LMHeadModel.from_pretrained(tmp_path).to(device),
                   GPT2LMHeadModel.from_pretrained(tmp_path, device_map=device)):  # fmt: skip
        assert loaded.device.type == device
        equal(loaded, model)


def test_accelerate(device: str, tmp_path: Path) -> None:
    need("accelerate")
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    def train(resume: bool, epochs: int) -> torch.nn.Module:
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = Accelerator()
        plain = network()
        optimizer = torch.optim.AdamW(plain.parameters(), 0.01)
        model, optimizer, loader = accelerator.prepare(plain, optimizer, batches(torch.float32))
        if resume:
            accelerator.load_state(str(tmp_path))
        for _ in range(epochs):
            for x, y in loader:
                accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
        accelerator.save_state(str(tmp_path))
        assert next(plain.parameters()).device.type == device
        return plain

    with chosen(device):
        whole = train(resume=False, epochs=2)
        train(resume=False, epochs=1)
        equal(train(resume=True, epochs=1), whole)


def test_lightning(device: str, tmp_path: Path) -> None:
    need("lightning")
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 0.01)

    def train(epochs: int, checkpoint: str | None = None) -> tuple[Module, str]:
        module = Module()
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(max_epochs=epochs, default_root_dir=tmp_path, **quiet)
        trainer.fit(module, batches(torch.float32), ckpt_path=checkpoint)
        assert trainer.strategy.root_device.type == device
        return module, trainer.checkpoint_callback.best_model_path

    with chosen(device):
        whole, _ = train(2)
        _, checkpoint = train(1)
        equal(train(2, checkpoint)[0], whole)
        assert Module.load_from_checkpoint(checkpoint).device.type == device
