"""The checks of what few drivers offer: a good driver passes, and each fault is caught by the check meant for it."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest

from bringup.driver import CallSpec, ClockPair, EventFlags, HostFlags, LibraryOp
from bringup.drivers.sim import Driver as Sim
from bringup.kit.driver_checks import Probe, Session, Wrong, all_checks


class Good(Sim):
    """sim with graphs that hold copies, and a library op."""

    name = "good"
    library_ops = ("aten::add.Tensor",)

    def __init__(self) -> None:
        super().__init__("devices=1,memory=64M")
        self.keeping: list[tuple[Any, ...]] | None = None

    def copy(self, device, dst, src, nbytes, kind, stream, placement=None):  # type: ignore[no-untyped-def]
        if self.keeping is not None:
            self.keeping.append((device, dst, src, nbytes, kind))
        else:
            super().copy(device, dst, src, nbytes, kind, stream)

    def graph_begin(self, device: int, stream: int) -> None:
        self.keeping = []

    def graph_end(self, device: int, stream: int) -> int:
        self.graph, self.keeping = self.keeping, None
        return 1

    def graph_launch(self, device: int, graph: int, stream: int, correlation: int) -> None:
        for step in self.graph or ():
            super().copy(*step, stream)

    def graph_destroy(self, device: int, graph: int) -> None:
        self.graph = None

    def library_op(self, device: int, call: CallSpec) -> LibraryOp:
        if call.op != "aten::add.Tensor":
            raise NotImplementedError
        return LibraryOp(4096)


class UnregistersAnything(Good):
    def host_unregister(self, pointer: int) -> None:
        with contextlib.suppress(ValueError):
            super().host_unregister(pointer)


class StaysRegistered(Good):
    def host_unregister(self, pointer: int) -> None: ...


class UnlistedFlags(Good):
    def open(self, device: int) -> Any:
        return dataclasses.replace(super().open(device), host_flags=HostFlags.MAPPED)


class EarlyImport(Good):
    """An imported event is another one, which is done at once."""

    def event_import(self, device: int, handle: str) -> int:
        super().event_destroy(device, super().event_import(device, handle))
        return self.event_record(device, 0, EventFlags.INTERPROCESS)


class AnyHandle(Good):
    def event_import(self, device: int, handle: str) -> int:
        try:
            return super().event_import(device, handle)
        except ValueError:
            return self.event_record(device, 0)


class RunsWhileCaptured(Good):
    def graph_begin(self, device: int, stream: int) -> None:
        self.keeping = None


class RunsOnce(Good):
    def graph_launch(self, device: int, graph: int, stream: int, correlation: int) -> None:
        super().graph_launch(device, graph, stream, correlation)
        self.graph = None


class EndlessTrace(Good):
    def trace_read(self, device: int, limit: int) -> Any:
        self.kept = super().trace_read(device, limit)[0] or self.kept
        return self.kept, 0


class ForgetfulTrace(Good):
    def trace_read(self, device: int, limit: int) -> Any:
        records, dropped = super().trace_read(device, limit)
        return records[1:], dropped


class TraceOfAnotherClock(Good):
    def trace_stop(self, device: int) -> ClockPair:
        return dataclasses.replace(super().trace_stop(device), device_ns=0)


class MonotonicHostClock(Good):
    def trace_start(self, device: int, capacity: int) -> ClockPair:
        return dataclasses.replace(super().trace_start(device, capacity), host_ns=1)


class ServesAnyOp(Good):
    def library_op(self, device: int, call: CallSpec) -> LibraryOp:
        return LibraryOp(4096)


class NothingAsked(Good):
    library_ops = ()


class NoFunction(Good):
    def library_op(self, device: int, call: CallSpec) -> Any:
        super().library_op(device, call)
        return None


def run_check(driver: Good, name: str) -> None:
    [check] = [each for each in all_checks() if each.name == name]
    session = Session(driver, 0, 1, {0: driver.open(0)}, asynchronous=True, events_work=True)
    probe = Probe(session)
    check.function(probe)
    probe.give_back()


@pytest.mark.parametrize("name", ["host_register", "host_flags", "event_export", "graph", "trace", "library_op"])
def test_a_good_driver_passes(name: str) -> None:
    run_check(Good(), name)


@pytest.mark.parametrize(
    ("broken", "caught_by", "message"),
    [
        (UnregistersAnything, "host_register", "not registered"),
        (UnlistedFlags, "host_flags", "lists MAPPED"),
        (EarlyImport, "event_export", "before its original"),
        (AnyHandle, "event_export", "not a handle"),
        (RunsWhileCaptured, "graph", "while it was made"),
        (RunsOnce, "graph", "bytes differ"),
        (EndlessTrace, "trace", "more and more"),
        (ForgetfulTrace, "trace", "were recorded as"),
        (TraceOfAnotherClock, "trace", "outside of the trace"),
        (MonotonicHostClock, "trace", "not Unix time"),
        (ServesAnyOp, "library_op", "does not exist"),
        (NothingAsked, "library_op", "lists no ops"),
        (NoFunction, "library_op", "returned None"),
    ],
)
def test_a_broken_driver_is_caught(broken: type[Good], caught_by: str, message: str) -> None:
    with pytest.raises(Wrong, match=message):
        run_check(broken(), caught_by)


def test_memory_that_stays_registered_is_caught() -> None:
    with pytest.raises(ValueError, match="pinned already"):
        run_check(StaysRegistered(), "host_register")
