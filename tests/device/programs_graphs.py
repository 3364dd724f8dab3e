"""Programs that capture work into graphs and replay it: what a capture is, training, random numbers."""

from __future__ import annotations

import copy
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.device.capturing import captured, equal, program, refused, sim, usable


# ---- what a capture is ----
@program
def nothing_runs_before_replay() -> None:
    x = torch.zeros(8, device="sim")

    def work() -> torch.Tensor:
        assert sim.is_current_stream_capturing()
        assert torch.accelerator.current_stream().is_capturing()
        x.add_(1)
        return x * 2

    graph, y = captured(work)
    assert not sim.is_current_stream_capturing()
    assert x.sum().item() == 0
    for count in (1, 2, 3):
        graph.replay()
        equal(x, torch.full((8,), float(count)))
        equal(y, torch.full((8,), 2.0 * count))


@program
def the_interface_of_torch_accelerator() -> None:
    x = torch.zeros(2000, device="sim")
    graph = torch.accelerator.Graph()
    with torch.Stream(), graph:
        x += 1
    graph.replay()
    assert x.sum().item() == 2000
    graph.reset()
    with refused("replay() of a graph that holds no capture"):
        graph.replay()
    graph.graph_pool = None
    with torch.Stream(), graph:
        x += 2
    graph.replay()
    assert x.sum().item() == 6000


@program
def copies_fills_views_and_out_are_captured() -> None:
    a, b = torch.zeros(4, 6, device="sim"), torch.zeros(6, 4, device="sim")
    whole = torch.zeros(24, device="sim")

    def work() -> tuple[torch.Tensor, ...]:
        b.copy_(a.t())
        whole.view(4, 6).copy_(a)
        torch.mul(a, 3, out=b.t())
        a[1:3, ::2].fill_(7)
        return a.clone(), a.to(torch.float64), torch.cat([a, a]), a.contiguous(memory_format=torch.contiguous_format)

    graph, results = captured(work)
    for seed in range(3):
        host = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
        a.copy_(host)
        graph.replay()
        equal(whole, host.view(24))
        equal(b, (host * 3).t())
        host[1:3, ::2] = 7
        for found, expected in zip(results, (host, host.double(), torch.cat([host, host]), host)):
            equal(found, expected)


@program
def an_empty_capture_replays_nothing() -> None:
    graph, _ = captured(lambda: None)
    graph.replay()
    usable()


@program
def replay_on_another_stream_keeps_its_order() -> None:
    x = torch.ones(4, device="sim")
    graph, y = captured(lambda: x + 1)
    side = sim.Stream()
    side.wait_stream(sim.current_stream())
    with sim.stream(side):
        sim._sleep(30)
        x.fill_(5)
        graph.replay()
        z = y * 10
    side.synchronize()
    equal(z, torch.full((4,), 60.0))


@program
def a_stream_that_waits_for_a_captured_one_is_captured() -> None:
    x = torch.ones(4, device="sim")
    other = sim.Stream()
    results = []

    def work() -> torch.Tensor:
        y = x + 1
        other.wait_stream(sim.current_stream())
        with sim.stream(other):
            assert sim.is_current_stream_capturing()
            z = y * 3
            z.record_stream(other)
        sim.current_stream().wait_stream(other)
        results.append(z)
        return z + y

    graph, total = captured(work)
    assert not other.is_capturing()
    x.fill_(4)
    graph.replay()
    equal(results[0], torch.full((4,), 15.0))
    equal(total, torch.full((4,), 20.0))
    usable()


@program
def many_threads_replay_one_graph() -> None:
    x = torch.zeros(64, device="sim")
    graph, _ = captured(lambda: x.add_(1))
    streams = [sim.Stream() for _ in range(4)]
    lock = threading.Lock()  # += of several streams at once would be a race of the program

    def run(stream: torch.Stream) -> None:
        for _ in range(25):
            with lock, sim.stream(stream):
                graph.replay()
                stream.synchronize()

    threads = [threading.Thread(target=run, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(x, torch.full((64,), 100.0))


@program
def replay_holds_no_gil() -> None:
    x = torch.zeros(1 << 19, device="sim")

    def work() -> None:
        for _ in range(400):
            torch.exp(x, out=x)
            x.zero_()

    graph, _ = captured(work)
    started, finished = threading.Event(), threading.Event()

    def run() -> None:
        started.set()
        graph.replay()
        finished.set()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    turns = 0
    while not finished.is_set():
        turns += 1
    thread.join()
    assert turns > 1000, turns


@program
def keep_graph_debug_dump_and_instantiate() -> None:
    x = torch.ones(3, device="sim")
    graph = sim.Graph(keep_graph=True)
    with refused("instantiate() needs a capture"):
        graph.instantiate()
    with sim.graph(graph):
        y = torch.exp(x)
        x.copy_(y)
    graph.instantiate()
    graph.replay()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graph.dot")
        graph.debug_dump(str(path))
        text = path.read_text()
        assert text.splitlines() == ["aten::exp on work units: 1", "copy of bytes: 12"], text
        with refused("could not be written"):
            graph.debug_dump(f"{folder}/missing/graph.dot")
    graph.reset()
    with refused("debug_dump() of a graph that holds no capture"):
        graph.debug_dump("unused")


# ---- training ----
def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 5))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(11)
    return [
        (torch.randn(8, 12, generator=generator), torch.randint(5, (8,), generator=generator)) for _ in range(count)
    ]


