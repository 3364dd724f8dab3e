"""Programs at the edges of capture: whose memory it is, what cannot be captured, threads beside it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import torch

from tests.device.capturing import captured, equal, program, refused, sim, usable


# ---- memory ----
@program
def a_graph_gives_its_memory_back() -> None:
    x = torch.ones(1 << 18, device="sim")
    (x * 2).exp().sum()  # warm
    gc.collect()
    sim.empty_cache()
    allocated, reserved = sim.memory_allocated(), sim.memory_reserved()
    graph, y = captured(lambda: (x * 2).exp())
    assert sim.memory_allocated() == allocated + (1 << 20)
    held = sim.memory_reserved()
    assert held > reserved
    pool = graph.pool()
    address = y.data_ptr()
    del y
    assert sim.memory_allocated() == allocated
    sim.empty_cache()
    assert sim.memory_reserved() == held  # replay still runs on those addresses
    others = [torch.empty(1 << 18, device="sim") for _ in range(8)]
    assert address not in {other.data_ptr() for other in others}
    del others
    graph.replay()
    graph.reset()
    sim.empty_cache()
    assert (sim.memory_allocated(), sim.memory_reserved()) == (allocated, reserved)
    with refused("pool()"):
        graph.pool()
    again, z = captured(lambda: x * 2, pool=pool)  # a name of a pool that is gone names a new one
    assert again.pool() == pool
    again.replay()
    assert z.sum().item() == 2 << 18
    del z, again
    sim.empty_cache()
    assert (sim.memory_allocated(), sim.memory_reserved()) == (allocated, reserved)


@program
def results_outlive_their_graph() -> None:
    x = torch.ones(1000, device="sim")
    before = sim.memory_allocated()
    graph, y = captured(lambda: x * 3)
    graph.replay()
    del graph
    junk = [torch.zeros(1000, device="sim") for _ in range(20)]
    equal(y, torch.full((1000,), 3.0))
    del y, junk
    sim.empty_cache()
    assert sim.memory_allocated() == before
    assert not [segment for segment in sim.memory_snapshot() if segment["stream"] > 100], "a pool was left behind"


@program
def graphs_share_a_pool() -> None:
    x = torch.ones(1 << 19, device="sim")
    handle = sim.graph_pool_handle()
    first, a = captured(lambda: (x * 2).add(1).mul(3), pool=handle)
    held = sim.memory_reserved()
    assert first.pool() == handle
    second, b = captured(lambda: (a * 2).add(1).mul(3), pool=first.pool())
    assert second.pool() == handle
    assert a.data_ptr() != b.data_ptr()
    shared = sim.memory_reserved() - held
    third, c = captured(lambda: (a * 2).add(1).mul(3))
    assert third.pool() != handle
    assert shared < sim.memory_reserved() - held - shared, "the second capture reuses what the first has freed"
    for value in (1.0, 2.0):
        x.fill_(value)
        for graph in (first, second, third):
            graph.replay()
        expected = torch.full((1 << 19,), ((value * 2 + 1) * 3 * 2 + 1) * 3)
        equal(b, expected)
        equal(c, expected)
    del first
    second.replay()  # its pool is still held
    equal(b, expected)
    with refused("is no memory pool", kind=ValueError):
        captured(lambda: None, pool=(3, 4))
    usable()


@program
def memory_runs_out_inside_a_capture() -> None:
    x = torch.ones(4, device="sim")
    gc.collect()
    before = sim.memory_allocated()
    try:
        captured(lambda: (x + 1, torch.empty(1 << 50, device="sim")))
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("the device has no such memory")
    gc.collect()
    assert sim.memory_allocated() == before
    usable()


# ---- what cannot be captured ----
@program
def what_needs_the_host_is_refused_by_name() -> None:
    x = torch.ones(4, 4, device="sim")
    pinned = torch.ones(4, 4).pin_memory()
    cases: dict[str, Callable[[], Any]] = {
        "item": lambda: x.sum().item(),
        "aten::nonzero": lambda: torch.nonzero(x),
        "aten::_unique2": lambda: torch.unique(x),
        "aten::_linalg_svd": lambda: torch.linalg.svd(x),
        "aten::_fft": lambda: torch.fft.fft(x),
        "aten::copy_": lambda: x.cpu(),
        "between host and device": lambda: x.copy_(pinned, non_blocking=True),
        "copy between": lambda: torch.tensor([1.0], device="sim"),
        "waiting for the device": sim.synchronize,
        "waiting for a stream": lambda: sim.current_stream().synchronize(),
        "whether a stream is idle": lambda: sim.current_stream().query(),
        "a host function": lambda: sim.launch_host_function(lambda: None),
        "outside the capture": lambda: sim.current_stream().wait_stream(sim.default_stream()),
        "the replay of a graph": done.replay if (done := captured(lambda: x + 1)[0]) else None,  # type: ignore[dict-item]
    }
    for words, work in cases.items():
        before = sim.memory_allocated()
        graph = sim.Graph()
        with refused(words, "cannot be captured", "sim:0"), sim.graph(graph):
            x + 1
            work()
        usable()
        with refused("holds no capture"):
            graph.replay()
        plain = torch.accelerator.Graph()
        with refused("the capture failed", words), torch.Stream(), plain:
            work()
        usable()
        assert sim.memory_allocated() == before, words


@program
def a_capture_that_failed_fails_at_its_end() -> None:
    x = torch.ones(4, device="sim")
    graph = sim.Graph()
    with refused("the capture failed", "item"), sim.graph(graph):
        try:
            x.sum().item()
        except RuntimeError:
            x.add_(1)
    equal(x, torch.ones(4))
    with sim.graph(graph):  # the graph is empty, and can be used again
        x.add_(1)
    graph.replay()
    equal(x, torch.full((4,), 2.0))


@program
def errors_of_the_program_itself_pass_through() -> None:
    x = torch.ones(4, device="sim")
    with refused("mine", kind=KeyError), sim.graph(sim.Graph()):
        x.add_(1)
        raise KeyError("mine")
    usable()
    with refused("shape"):
        captured(lambda: torch.ones(2, 3, device="sim") @ x.view(2, 2))
    usable()


@program
def captures_do_not_nest() -> None:
    x = torch.ones(4, device="sim")
    outer = sim.Graph()
    with sim.graph(outer):
        x.add_(1)
        with refused("nested"), sim.graph(sim.Graph()):
            pass
        with refused("nested"):
            sim.Graph().capture_begin()
        with refused("is being captured already"):
            outer.capture_begin()
        x.add_(1)
    outer.replay()
    equal(x, torch.full((4,), 3.0))
    with refused("holds a capture already"), sim.stream(sim.Stream()):
        outer.capture_begin()
    with refused("without capture_begin()"):
        sim.Graph().capture_end()
    with refused("default stream"):
        sim.Graph().capture_begin()
    usable()


@program
def a_graph_that_goes_away_ends_its_capture() -> None:
    stream = sim.Stream()
    with sim.stream(stream):
        graph = sim.Graph()
        graph.capture_begin()
        torch.ones(3, device="sim")
        assert stream.is_capturing()
        del graph
        gc.collect()
        assert not stream.is_capturing()
        assert torch.ones(3, device="sim").sum().item() == 3
    usable()


@program
def events_of_a_capture() -> None:
    x = torch.ones(4, device="sim")
    event, other = sim.Event(), sim.Event()
    graph = sim.Graph()
    with sim.graph(graph):
        x.add_(1)
        event.record()
        with refused("marks no moment"):
            event.synchronize()
        with refused("marks no moment"):
            event.query()
    with refused("marks no moment"):
        sim.current_stream().wait_event(event)
    event.record()
    event.synchronize()
    with refused("of one device"), sim.graph(sim.Graph()):
        other.record()
        with sim.device(1):
            sim.current_stream().wait_event(other)
    with sim.device(1):
        usable()
    graph.replay()
    equal(x, torch.full((4,), 2.0))


@program
def peer_copies_are_refused() -> None:
    x, y = torch.ones(4, device="sim:0"), torch.zeros(4, device="sim:1")
    for work in (lambda: y.copy_(x), lambda: x.copy_(y)):
        with refused("captur"):
            captured(work)
        usable()
    y.copy_(x)
    equal(y, torch.ones(4))


@program
def another_device_can_be_captured() -> None:
    with sim.device(1):
        x = torch.ones(4, device="sim:1")
        graph, y = captured(lambda: x + 1)
    x.fill_(3)
    graph.replay()  # on its own device, whatever is current
    equal(y, torch.full((4,), 4.0))


# ---- threads ----
def elsewhere(work: Callable[[], Any]) -> BaseException | None:
    """What another thread's call raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


