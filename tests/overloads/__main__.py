"""``python -m tests.overloads``: the sweep over all overloads, with a table of what was called and what was found."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bringup.kit.op_cases import CaseResult
from tests.overloads.sweep import KINDS, Sweep, findings_of, run_sweep

#: Findings of one overload that are printed; all are counted.
SHOWN = 4

console = Console()


def _say(where: Console, text: str) -> None:
    where.print(text, markup=False, highlight=False, soft_wrap=True)


def main(
    patterns: Annotated[
        list[str] | None, typer.Argument(help="Overloads, such as 'aten::histc*'; all without.")
    ] = None,
    device: str = "sim",
    samples: Annotated[int, typer.Option(help="Recorded calls taken of each overload, before their forms.")] = 3,
    workers: int = 1,
    calls: Annotated[Path | None, typer.Option(help="Recorded calls: read if it exists, else written.")] = None,
    journal: Annotated[Path | None, typer.Option(help="Results so far: a run over all goes on.")] = None,
    record: Annotated[bool, typer.Option("--record", help="Write results/overloads.json.")] = False,
    brief: Annotated[bool, typer.Option("--brief", help="No reasons of overloads that were not called.")] = False,
) -> None:
    """Calls every overload the device registers, on the CPU and on the device."""
    if journal and patterns:
        raise typer.BadParameter("--journal is for a run over all overloads")
    with Progress(console=console, disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task("overloads", total=None)

        def progress(done: int, total: int, result: CaseResult) -> None:
            bar.update(task, completed=done, total=total, description=result.case.op.removeprefix("aten::")[:40])
            for finding in findings_of(result)[:SHOWN]:
                _say(bar.console, f"{finding['kind']}: {finding['call']}\n    {finding['message']}")

        sweep = run_sweep(
            device, patterns, calls_file=calls, samples=samples, workers=workers, progress=progress, journal=journal
        )
    _show(sweep, brief)
    if record:
        from benchmarks.recording import record as write

        print(write("overloads", sweep.data(), command=f"python -m tests.overloads --samples {samples} --record"))
    raise typer.Exit(1 if sweep.undeclared or sweep.passing else 0)


def _show(sweep: Sweep, brief: bool) -> None:
    data = sweep.data()
    table = Table("finding", "all", "undeclared")
    for kind in KINDS:
        table.add_row(kind, str(data["findings"][kind]), str(data["undeclared"][kind]))
    console.print(table)
    if not brief:
        for name, reason in data["not called"].items():
            _say(console, f"not called: {name}: {reason}")
    for gap in sweep.passing:
        _say(console, f"declared, but as the CPU: {gap}")
    console.print(
        f"{data['called']} of {data['overloads']} overloads called, {data['calls compared']} calls compared, "
        f"{len(sweep.undeclared)} overloads with undeclared findings"
    )


if __name__ == "__main__":
    typer.run(main)
