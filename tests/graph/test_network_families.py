"""Networks of the families and of the frozen list, small: compiled inference and one step of training."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from workloads import EVERYTHING, WORKLOADS

from tests.graph.test_models import WORKLOADS as TESTED_THERE
from tests.graph.test_models import infer, plain, wrong
from tests.sweeps import swept_unless

#: Those whose inference `make test` compiles: convolutions by depth, windows, convolutions over time.
KEPT = ("mobilenetv3", "swin", "whisper")
NAMES = [name for name in EVERYTHING if name not in TESTED_THERE]


@pytest.mark.parametrize("name", swept_unless(KEPT, NAMES))
def test_inference_is_as_exact_as_the_cpu(name: str, device: str, backend: str) -> None:
    work = EVERYTHING[name]
    found = infer(work, device, lambda model: torch.compile(model, backend=backend, fullgraph=True))
    off = wrong(found, infer(work, "cpu", plain), infer(work, "cpu", plain, torch.float64))
    assert not off, "errors against CPU float64:\n" + "\n".join(off)


@pytest.mark.parametrize("name", swept_unless(("convnext",), NAMES))
def test_gradients_are_as_exact_as_the_cpu(name: str, device: str, backend: str) -> None:
    work = EVERYTHING[name]
    assert work.loss is not None

    def gradients(where: str, dtype: torch.dtype, compiled: bool) -> list[dict[str, torch.Tensor]]:
        assert work.loss is not None
        loss_of = work.loss
        model, found = work.model(small=True).train().to(where, dtype), []
        step = lambda inputs, target: loss_of(model(*inputs), target)  # noqa: E731
        step = torch.compile(step, backend=backend) if compiled else step
        for index in range(4):
            batch = work.batch(index, small=True).to(where, dtype)
            step(batch.inputs, batch.target).backward()
            grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
            # All in one: a bias whose gradient is 0 by mathematics has nothing but rounding.
            found.append({"all": torch.cat([grad.flatten().cpu().double() for grad in grads.values()])})
            model.zero_grad()
        return found

    exact = gradients("cpu", torch.float64, False)
    off = wrong(gradients(device, torch.float32, True), gradients("cpu", torch.float32, False), exact)
    assert not off, "errors against CPU float64:\n" + "\n".join(off)


def test_the_frozen_list_is_apart() -> None:
    assert not set(WORKLOADS) & {name for name in EVERYTHING if name.startswith("frozen_")}
    assert sum(name.startswith("frozen_") for name in EVERYTHING) == 15