def train(make: Callable[[Any], torch.optim.Optimizer], dropout: float, as_graph: bool) -> list[torch.Tensor]:
    """Losses and final parameters of a few steps."""
    model = nn.Sequential(network(), nn.Dropout(dropout)).to("sim")
    optimizer = make(model.parameters())
    loss_of = nn.CrossEntropyLoss()
    x, y = torch.zeros(8, 12, device="sim"), torch.zeros(8, dtype=torch.int64, device="sim")

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    warm, *rest = batches(5)
    x.copy_(warm[0])
    y.copy_(warm[1])
    side = sim.Stream()
    side.wait_stream(sim.current_stream())
    with sim.stream(side):
        losses = [step().detach().clone()]
    sim.current_stream().wait_stream(side)
    if as_graph:
        graph, loss = captured(step)
    for inputs, targets in rest:
        x.copy_(inputs)
        y.copy_(targets)
        if as_graph:
            graph.replay()
        else:
            loss = step()
        losses.append(loss.detach().clone())
    return [*losses, *(p.detach().clone() for p in model.parameters())]


def same_training(make: Callable[[Any], torch.optim.Optimizer], dropout: float = 0.0) -> None:
    sides = []
    for as_graph in (False, True):
        torch.manual_seed(17)
        sides.append(train(make, dropout, as_graph))
    eager, replayed = sides
    assert len({loss.item() for loss in eager[:5]}) == 5
    for a, b in zip(replayed, eager, strict=True):
        equal(a, b)


@program
def a_training_step_with_sgd_is_eager_bit_for_bit() -> None:
    same_training(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False))
    same_training(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True))


@program
def a_training_step_with_capturable_adam_and_dropout_is_eager_bit_for_bit() -> None:
    same_training(lambda p: torch.optim.AdamW(p, lr=0.01, capturable=True), dropout=0.3)


@program
def parameters_first_used_on_the_default_stream() -> None:
    """A node of autograd that is kept from before wants the default stream: PyTorch says so, or moves it."""
    weight = torch.ones(3, device="sim", requires_grad=True)
    x = torch.ones(3, device="sim")
    kept = weight * x
    kept.sum().backward()
    assert weight.grad is not None
    weight.grad.zero_()
    override = getattr(torch.autograd.graph, "set_override_stale_capture_stream", None)
    if override is not None:  # before 2.13 PyTorch always moved it
        with refused("stale reference to the default stream"):
            captured(lambda: (weight * x).sum().backward())
        usable()
        override(True)
    graph, _ = captured(lambda: (weight * x).sum().backward())
    if override is not None:
        override(False)
    for count in (1, 2):
        x.fill_(float(count))
        graph.replay()
    equal(weight.grad, torch.full((3,), 3.0))


