"""``torch.compile`` of a fixed sample of PyTorch's op_db on the device, against eager; and that the check can fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bringup.kit.compile_checks import NO_GRAPH, compile_gaps, run_compile_checks, run_compiled_case
from bringup.kit.op_cases import Case, CaseResult, Status, load_op_list
from bringup.kit.op_verdicts import Setup

#: Ops of every family: elementwise, reductions, indexing, sorting, shapes, products, normalisation, losses, random.
SAMPLED_OPS = """
    abs add addmm amax argmax atan2 baddbmm bernoulli bmm cat clamp cumsum diagonal div.floor_rounding dot einsum exp
    expand fill flip gather index_add index_put index_select lerp linalg.svd logsumexp masked_fill matmul
    max.reduction_with_dim mean mul native_layer_norm nn.functional.avg_pool2d nn.functional.batch_norm
    nn.functional.conv2d nn.functional.cross_entropy nn.functional.dropout nn.functional.embedding nn.functional.gelu
    nn.functional.group_norm nn.functional.interpolate.nearest nn.functional.linear nn.functional.max_pool2d
    nn.functional.mse_loss nn.functional.pad.constant nn.functional.scaled_dot_product_attention nonzero permute pow
    rand_like roll scatter_add signal.windows.kaiser softmax sort split squeeze std sum t topk tril var_mean where zero_
""".split()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("step", "forward", "backward"), [(4, 14, 11), pytest.param(1, 60, 50, marks=pytest.mark.sweep)]
)
def test_sampled_operators(step: int, forward: int, backward: int, device: str) -> None:
    """Every fourth operator of the list; `make test-all` takes all."""
    report = run_compile_checks(device, kinds=("forward", "backward"), ops=SAMPLED_OPS[::step], samples=2)
    assert report.ok, report.summary()
    counts = report.counts()
    assert counts["forward", "float32"]["pass"] >= forward, report.summary()
    assert counts["backward", "float32"]["pass"] >= backward, report.summary()
    in_eager = [result.case.op for result in report.results if result.message == NO_GRAPH]
    assert set(in_eager) <= {"nonzero"}, "all others were compiled"


def test_gaps_are_those_of_a_compiled_device() -> None:
    assert {gap.kind for gap in compile_gaps("sim:0")} <= {"forward", "backward"}
    assert compile_gaps("nosuchdevice") == []


# ---- the check itself, on the CPU ----
def judged(op: str, kind: str, backend: Any) -> CaseResult:
    return run_compiled_case(load_op_list()[op], Case(op, kind, "float32"), Setup("cpu", 2), backend)


def replacing(old: str, new: str) -> Any:
    """A backend that takes one function of torch for another."""

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        for node in module.graph.nodes:
            if node.op == "call_function" and getattr(node.target, "__name__", "") == old:
                node.target = getattr(torch, new)
            elif node.op == "call_method" and node.target == old:
                node.target = new
        module.recompile()
        return module

    return backend


@pytest.mark.parametrize("op", ["cos", "nn.functional.dropout", "zero_"])
@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_a_right_backend_passes(op: str, kind: str) -> None:
    result = judged(op, kind, "eager")
    assert (result.status, result.message) == (Status.PASS, "")
    assert result.samples_run > 0


@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_a_wrong_backend_fails(kind: str) -> None:
    result = judged("cos", kind, replacing("cos", "sin"))
    assert result.status is Status.FAIL
    assert "not close" in result.message


def test_a_wrong_in_place_form_fails() -> None:
    result = judged("cos", "forward", replacing("cos_", "sin_"))
    assert result.status is Status.FAIL
    assert result.message.startswith("in-place: ")


def test_a_backend_that_raises_fails() -> None:
    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        raise RuntimeError("no kernel for this")

    result = judged("cos", "forward", backend)
    assert result.status is Status.FAIL
    assert "no kernel for this" in result.message


def test_random_numbers_count() -> None:
    """The same seed must give what eager gives."""

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        def run(*arguments: Any) -> Any:
            torch.rand(1)
            return module(*arguments)

        return run

    assert judged("rand_like", "forward", backend).status is Status.FAIL


def test_an_op_that_is_not_traced_does_not_pass() -> None:
    result = judged("nonzero", "forward", "eager")
    assert (result.status, result.message, result.samples_run) == (Status.SKIP, NO_GRAPH, 0)
