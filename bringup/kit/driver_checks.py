"""Checks of a driver that need no torch: is memory memory, do copies copy, do streams and events keep order?

Each check is a small function whose docstring is its meaning (``driver_checks_memory.py``, ``…_streams.py``,
``…_kernels.py``, ``…_optional.py``, ``…_limits.py``). It runs on a thread of its own with a time limit: a hang is a
failure, and the run goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bringup.driver import CopyKind, DeviceSpec, Driver, DriverAbsent, Placement, PlacementKind


class Skip(Exception):
    """Raised by a check that does not apply to this driver."""


class NoDevice(Skip):
    """Raised by a check when there is nothing to check on this machine: all that need it are skipped too."""


class Wrong(AssertionError):
    """Raised by a check that found the driver wrong; the text says what was seen and what was expected."""


@dataclass(frozen=True)
class CheckResult:
    """What one check found; ``dataclasses.asdict`` makes it JSON."""

    name: str
    status: Literal["pass", "fail", "skip"]
    message: str
    seconds: float


@dataclass(frozen=True)
class Check:
    """One registered check."""

    name: str
    meaning: str
    function: Callable[[Probe], None]
    needs: tuple[str, ...]


#: The files of checks, in the order they run: after a leak was shown by using up the memory nothing else can run.
_PARTS = ("memory", "streams", "kernels", "optional", "limits")
_HERE = Path(__file__).parent
CHECKS: list[Check] = []
#: Host buffers of runs that failed: work the driver still has queued may touch them.
_kept: list[list[object]] = []


def check(needs: tuple[str, ...] = ()) -> Callable[[Callable[[Probe], None]], Callable[[Probe], None]]:
    """Registers a function as a check: its name, and its docstring as the meaning.

    The check is skipped when one it ``needs`` failed or could not run.
    """

    def register(function: Callable[[Probe], None]) -> Callable[[Probe], None]:
        CHECKS.append(Check(function.__name__, (function.__doc__ or "").strip(), function, needs))
        return function

    return register


def expect(truth: object, message: str) -> None:
    """Raises Wrong unless ``truth`` holds.

    >>> expect(1 + 1 == 2, "arithmetic is broken")
    """
    if not truth:
        raise Wrong(message)


def difference(got: bytes, expected: bytes) -> str:
    """Where two byte strings differ first, for a failure message."""
    if len(got) != len(expected):
        return f"{len(got)} bytes instead of {len(expected)}"
    if got == expected:
        return "equal"
    wrong = [i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b]
    i = wrong[0]
    return f"{len(wrong)} of {len(got)} bytes differ, the first at {i}: {got[i]:#04x} instead of {expected[i]:#04x}"


def pattern(nbytes: int, seed: int) -> bytes:
    """Bytes that depend on their position and on ``seed``, so that a shift or a mix-up shows."""
    unit = bytes((i * 7 + i // 251 * 13 + seed * 101 + 1) % 256 for i in range(min(nbytes, 251 * 64)))
    return (unit * (nbytes // max(len(unit), 1) + 1))[:nbytes]


@dataclass
class Session:
    """What all checks of one run share: the driver, its devices, and what has been learned so far."""

    driver: Driver
    device: int
    count: int = 0
    specs: dict[int, DeviceSpec] = field(default_factory=dict)
    asynchronous: bool = False
    events_work: bool = False
    host: list[object] = field(default_factory=list)


class Probe:
    """The driver as one check sees it: every allocation, stream and event made through it is given back at the end."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.driver = session.driver
        self.device = session.device
        self._blocks: list[tuple[int, int]] = []
        self._streams: list[tuple[int, int]] = []
        self._events: list[tuple[int, int]] = []

    @property
    def spec(self) -> DeviceSpec:
        """The spec of the device under test."""
        return self.session.specs[self.device]

    @property
    def devices(self) -> range:
        """All devices of the driver."""
        return range(self.session.count)

    def need(self, *methods: str) -> None:
        """Skips the check unless the driver offers all of these."""
        missing = [name for name in methods if not self.driver.offers(name)]
        if missing:
            raise Skip(f"the driver does not offer {', '.join(missing)}")

    # ---- memory ----
    def alloc(self, nbytes: int, device: int | None = None) -> int:
        """An allocation that is freed when the check ends."""
        where = self.device if device is None else device
        address: int = self.driver.alloc(where, nbytes)
        self._blocks.append((where, address))
        return address

    def free(self, address: int, device: int | None = None) -> None:
        """Frees earlier than the end of the check."""
        where = self.device if device is None else device
        self._blocks.remove((where, address))
        self.driver.free(where, address)

    def host(self, data: bytes) -> ctypes.Array[ctypes.c_char]:
        """A host buffer that outlives the check: a driver that loses its place must not write into freed memory."""
        buffer = ctypes.create_string_buffer(data, max(len(data), 1))
        self.session.host.append(buffer)
        return buffer

    def placed(self, base: int, offset: int, device: int) -> tuple[int, Placement | None]:
        """How copy names byte ``offset`` of a storage: an address on flat memory, a placement on partitioned memory."""
        spec = self.session.specs[device]
        if spec.partitions <= 1:
            return base + offset, None
        default = spec.default_placement
        chosen = 64 if default.kind == PlacementKind.SHARD and default.block == 0 else default.block  # 0: by the size
        return base, dataclasses.replace(default, block=chosen, offset=offset)

    def copy(
        self,
        device: int,
        dst: int,
        src: int,
        nbytes: int,
        kind: CopyKind,
        stream: int,
        placement: Placement | None = None,
    ) -> None:
        """Driver.copy, with the placement only where there is one: a flat driver may not have the parameter."""
        if placement is None:
            self.driver.copy(device, dst, src, nbytes, kind, stream)
        else:
            self.driver.copy(device, dst, src, nbytes, kind, stream, placement)

    def start_write(self, base: int, data: bytes, offset: int = 0, stream: int = 0, device: int | None = None) -> None:
        """Queues a host-to-device copy and does not wait."""
        where = self.device if device is None else device
        address, placement = self.placed(base, offset, where)
        source = ctypes.addressof(self.host(data))
        self.copy(where, address, source, len(data), CopyKind.HOST_TO_DEVICE, stream, placement)

    def write(self, base: int, data: bytes, offset: int = 0, stream: int = 0, device: int | None = None) -> None:
        """Copies bytes to the device and waits until they are there."""
        self.start_write(base, data, offset, stream, device)
        self.wait(stream, device)

    def read(self, base: int, nbytes: int, offset: int = 0, stream: int = 0, device: int | None = None) -> bytes:
        """Copies bytes from the device, in stream order, and waits for them."""
        where = self.device if device is None else device
        buffer = self.host(b"\xa5" * nbytes)
        address, placement = self.placed(base, offset, where)
        self.copy(where, ctypes.addressof(buffer), address, nbytes, CopyKind.DEVICE_TO_HOST, stream, placement)
        self.wait(stream, where)
        return buffer.raw[:nbytes]

    def move(self, dst: int, src: int, nbytes: int, stream: int = 0, device: int | None = None) -> None:
        """Queues a device-to-device copy between the starts of two storages, or base + offset on flat memory."""
        where = self.device if device is None else device
        _, placement = self.placed(dst, 0, where)
        self.copy(where, dst, src, nbytes, CopyKind.DEVICE_TO_DEVICE, stream, placement)

    # ---- asynchrony ----
    def wait(self, stream: int = 0, device: int | None = None) -> None:
        """Until all work queued so far on a stream is done."""
        where = self.device if device is None else device
        if not self.session.asynchronous:
            return
        if not self.session.events_work:
            time.sleep(0.02)  # events are known to be broken: a check of something else gives the copy some time
            return
        self.driver.event_wait(where, self.record(stream, where), where, -1)

    def record(self, stream: int, device: int | None = None) -> int:
        """An event that is destroyed when the check ends."""
        where = self.device if device is None else device
        event: int = self.driver.event_record(where, stream)
        self._events.append((where, event))
        return event

    def stream(self, device: int | None = None) -> int:
        """A stream that is destroyed when the check ends."""
        where = self.device if device is None else device
        stream: int = self.driver.stream_create(where, 0)
        self._streams.append((where, stream))
        return stream

    def forget_stream(self, stream: int) -> None:
        """The check destroyed a stream itself."""
        self._streams.remove((self.device, stream))

    def give_back(self) -> None:
        """Frees what the check left; after a failed check errors here say nothing new, after a passed one they do."""
        for device, event in self._events:
            self.driver.event_destroy(device, event)
        for device, stream in self._streams:
            self.driver.stream_destroy(device, stream)
        for device, address in self._blocks:
            self.driver.free(device, address)
        self._events, self._streams, self._blocks = [], [], []


