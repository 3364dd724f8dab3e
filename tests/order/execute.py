"""Runs a program twice: one step after the other on the CPU, and with its threads and streams on the device.

Values are 32-bit integers, and what passes through floating point comes back as whole numbers: equal means equal.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from tests.order.program import ERROR_STREAM, EXPRESSIONS, STREAMS, Program, Step
from tests.order.waits import Waits, plan

#: Every fifth program has this much of the device's memory: the caches of its streams want more, so that requests are
#: retried after memory went back to the driver. Of 60 such programs 21 requests were, and 4 programs ran out of memory.
TIGHT = 0.6
OUT_OF_RANGE = 1 << 20
PATIENCE = 60.0  # seconds for another thread's step: only ends what would hang

Seen = dict[str, Any]


def churn(x: torch.Tensor, c: int) -> torch.Tensor:
    """Makes and frees several temporaries of the size of x."""
    for i in range(3):
        x = (x ^ (c + i)) + 1
    return x & 0xFFFF


def _square(x: torch.Tensor) -> torch.Tensor:
    n = math.isqrt(x.numel())
    m = (x & 15).view(n, n).float()
    return m + m.T


def rebuilt_from_eigh(x: torch.Tensor) -> torch.Tensor:
    """Takes a matrix apart and puts it together again; the factorization is a CPU kernel on device memory."""
    w, v = torch.linalg.eigh(_square(x))
    return ((v * w) @ v.T).round().int().flatten()


def rebuilt_from_qr(x: torch.Tensor) -> torch.Tensor:
    q, r = torch.linalg.qr(_square(x))
    return (q @ r).round().int().flatten()


def gradient(x: torch.Tensor, c: int) -> torch.Tensor:
    leaf = (x & 0xFF).float().requires_grad_()
    (leaf * c).sum().backward()
    assert leaf.grad is not None
    return leaf.grad.int() + x


_COMPUTE: dict[str, Callable[..., torch.Tensor]] = {
    "mix": lambda c, a, b: (a * 3 + b + c) & 0xFFFF,
    "xor": lambda c, a: a ^ c,
    "gather": lambda c, a: a.index_select(0, _indices(a.device, a.numel())),
    "churn": lambda c, a: churn(a, c),
    "eigh": lambda c, a: rebuilt_from_eigh(a),
    "qr": lambda c, a: rebuilt_from_qr(a),
    "grad": lambda c, a: gradient(a, c),
}
assert set(_COMPUTE) == set(EXPRESSIONS)

_index_cache: dict[tuple[str, int], torch.Tensor] = {}


def _indices(device: torch.device, size: int) -> torch.Tensor:
    """Returns a permutation that every program reads and none writes; size 1: an index that is out of range."""
    key = (str(device), size)
    if key not in _index_cache:
        value = torch.arange(size) * 7919 % size if size > 1 else torch.tensor([OUT_OF_RANGE])
        _index_cache[key] = value.to(device)
    return _index_cache[key]


def in_another_process(x: torch.Tensor, c: int, writes: bool) -> torch.Tensor:
    """What the other process computes from a tensor it was sent."""
    y = (x * 3 + c) & 0xFFFF
    if writes:
        x.add_(c).bitwise_and_(0xFFFF)
    return y


# ---- the reference ----
def reference(program: Program) -> Seen:
    """Returns what the program sees if its steps run one after the other on the CPU."""
    at: dict[str, Any] = {}
    seen: Seen = {}
    for step in program.steps:
        inputs = [at[name] for name in step.inputs]
        note = str(step.number)
        if step.op in EXPRESSIONS:
            at[step.output] = _COMPUTE[step.op](step.c, *inputs)
        elif step.op in ("new", "host_new"):
            at[step.output] = torch.full((step.size,), step.c, dtype=torch.int32)
        elif step.op == "add_":
            inputs[0].add_(step.c).bitwise_and_(0xFFFF)
        elif step.op == "copy_":
            inputs[0].copy_(inputs[1])
        elif step.op in ("host_add", "host_function"):
            inputs[0].add_(step.c)
        elif step.op in ("h2d", "peer"):
            at[step.output] = inputs[0].clone()
        elif step.op == "d2h":
            at[step.output].copy_(inputs[0])
        elif step.op in ("read", "host_read"):
            seen[note] = inputs[0].clone()
        elif step.op == "sum":
            seen[note] = inputs[0].sum().item()
        elif step.op == "capture":
            at[step.output] = step.c
        elif step.op == "replay":
            at[step.output] = inputs[0] * 3 ^ inputs[1]
        elif step.op == "remote":
            seen[note] = in_another_process(inputs[0], step.c, bool(step.way & 1))
        elif step.op == "expect":
            seen[note] = 1
        elif step.op in ("del", "drop_graph"):
            del at[step.inputs[0]]
    seen.update({name: value for name, value in at.items() if isinstance(value, torch.Tensor)})
    return seen


# ---- the device ----
def set_jitter(seed: int) -> None:
    """Seeds the delays of the simulated device."""
    from bringup.drivers import sim

    set_seed = ctypes.CDLL(str(sim.Driver.library)).sim_set_jitter
    set_seed.argtypes = [ctypes.c_uint64]
    if set_seed(seed) == 0:
        raise RuntimeError("the device has no jitter: set BRINGUP_SIM=jitter=1 before torch is imported")


class OtherProcess:
    """A process that is sent tensors and says what it computed from them."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve_tensors, args=(theirs,), daemon=True)
        self.process.start()
        self.connection.recv()  # it is ready: importing torch takes a minute on a busy machine

    def compute(self, x: torch.Tensor, c: int, way: int, seed: int) -> torch.Tensor:
        import torch.multiprocessing

        self.connection.send((x, c, way, seed))
        answer = self.connection.recv()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return torch.from_numpy(answer)

    def close(self) -> None:
        self.connection.close()
        self.process.join(10)


