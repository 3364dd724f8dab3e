"""Crash-isolated workers: one supervisor process imports torch and op_db once and forks a worker when one is needed.

The supervisor runs no tensor op and never opens the device, so a fork costs milliseconds and inherits no device state.
A worker that dies takes one case with it, a worker that hangs is killed, and the next fork goes on with the rest. The
supervisor is a process of its own so that the caller needs no torch, and its threads cannot spoil the fork.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from bringup.kit.op_cases import OP_DB, Case, CaseResult, Status, list_cases, load_op_list

#: Who judges a case, as ``module:function``.
VERDICTS = "bringup.kit.op_verdicts:run_case"
LOG_TAIL = 1500
#: A first use of the device: may take longer than a case (a driver that compiles, hardware that boots).
PROBE_SECONDS = 300.0


class OpCheckError(RuntimeError):
    """The run itself could not be done: the device cannot be used, or the supervisor died."""


@dataclass(frozen=True)
class Plan:
    """What to run; travels to the supervisor as JSON."""

    device: str
    kinds: tuple[str, ...]
    dtypes: tuple[str, ...]
    ops: tuple[str, ...] | None
    samples: int
    workers: int
    timeout: float
    op_list: str = OP_DB
    verdicts: str = VERDICTS
    #: (part, of so many): every so-manyth case.
    shard: tuple[int, int] = (0, 1)
    #: Cases that an earlier run has done, by name.
    done: tuple[str, ...] = ()

    def judge(self) -> Callable[..., CaseResult]:
        """The function that runs a case: ``judge(op, case, setup)``."""
        module, _, name = self.verdicts.partition(":")
        found: Callable[..., CaseResult] = getattr(importlib.import_module(module), name)
        return found

    def part(self, cases: Sequence[Case]) -> list[Case]:
        """Those of this shard that are not done yet."""
        done = set(self.done)
        return [case for case in cases[self.shard[0] :: self.shard[1]] if str(case) not in done]

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that ``json.dumps(asdict(plan))`` wrote."""
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(text).items()}
        return cls(**fields)


def run_plan(plan: Plan, environment: dict[str, str] | None = None) -> Iterator[dict[str, Any]]:
    """Start a supervisor and yield what it reports: one ``start`` message, then one ``result`` message per case."""
    read_end, write_end = os.pipe()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **(environment or {})}
    code = f"from bringup.kit.op_workers import serve; serve({write_end})"
    with tempfile.TemporaryFile() as log, os.fdopen(read_end, encoding="utf-8") as reports:
        process = start_supervisor(code, write_end, log, env)
        os.close(write_end)
        finished = False
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(asdict(plan)).encode())
                process.stdin.close()
            for line in reports:
                message = json.loads(line)
                if message["type"] == "error":
                    raise OpCheckError(message["message"])
                finished = message["type"] == "end"
                if not finished:
                    yield message
        finally:
            if not finished:
                process.terminate()
            process.wait()
        if not finished:
            raise OpCheckError(f"the supervisor ended with status {process.returncode}:\n{_tail(log)}")


def start_supervisor(code: str, report_fd: int, log: IO[bytes], env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Starts the supervisor's process, which reads its plan from standard input."""
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=log, stderr=log, env=env, pass_fds=(report_fd,)
    )


