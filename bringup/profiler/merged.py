"""Traces of several processes as one, on one time axis.

Each process numbers its devices, arrows and ops for itself: in the merged trace they get numbers of their own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def merge_traces(paths: Sequence[str | Path]) -> dict[str, Any]:
    """Returns the events of chrome traces in one, each process named by its rank (its place among ``paths`` without).

    Their clocks are those of one machine, or of machines whose clocks agree: Unix time decides what was when.

    >>> merged = merge_traces(["rank0.json", "rank1.json"])  # doctest: +SKIP
    """
    traces = [_read(Path(path)) for path in paths]
    bases = [int(trace.get("baseTimeNanoseconds", 0)) for trace in traces]
    events: list[dict[str, Any]] = []
    numbers: dict[tuple[int, Any], int] = {}
    ranks = [(trace.get("distributedInfo") or {}).get("rank", place) for place, trace in enumerate(traces)]
    if len(set(ranks)) < len(ranks):
        ranks = list(range(len(ranks)))
    for place, trace in enumerate(traces):
        later = (bases[place] - min(bases)) / 1000
        for event in trace["traceEvents"]:
            moved = dict(event)
            if "ts" in moved:
                moved["ts"] += later
            if "pid" in moved:
                moved["pid"] = numbers.setdefault((place, moved["pid"]), len(numbers))
            if "id" in moved:
                moved["id"] = f"{ranks[place]}:{moved['id']}"
            if moved.get("ph") == "M" and moved.get("name") == "process_name":
                moved["args"] = {"name": f"rank {ranks[place]}: {moved['args']['name']}"}
            events.append(moved)
    return {"schemaVersion": 1, "baseTimeNanoseconds": min(bases), "traceEvents": events}


def _read(path: Path) -> dict[str, Any]:
    try:
        trace = json.loads(path.read_text(encoding="utf-8"))
        events = trace["traceEvents"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a trace ({type(error).__name__}: {error}); torch.profiler's export_chrome_trace writes one"
        ) from error
    if not isinstance(events, list):
        raise ValueError(f"{path} is not a trace: its traceEvents are no list")
    return dict(trace)
