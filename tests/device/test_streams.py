"""Streams and events: overlap, order, asynchronous copies, record_stream. Judged by order, never by the clock."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from bringup import _C

ELEMENTS = 1 << 16


@pytest.fixture
def module(device: str) -> Any:
    """torch.<device>"""
    return getattr(torch, device)


@pytest.fixture
def asynchronous(device: str, module: Any) -> None:
    """Skips drivers that do everything at once; the simulator must not be one of them."""
    if device == "sim":
        return
    stream = module.Stream()
    with module.stream(stream):
        module._sleep(50)
    if stream.query():
        pytest.skip(f"{device} is synchronous")
    stream.synchronize()


@contextlib.contextmanager
def held(stream: Any) -> Iterator[threading.Event]:
    """Work queued on the stream inside the block waits until the block ends, or until the gate is set.

    A host function that waits for a Python event: the order is certain, however slow the machine is.
    """
    gate = threading.Event()
    # The limit only ends a test that would otherwise hang: nothing may block on a held stream.
    getattr(torch, stream.device.type).launch_host_function(lambda: gate.wait(60), stream)
    try:
        yield gate
    finally:
        gate.set()
        stream.synchronize()


def pinned(value: float) -> torch.Tensor:
    return torch.full((ELEMENTS,), value).pin_memory()


@pytest.mark.usefixtures("asynchronous")
def test_two_streams_overlap(module: Any, device: str) -> None:
    x = torch.ones(ELEMENTS, device=device)
    module.synchronize()
    slow, fast = module.Stream(), module.Stream()
    with held(slow) as gate:
        slow_done = slow.record_event()
        with module.stream(fast):
            y = x + 1
        fast_done = fast.record_event()
        fast_done.synchronize()
        assert not slow_done.query(), "the other stream's long work was waited for"
        assert y.sum().item() == 2 * ELEMENTS
        gate.set()
        slow_done.synchronize()
        assert slow_done.query()


@pytest.mark.usefixtures("asynchronous")
def test_a_sleeping_stream_does_not_block_the_caller(module: Any) -> None:
    stream = module.Stream()
    with module.stream(stream):
        for _ in range(3):
            module._sleep(100)
    done = stream.record_event()
    assert not done.query()
    assert not stream.query()
    stream.synchronize()
    assert done.query()
    assert stream.query()


@pytest.mark.usefixtures("asynchronous")
def test_a_synchronized_stream_is_idle(module: Any) -> None:
    """Many times: a worker that reports its last work before it counts itself idle loses this race now and then."""
    late = 0
    for _ in range(300):
        stream = module.Stream()
        with module.stream(stream):
            module._sleep(1)
        stream.synchronize()
        late += not stream.query()
    assert late == 0, f"query() was False after synchronize() {late} times of 300"


@pytest.mark.usefixtures("asynchronous")
def test_wait_event_orders_two_streams(module: Any, device: str) -> None:
    first, second = module.Stream(), module.Stream()
    buffer = torch.zeros(ELEMENTS, device=device)
    result = torch.zeros(ELEMENTS).pin_memory()
    ones = pinned(1.0)
    module.synchronize()
    with held(first):
        with module.stream(first):
            buffer.copy_(ones, non_blocking=True)
        second.wait_event(first.record_event())
        with module.stream(second):
            result.copy_(buffer, non_blocking=True)
        assert not second.query()
    second.synchronize()
    assert torch.equal(result, ones)


@pytest.mark.usefixtures("asynchronous")
def test_wait_stream_orders_two_streams(module: Any) -> None:
    first, second = module.Stream(), module.Stream()
    with held(first):
        second.wait_stream(first)
        done = second.record_event()
        assert not done.query()
    done.synchronize()
    assert first.query()


@pytest.mark.usefixtures("asynchronous")
def test_copies_from_pinned_memory_return_at_once_and_keep_their_order(module: Any, device: str) -> None:
    stream = module.Stream()
    target = torch.zeros(ELEMENTS, device=device)
    one, two = pinned(1.0), pinned(2.0)
    back = torch.zeros(ELEMENTS).pin_memory()
    module.synchronize()
    with held(stream):
        with module.stream(stream):
            target.copy_(two, non_blocking=True)
            target.copy_(one, non_blocking=True)
            back.copy_(target, non_blocking=True)
        done = stream.record_event()
        assert not done.query()
        assert back.sum().item() == 0, "the copy did not wait for the work before it on its stream"
    done.synchronize()
    assert torch.equal(back, one)


@pytest.mark.usefixtures("asynchronous")
def test_non_blocking_from_pageable_memory_is_safe(module: Any, device: str) -> None:
    """The source may be changed as soon as the call returns, whatever is queued."""
    stream = module.Stream()
    source = torch.ones(ELEMENTS)
    with module.stream(stream):
        module._sleep(50)
        target = torch.empty(ELEMENTS, device=device)
        target.copy_(source, non_blocking=True)
    source.fill_(9)
    stream.synchronize()
    assert torch.equal(target.cpu(), torch.ones(ELEMENTS))


@pytest.mark.usefixtures("asynchronous")
def test_pinned_memory_is_not_reused_while_a_copy_reads_it(module: Any, device: str) -> None:
    stream = module.Stream()
    target = torch.zeros(ELEMENTS, device=device)
    module.synchronize()
    with held(stream):
        source = pinned(1.0)
        with module.stream(stream):
            target.copy_(source, non_blocking=True)
        del source
        other = pinned(2.0)  # torch's caching host allocator would hand out the same block
    assert torch.equal(target.cpu(), torch.ones(ELEMENTS))
    del other


def use_on_another_stream(module: Any, device: str, record: bool) -> tuple[bool, torch.Tensor]:
    """Frees a tensor while another stream still has to read it, then allocates the same size again.

    Returns whether the new tensor got the old memory, and what the other stream read.
    """
    owner, reader = module.Stream(), module.Stream()
    seen = torch.zeros(ELEMENTS).pin_memory()
    module.synchronize()
    with module.stream(owner):
        x = torch.ones(ELEMENTS, device=device)
    owner.synchronize()
    with held(reader):
        with module.stream(reader):
            seen.copy_(x, non_blocking=True)
        if record:
            x.record_stream(reader)
        address = x.data_ptr()
        del x
        with module.stream(owner):
            y = torch.full((ELEMENTS,), 5.0, device=device)
        owner.synchronize()
        reused = y.data_ptr() == address
    return reused, seen


@pytest.mark.usefixtures("asynchronous")
def test_without_record_stream_memory_is_reused_at_once(module: Any, device: str) -> None:
    """The other direction of the next test: it shows that the next test can fail."""
    reused, seen = use_on_another_stream(module, device, record=False)
    assert reused
    assert torch.equal(seen, torch.full((ELEMENTS,), 5.0))


@pytest.mark.usefixtures("asynchronous")
def test_record_stream_prevents_reuse(module: Any, device: str) -> None:
    reused, seen = use_on_another_stream(module, device, record=True)
    assert not reused
    assert torch.equal(seen, torch.ones(ELEMENTS))


@pytest.mark.usefixtures("asynchronous")
def test_recorded_memory_comes_back_when_the_stream_is_done(module: Any, device: str) -> None:
    owner, reader = module.Stream(), module.Stream()
    module.synchronize()
    module.empty_cache()
    before = module.memory_reserved()
    with module.stream(owner):
        x = torch.ones(ELEMENTS, device=device)
    with held(reader):
        x.record_stream(reader)
        del x
        stats = module.memory_stats()
        assert stats["active_bytes.all.current"] >= stats["allocated_bytes.all.current"] + 4 * ELEMENTS
    module.empty_cache()
    assert module.memory_reserved() == before


def test_events_measure_device_time(module: Any) -> None:
    start, middle, end = (module.Event(enable_timing=True) for _ in range(3))
    stream = module.current_stream()
    start.record(stream)
    module._sleep(5)
    middle.record(stream)
    module._sleep(20)
    end.record(stream)
    end.synchronize()
    assert 0 < start.elapsed_time(middle) <= start.elapsed_time(end)
    assert middle.elapsed_time(end) > 0


def test_events_say_what_is_wrong(module: Any) -> None:
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    with pytest.raises((RuntimeError, ValueError), match="record"):
        start.elapsed_time(end)
    plain = module.Event()
    plain.record()
    start.record()
    module.synchronize()
    with pytest.raises((RuntimeError, ValueError), match=r"[Tt]iming"):
        plain.elapsed_time(start)


@pytest.mark.usefixtures("asynchronous")
def test_elapsed_time_of_unfinished_events_is_an_error(module: Any) -> None:
    stream = module.Stream()
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    with held(stream):
        start.record(stream)
        end.record(stream)
        with pytest.raises(RuntimeError, match=r"complete|finish|not ready|done"):
            start.elapsed_time(end)


def test_current_and_default_streams(module: Any, device: str) -> None:
    default = module.default_stream()
    assert module.current_stream() == default
    side = module.Stream()
    assert side != default
    with module.stream(side):
        assert module.current_stream() == side
        assert torch.accelerator.current_stream() == side
        with module.stream(None):
            assert module.current_stream() == side
    assert module.current_stream() == default
    assert side.device == torch.device(device, module.current_device())


def test_generic_streams_and_events(module: Any, device: str) -> None:
    """torch.Stream and torch.Event know the device too."""
    stream = torch.Stream(device=device)
    with stream:
        assert torch.accelerator.current_stream() == stream
        x = torch.ones(4, device=device)
    event = torch.Event(device=device, enable_timing=True)
    event.record(stream)
    event.synchronize()
    assert event.query()
    stream.synchronize()
    assert x.sum().item() == 4
    torch.accelerator.synchronize()


def test_backward_runs_on_the_stream_of_the_forward(module: Any, device: str) -> None:
    side = module.Stream()
    seen = []
    x = torch.ones(4, device=device, requires_grad=True)
    module.synchronize()
    with module.stream(side):
        y = x * 2
        y.register_hook(lambda gradient: seen.append(module.current_stream()))
        y.sum().backward()
    module.synchronize()
    assert seen == [side]
    assert torch.equal(x.grad.cpu(), torch.full((4,), 2.0))


def test_many_streams(module: Any, device: str) -> None:
    """A pool of streams serves any number of Stream objects."""
    x = torch.ones(64, device=device)
    module.synchronize()
    total = 0.0
    for _ in range(200):
        stream = module.Stream()
        with module.stream(stream):
            total += (x + 1).sum().item()
    assert total == 200 * 128


@pytest.mark.usefixtures("asynchronous")
def test_a_wait_does_not_wait_for_what_the_core_waits_for_in_another_thread(module: Any, device: str) -> None:
    stream, event = module.Stream(), module.Event()
    with module.stream(stream):
        torch.ones(4, device=device) + 1
    event.record(stream)
    before = threading.Event()
    module.launch_host_function(before.set, stream)
    with held(stream) as gate:
        core = threading.Thread(target=lambda: _C.finish_work(0))  # as the allocator does before it frees
        core.start()
        assert before.wait(60)
        for _ in range(200):
            event.synchronize()
        assert core.is_alive()
        assert not gate.is_set()
        gate.set()
        core.join()


@pytest.mark.usefixtures("asynchronous")
def test_waiting_for_a_stuck_stream_ends(module: Any, device: str) -> None:
    stream = module.Stream()
    module.synchronize(timeout=60)
    with held(stream):
        began = time.monotonic()
        said = rf"{device}:\d+ is not done after 0.05 s: work of stream {stream.stream_id} "
        with pytest.raises(TimeoutError, match=said):
            module.synchronize(timeout=0.05)
        assert time.monotonic() - began < 30
        with pytest.raises(ValueError, match="cannot wait for -1 seconds"):
            module.synchronize(timeout=-1)
    module.synchronize(timeout=60)
    assert stream.query()
