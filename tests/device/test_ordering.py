"""Memory, errors and events against work that is still queued: what another thread or stream did not finish yet."""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.device.test_streams import ELEMENTS, asynchronous, held, module, pinned  # noqa: F401
from tests.optional_packages import skip_without_graphs

MiB = 1 << 20

pytestmark = pytest.mark.usefixtures("asynchronous")


def delayed(gate: threading.Event, seconds: float = 0.3) -> threading.Thread:
    """Opens a gate a moment later, from another thread; whoever waits without the GIL sees it."""
    thread = threading.Thread(target=lambda: (time.sleep(seconds), gate.set()))
    thread.start()
    return thread


# ---- memory that goes back to the driver ----
def late_write(module: Any, device: str, stream: Any) -> None:  # noqa: F811
    """Queues a write of sevens on a held stream into memory that nothing holds any more."""
    sevens = pinned(7.0)
    with module.stream(stream):
        x = torch.empty(ELEMENTS, device=device)
        x.copy_(sevens, non_blocking=True)
    del x


def test_empty_cache_waits_for_the_stream_that_owns_the_memory(module: Any, device: str) -> None:  # noqa: F811
    module.synchronize()
    module.empty_cache()
    side = module.Stream()
    with held(side) as gate:
        late_write(module, device, side)
        opener = delayed(gate)
        module.empty_cache()
        y = torch.zeros(ELEMENTS, device=device)
        assert y.sum().item() == 0
        opener.join()
    module.synchronize()
    assert y.sum().item() == 0, "the work of the side stream wrote into memory that was given to another tensor"


def test_a_retry_after_out_of_memory_waits_too(run_python: Callable[..., Any]) -> None:
    run_python(
        """
        import threading, time, torch
        from tests.device.test_streams import held
        torch.zeros(1, device="sim")
        side, gate = torch.sim.Stream(), threading.Event()
        bytes_ = 40 << 20
        sevens = torch.full((bytes_,), 7, dtype=torch.uint8).pin_memory()
        torch.sim.launch_host_function(lambda: gate.wait(60), side)
        with torch.sim.stream(side):
            x = torch.empty(bytes_, dtype=torch.uint8, device="sim")
            x.copy_(sevens, non_blocking=True)
        del x
        threading.Timer(0.3, gate.set).start()
        y = torch.zeros(bytes_, dtype=torch.uint8, device="sim")  # 64 MiB: only if the other 40 go back first
        torch.sim.synchronize()
        assert torch.sim.memory_stats()["num_alloc_retries"] == 1
        assert not y.any().item(), "the memory was given back while a stream still wrote to it"
        """,
        env={"BRINGUP_SIM": "memory=64M"},
    )


def test_the_memory_of_a_graph_goes_back_after_its_replays(run_python: Callable[..., Any]) -> None:
    skip_without_graphs()
    run_python(
        """
        import threading, torch
        side, other, gate = torch.sim.Stream(), torch.sim.Stream(), threading.Event()
        x = torch.ones(1 << 16, device="sim")
        torch.sim.synchronize()
        graph = torch.accelerator.Graph()
        with torch.sim.stream(side):
            graph.capture_begin()
            y = x + 6
            graph.capture_end()
        torch.sim.launch_host_function(lambda: gate.wait(60), other)
        with torch.sim.stream(other):
            graph.replay()
            keep = y.clone()
        del y
        threading.Timer(0.3, gate.set).start()
        del graph
        torch.sim.empty_cache()
        z = torch.zeros(1 << 19, device="sim")
        torch.sim.synchronize()
        assert not z.any().item() and keep.eq(7).all().item()
        """,
        env={"BRINGUP_SIM": "mode=kernels"},
    )


