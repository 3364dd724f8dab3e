"""``bringup explain``: how code runs on a device, op by op, or what torch.compile makes of a model."""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bringup.kit.ops_command import Mode, choose, first_device
from bringup.kit.terminal import fail, readable_seconds

if TYPE_CHECKING:
    from bringup.kit.explain import OpCall
    from bringup.kit.graph_explain import GraphStory
    from bringup.lowering.observation import CallRecord

#: A file and a name in it; without a name it is a place all the same, and an error.
_PLACE = re.compile(r"[^'\"()=;]+\.py:[\w.]*")
PARTS = ("guards", "ir", "source", "cost", "time")
#: What ``--show`` adds to the tables of a model.
MODEL_PARTS = ("ir", "source")


def explain(
    code: Annotated[
        str,
        typer.Argument(
            metavar="CODE|FILE.py:NAME",
            help="Python, run as `python -c` runs it, or a model in a file: only give it code you would run.",
        ),
    ],
    driver: Annotated[str | None, typer.Option(help="A name, ./mychip.py or ./libmychip.so.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="sim only: as BRINGUP_SIM=mode=… says.")] = Mode.kernels,
    show: Annotated[
        str | None,
        typer.Option(
            metavar="PARTS",
            help=f"Of code: {','.join(PARTS)}, all by default. Of a model also {','.join(MODEL_PARTS)}.",
        ),
    ] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Compile everything: leave the disk cache alone.")] = False,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", metavar="4x16:float32", help="Model: an argument; repeat it.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Model: in training mode, with the backward graph.")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Model: write a page instead.")] = None,
    ir: Annotated[bool, typer.Option("--ir", hidden=True)] = False,
    source: Annotated[bool, typer.Option("--source", hidden=True)] = False,
) -> None:
    """Show how code runs on a device, op by op; or what torch.compile makes of a model.

    CODE: every op with its route, guards, loop IR, source, cost, and where the time goes. It runs with the device as
    default device, so that torch.randn and the like create there.

    FILE.py:NAME: a module (or its class), a function, or a function without arguments that returns (callable,
    arguments). Shows its graphs, what was fused and why, kernels with cost and time, ops without kernels, memory.
    """
    if ir or source:
        fail("explain", "--ir and --source are now --show ir,source")
    place = is_place(code)
    known = MODEL_PARTS if place else PARTS
    default = "" if place else ",".join(PARTS)
    parts = [part.strip() for part in (default if show is None else show).split(",") if part.strip()]
    if unknown := [part for part in parts if part not in known]:
        fail(
            "explain", f"--show of {'a model' if place else 'code'} knows {', '.join(known)}, not {', '.join(unknown)}"
        )
    if not place and (inputs or train or html):
        fail("explain", "--input, --train and --html are for a model: FILE.py:NAME")
    choose(driver, mode.value if mode is not None else None)
    if cold:
        os.environ["BRINGUP_CACHE"] = "off"
    index = first_device("explain")
    if place:
        _show_graphs(code, _graphs(code, index, inputs or [], train, html), parts, html)
    else:
        _show_ops(code, index, parts)


def _show_ops(code: str, index: int, parts: list[str]) -> None:
    from bringup.kit import explain as explaining

    try:
        calls = explaining.explain(code, index)
    except Exception as error:  # the user's code, and the user's mistake to see
        fail("explain", f"{type(error).__name__}: {error}")
    if not calls:
        print("no op reached the device")
    for number, call in enumerate(calls, 1):
        for language, text in sections(number, call, parts):
            _print(language, text)


def _graphs(place: str, index: int, inputs: Sequence[str], train: bool, html: Path | None) -> list[GraphStory]:
    """Compiles and runs the model at ``model.py:fn``; ends the command where there is no graph to show."""
    import torch
    from rich.console import Console

    from bringup.driver.in_use import device_type, driver_of
    from bringup.kit.graph_explain_model import NoModel, error_line, load_model
    from bringup.kit.graph_explain_watch import explain_model
    from bringup.lowering.install import compiler_for

    if compiler_for(index) is None:
        fail(
            "explain",
            f"{driver_of(index).name} runs no kernels here (compile, load and launch), so there are no graphs to show",
        )
    if html is not None and not html.resolve().parent.is_dir():
        fail("explain", f"--html {html}: there is no folder {html.parent}")
    warnings.filterwarnings("ignore", module="torch")
    torch._logging.set_logs(all=logging.CRITICAL)  # type: ignore[attr-defined]  # errors are reported below, in a line
    err = Console(stderr=True, markup=False, highlight=False)
    try:
        with err.status(f"loading {place}") as status:
            model = load_model(place, inputs, torch.device(device_type(), index), train)
            stories = explain_model(model, train, status.update)
    except NoModel as error:
        fail("explain", str(error))
    except Exception as error:  # the user's model, and the user's mistake to see
        fail("explain", f"{place} raised {error_line(error)}")
    if not stories:
        fail("explain", f"{place} has no graph: no op of it reached the device")
    return stories


def _show_graphs(place: str, stories: Sequence[GraphStory], parts: Sequence[str], html: Path | None) -> None:
    if html is not None:
        from bringup.kit.graph_page import page

        html.write_text(page(place, stories), encoding="utf-8")
        for story in stories:
            print(f"{story.title}: {story.summary()}")
        print(f"written: {html}")
        return
    from bringup.kit.graph_explain_text import console, story_parts

    terminal = console()
    for story in stories:
        for part in story_parts(story, "ir" in parts, "source" in parts):
            terminal.print(part)


def is_place(text: str) -> bool:
    """True for ``model.py:fn``, which is a place in a file and not code.

    >>> is_place("models/net.py:Net"), is_place("net.py:"), is_place("torch.ones(3)"), is_place("x = 'a.py:b'")
    (True, True, False, False)
    """
    return _PLACE.fullmatch(text) is not None or (text.endswith(".py") and Path(text).is_file())


def sections(number: int, call: OpCall, parts: list[str]) -> Iterator[tuple[str, str]]:
    """(language, text) of what is printed for one op; plain text has no language."""
    reason = f": {call.reason}" if call.reason else ""
    yield "", f"{number}. {call.op}({call.arguments})\n   {call.route}{reason}"
    for record in call.records:
        if not record.refusal:
            yield from _call_sections(call, record, parts)
    if "time" in parts:
        yield "", _times(call)
    yield "", ""


def _call_sections(call: OpCall, record: CallRecord, parts: list[str]) -> Iterator[tuple[str, str]]:
    from bringup.ir.kernel import Kernel
    from bringup.ir.printer import kernel_text
    from bringup.kit.explain import cost_of
    from bringup.lowering.call_text import guard_lines, signature_text

    if record.op != call.op:
        yield "", f"   inside it: {signature_text(record)}"
    if record.known:
        yield "", "   structure known from an earlier call: only the plan is new"
    if "guards" in parts:
        lines = guard_lines(record.trace) or ["none: the kernels serve every shape"]
        yield "", "\n".join(["   guards", *(f"     {line}" for line in lines)])
    launches = record.call.launches if record.call is not None else []
    for launch, kernel in zip(launches, record.kernels):
        yield "", f"   kernel {kernel.source.entry} ({kernel.origin})"
        if "ir" in parts and isinstance(kernel.kernel, Kernel):
            yield "rust", _indented(kernel_text(kernel.kernel))
        if "source" in parts:
            yield "c", _indented(kernel.source.text)
        numbers = cost_of(launch, kernel)
        if "cost" in parts and numbers is not None:
            moved = numbers.read + numbers.written
            yield (
                "",
                (
                    f"     cost: {numbers.flops:,} flops ({numbers.transcendentals:,} of them transcendental), "
                    f"{numbers.read:,} bytes read, {numbers.written:,} written"
                    + (f", {numbers.flops / moved:.2f} flops per byte" if moved else "")
                ),
            )


def _times(call: OpCall) -> str:
    steps = [f"{name} {readable_seconds(seconds)}" for name, seconds in call.steps.items() if seconds]
    warm = readable_seconds(call.warm) if call.warm != float("inf") else "not measured: the code takes other ways"
    return f"   first call {readable_seconds(call.first)}: {', '.join(steps)}\n   warm call {warm}"


def _indented(text: str) -> str:
    return "\n".join(f"     {line}" for line in text.rstrip().splitlines())


def _print(language: str, text: str) -> None:
    if language and sys.stdout.isatty():
        from rich.console import Console
        from rich.syntax import Syntax

        Console().print(Syntax(text, language, theme="ansi_dark", background_color="default", word_wrap=True))
    else:
        print(text)
