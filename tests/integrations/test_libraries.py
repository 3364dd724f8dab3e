"""Programs of real libraries give on the device what they give on the CPU. ``make integrations`` runs them all."""

from __future__ import annotations

import pytest
import torch

from tests.integrations.cases import CASES, missing
from tests.integrations.judging import Case, judge
from tests.integrations.programs_models import COMPILED

#: Quick ones, which run wherever the library is installed.
QUICK = {"einops_layers", "state_through_a_file", "accelerate_bfloat16"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=() if c.name in QUICK else pytest.mark.sweep) for c in CASES]
)
def test_equal_to_the_cpu(case: Case, device: str) -> None:
    if gone := missing(case):
        pytest.skip(gone)
    judge(case, device)


#: Programs whose model is also compiled; the Trainer has a program of its own for that.
COMPILED_TOO = "bert gpt2 gpt2_generate llama_static_cache vit timm_resnet timm_convnext lora t5 mixtral mamba".split()


@pytest.mark.sweep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", COMPILED_TOO)
def test_compiled_equal_to_the_cpu(name: str, device: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    if gone := missing(case):
        pytest.skip(gone)
    from torch._dynamo.utils import counters  # 2 s that collection would take

    torch._dynamo.reset()
    before, token = counters["stats"]["calls_captured"], COMPILED.set(True)
    try:
        judge(case, device)
    finally:
        COMPILED.reset(token)
    assert counters["stats"]["calls_captured"] > before


def case(run) -> Case:
    return Case("none", "a program", run, torch.float32)


def test_the_judge_finds_a_wrong_number(device: str) -> None:
    wrong = {"cpu": 0.0, device: 1e-5}
    with pytest.raises(AssertionError, match="error over limit"):
        judge(case(lambda where, dtype: {"x": torch.ones(3, dtype=dtype, device=where) + wrong[where]}), device)


def test_the_judge_finds_other_tokens(device: str) -> None:
    with pytest.raises(AssertionError, match="tokens differs"):
        judge(case(lambda where, dtype: {"tokens": torch.tensor([where == "cpu"], device=where)}), device)


def test_the_judge_finds_what_stayed_on_the_cpu(device: str) -> None:
    with pytest.raises(AssertionError, match=f"not on {device}"):
        judge(case(lambda where, dtype: {"x": torch.ones(3, dtype=dtype)}), device)


def test_the_judge_lets_the_device_err_as_the_cpu_does(device: str) -> None:
    found = judge(case(lambda where, dtype: {"x": torch.full((3,), 1 / 3, dtype=dtype, device=where)}), device)
    assert found.error == found.cpu_error > 0
