"""What happened to device memory: events with Python frames, in the format that PyTorch's memory viewer opens.

    torch.sim.memory._record_memory_history()
    …
    torch.sim.memory._dump_snapshot("snapshot.pickle")  # open it at pytorch.org/memory_viz

Names, arguments and dictionaries are those of torch.cuda.memory. Events of blocks are recorded (``alloc`` and
``free_completed``), with the stack of Python frames; frames of C++ and events of segments are not.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections import deque
from types import FrameType
from typing import Any

import torch

from bringup import _C
from bringup.torch_device.device_index import Device, device_index

_FRAMES = 64


class History:
    """The events of all devices since recording began; ``frames`` by the address of a live block."""

    def __init__(self, max_entries: int, stacks: bool) -> None:
        self.events: dict[int, deque[dict[str, Any]]] = {}
        self.live: dict[tuple[int, int], dict[str, Any]] = {}
        self.max_entries, self.stacks = max_entries, stacks

    def note(self, what: str, device: int, address: int, size: int, stream: int) -> None:
        """Called by the core, with the GIL, for every block: ``what`` is ``allocated`` or ``freed``."""
        allocated = what == "allocated"
        event = {
            "action": "alloc" if allocated else "free_completed",
            "addr": address,
            "size": size,
            "stream": stream,
            "time_us": time.time_ns() // 1000,
            "frames": _frames(sys._getframe().f_back) if self.stacks else [],
        }
        if device not in self.events:
            self.events[device] = deque(maxlen=self.max_entries)
        self.events[device].append(event)
        if allocated:
            self.live[device, address] = event
        else:
            self.live.pop((device, address), None)


_history: History | None = None


def _frames(frame: FrameType | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while frame is not None and len(found) < _FRAMES:
        code = frame.f_code
        found.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return found


def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    **others: Any,
) -> None:
    """Starts to record what happens to memory, or ends it with ``enabled=None``; an earlier recording is forgotten.

    ``enabled="state"`` keeps where live blocks come from, ``"all"`` every event as well; ``context=None`` leaves the
    stacks out. ``stacks="cpp"`` frames are not there: the stacks are Python's.

    >>> torch.sim.memory._record_memory_history(max_entries=100_000)  # doctest: +SKIP
    """
    global _history
    for value, known, name in ((enabled, (None, "state", "all"), "enabled"), (stacks, ("python", "all"), "stacks")):
        if value not in known:
            raise ValueError(f"_record_memory_history: {name} is one of {known}, not {value!r}")
    if context not in (None, "state", "alloc", "all"):
        raise ValueError(f"_record_memory_history: context is None, 'state', 'alloc' or 'all', not {context!r}")
    unknown = set(others) - {"device", "clear_history", "compile_context", "global_record_annotations", "skip_actions"}
    if unknown:
        raise TypeError(f"_record_memory_history has no argument {', '.join(sorted(unknown))}")
    if enabled is None:
        _C.observe_memory(None)
        _history = None
        return
    _history = History(max_entries if enabled == "all" else 0, context is not None)
    _C.observe_memory(_history.note)


def _snapshot(device: Device = None) -> dict[str, Any]:
    """Segments with their blocks, and the events of every device since ``_record_memory_history``.

    >>> sorted(torch.sim.memory._snapshot())  # doctest: +SKIP
    ['allocator_settings', 'device_traces', 'segments']
    """
    from bringup.torch_device.memory import memory_snapshot

    live = _history.live if _history is not None else {}
    segments = memory_snapshot(device)
    for segment in segments:
        for block in segment["blocks"]:
            event = live.get((segment["device"], block["address"]))
            known = event is not None and block["state"] != "inactive"
            block["frames"] = event["frames"] if known and event is not None else []
        segment["frames"], segment["is_expandable"] = [], False
        segment["requested_size"] = sum(b["requested_size"] for b in segment["blocks"] if b["state"] != "inactive")
    wanted = range(_C.device_count()) if device is None else [device_index(device)]
    events = _history.events if _history is not None else {}
    traces = [list(events.get(n, ())) if n in wanted else [] for n in range(_C.device_count())]
    settings = {"backend": torch._C._get_privateuse1_backend_name()}
    return {"segments": segments, "device_traces": traces, "allocator_settings": settings}


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Writes ``_snapshot()`` to a file that pytorch.org/memory_viz opens.

    >>> torch.sim.memory._dump_snapshot("snapshot.pickle")  # doctest: +SKIP
    """
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)
