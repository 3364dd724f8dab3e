"""``bringup explain model.py:fn``: what it tells of a model's graphs, the page it writes, and its errors."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.kit.graph_explain import GraphStory, Reason
from bringup.kit.graph_explain_layout import Box, Edge, layered, spread
from bringup.kit.graph_explain_model import NoModel, load_model, parse_input
from bringup.kit.graph_explain_text import console, story_parts
from bringup.kit.graph_explain_watch import explain_model
from bringup.kit.graph_page import page
from tests.fork_server import run_bringup

MODELS = """
import torch
from torch import nn

HOSTILE = '</title><script>alert(1)</script><b a="'

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 16)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))

class Hostile(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({HOSTILE: nn.Linear(4, 4)})

    def forward(self, x):
        return self.parts[HOSTILE](x).relu()

net = Net()
example_inputs = [torch.randn(8, 32)]

def pair():
    return net, (torch.randn(4, 32),)

def uses_net(x):
    return net(x) * 2

def chain(x, y):
    return (x * y + 1).relu().sum(-1)

def with_ordinary_op(x):
    q, r = torch.linalg.qr(x * 2)
    return q.relu(), r

def no_op(x):
    return x.shape

def wrong(x):
    return x @ x

class Needs(nn.Module):
    def __init__(self, width):
        super().__init__()

def five():
    return 5

three = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "explained.py").write_text(MODELS)
    (folder / "broken.py").write_text("def f(:\n")
    return folder


@pytest.fixture(autouse=True)
def _own_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model's file does to imports ends with its test."""
    monkeypatch.setattr(sys, "path", [*sys.path])


Stories = Callable[..., list[GraphStory]]


@pytest.fixture
def stories(folder: Path, device: str) -> Stories:
    def explain(name: str, *inputs: str, train: bool = False) -> list[GraphStory]:
        model = load_model(f"{folder}/explained.py:{name}", inputs, torch.device(device, 0), train)
        return explain_model(model, train, lambda text: None)

    return explain


def text_of(story: GraphStory, **parts: bool) -> str:
    terminal = console()
    terminal.file = StringIO()
    for part in story_parts(story, **parts):
        terminal.print(part)
    return terminal.file.getvalue()


# ---- the story ----
def test_every_node_has_a_fate_and_every_launch_its_nodes(stories: Stories) -> None:
    forward, backward = stories("net", train=True)
    assert (forward.title, backward.title) == ("forward", "backward")
    for story in (forward, backward):
        computed = {node.name for node in story.nodes if node.fate in ("kernel", "op")}
        assert computed == {name for step in story.steps for name in step.nodes}
        assert {step.kernel for step in story.steps} == {kernel.number for kernel in story.kernels}
        assert sorted(n for kernel in story.kernels for n in kernel.steps) == [step.number for step in story.steps]
    fates = {node.name: node.fate for node in forward.nodes}
    assert fates["first.weight"] == "input"
    assert "view" in fates.values()
    assert "kernel" in fates.values()


