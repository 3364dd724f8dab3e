"""``bringup check --level ops``: every operator PyTorch has samples for, on a device against the CPU.

report = run_op_checks("sim", kinds=("forward", "backward"), ops=["nn.functional.*"])
print(report.summary())
raise SystemExit(report.exit_code)
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from bringup.kit.gaps import Gap, GapsFileError, GapVerdict, default_gaps_file, judge, load_gaps
from bringup.kit.op_cases import KINDS, OP_DB, CaseResult, Status
from bringup.kit.op_workers import VERDICTS, OpCheckError, Plan, run_plan

#: Called after each case with the number done, the number of all cases, and the result.
Progress = Callable[[int, int, CaseResult], None]


@dataclass
class OpReport:
    """The outcome of a run: every result, and what the declared gaps say about them."""

    plan: Plan
    results: list[CaseResult]
    verdict: GapVerdict
    gaps: list[Gap]
    seconds: float
    environment: dict[str, Any] = field(default_factory=dict)
    #: False where the run was cut: it says nothing about the cases it left out.
    finished: bool = True

    @property
    def ok(self) -> bool:
        """No undeclared defect, no gap that passes, no gap of an operator that does not exist."""
        return self.verdict.ok

    @property
    def exit_code(self) -> int:
        """0 when ``ok``, else 1."""
        return 0 if self.ok else 1

    def counts(self) -> dict[tuple[str, str], Counter[str]]:
        """Statuses by (kind, dtype).

        >>> report.counts()["forward", "float32"]["pass"]
        672
        """
        table: dict[tuple[str, str], Counter[str]] = {}
        for result in self.results:
            row = table.setdefault((result.case.kind, result.case.dtype), Counter())
            row[result.status.value] += 1
        return dict(sorted(table.items(), key=lambda item: (KINDS.index(item[0][0]), item[0][1])))

    def to_json(self) -> dict[str, Any]:
        """All that is worth keeping: versions, settings, counts, and each case that did not pass."""
        declared = {id(r) for r in self.verdict.declared}
        rows = [
            {**{k: v for k, v in r.to_row().items() if k != "ran"}, "declared": id(r) in declared}
            for r in sorted(self.results, key=lambda r: r.case)
            if r.status is not Status.PASS or r.note
        ]
        return {
            "ok": self.ok,
            "finished": self.finished,
            **self.environment,
            "samples": self.plan.samples or "all",
            "workers": self.plan.workers,
            "seconds": round(self.seconds, 1),
            "counts": [{"kind": k, "dtype": d, **counter} for (k, d), counter in self.counts().items()],
            "gaps": {
                "declared": [str(gap) for gap in self.gaps],
                "undeclared": [str(r.case) for r in self.verdict.undeclared],
                "passing": [str(gap) for gap in self.verdict.passing],
                "unknown": [str(gap) for gap in self.verdict.unknown],
            },
            "rows": rows,
        }

    def summary(self) -> str:
        """A table by kind and dtype, then everything that makes the run fail."""
        statuses = [s.value for s in Status]
        lines = [f"{'kind':10}{'dtype':16}" + "".join(f"{s:>10}" for s in statuses)]
        for (kind, dtype), counter in self.counts().items():
            lines.append(f"{kind:10}{dtype:16}" + "".join(f"{counter[s]:>10}" for s in statuses))
        device = f"{self.plan.device} ({self.environment.get('device_name', '')})"
        lines.append(
            f"{len(self.results)} cases on {device} in {self.seconds:.1f} s: "
            f"{len(self.verdict.undeclared)} undeclared, {len(self.verdict.declared)} in declared gaps"
            + ("" if self.finished else "; cut before the end")
        )
        for result in self.verdict.undeclared:
            sample = "" if result.sample is None else f" sample {result.sample}"
            first_line = result.message.partition("\n")[0][:160]
            lines.append(f"  {result.status.value.upper()} {result.case}{sample}: {first_line}")
        lines += [f"  DECLARED GAP PASSES {gap}: remove it from the gaps file" for gap in self.verdict.passing]
        lines += [f"  DECLARED GAP OF NO OPERATOR {gap}" for gap in self.verdict.unknown]
        return "\n".join(lines)


def run_op_checks(
    device: str = "sim",
    kinds: Sequence[str] = ("forward",),
    dtypes: Sequence[str] = ("float32",),
    ops: Sequence[str] | None = None,
    samples: int = 8,
    workers: int | None = None,
    timeout: float = 60.0,
    progress: Progress | None = None,
    gaps: str | Path | Sequence[Gap] | None = None,
    driver: str | None = None,
    op_list: str = OP_DB,
    verdicts: str = VERDICTS,
    shard: tuple[int, int] = (0, 1),
    seconds: float | None = None,
    earlier: Sequence[CaseResult] = (),
) -> OpReport:
    """Run operators on ``device`` against the CPU in crash-isolated workers.

    ``kinds`` of ``forward``, ``backward``, ``error``; ``dtypes`` by name, or ``("all",)``; ``ops`` are glob patterns;
    ``samples`` inputs per case, spread over all there are (0: all); ``timeout`` seconds per case; ``gaps`` a file, a
    list, or None for the file shipped with the device; ``driver`` sets ``BRINGUP_DRIVERS`` for the workers;
    ``verdicts`` names the function that judges a case. A long run may be split and go on: ``shard=(0, 4)`` takes every
    fourth case, ``seconds`` cuts the run, ``earlier`` results are taken as they are.
    """
    if wrong := [kind for kind in kinds if kind not in KINDS]:
        raise ValueError(f"unknown kind {wrong[0]!r}; there are {', '.join(KINDS)}")
    if not kinds or not dtypes or samples < 0 or timeout <= 0 or (workers is not None and workers < 1):
        raise ValueError("kinds and dtypes must not be empty, samples >= 0, timeout > 0, workers >= 1")
    if not 0 <= shard[0] < shard[1] or (seconds is not None and seconds <= 0):
        raise ValueError("a shard is (number, of so many) with 0 <= number < so many, seconds > 0")
    declared = _declared_gaps(gaps, device)
    plan = Plan(
        device=device,
        kinds=tuple(kinds),
        dtypes=tuple(dtypes),
        ops=None if ops is None else tuple(ops),
        samples=samples,
        workers=workers or os.cpu_count() or 1,
        timeout=timeout,
        op_list=op_list,
        verdicts=verdicts,
        shard=shard,
        done=tuple(str(result.case) for result in earlier),
    )
    settings = {"BRINGUP_DRIVERS": driver} if driver else {}
    results = list(earlier)
    header: dict[str, Any] = {}
    begin = time.monotonic()
    finished = True
    for message in run_plan(plan, settings):
        if message["type"] == "start":
            header = message
            continue
        results.append(CaseResult.from_row(message["row"]))
        if progress is not None:
            progress(len(results) - len(earlier), header["total"], results[-1])
        if seconds is not None and time.monotonic() - begin > seconds:
            finished = len(results) - len(earlier) == header["total"]
            break
    verdict = judge(declared, results, header["ops"], header["torch"])
    environment = _environment(plan, header, settings)
    return OpReport(plan, results, verdict, declared, time.monotonic() - begin, environment, finished)


def _declared_gaps(gaps: str | Path | Sequence[Gap] | None, device: str) -> list[Gap]:
    if gaps is None:
        path = default_gaps_file(device)
        return load_gaps(path) if path else []
    if isinstance(gaps, (str, Path)):
        return load_gaps(gaps)
    return list(gaps)


def _environment(plan: Plan, header: dict[str, Any], settings: dict[str, str]) -> dict[str, Any]:
    """Where the numbers come from."""
    try:
        version = metadata.version("bringup")
    except metadata.PackageNotFoundError:
        version = "not installed"
    variables = {**{k: v for k, v in os.environ.items() if k.startswith("BRINGUP_")}, **settings}
    return {
        "device": plan.device,
        "device_name": header["device_name"],
        "driver": variables.get("BRINGUP_DRIVERS", plan.device.partition(":")[0]),
        "mode": variables.get("BRINGUP_SIM", "default"),
        "settings": dict(sorted(variables.items())),
        "versions": {"bringup": version, "torch": header["torch"], "python": platform.python_version()},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


@contextmanager
def progress_display() -> Iterator[Progress]:
    """A rich progress bar on a terminal; else a line for each defect and for each tenth of the run."""
    try:
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
    except ModuleNotFoundError:
        yield _print_progress
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _print_progress
        return
    columns = (*Bar.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[last]}"))
    with Bar(*columns, console=console) as bar:
        task = bar.add_task("operators", total=None, last="")

        def show(done: int, total: int, result: CaseResult) -> None:
            bar.update(task, completed=done, total=total, last=str(result.case))
            if result.status.is_defect:
                bar.console.print(_defect_line(result), markup=False, highlight=False)

        yield show


def _print_progress(done: int, total: int, result: CaseResult) -> None:
    if result.status.is_defect:
        print(_defect_line(result), file=sys.stderr, flush=True)
    if done * 10 // total != (done - 1) * 10 // total:
        print(f"{done}/{total}", file=sys.stderr, flush=True)


def _defect_line(result: CaseResult) -> str:
    first_line = result.message.partition("\n")[0][:200]
    return f"{result.status.value} {result.case}: {first_line}"


def command(
    run: Callable[..., OpReport],
    driver: str = "sim",
    device: str | None = None,
    ops: str | None = None,
    kinds: str = "forward",
    dtypes: str = "float32",
    samples: int = 8,
    workers: int | None = None,
    timeout: float = 60.0,
    json_file: str | None = None,
    gaps: str | None = None,
) -> int:
    """``run`` from the command line: lists are separated by commas; prints the summary, writes the JSON.

    Gives the exit code. 0: as declared. 1: an undeclared defect or an untrue gap. 2: the check could not run.
    ``driver="cpu"`` compares the CPU with itself; ``device`` is the torch device where its name is not the driver's.
    """
    try:
        with progress_display() as progress:
            report = run(
                device=device or driver,
                kinds=_split(kinds),
                dtypes=_split(dtypes),
                ops=_split(ops) if ops else None,
                samples=samples,
                workers=workers,
                timeout=timeout,
                progress=progress,
                gaps=gaps,
                driver=None if driver == "cpu" else driver,
            )
    except (OpCheckError, GapsFileError, ValueError) as error:
        print(f"bringup check: {error}", file=sys.stderr)
        return 2
    print(report.summary())
    if json_file:
        Path(json_file).write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
        print(f"written: {json_file}")
    return report.exit_code


main_ops = partial(command, run_op_checks)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
