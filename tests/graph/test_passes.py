"""Graph passes: one list for torch.compile, bringup.export and TorchScript; a program's own ones, right and wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.fx import Graph

import bringup
from bringup.graph.bare_metal.passes import PASSES
from bringup.graph.passes import passes

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def no_pass_stays() -> Iterator[None]:
    before = [one.name for one in passes()]
    yield
    for one in passes():
        if one.name not in before:
            bringup.remove_graph_pass(one.name)


class Tiny(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) + 1


def tanh_as_sigmoids(graph: Graph) -> None:
    """tanh(x) is 2 sigmoid(2x) - 1."""
    for node in graph.find_nodes(op="call_function", target=aten.tanh.default):
        with graph.inserting_before(node):
            doubled = graph.call_function(aten.mul.Tensor, (node.args[0], 2))
            bent = graph.call_function(aten.sigmoid.default, (doubled,))
            scaled = graph.call_function(aten.mul.Tensor, (bent, 2))
            node.replace_all_uses_with(graph.call_function(aten.sub.Tensor, (scaled, 1)))
        graph.erase_node(node)
    tanh_as_sigmoids.ran += 1  # type: ignore[attr-defined]


@pytest.fixture
def added() -> None:
    tanh_as_sigmoids.ran = 0  # type: ignore[attr-defined]
    bringup.graph_pass("tanh_as_sigmoids")(tanh_as_sigmoids)


def ran() -> int:
    count: int = tanh_as_sigmoids.ran  # type: ignore[attr-defined]
    return count


@pytest.mark.usefixtures("added")
def test_a_pass_changes_compiled_graphs(device: str) -> None:
    backend = bringup.Backend()
    x = torch.randn(3, 5, device=device)
    torch._dynamo.reset()
    got = torch.compile(Tiny(), backend=backend)(x)
    torch.testing.assert_close(got, torch.tanh(x) + 1)
    assert ran() == 1
    assert "sigmoid" in str(backend.graphs[0].structures[0].lowered.nodes)


@pytest.mark.usefixtures("added")
def test_and_those_of_training(device: str) -> None:
    x = torch.randn(3, 5, device=device, requires_grad=True)
    torch._dynamo.reset()
    torch.compile(Tiny(), backend="bringup")(x).sum().backward()
    torch.testing.assert_close(x.grad, 1 - torch.tanh(x.detach()) ** 2)
    assert ran() == 2  # forward and backward are a graph each


@pytest.mark.usefixtures("added")
def test_and_exported_models(device: str, tmp_path: Path) -> None:
    x = torch.randn(3, 5, device=device)
    path = bringup.export(Tiny(), (x,), out=tmp_path / "m.bup")
    torch.testing.assert_close(bringup.load(path)(x), torch.tanh(x) + 1)
    assert ran() == 1


@pytest.mark.usefixtures("added")
def test_and_torchscript_groups(device: str) -> None:
    x = torch.randn(3, 5, device=device)
    scripted = torch.jit.script(Tiny())
    bringup.jit.enable()
    try:
        for _ in range(3):
            got = scripted(x)
    finally:
        bringup.jit.disable()
    torch.testing.assert_close(got, torch.tanh(x) + 1)
    assert ran() >= 1


def test_the_order_is_as_said() -> None:
    names = ["last", "first", "between"]
    bringup.graph_pass("last")(lambda graph: None)
    bringup.graph_pass("first", before="integer_ops")(lambda graph: None)
    bringup.graph_pass("between", after="integer_ops")(lambda graph: None)
    bringup.graph_pass("early", stage="joint")(lambda graph: None)
    order = [one.name for one in passes()]
    assert order == [
        *("keyed_dropout", "needless_copies", "shared_bags", "early"),
        *("first", "integer_ops", "between", "batch_norm_folding", "constant_folding", "last"),
    ]
    for name in names:
        bringup.remove_graph_pass(name)
    bringup.graph_pass("early", stage="joint", before="keyed_dropout")(lambda graph: None)  # once more: it moves
    assert [one.name for one in passes()][:2] == ["early", "keyed_dropout"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": "p", "before": "intger_ops"}, "there is no pass 'intger_ops' in the stage 'graph'; did you mean"),
        (
            {"name": "p", "after": "keyed_dropout"},
            "no pass 'keyed_dropout' in the stage 'graph'; there are: integer_ops",
        ),
        ({"name": "p", "stage": "late"}, "there is no stage 'late': choose one of joint, graph"),
        ({"name": "p", "before": "integer_ops", "after": "integer_ops"}, "before or after, not both"),
        ({"name": "integer_ops"}, "'integer_ops' is bringup's own"),
    ],
)
def test_a_wrong_place_is_refused(arguments: dict[str, str], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        bringup.graph_pass(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no program added a pass 'integer_ops'"):
        bringup.remove_graph_pass("integer_ops")


def fails(graph: Graph) -> None:
    raise KeyError("weights")


def loses_the_output(graph: Graph) -> None:
    (output,) = graph.find_nodes(op="output")
    output.args = ((),)


def changes_a_type(graph: Graph) -> None:
    (output,) = graph.find_nodes(op="output")
    (result,) = output.args[0]  # type: ignore[misc]
    with graph.inserting_before(output):
        output.args = ((graph.call_function(aten._to_copy.default, (result,), {"dtype": torch.float16}),),)


def adds_nonsense(graph: Graph) -> None:
    (output,) = graph.find_nodes(op="output")
    (result,) = output.args[0]  # type: ignore[misc]
    with graph.inserting_before(output):
        output.args = ((graph.call_function(aten.mm.default, (result, result)),),)


def uses_before(graph: Graph) -> None:
    nodes = list(graph.find_nodes(op="call_function"))
    nodes[0].args = (nodes[-1],)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (fails, "failed: KeyError: 'weights'"),
        (loses_the_output, "left 0 outputs of 1"),
        (changes_a_type, r"turned output 0 from float32\[3, 5\] on .* into float16\[3, 5\] on"),
        (adds_nonsense, "added .*mm.* which cannot be"),
        (uses_before, "(left a graph that is not valid|failed: AssertionError)"),
    ],
)
def test_a_wrong_pass_is_named(device: str, wrong, error: str) -> None:
    bringup.graph_pass("wrong")(wrong)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=rf"the graph pass 'wrong' \(.*test_passes.py:\d+\) (?s:.*){error}"):
        torch.compile(Tiny(), backend="bringup")(torch.randn(3, 5, device=device))
    bringup.remove_graph_pass("wrong")
    torch._dynamo.reset()
    x = torch.randn(3, 5, device=device)
    torch.testing.assert_close(torch.compile(Tiny(), backend="bringup")(x), torch.tanh(x) + 1)


def test_every_pass_says_what_it_does() -> None:
    for one in passes():
        assert one.summary.endswith("."), one.name
        assert one.where.startswith("bringup/graph/"), one.name
    assert all((step.function.__doc__ or "").endswith(".") for step in PASSES)