def run_driver_checks(
    driver: Driver,
    device: int | None = None,
    progress: Callable[[CheckResult], None] | None = None,
    timeout: float = 30.0,
    started: Callable[[Check], None] | None = None,
) -> list[CheckResult]:
    """Runs every check on a driver that nothing else uses; ``device`` is the one under test (default 0).

    A check that takes longer than ``timeout`` seconds has failed. ``started`` is called with each check before it
    runs, so that a crash has a name, and ``progress`` with each result.

    >>> [r for r in run_driver_checks(find_driver("sim")) if r.status == "fail"]  # doctest: +SKIP
    []
    """
    session = Session(driver, device or 0)
    results: list[CheckResult] = []
    unusable: set[str] = set()
    for each in all_checks():
        blocked = [name for name in each.needs if name in unusable]
        if blocked:
            result, usable = CheckResult(each.name, "skip", f"needs {', '.join(blocked)}", 0.0), False
        else:
            if started is not None:
                started(each)
            result, usable = _run_one(each, session, timeout)
        if not usable:
            unusable.add(each.name)
        results.append(result)
        if progress is not None:
            progress(result)
    if any(result.status == "fail" for result in results):
        _kept.append(session.host)
    return results


def all_checks() -> list[Check]:
    """Every check, in the order they run."""
    order = [importlib.import_module(f"bringup.kit.driver_checks_{part}").__name__ for part in _PARTS]
    return sorted(CHECKS, key=lambda each: order.index(each.function.__module__))