def _serve_tensors(connection: Connection) -> None:
    import torch.multiprocessing

    side = torch.sim.Stream()
    connection.send("ready")
    while True:
        try:
            x, c, way, seed = connection.recv()
        except EOFError:
            return
        try:
            set_jitter(seed)
            with torch.sim.stream(side if way & 2 else None), torch.sim.device(x.device):
                y = in_another_process(x, c, bool(way & 1))
                if way & 4:
                    del x  # its work is queued: the memory must stay mapped until that is done
                answer = y.cpu().numpy()
                torch.sim.synchronize()
            x = y = None
        except Exception as error:  # reported by the process that asked
            answer = f"{type(error).__name__}: {error}"
        connection.send(answer)


@dataclass(frozen=True)
class Difference:
    """Why a program is wrong: at which step, in words."""

    step: str
    text: str


class Device:
    """Runs programs on the device, one after the other; each starts with idle streams and an empty cache."""

    def __init__(self, shares: bool = True) -> None:
        """``shares``: programs may send tensors to another process."""
        self.streams = {
            n: torch.sim.default_stream(device) if name.startswith("default") else torch.sim.Stream(device)
            for n, (device, name) in STREAMS.items()
        }
        self.other = OtherProcess() if shares else None
        for device in (0, 1):
            for size in (1, 256, 4096, 40_000, 300_000):
                _indices(torch.device("sim", device), size)
        self._clean_up()

    def _clean_up(self) -> None:
        torch.sim.ipc_collect()
        for device in (0, 1):
            torch.sim.synchronize(device)
        torch.sim.empty_cache()

    def close(self) -> None:
        if self.other:
            self.other.close()

    def run(self, program: Program, jitter: int | None = None, racy: bool = False) -> Difference | None:
        """Returns the first difference from the reference, or None; ``racy`` leaves out the waits of its streams."""
        expected = reference(program)
        set_jitter(program.seed if jitter is None else jitter)
        for device in (0, 1):
            torch.sim.set_per_process_memory_fraction(TIGHT if program.seed % 5 == 0 else 1.0, device)
        run = _Run(self, program)
        for waits in run.waits.values() if racy else ():
            waits.queued = [entry for entry in waits.queued if entry[3] == "stream"]
        try:
            run.to_the_end()
            return run.error or compare(program, expected, run.seen)
        except (
            RuntimeError,
            IndexError,
        ) as error:  # of the last waits: it should have come before
            return Difference("end", f"{type(error).__name__}: {error}")
        finally:
            run.at.clear()
            run = None  # type: ignore[assignment]
            for stream in self.streams.values():
                _quiet(stream.synchronize)
            self._clean_up()


