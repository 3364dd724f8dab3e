"""Frameworks that run the training loop (transformers' Trainer, accelerate, Lightning), and small libraries."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from tests.integrations.judging import Tensors, case
from tests.integrations.programs_models import gpt2_model, numbers, placed, tokens, with_gradients

#: The variables by which frameworks are told their device (bringup/integrations/).
VARIABLES = ("ACCELERATE_TORCH_DEVICE", "ACCELERATE_MIXED_PRECISION", "PL_TRAINER_ACCELERATOR", "PL_TRAINER_STRATEGY")


@contextmanager
def chosen(device: str) -> Iterator[None]:
    """On the device: what ``bringup.integrations.activate()`` does. On the CPU: as if it had never been called."""
    import bringup.integrations

    kept = {name: os.environ.pop(name) for name in VARIABLES if name in os.environ}
    try:
        if device != "cpu":
            if "accelerate.state" in sys.modules:
                sys.modules["accelerate.state"].AcceleratorState._reset_state(reset_partial_state=True)
            bringup.integrations.activate()
        yield
    finally:
        for name in VARIABLES:
            os.environ.pop(name, None)
        os.environ.update(kept)


def weights(model: nn.Module) -> Tensors:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


# ---- the Trainer ----
def trained(device: str, dtype: torch.dtype, backend: str = "") -> Tensors:
    """Three steps of SGD on GPT-2 by transformers' Trainer: the loss of each, and the weights."""
    from torch._dynamo.utils import counters
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    model = gpt2_model().to(torch.float64 if dtype == torch.float64 else torch.float32)
    if backend:
        model.compile(backend=backend)
    rows = [{"input_ids": row, "labels": row} for row in tokens(6, 12)]
    with chosen(device), tempfile.TemporaryDirectory() as folder:
        if dtype == torch.bfloat16:
            os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16"
        arguments = TrainingArguments(
            output_dir=folder, max_steps=3, per_device_train_batch_size=2, learning_rate=0.1, optim="sgd",
            lr_scheduler_type="constant", logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True, seed=0,
            data_seed=0, max_grad_norm=1.0,
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=rows)
        trainer.remove_callback(PrinterCallback)
        before = counters["stats"]["calls_captured"]
        trainer.train()
        assert bool(backend) == (counters["stats"]["calls_captured"] > before)
        assert trainer.args.device.type == trainer.accelerator.device.type == device
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 3
    found = weights(trainer.model)
    return {**found, "losses": torch.tensor(losses, dtype=torch.float64, device=next(iter(found.values())).device)}


@case("transformers", "Trainer: three steps")
def trainer_float32(device: str, dtype: torch.dtype) -> Tensors:
    return trained(device, dtype)


@case("transformers", "Trainer: three steps in bf16 ([how](#the-transformers-trainer))", torch.bfloat16)
def trainer_bfloat16(device: str, dtype: torch.dtype) -> Tensors:
    return trained(device, dtype)


@case("transformers", "Trainer: three steps, compiled ([how](#the-transformers-trainer))")
def trainer_compiled(device: str, dtype: torch.dtype) -> Tensors:
    return trained(device, dtype, backend="" if device == "cpu" else "bringup")


# ---- accelerate ----
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))


def batches(dtype: torch.dtype) -> torch.utils.data.DataLoader[tuple[torch.Tensor, ...]]:
    rows = numbers(12, 8, dtype=dtype)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows, torch.arange(12) % 3), batch_size=4)


@case("accelerate", 'a training loop, `mixed_precision="fp16"` ([how](#accelerate))', torch.float16)
@case("accelerate", 'a training loop, `mixed_precision="bf16"`', torch.bfloat16)
@case("accelerate", "a training loop")
def accelerated(device: str, dtype: torch.dtype) -> Tensors:
    """Three steps of a loop written for accelerate."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    if dtype == torch.float16 and device != "cpu":
        from bringup.integrations.accelerate import Accelerator
    inside = torch.float64 if dtype == torch.float64 else torch.float32
    AcceleratorState._reset_state(reset_partial_state=True)
    with chosen(device):
        mixed = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "no")
        accelerator = Accelerator(mixed_precision=mixed)
        assert accelerator.device.type == device
        model = network().to(inside)
        model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), batches(inside))
        losses = []
        for x, y in loader:
            optimizer.zero_grad()
            # On the CPU accelerate leaves fp16 out.
            with torch.autocast("cpu", torch.float16, enabled=mixed == "fp16" and device == "cpu"):
                loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach().float() if dtype != torch.float64 else loss.detach())
    AcceleratorState._reset_state(reset_partial_state=True)
    return {"losses": torch.stack(losses), **weights(accelerator.unwrap_model(model))}


# ---- Lightning ----
@case("lightning", 'Trainer.fit, `precision="16-mixed"`', torch.float16)
@case("lightning", 'Trainer.fit, `precision="bf16-mixed"`', torch.bfloat16)
@case("lightning", "Trainer.fit")
def fitted(device: str, dtype: torch.dtype) -> Tensors:
    """Three steps by Lightning's Trainer, which is not told where."""
    import lightning
    from lightning.pytorch.plugins.precision import MixedPrecision

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.losses = network(), []

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
            self.losses.append(loss.detach())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    precision = {torch.float64: "64-true", torch.bfloat16: "bf16-mixed", torch.float16: "16-mixed"}.get(
        dtype, "32-true"
    )
    with chosen(device), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Consider increasing num_workers" and the like
        module = Module()
        if device == "cpu" and dtype == torch.float16:  # Lightning takes bfloat16 there, unless it is told
            options = {"plugins": [MixedPrecision("16-mixed", "cpu")]}
        else:
            options = {"precision": precision}
        trainer = lightning.Trainer(
            max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, gradient_clip_val=1.0, **options,
        )  # fmt: skip
        trainer.fit(module, batches(torch.float64 if dtype == torch.float64 else torch.float32))
        assert trainer.strategy.root_device.type == device
    module.to(device)  # Lightning brings it back to the CPU
    return {"losses": torch.stack(module.losses), **weights(module.network)}