def place_of(error: BaseException) -> str:
    """Returns where in the driver's own code an exception was raised: `` (mychip.py:42, in alloc)``."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).parent != _HERE]
    return f" ({own[-1].filename}:{own[-1].lineno}, in {own[-1].name})" if own else ""


def _run_one(each: Check, session: Session, timeout: float) -> tuple[CheckResult, bool]:
    """The result, and whether checks that need this one can run."""
    outcome: list[tuple[Literal["pass", "fail", "skip"], str, bool]] = []

    def work() -> None:
        probe = Probe(session)
        try:
            each.function(probe)
            probe.give_back()
            outcome.append(("pass", "", True))
            return
        except (Skip, DriverAbsent) as reason:
            found: tuple[Literal["fail", "skip"], str] = ("skip", str(reason))
            usable = not isinstance(reason, (NoDevice, DriverAbsent))
        except Wrong as wrong:
            found, usable = ("fail", str(wrong)), False
        except BaseException as error:
            found, usable = ("fail", f"{type(error).__name__}: {error}{place_of(error)}"), False
        with contextlib.suppress(BaseException):  # what went wrong first is what matters
            probe.give_back()
        outcome.append((*found, usable))

    start = time.perf_counter()
    thread = threading.Thread(target=work, name=f"check {each.name}", daemon=True)
    thread.start()
    thread.join(timeout)
    seconds = time.perf_counter() - start
    if not outcome:
        return CheckResult(each.name, "fail", f"did not finish within {timeout:g} s", seconds), False
    status, message, usable = outcome[0]
    return CheckResult(each.name, status, message, seconds), usable


def threads(count: int, work: Callable[[int], None]) -> None:
    """Runs ``work(0) … work(count-1)`` at once on daemon threads; raises the first error any of them had."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except threading.BrokenBarrierError as error:
            errors.append(error)  # another thread failed: its error comes first
        except BaseException as error:
            errors.insert(0, error)

    started = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if errors:
        raise errors[0]
