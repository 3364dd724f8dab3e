"""The history of device memory: events with frames, the snapshot's dictionaries as torch.cuda's, what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.fixture
def memory(device: str) -> Iterator[Any]:
    module = getattr(torch, device).memory
    torch.empty(1, device=device)
    module._record_memory_history()
    yield module
    module._record_memory_history(enabled=None)


def made_here(device: str) -> torch.Tensor:
    return torch.empty(100_000, device=device)


def test_events_of_a_tensor_name_the_function_that_made_it(memory: Any, device: str) -> None:
    x = made_here(device)
    address = x.data_ptr()
    del x
    trace = memory._snapshot()["device_traces"][0]
    events = [event for event in trace if event["addr"] == address]
    assert [event["action"] for event in events] == ["alloc", "free_completed"]
    assert events[0]["size"] >= 400_000
    assert events[0]["time_us"] <= events[1]["time_us"]
    assert "made_here" in [frame["name"] for frame in events[0]["frames"]]
    assert events[0]["frames"][0].keys() == {"filename", "line", "name"}


def test_the_snapshot_has_what_the_viewer_reads(memory: Any, device: str, tmp_path: Path) -> None:
    x = made_here(device)
    memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert snapshot.keys() >= {"segments", "device_traces"}
    assert len(snapshot["device_traces"]) == getattr(torch, device).device_count()
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    (mine,) = [block for block in blocks if block["address"] == x.data_ptr()]
    assert mine["state"] == "active_allocated"
    assert "made_here" in [frame["name"] for frame in mine["frames"]]
    wanted = {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "blocks"}
    assert all(segment.keys() >= wanted for segment in snapshot["segments"])
    assert all(sum(b["size"] for b in s["blocks"]) == s["total_size"] for s in snapshot["segments"])
    from torch.cuda import _memory_viz  # what makes the page of a snapshot

    assert "391.0KiB" in _memory_viz.trace(snapshot)
    assert _memory_viz.segsum(snapshot)
    assert _memory_viz.trace_plot(snapshot)


def test_what_is_recorded_can_be_limited_and_ended(memory: Any, device: str) -> None:
    memory._record_memory_history(max_entries=3, context=None)
    for _ in range(4):
        made_here(device)
    trace = memory._snapshot()["device_traces"][0]
    assert len(trace) == 3
    assert all(event["frames"] == [] for event in trace)
    memory._record_memory_history(enabled=None)
    made_here(device)
    assert memory._snapshot()["device_traces"][0] == []


def test_memory_that_kernels_and_fallbacks_take_is_recorded(memory: Any, device: str) -> None:
    x = made_here(device)
    y, z = x.sort()[0], x + 1
    addresses = {event["addr"] for event in memory._snapshot()["device_traces"][0] if event["action"] == "alloc"}
    assert {y.data_ptr(), z.data_ptr()} <= addresses


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"enabled": "yes"}, "enabled is one of"),
        ({"stacks": "cpp"}, "stacks is one of"),
        ({"context": "some"}, "context is None"),
        ({"max_entrys": 3}, "no argument max_entrys"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], said: str, device: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        getattr(torch, device).memory._record_memory_history(**arguments)


def test_pools_of_other_allocators_are_refused_with_what_there_is(device: str) -> None:
    module = getattr(torch, device)
    with pytest.raises(NotImplementedError, match="graph_pool_handle"):
        module.MemPool()
    with pytest.raises(NotImplementedError, match="have no MemPool"), module.use_mem_pool(None):
        pass