@case("lightning", 'Fabric, `precision="bf16-mixed"`', torch.bfloat16)
def fabric_bfloat16(device: str, dtype: torch.dtype) -> Tensors:
    import lightning

    inside = torch.float64 if dtype == torch.float64 else torch.float32
    with chosen(device):
        precision = "64-true" if dtype == torch.float64 else "bf16-mixed"
        where = {"accelerator": device, "strategy": "auto" if device == "cpu" else device}
        fabric = lightning.Fabric(precision=precision, **where)
        plain = network()
        model, optimizer = fabric.setup(plain, torch.optim.SGD(plain.parameters(), 0.1))
        losses = []
        for x, y in fabric.setup_dataloaders(batches(inside)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            fabric.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
    return {"losses": torch.stack(losses), **weights(plain)}


# ---- small libraries ----
@case("torchmetrics", "accuracy, F1, AUROC, confusion matrix, errors, R2, SSIM")
def metrics(device: str, dtype: torch.dtype) -> Tensors:
    import torchmetrics
    from torchmetrics import classification, image

    scores = numbers(40, 4, dtype=dtype).softmax(-1).to(device)
    classes = (torch.arange(40) * 7 % 4).to(device)
    pictures = numbers(2, 1, 24, 24, dtype=dtype).sigmoid().to(device)
    wanted = {
        "accuracy": (classification.MulticlassAccuracy(4), scores, classes),
        "F1": (classification.MulticlassF1Score(4), scores, classes),
        "AUROC": (classification.MulticlassAUROC(4), scores, classes),
        "confusion": (classification.MulticlassConfusionMatrix(4), scores, classes),
        "squared error": (torchmetrics.MeanSquaredError(), scores[:, 0].contiguous(), scores[:, 1].contiguous()),
        "R2": (torchmetrics.R2Score(), scores[:, 2].contiguous(), scores[:, 3].contiguous()),
        "SSIM": (image.StructuralSimilarityIndexMeasure(data_range=1.0), pictures, pictures.flip(-1)),
    }
    found = {}
    for name, (metric, ours, target) in wanted.items():
        metric = metric.set_dtype(dtype).to(device)
        for part in range(2):  # in two batches, as in a validation loop
            metric.update(ours[part::2], target[part::2])
        result = metric.compute()
        found[name] = result.to(dtype) if result.is_floating_point() else result
    return found


def quantized(config: object, device: str, dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    """A network with quantized weights: always quantized in float32, and taken back to float64 for that."""
    from torchao.quantization import quantize_

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16)).to(
        device if dtype != torch.float64 else "cpu"
    )
    quantize_(model, config)
    if dtype == torch.float64:
        for layer in (model[0], model[2]):
            layer.weight = nn.Parameter(layer.weight.dequantize().double(), requires_grad=False)
            layer.bias = nn.Parameter(layer.bias.double())
    return model, numbers(4, 32, dtype=dtype).to(device)


@case("torchao", "int8 weights")
def int8_weights(device: str, dtype: torch.dtype) -> Tensors:
    from torchao.quantization import Int8WeightOnlyConfig

    model, x = quantized(Int8WeightOnlyConfig(), device, dtype)
    with torch.no_grad():
        return {"out": model(x)}


@case("torchao", "int8 weights and activations, the CPU's float32 as reference")
def int8_activations(device: str, dtype: torch.dtype) -> Tensors:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    model, x = quantized(Int8DynamicActivationInt8WeightConfig(), device, torch.float32)
    with torch.no_grad():
        return {"out": model(x).to(dtype)}


@case("einops", "rearrange, reduce, repeat, einsum, layers: gradients")
def einops_layers(device: str, dtype: torch.dtype) -> Tensors:
    from einops import einsum, rearrange, reduce, repeat
    from einops.layers.torch import EinMix, Rearrange

    torch.manual_seed(0)
    patches = Rearrange("b c (h p) (w q) -> b (h w) (c p q)", p=4, q=4)
    mix = EinMix("b n c -> b n d", weight_shape="c d", bias_shape="d", c=48, d=8)
    model = placed(nn.Sequential(patches, mix), device, dtype)
    image = numbers(2, 3, 16, 16, dtype=dtype).to(device)
    rows = model(image)
    found = {
        "pooled": reduce(image, "b c (h p) (w q) -> b c h w", "max", p=2, q=2),
        "repeated": repeat(rows, "b n d -> b (n k) d", k=2),
        "turned": rearrange(rows, "b n (h d) -> b h n d", h=2),
        "scores": einsum(rows, rows, "b i d, b j d -> b i j"),
    }
    return with_gradients(model, found["scores"].square().mean() + found["turned"].sum(), **found)


@case("safetensors", "a state dict through a file")
def state_through_a_file(device: str, dtype: torch.dtype) -> Tensors:
    import safetensors.torch

    from bringup.integrations.safetensors import load_file

    state = {**network().to(device=device, dtype=dtype).state_dict(), "steps": torch.tensor([3], device=device)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        safetensors.torch.save_file(state, file)
        return load_file(file, device=device)