# ---- work on the host, and threads that share a stream ----
@pytest.mark.parametrize("mode", ["kernels", "library"])
def test_a_cpu_kernel_gets_no_memory_that_another_thread_still_writes(
    run_python: Callable[..., Any], mode: str
) -> None:
    """The default stream belongs to all threads: what one queues may write to memory that it has freed."""
    run_python(
        """
        import threading, torch
        matrices = torch.randn(16, 24, 24, dtype=torch.float64)
        matrices = matrices + matrices.mT
        sevens = torch.full((matrices.numel(),), 7.0, dtype=torch.float64).pin_memory()
        given = matrices.to("sim")
        expected = torch.linalg.eigh(matrices)
        stop = threading.Event()

        def other():
            marks = []
            while not stop.is_set():
                for size in (sevens.numel(), 16 * 24, 24 * 24):
                    x = torch.empty(size, dtype=torch.float64, device="sim")
                    x.copy_(sevens[:size], non_blocking=True)
                    del x
                torch.sim._sleep(0.2)
                marks.append(torch.sim.current_stream().record_event())
                if len(marks) > 3:  # no faster than the device
                    marks.pop(0).synchronize()

        thread = threading.Thread(target=other)
        thread.start()
        try:
            results = [torch.linalg.eigh(given) for _ in range(40)]
        finally:
            stop.set()
            thread.join()
        torch.sim.synchronize()
        wrong = [i for i, got in enumerate(results) if not all(map(torch.equal, (t.cpu() for t in got), expected))]
        assert not wrong, f"{len(wrong)} of {len(results)} results are wrong"
        """,
        env={"BRINGUP_SIM": f"mode={mode}"},
    )


def test_a_cpu_kernel_of_a_user_may_keep_its_argument(device: str) -> None:
    """The CPU tensor it was given is the device's memory: that memory is not handed out while the tensor lives."""
    kept: list[torch.Tensor] = []

    @torch.library.custom_op("ordering::keep", mutates_args=(), device_types="cpu")
    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x.clone()

    x = torch.full((5000,), 5.0, device=device)
    assert keep(x).sum().item() == 25000
    del x
    others = [torch.full((5000,), 9.0, device=device) for _ in range(3)]
    assert kept[0].eq(5).all(), "what the op kept is memory of another tensor now"
    kept.clear()
    assert len(others) == 3


# ---- errors of queued work ----
BAD_INDEX = """
import gc, threading, torch
weights = torch.zeros(8, 4, device="sim")
bad = torch.tensor([3, 9], device="sim")
torch.nn.functional.embedding(bad[:1], weights)  # compiled before anything is held

def queue_a_bad_index(stream=None):
    stream = stream or torch.sim.Stream()
    gate = threading.Event()
    torch.sim.synchronize()
    torch.sim.launch_host_function(lambda: gate.wait(60), stream)
    with torch.sim.stream(stream):
        torch.nn.functional.embedding(bad, weights)
    gate.set()
    return stream

def index_error(action):
    try:
        action()
    except IndexError as error:
        return str(error)
    raise AssertionError("the index error was lost")
"""


@pytest.mark.parametrize(
    "program",
    {
        "empty_cache": """
            stream = queue_a_bad_index()
            torch.sim.empty_cache()
            assert "index 9" in index_error(torch.sim.synchronize)
            torch.sim.synchronize()  # once
        """,
        "empty_cache with recorded memory": """
            stream = queue_a_bad_index()
            x = torch.ones(1 << 20, device="sim")
            x.record_stream(stream)
            del x
            torch.sim.empty_cache()
            assert "index 9" in index_error(stream.synchronize)
            stream.synchronize()
        """,
        "an event": """
            stream = queue_a_bad_index()
            event = stream.record_event()
            torch.sim.empty_cache()
            assert "index 9" in index_error(event.synchronize)
            event.synchronize()
        """,
        "the next launch": """
            stream = queue_a_bad_index()
            torch.sim.empty_cache()
            with torch.sim.stream(stream):
                assert "index 9" in index_error(lambda: weights + 1)
                assert (weights + 1).sum().item() == 32
        """,
        "item": """
            stream = queue_a_bad_index()
            torch.sim.empty_cache()
            with torch.sim.stream(stream):
                assert "index 9" in index_error(lambda: weights[0, 0].item())
                assert weights[0, 0].item() == 0
        """,
        "two streams": """
            one, two = queue_a_bad_index(), torch.sim.Stream()
            gate = threading.Event()
            torch.sim.launch_host_function(lambda: gate.wait(60), two)
            with torch.sim.stream(two):
                torch.nn.functional.embedding(bad + 2, weights)
            gate.set()
            message = index_error(torch.sim.synchronize)
            assert "index 9" in message and "index 11" in message, message
            torch.sim.synchronize()
        """,
        "a graph that goes": """
            side, stream, gate = torch.sim.Stream(), torch.sim.Stream(), threading.Event()
            graph = torch.accelerator.Graph()
            with torch.sim.stream(side):
                graph.capture_begin()
                y = torch.nn.functional.embedding(bad, weights)
                graph.capture_end()
            torch.sim.launch_host_function(lambda: gate.wait(60), stream)
            with torch.sim.stream(stream):
                graph.replay()
            gate.set()
            del graph, y
            gc.collect()
            assert "index 9" in index_error(stream.synchronize)
        """,
        "a host kernel's memory": """
            stream = queue_a_bad_index(torch.sim.default_stream())
            done = torch.sim.default_stream().record_event()
            while not done.query():
                pass
            assert "index 9" in index_error(lambda: torch.linalg.eigh(torch.eye(3, device="sim")))
        """,
    }.items(),
    ids=lambda item: item[0],
)
def test_an_error_of_queued_work_is_kept_for_the_user(run_python: Callable[..., Any], program: tuple[str, str]) -> None:
    if "Graph()" in program[1]:
        skip_without_graphs()
    run_python(BAD_INDEX + textwrap.dedent(program[1]), env={"BRINGUP_SIM": "mode=kernels"})