@program
def modes_say_who_may_wait_for_the_device() -> None:
    x = torch.ones(4, device="sim")
    for mode, here, there in (("global", True, True), ("thread_local", True, False), ("relaxed", False, False)):
        graph = sim.Graph()
        error = None
        try:
            with sim.graph(graph, capture_error_mode=mode):
                assert (elsewhere(sim.synchronize) is not None) == there, mode
                if not there:
                    x.add_(1)
                    sim.synchronize()
        except RuntimeError as caught:
            error = caught
        assert (error is not None) == here, (mode, error)
        usable()
    with refused("capture error mode", kind=Exception):
        captured(lambda: None, capture_error_mode="sometimes")


@program
def other_threads_work_while_one_captures() -> None:
    x = torch.ones(4, device="sim")
    graph = sim.Graph()
    with sim.graph(graph, capture_error_mode="thread_local"):
        y = x + 1
        assert elsewhere(usable) is None
        mine = []
        assert elsewhere(lambda: mine.append(torch.ones(100, device="sim").cumsum(0).cpu())) is None
        equal(mine[0], torch.arange(1.0, 101))
        z = y + 1
    graph.replay()
    equal(z, torch.full((4,), 3.0))


@program
def two_threads_capture_at_once() -> None:
    barrier = threading.Barrier(2)
    results: dict[int, torch.Tensor] = {}

    def run(n: int) -> None:
        x = torch.full((8,), float(n), device="sim")
        x + 1
        graph, stream = sim.Graph(), sim.Stream()
        with sim.stream(stream):
            barrier.wait()
            graph.capture_begin(capture_error_mode="relaxed")
            for _ in range(50):
                x.add_(1)
            graph.capture_end()
            barrier.wait()
            graph.replay()
            graph.replay()
            results[n] = x.cpu()

    raised = []
    threads = [threading.Thread(target=lambda n=n: raised.append(elsewhere(lambda: run(n)))) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == [None, None], raised
    for n in range(2):
        equal(results[n], torch.full((8,), n + 100.0))