def test_arguments_and_gradients_have_the_names_of_the_model(stories: Stories) -> None:
    forward, backward = stories("net", train=True)
    kinds = {tensor.name: tensor.kind for tensor in forward.tensors.values()}
    assert kinds["second.weight"] == "parameter"
    assert kinds["norm.running_mean"] == "parameter"
    assert kinds["x"] == "input"
    written = {tensor.name for tensor in forward.tensors.values() if "written in place" in tensor.leaves_as}
    assert {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"} <= written
    leaves = {word for tensor in backward.tensors.values() for word in tensor.leaves_as}
    assert {"gradient of first.weight", "gradient of second.bias", "gradient of norm.bias"} <= leaves


def test_what_was_fused_and_what_was_not(stories: Stories) -> None:
    (story,) = stories("chain", "16x256", "16x256")
    assert len(story.steps) == 1
    assert set(story.steps[0].nodes) == {"mul", "add", "relu", "sum_1"}
    assert {pair for reason in story.fused for pair in reason.pairs} >= {("mul", "add"), ("add", "relu")}
    assert story.refused == []
    (story,) = stories("net")
    homes = {node.name: set(node.steps) for node in story.nodes}
    for reason in story.refused:
        assert reason.text
        assert all(a == b or not homes[a] & homes[b] for a, b in reason.pairs), "refused, and yet one kernel"
    for reason in story.fused:
        assert all(homes[a] & homes[b] for a, b in reason.pairs)


def test_costs_are_those_of_the_shapes_and_times_are_measured(stories: Stories) -> None:
    (story,) = stories("net")
    product = next(step for step in story.steps if "addmm" in step.nodes)
    assert product.flops >= 2 * 8 * 32 * 64
    assert product.read >= 4 * (8 * 32 + 32 * 64 + 64)
    assert all(step.seconds is not None and step.seconds > 0 for step in story.steps)


def test_timing_leaves_the_model_alone(folder: Path, device: str) -> None:
    model = load_model(f"{folder}/explained.py:Net", ["8x32"], torch.device(device, 0), True)
    explain_model(model, True, lambda text: None)
    assert isinstance(model.function, torch.nn.Module)
    assert model.function.norm.num_batches_tracked.item() == 1  # type: ignore[union-attr, operator]


def test_memory_that_lives_at_one_time_does_not_overlap(stories: Stories) -> None:
    _, backward = stories("net", train=True)
    inside = backward.in_arena
    assert inside
    for n, one in enumerate(inside):
        assert one.offset is not None
        assert one.offset + one.nbytes <= backward.arena
        for other in inside[:n]:
            assert other.offset is not None
            apart = one.offset >= other.offset + other.nbytes or other.offset >= one.offset + one.nbytes
            assert apart or one.last < other.first or other.last < one.first
    assert max(backward.alive()) <= backward.bound <= backward.arena


def test_an_ordinary_op_has_its_reason(stories: Stories) -> None:
    (story,) = stories("with_ordinary_op", "8x4")
    (op,) = story.ordinary
    assert (op.name, op.reason) == ("linalg_qr", "it has no lowering")
    assert op.seconds is not None
    assert re.search(r"linalg_qr +linalg_qr +it has no lowering", text_of(story))


def test_a_module_that_the_function_uses_moves_along(stories: Stories) -> None:
    (story,) = stories("uses_net")
    assert "net.first.weight" in {tensor.name for tensor in story.tensors.values()}


# ---- the terminal ----
def test_the_text_fits_and_has_every_part(stories: Stories) -> None:
    forward, backward = stories("pair", train=True)
    for story in (forward, backward):
        text = text_of(story)
        assert max(map(len, text.splitlines())) <= 100
        for part in ("Graph", "Kernels", "Fused", "Not fused", "Memory"):
            assert re.search(rf"^{part}\s*$", text, re.MULTILINE), part
    assert "No kernels" not in text_of(forward)
    assert re.search(r"first\.weight +float32\[64, 32\] +parameter", text_of(forward))
    assert "█" in text_of(backward)


def test_ir_and_source_on_demand(stories: Stories) -> None:
    (story,) = stories("chain", "16x256", "16x256")
    assert "store " not in text_of(story)
    assert "store " in text_of(story, ir=True)
    assert "void bringup_" not in text_of(story, ir=True)
    assert "void bringup_" in text_of(story, source=True)


# ---- the page ----
class Balanced(HTMLParser):
    """Fails on a tag that nobody closes, and collects what would be loaded or run."""

    _EMPTY = ("meta", "br", "rect", "path", "line")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts = 0
        self.loaded: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.loaded += [f"{tag} {name}={value}" for name, value in attributes if name in ("src", "srcset", "action")]
        self.loaded += [value for name, value in attributes if name == "href" and value and not value.startswith("#")]
        assert not [name for name, _ in attributes if name.startswith("on")]
        if tag not in self._EMPTY or tag in ("path",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in self._EMPTY or tag in ("path",):
            assert self.open
            assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing(stories: Stories) -> None:
    told = stories("net", train=True)
    text = page("models.py:net", told)
    parsed = Balanced(text)
    assert parsed.loaded == []
    assert parsed.scripts == 1
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    assert "prefers-color-scheme: dark" in text
    drawings = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    graphs = [svg for svg in drawings if svg.get("class") == "graph"]
    assert len(graphs) == 2
    for svg, story in zip(graphs, told):
        boxes = [part for part in svg.iter("g") if (part.get("class") or "").startswith("step")]
        assert len(boxes) == len(story.steps)
        shown = "".join(svg.itertext())
        assert all(tensor.value in shown for tensor in story.tensors.values() if tensor.kind == "arena")
    charts = [svg for svg in drawings if svg.get("class") == "memory"]
    for svg, story in zip(charts, [story for story in told if story.arena], strict=True):
        lives = [part for part in svg.iter("g") if part.get("class") == "life"]
        assert len(lives) == len(story.in_arena)
    for kernel in told[0].kernels:
        assert f'id="g0-k{kernel.number}"' in text


def test_a_hostile_model_is_text_only(stories: Stories) -> None:
    (story,) = stories("Hostile", "2x4")
    assert any("<script>" in tensor.name for tensor in story.tensors.values()), "the name did not come this far"
    assert Balanced(page("x.py:Hostile", [story])).scripts == 1


EVIL = "\"'></text></svg></script><script>alert(1)</script><!--"


def test_every_text_of_a_page_is_escaped(stories: Stories) -> None:
    (story,) = stories("with_ordinary_op", "8x4")

    def spoiled(one: Any) -> Any:
        words = {name: EVIL for name, value in vars(one).items() if isinstance(value, str) and name != "kind"}
        words.pop("fate", None)
        return replace(one, **words)

    steps = [replace(spoiled(step), nodes=(*step.nodes, EVIL)) for step in story.steps]
    reasons = [Reason(EVIL, EVIL, ((EVIL, EVIL),))]
    evil = replace(
        spoiled(story),
        nodes=[spoiled(node) for node in story.nodes],
        steps=steps,
        kernels=[spoiled(kernel) for kernel in story.kernels],
        fused=reasons,
        refused=reasons,
        tensors={memory: replace(spoiled(t), leaves_as=(EVIL,)) for memory, t in story.tensors.items()},
    )
    text = page(EVIL, [evil])
    assert Balanced(text).scripts == 1
    assert text.count("alert(1)") > 10


# ---- the layout ----
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_boxes_do_not_overlap_and_edges_go_down(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    boxes = [Box(data.draw(st.floats(20, 200)), data.draw(st.floats(10, 100))) for _ in range(count)]
    pairs = data.draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=20))
    edges = [Edge(a, b, boxes[a].width / 2, boxes[b].width / 2) for a, b in pairs if a < b]
    found = layered(boxes, edges)
    for n, (x, y) in enumerate(found.corners):
        assert -0.01 <= x <= found.width - boxes[n].width + 0.01
        assert 0 <= y <= found.height - boxes[n].height + 0.01
        for m in range(n):
            other_x, other_y = found.corners[m]
            beside = x + boxes[n].width <= other_x + 0.01 or other_x + boxes[m].width <= x + 0.01
            assert beside or y + boxes[n].height <= other_y or other_y + boxes[m].height <= y
    for edge, route in zip(edges, found.routes):
        assert route[0][1] == pytest.approx(found.corners[edge.source][1] + boxes[edge.source].height)
        assert route[-1][1] == pytest.approx(found.corners[edge.target][1])
        assert all(above[1] <= below[1] + 0.01 for above, below in pairwise(route))


@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(1, 50)), min_size=1, max_size=10))
def test_spreading_keeps_order_and_distance(wanted: list[tuple[float, float]]) -> None:
    places = spread([place for place, _ in wanted], [width for _, width in wanted], [1.0] * len(wanted))
    for (_, width), here, there in zip(wanted, places, places[1:]):
        assert there >= here + width - 1e-6


