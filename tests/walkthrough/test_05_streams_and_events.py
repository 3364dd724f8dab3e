"""Chapter 5. Streams run beside each other, events order and time them. The simulated device has real ones."""

import time

import pytest
import torch


@pytest.fixture(autouse=True)
def needs_streams(device):
    if device != "sim":
        pytest.skip("a walk through the simulated device's streams")


def test_one_stream_does_not_wait_for_another():
    side = torch.sim.Stream()
    with torch.sim.stream(side):
        torch.sim._sleep(200)  # milliseconds of work
    start = time.perf_counter()
    assert (torch.ones(3, device="sim") + 1).sum().item() == 6  # on the default stream
    assert time.perf_counter() - start < 0.2
    assert not side.query()
    side.synchronize()
    assert side.query()


def test_an_event_makes_one_stream_wait_for_another():
    order = []
    first, second = torch.sim.Stream(), torch.sim.Stream()
    with torch.sim.stream(first):
        torch.sim._sleep(50)
        torch.sim.launch_host_function(lambda: order.append("first"))
        done = first.record_event()
    second.wait_event(done)
    with torch.sim.stream(second):
        torch.sim.launch_host_function(lambda: order.append("second"))
    second.synchronize()
    assert order == ["first", "second"]


def test_events_measure_device_time():
    start, end = torch.sim.Event(enable_timing=True), torch.sim.Event(enable_timing=True)
    start.record()
    torch.sim._sleep(30)
    end.record()
    end.synchronize()
    assert 30 <= start.elapsed_time(end) < 1000


def test_a_copy_from_pinned_memory_returns_before_it_is_done():
    source = torch.arange(1 << 20, dtype=torch.float32).pin_memory()
    torch.sim._sleep(100)  # the copy must wait behind this
    start = time.perf_counter()
    x = source.to("sim", non_blocking=True)
    assert time.perf_counter() - start < 0.1
    torch.sim.synchronize()
    assert torch.equal(x.cpu(), source)
