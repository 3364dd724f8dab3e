"""``bringup trace``: a program's timeline, with what ran on the device."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bringup.kit.ops_command import Mode, choose
from bringup.kit.terminal import fail, print_table, readable_seconds

if TYPE_CHECKING:
    from torch.profiler import profile


def trace(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py|TRACE.json", help="A program, or a trace to merge.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The program's own, after --; or more traces to merge.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The trace: for ui.perfetto.dev.")] = Path(
        "trace.json"
    ),
    driver: Annotated[str | None, typer.Option(help="A name, ./mychip.py or ./libmychip.so.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="sim only: as BRINGUP_SIM=mode=… says.")] = None,
    stacks: Annotated[bool, typer.Option("--stacks", help="With Python's functions.")] = False,
    shapes: Annotated[bool, typer.Option("--shapes", help="With the shapes of arguments.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="With every allocation.")] = False,
    rows: Annotated[int, typer.Option(min=0, help="Rows of the table that is printed.")] = 15,
) -> None:
    """Run a program and write its timeline: ops, kernels, copies, waits. Or merge the timelines of several ranks.

    Under torchrun each rank writes a file of its own: trace.rank0.json … Then
    `bringup trace trace.rank*.json -o all.json` puts them on one time axis.
    """
    if script.suffix == ".json":
        _merge([script, *map(Path, arguments or [])], output)
        return
    if not script.is_file():
        fail("trace", f"there is no file {script}")
    if not output.parent.is_dir():
        fail("trace", f"there is no folder {output.parent} to write {output.name} to")
    choose(driver, mode.value if mode is not None else None)
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it announces each profile otherwise
    if rank := os.environ.get("RANK"):
        output = output.with_suffix(f".rank{rank}{output.suffix}")
    from torch.profiler import ProfilerActivity, profile

    sys.argv = [str(script), *(arguments or [])]
    sys.path.insert(0, str(script.resolve().parent))
    status = 0
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1],
        record_shapes=shapes,
        profile_memory=memory,
        with_stack=stacks,
    ) as found:
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:  # what was seen until then is a timeline, too
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except KeyboardInterrupt:
            status = 130
        except Exception:
            sys.excepthook(*sys.exc_info())
            status = 1
    found.export_chrome_trace(str(output))
    if rows:
        _print(found, rows)
    print(f"{output}: open it at https://ui.perfetto.dev")
    raise typer.Exit(status)


def _merge(paths: list[Path], output: Path) -> None:
    from bringup.profiler.merged import merge_traces

    try:
        merged = merge_traces(paths)
    except ValueError as error:
        fail("trace", str(error))
    output.write_text(json.dumps(merged), encoding="utf-8")
    print(f"{output}: {len(paths)} traces, {len(merged['traceEvents'])} events; open it at https://ui.perfetto.dev")


def _print(found: profile, rows: int) -> None:
    """Prints what the device spent its time with, the most expensive first."""
    from torch.autograd import DeviceType  # type: ignore[attr-defined]

    averages = [
        event
        for event in found.key_averages()
        if event.device_type != DeviceType.CPU and not event.is_user_annotation and event.self_device_time_total > 0
    ]
    total = sum(event.self_device_time_total for event in averages)
    if not averages:
        print("nothing ran on the device")
        return
    averages.sort(key=lambda event: -event.self_device_time_total)
    table = [
        (
            event.key,
            str(event.count),
            readable_seconds(event.self_device_time_total * 1e-6),
            readable_seconds(event.self_device_time_total * 1e-6 / event.count),
            f"{100 * event.self_device_time_total / total:.1f} %",
        )
        for event in averages[:rows]
    ]
    print_table(("on the device", "calls", "time", "each", "share"), table)
    if len(averages) > rows:
        print(f"and {len(averages) - rows} more")