# ---- what can go wrong ----
@pytest.mark.parametrize(
    ("place", "inputs", "message"),
    [
        ("nosuch.py:f", (), "there is no file"),
        ("explained.py:nosuch", (), r"no 'nosuch' in the file; it has Net, Hostile, net, pair"),
        ("explained.py:three", (), "is int, which cannot be called"),
        ("explained.py:Needs", (), "cannot be made without arguments"),
        ("explained.py:five", (), r"must return \(callable, arguments\), not int"),
        ("explained.py:", (), "say what to explain"),
        ("broken.py:f", (), "cannot be imported: SyntaxError"),
        ("explained.py:chain", ("4y4",), "it is not a shape"),
        ("explained.py:chain", ("4:floaty",), "'floaty' is not a type of torch"),
        ("explained.py:chain", ("",), "it is not a shape"),
        ("explained.py:pair", ("4x32",), "brings its own arguments"),
    ],
)
def test_what_is_wrong_with_a_place(folder: Path, place: str, inputs: tuple[str, ...], message: str) -> None:
    with pytest.raises(NoModel, match=message):
        load_model(f"{folder}/{place}", inputs, torch.device("cpu"), False)


def test_inputs() -> None:
    assert parse_input("2x3").dtype is torch.float32
    assert parse_input("2x3:bfloat16").dtype is torch.bfloat16
    assert set(parse_input("64:int64").tolist()) <= {0, 1}
    assert parse_input("4:bool").dtype is torch.bool
    assert parse_input(":float64").shape == ()


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_bringup("explain", *arguments, cwd=folder, timeout=240)


def test_the_command_prints_and_writes(folder: Path) -> None:
    done = run(folder, "explained.py:chain", "--input", "4x8", "--input", "4x8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("forward on sim:0 ")
    done = run(folder, "explained.py:chain", "--input", "4x8", "--input", "4x8", "--train", "--html", "page.html")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("written: page.html\n")
    assert "backward: " in done.stdout
    Balanced((folder / "page.html").read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explained.py:nosuch",), "there is no 'nosuch' in the file"),
        (("explained.py:wrong", "--input", "4x3"), "mat1 and mat2 shapes cannot be multiplied"),
        (("explained.py:no_op", "--input", "4"), "has no graph"),
        (("explained.py:chain", "--input", "4", "--input", "4", "--mode", "library"), "sim runs no kernels here"),
        (("torch.ones(3)", "--train"), "are for a model"),
        (("explained.py:net", "--html", "nosuch/page.html"), "there is no folder nosuch"),
    ],
)
def test_an_error_is_one_line_and_status_2(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run(folder, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("bringup explain: ")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