class _Run:
    def __init__(self, device: Device, program: Program) -> None:
        self.device, self.program = device, program
        self.waits = plan(program)
        self.issued = {step.number: threading.Event() for step in program.steps}
        self.events: dict[tuple[int, int], torch.Event] = {}
        self.at: dict[str, Any] = {}
        self.seen: Seen = {}
        self.shared = (torch.sim.Event(), torch.sim.Event())  # recorded and waited for in any order: no step needs them
        self.errors: dict[int, tuple[int, Any]] = {}  # open failures: how many errors were raised, what failed
        self.error: Difference | None = None

    def to_the_end(self) -> None:
        threads = [
            threading.Thread(target=self.steps_of, args=(n,)) for n in sorted({s.thread for s in self.program.steps})
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.error:
            for stream in self.device.streams.values():
                _quiet(stream.synchronize)
            return
        for device in (0, 1):
            torch.sim.synchronize(device)
        for name, value in self.at.items():
            if isinstance(value, torch.Tensor):
                self.seen[name] = value.cpu()

    def steps_of(self, thread: int) -> None:
        for step in self.program.steps:
            if step.thread != thread:
                continue
            waits = self.waits[step.number]
            try:
                for number in waits.issued:
                    if not self.issued[number].wait(PATIENCE):
                        raise TimeoutError(f"step {number} was not issued")
                if self.error:
                    return
                self.do(step, waits)
                self.issued[step.number].set()
            except Exception as error:  # any error of a valid program is a finding
                self.error = self.error or Difference(str(step.number), f"{type(error).__name__}: {error}")
                for event in self.issued.values():
                    event.set()
                return

    def do(self, step: Step, waits: Waits) -> None:
        streams = self.device.streams
        for earlier, ends, where, kind in waits.queued:
            if kind == "event":
                streams[where].wait_event(self.events[earlier, ends])
            elif kind == "stream":
                streams[where].wait_stream(streams[ends])
            elif kind == "synchronize the stream":
                streams[ends].synchronize()
            else:
                self.events[earlier, ends].synchronize()
        with torch.sim.stream(streams[step.stream]):
            self.work(step)
            for name in waits.record_stream:
                self.at[name].record_stream(streams[step.stream])
        for ends in waits.events:
            self.events[step.number, ends] = streams[ends].record_event()

    def work(self, step: Step) -> None:
        at, note = self.at, str(step.number)
        if step.op in ("del", "drop_graph"):
            del at[step.inputs[0]]
            return
        inputs = [at[name] for name in step.inputs]
        if step.op in EXPRESSIONS:
            at[step.output] = _COMPUTE[step.op](step.c, *inputs)
        elif step.op == "new":
            at[step.output] = torch.full((step.size,), step.c, dtype=torch.int32, device=f"sim:{step.device}")
        elif step.op == "host_new":
            pinned = bool(step.way & 1)
            at[step.output] = torch.full((step.size,), step.c, dtype=torch.int32, pin_memory=pinned)
        elif step.op == "add_":
            inputs[0].add_(step.c).bitwise_and_(0xFFFF)
        elif step.op == "copy_":
            inputs[0].copy_(inputs[1])
        elif step.op == "host_add":
            inputs[0].add_(step.c)
        elif step.op == "host_function":
            torch.sim.launch_host_function(lambda h=inputs[0], c=step.c: h.add_(c), self.device.streams[step.stream])
        elif step.op == "h2d":
            at[step.output] = inputs[0].to(f"sim:{step.device}", non_blocking=True)
        elif step.op == "d2h":
            at[step.output].copy_(inputs[0], non_blocking=True)
        elif step.op == "peer":
            at[step.output] = inputs[0].to(f"sim:{1 - step.device}")
        elif step.op == "read":
            self.seen[note] = inputs[0].cpu()
        elif step.op == "host_read":
            self.seen[note] = inputs[0].clone()
        elif step.op == "sum":
            self.seen[note] = inputs[0].sum().item()
        elif step.op == "capture":
            graph = torch.sim.Graph()
            with torch.sim.graph(graph):
                result = inputs[0] * 3 ^ step.c
            at[step.output] = (graph, result)
        elif step.op == "replay":
            inputs[1][0].replay()
            at[step.output] = inputs[1][1].clone()
        elif step.op == "remote":
            assert self.device.other
            self.seen[note] = self.device.other.compute(inputs[0], step.c, step.way, self.program.seed)
        elif step.op == "bad":
            self.fail(step, inputs[0])
        elif step.op == "expect":
            self.expect(step)
        elif step.op == "synchronize":
            torch.sim.synchronize(step.way % 2)
        elif step.op == "empty_cache":
            torch.sim.empty_cache()
        elif step.op == "mark":
            self.shared[step.device].record(self.device.streams[step.stream])
        elif step.op == "look":
            self.look(self.shared[step.way % 2], step)
        elif step.op == "stats":
            torch.sim.memory_stats()
        else:
            raise NotImplementedError(step.op)

    def look(self, event: torch.Event, step: Step) -> None:
        if step.way // 2 % 3 == 1:
            event.wait(self.device.streams[step.stream])
        else:
            (event.synchronize, event.query)[step.way // 2 % 3 // 2]()

    def fail(self, step: Step, x: torch.Tensor) -> None:
        try:
            failed = x.index_select(0, _indices(x.device, 1))
            event = self.device.streams[ERROR_STREAM].record_event()
            self.errors[step.c] = (0, (failed, event))
        except IndexError:  # it ran at once
            self.errors[step.c] = (1, None)

    def expect(self, step: Step) -> None:
        """Waits for the failed work as a user does; the error must come now, unless it came at once, and only once."""
        count, work = self.errors.pop(step.c)
        stream = self.device.streams[ERROR_STREAM]
        waits: list[Callable[[], Any]] = [stream.synchronize, torch.sim.synchronize]
        if work:
            waits += [work[0].cpu, work[1].synchronize]
        for wait in (waits[step.way % len(waits)], stream.synchronize):
            try:
                wait()
            except IndexError:
                count += 1
        self.seen[str(step.number)] = count


def _quiet(function: Callable[[], Any]) -> None:
    with contextlib.suppress(RuntimeError, IndexError):  # the program has failed already, and its error is kept
        function()


def compare(program: Program, expected: Seen, seen: Seen) -> Difference | None:
    """Returns the first difference, in the order of the program; what was kept to the end comes last."""
    for note, want in expected.items():
        got = seen.get(note)
        step = next((s for s in program.steps if str(s.number) == note), None)
        what = step.text() if step else f"{note} at the end"
        if isinstance(want, torch.Tensor):
            assert isinstance(got, torch.Tensor), (note, got)
            wrong = (want != got).nonzero().flatten().tolist()
            if wrong:
                first = wrong[0]
                text = f"{len(wrong)} of {want.numel()} elements differ, the first at {first}: {got[first].item()} "
                return Difference(note, f"{what}: {text}instead of {want[first].item()}")
        elif want != got:
            words = f"{got} errors were raised instead of 1" if step and step.op == "expect" else f"{got}, not {want}"
            return Difference(note, f"{what}: {words}")
    return None