def serve(report_fd: int) -> None:
    """The supervisor's main: read a plan from standard input, run it, report on ``report_fd``."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    plan = Plan.from_json(sys.stdin.read())
    with os.fdopen(report_fd, "w", buffering=1, encoding="utf-8") as reports:

        def report(kind: str, **fields: Any) -> None:
            reports.write(json.dumps({"type": kind, **fields}) + "\n")

        try:
            import torch

            plan.judge()  # imported before the first fork
            ops = load_op_list(plan.op_list)
            cases, skipped = (plan.part(c) for c in list_cases(ops, plan.kinds, plan.dtypes, plan.ops))
            supervisor = _Supervisor(plan, ops, report_fd)
            device_name = supervisor.probe()
        except (OpCheckError, ImportError, AttributeError, ValueError) as error:
            report(
                "error", message=f"{error}" if isinstance(error, OpCheckError) else f"{type(error).__name__}: {error}"
            )
            return
        total = len(cases) + len(skipped)
        report("start", total=total, ops=sorted(ops), torch=torch.__version__, device_name=device_name)
        for case in skipped:
            row = CaseResult(case, Status.SKIP, "PyTorch declares no such op and dtype on the CPU").to_row()
            report("result", row=row)
        for result in supervisor.run(cases):
            report("result", row=result.to_row())
        report("end")


@dataclass
class _Worker:
    """A forked process, what it is doing and until when."""

    pid: int
    tasks: int
    results: int
    log: IO[bytes]
    case: Case | None = None
    first_crash: CaseResult | None = None
    begun: float = 0.0
    speaks: bool = False
    cases_done: int = 0
    received: bytearray = field(default_factory=bytearray)

    def send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # it died; its result pipe says so
            os.write(self.tasks, (json.dumps(message) + "\n").encode())

    def receive(self) -> dict[str, Any] | None:
        """A whole message, or None at the end of the worker; blocks for the rest of a message that has begun."""
        while b"\n" not in self.received:
            chunk = os.read(self.results, 1 << 16)
            if not chunk:
                return None
            self.received += chunk
        line, _, rest = bytes(self.received).partition(b"\n")
        self.received[:] = rest
        message: dict[str, Any] = json.loads(line)
        return message

    def end(self, kill: bool) -> str:
        """Close, wait, and say how it ended: a signal's name or an exit status, and its last words."""
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.tasks)
        os.close(self.results)
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        last_words = _tail(self.log)
        self.log.close()
        return f"{how}\n{last_words}".rstrip()