@program
def an_optimizer_that_counts_on_the_cpu_is_refused() -> None:
    weight = torch.ones(3, device="sim", requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.ones_like(weight)
    with refused("Adam(capturable=True)"):
        captured(optimizer.step)
    optimizer.step()
    usable()


@program
def graphed_modules_train_like_the_module() -> None:
    first, second = network().to("sim"), nn.Linear(5, 3).to("sim")
    graphed = copy.deepcopy(first), copy.deepcopy(second)
    samples = torch.zeros(8, 12, device="sim"), torch.zeros(8, 5, device="sim", requires_grad=True)
    made = sim.make_graphed_callables(graphed, tuple((sample,) for sample in samples))
    assert made == graphed
    for seed in range(3):
        x = torch.randn(8, 12, generator=torch.Generator().manual_seed(seed)).to("sim")
        for modules in ((first, second), graphed):
            modules[1](modules[0](x).relu()).square().mean().backward()
    for module, other in zip((first, second), graphed):
        for expected, found in zip(module.parameters(), other.parameters(), strict=True):
            equal(found.grad, expected.grad)
    other.eval()
    equal(other(torch.ones(2, 5, device="sim")), second(torch.ones(2, 5, device="sim")))  # not the captured shape


@program
def graphed_functions() -> None:
    def work(x: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"a": x * pair[0], "b": pair[1].exp()}

    def arguments(value: float) -> Any:
        x = torch.full((4,), value, device="sim", requires_grad=True)
        return x, (torch.full((4,), 2.0, device="sim"), torch.zeros(4, device="sim"))

    graphed = sim.make_graphed_callables(work, arguments(0.0))
    for value in (1.0, -3.0):
        given = arguments(value)
        result = graphed(*given)
        equal(result["a"], torch.full((4,), 2 * value))
        equal(result["b"], torch.ones(4))
        assert not result["b"].requires_grad
        result["a"].sum().backward()
        equal(given[0].grad, torch.full((4,), 2.0))
    with refused("tensors only", kind=TypeError):
        sim.make_graphed_callables(work, (1, 2))
    module = nn.Linear(4, 4, device="sim")
    module.register_forward_hook(lambda *_: None)
    with refused("hooks"):
        sim.make_graphed_callables(module, (torch.ones(4, device="sim"),))


# ---- random numbers ----
@program
def every_replay_draws_the_numbers_eager_would() -> None:
    def work() -> list[torch.Tensor]:
        x = torch.rand(100, device="sim")
        return [x, torch.randn(100, device="sim"), nn.functional.dropout(x, 0.5), torch.randint(9, (50,), device="sim")]

    torch.manual_seed(5)
    expected = [[value.cpu() for value in work()] for _ in range(3)]
    after = torch.rand(5, device="sim").cpu()
    torch.manual_seed(5)
    state = sim.get_rng_state()
    graph, values = captured(work)
    assert torch.equal(sim.get_rng_state(), state), "a capture draws nothing"
    for drawn in expected:
        graph.replay()
        for found, right in zip(values, drawn, strict=True):
            equal(found, right)
    equal(torch.rand(5, device="sim"), after)
    torch.manual_seed(5)
    graph.replay()
    for found, right in zip(values, expected[0], strict=True):
        equal(found, right)


@program
def a_generator_of_ones_own() -> None:
    generator = torch.Generator("sim").manual_seed(9)

    def work() -> tuple[torch.Tensor, ...]:
        mine = torch.rand(20, device="sim", generator=generator)
        return mine, torch.rand(20, device="sim"), torch.rand(20, device="sim", generator=generator)

    torch.manual_seed(1)
    expected = [[value.cpu() for value in work()] for _ in range(2)]
    torch.manual_seed(1)
    generator.manual_seed(9)
    graph, values = captured(work)
    for drawn in expected:
        graph.replay()
        for found, right in zip(values, drawn, strict=True):
            equal(found, right)


@program
def a_compiled_function_is_captured_with_its_random_numbers() -> None:
    compiled = torch.compile(lambda x: nn.functional.dropout(x * 2, 0.5) + torch.rand_like(x), backend="bringup")
    x = torch.ones(200, device="sim")
    compiled(x)  # compiles
    torch.manual_seed(4)
    expected = [compiled(x).cpu() for _ in range(3)]
    torch.manual_seed(4)
    graph, y = captured(lambda: compiled(x))
    for right in expected:
        graph.replay()
        equal(y, right)


@program
def a_generator_of_another_device_is_refused() -> None:
    generator = torch.Generator("sim:1")
    with refused("random numbers from outside the capture", "sim:0"):
        captured(lambda: torch.empty(5, device="sim:0").uniform_(generator=generator))
    usable()


@program
def seeds_are_not_set_inside_a_capture() -> None:
    with refused("a seed cannot be set inside a capture"):
        captured(lambda: sim.manual_seed(1))
    with refused("aten::_standard_gamma"):
        captured(lambda: torch._standard_gamma(torch.ones(3, device="sim")))
    usable()


# ---- errors of replay ----
@program
def an_index_out_of_range_at_replay_names_the_op() -> None:
    table, places = torch.arange(5.0, device="sim"), torch.zeros(3, dtype=torch.int64, device="sim")
    graph, found = captured(lambda: table.gather(0, places))
    graph.replay()
    equal(found, torch.zeros(3))
    places.fill_(9)
    with refused("aten::gather", "index 9", kind=IndexError):
        graph.replay()
        sim.synchronize()
    places.fill_(2)
    graph.replay()
    equal(found, torch.full((3,), 2.0))