def test_an_error_that_nobody_heard_is_told_at_exit(run_python: Callable[..., Any]) -> None:
    result = run_python(BAD_INDEX + "queue_a_bad_index()", env={"BRINGUP_SIM": "mode=kernels"}, whole_end=True)
    assert "index 9 is out of range" in result.stderr


# ---- races of the host ----
def test_an_event_can_be_recorded_again_while_others_wait_for_it(module: Any) -> None:  # noqa: F811
    stream, other = module.Stream(), module.Stream()
    event = module.Event(enable_timing=True)
    event.record(stream)
    errors: list[Exception] = []
    stop = threading.Event()

    def use(action: Callable[[], Any]) -> None:
        while not stop.is_set() and not errors:
            try:
                action()
            except Exception as error:
                errors.append(error)

    actions = [event.synchronize, event.query, lambda: event.wait(other), lambda: event.record(stream)]
    threads = [threading.Thread(target=use, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for _ in range(300):
        with module.stream(stream):
            module._sleep(0.5)
        event.record(stream)
        time.sleep(0.001)
        if errors:
            break
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_every_device_runs_kernels_when_threads_use_them_first_at_the_same_time(run_python: Callable[..., Any]) -> None:
    run_python(
        """
        import threading, torch
        import bringup
        barrier = threading.Barrier(8)
        errors = []

        def use(index):
            barrier.wait()
            try:
                device = torch.device("sim", index)
                x = torch.arange(6.0, device=device)
                for _ in range(3):
                    assert (x * 2 + 1).sum().item() == 36
            except Exception as error:
                errors.append(f"sim:{index}: {error}")

        threads = [threading.Thread(target=use, args=(index,)) for index in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not errors, errors
        assert not bringup.fallbacks(), bringup.fallbacks()
        """,
        env={"BRINGUP_SIM": "mode=kernels,devices=8", "BRINGUP_FALLBACK": "error"},
    )


def test_generators_that_share_a_state_hand_out_every_offset_once(device: str) -> None:
    generator = torch.Generator(device=device).manual_seed(1)
    handles = [generator, generator.graphsafe_get_state(), generator.graphsafe_get_state()]
    rounds = 4000

    def draw(own: torch.Generator) -> None:
        out = torch.empty(4, device=device)
        for _ in range(rounds):
            out.uniform_(generator=own)

    threads = [threading.Thread(target=draw, args=(own,)) for own in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert generator.get_offset() == 4 * rounds * len(handles)


def test_work_that_races_with_the_end_of_a_capture_is_captured_or_done(run_python: Callable[..., Any]) -> None:
    skip_without_graphs()
    """Another thread uses the captured stream while the capture ends: each of its ops is in the graph, or has run."""
    run_python(
        """
        import threading, torch
        stream = torch.sim.Stream()
        counter = torch.zeros(64, device="sim")
        counter.add_(1); counter.zero_(); counter + 1
        torch.sim.synchronize()
        for attempt in range(40):
            counter.zero_()
            torch.sim.synchronize()
            begun, stop = threading.Event(), threading.Event()
            done = 0

            def other():
                global done
                with torch.sim.stream(stream):
                    begun.wait(60)
                    while not stop.is_set():
                        counter.add_(1)
                        done += 1

            thread = threading.Thread(target=other)
            thread.start()
            graph = torch.accelerator.Graph()
            with torch.sim.stream(stream):
                graph.capture_begin()
                begun.set()
                for _ in range(5):
                    x = counter + 1
                graph.capture_end()
                stop.set()
                thread.join()
                ran = counter[0].item()
                graph.replay()
                both = counter[0].item()
            assert both == done, (attempt, ran, both, done)
            del graph
        """,
        env={"BRINGUP_SIM": "mode=kernels"},
    )