class _Supervisor:
    """Hands cases to forked workers and turns their deaths into results."""

    def __init__(self, plan: Plan, ops: dict[str, Any], report_fd: int) -> None:
        self.plan = plan
        self.report_fd = report_fd
        self.ops = ops
        self.workers: list[_Worker] = []

    def probe(self) -> str:
        """Open the device in a worker and give its name; ``OpCheckError`` says why it cannot be used."""
        worker = self._start()
        worker.send({"probe": True})
        with selectors.DefaultSelector() as ready:
            ready.register(worker.results, selectors.EVENT_READ)
            answer = worker.receive() if ready.select(PROBE_SECONDS) else {"error": f"no answer in {PROBE_SECONDS:g} s"}
        self.workers.remove(worker)
        ended = worker.end(kill=answer is not None)
        if answer is None or "error" in answer:
            reason = answer["error"] if answer else ended
            raise OpCheckError(f"device {self.plan.device!r} cannot be used: {reason}")
        return str(answer["name"])

    def run(self, cases: Sequence[Case]) -> Iterator[CaseResult]:
        """Results in the order in which they come."""
        waiting = deque(cases)
        try:
            while waiting or any(w.case for w in self.workers):
                while waiting and (worker := self._idle()):
                    self._begin(worker, waiting.popleft())
                for worker in self._wait():
                    result = self._result(worker)
                    if result.status is Status.CRASH and worker.cases_done and not worker.first_crash:
                        self._begin(self._start(), result.case, result)  # alone, to tell whose fault it is
                    else:
                        yield result
        finally:
            for worker in self.workers:
                worker.end(kill=True)

    def _idle(self) -> _Worker | None:
        """A worker without a case, forked if there may be one more."""
        for worker in self.workers:
            if not worker.case:
                return worker
        return self._start() if len(self.workers) < self.plan.workers else None

    def _begin(self, worker: _Worker, case: Case, first_crash: CaseResult | None = None) -> None:
        worker.case, worker.first_crash, worker.begun = case, first_crash, time.monotonic()
        worker.send({"op": case.op, "kind": case.kind, "dtype": case.dtype})

    def _wait(self) -> list[_Worker]:
        """Sleep until a worker speaks, dies or is late, and give those that did."""
        busy = [w for w in self.workers if w.case]
        with selectors.DefaultSelector() as ready:
            for worker in busy:
                ready.register(worker.results, selectors.EVENT_READ, worker)
            next_deadline = min(w.begun for w in busy) + self.plan.timeout
            events = ready.select(max(0.0, next_deadline - time.monotonic()))
        for key, _ in events:
            key.data.speaks = True
        return [w for w in busy if w.speaks or time.monotonic() - w.begun > self.plan.timeout]

    def _result(self, worker: _Worker) -> CaseResult:
        """The verdict on the worker's case: its own, or a timeout or crash, after which the worker is gone."""
        case, late = worker.case, not worker.speaks
        assert case is not None
        message = None if late else worker.receive()
        seconds = time.monotonic() - worker.begun
        worker.speaks, worker.case = False, None
        if message is not None:
            worker.cases_done += 1
            result = CaseResult.from_row(message)
        else:
            self.workers.remove(worker)
            ended = worker.end(kill=late)
            if late:
                result = CaseResult(case, Status.TIMEOUT, f"no result after {self.plan.timeout:g} s", seconds=seconds)
            else:
                result = CaseResult(case, Status.CRASH, ended, seconds=seconds)
        return _after_crash(worker.first_crash, result) if worker.first_crash else result

    def _start(self) -> _Worker:
        task_read, task_write = os.pipe()
        result_read, result_write = os.pipe()
        log = tempfile.TemporaryFile()  # noqa: SIM115  closed when the worker ends
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(OSError):
                others = (fd for w in self.workers for fd in (w.tasks, w.results))
                for fd in (task_write, result_read, self.report_fd, *others):
                    os.close(fd)
            _work(self.plan, self.ops, task_read, result_write, log.fileno())
        os.close(task_read)
        os.close(result_write)
        worker = _Worker(pid, task_write, result_read, log)
        self.workers.append(worker)
        return worker


def _after_crash(crash: CaseResult, alone: CaseResult) -> CaseResult:
    """A case that crashed a used worker and not a fresh one still crashed: an earlier case may have left damage."""
    crash.note = f"alone in a fresh worker: {alone.status.value} {alone.message}".rstrip()
    return crash


def _work(plan: Plan, ops: dict[str, Any], tasks: int, results: int, log: int) -> None:
    """A worker's life: one case after the other until the supervisor closes the pipe. Never returns."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.enable(file=2)

        import torch

        from bringup.kit.op_verdicts import Setup

        torch.set_num_threads(1)  # the workers share the cores, and one thread adds up in one order
        setup, judge = Setup(plan.device, plan.samples), plan.judge()
        with os.fdopen(tasks, encoding="utf-8") as lines:
            for line in lines:
                task = json.loads(line)
                os.ftruncate(log, 0)
                os.lseek(log, 0, os.SEEK_SET)
                if "probe" in task:
                    answer = _open_device(plan.device)
                else:
                    case = Case(**task)
                    answer = judge(ops[case.op], case, setup).to_row()
                os.write(results, (json.dumps(answer) + "\n").encode())
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _open_device(device: str) -> dict[str, str]:
    import torch

    try:
        torch.empty(1, device=device).to("cpu")
        module = getattr(torch, torch.device(device).type, None)
        name = getattr(module, "get_device_name", None)
        return {"name": str(name()) if name else device}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _tail(log: IO[bytes]) -> str:
    """The last words in a log, or those of a crash from their beginning: the first lines say where it was."""
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - (1 << 16)))
    lines = log.read().decode(errors="replace").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("Extension modules:")).strip()
    crash = text.rfind("Fatal Python error:")
    return text[-LOG_TAIL:] if crash < 0 else text[crash : crash + LOG_TAIL]
