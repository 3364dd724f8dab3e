"""``bringup explain``: what becomes of code on a device, op by op, or of a model as torch.compile's graphs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bringup.kit.graph_explain_units import readable_seconds
from bringup.kit.ops_command import Mode, choose, first_device

if TYPE_CHECKING:
    from bringup.kit.explain import OpCall
    from bringup.lowering.observation import CallRecord

#: A file and a name in it; without a name it is a place all the same, and an error.
_PLACE = re.compile(r"[^'\"()=;]+\.py:[\w.]*")
PARTS = ("guards", "ir", "source", "cost", "time")


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
    show: Annotated[str, typer.Option(help=f"Code: parts, separated by commas: {','.join(PARTS)}.")] = ",".join(PARTS),
    cold: Annotated[bool, typer.Option("--cold", help="Compile everything: leave the disk cache alone.")] = False,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", metavar="4x16:float32", help="Model: an argument; repeat it.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Model: in training mode, with the backward graph.")] = False,
    ir: Annotated[bool, typer.Option("--ir", help="Model: also the kernels' IR.")] = False,
    source: Annotated[bool, typer.Option("--source", help="Model: also the kernels' source.")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Model: write a page instead.")] = None,
) -> None:
    """Show how code runs on a device, op by op; or what torch.compile makes of a model.

    CODE: every op with its route, guards, loop IR, source, cost, and where the time goes. It runs with the device as
    default device, so that torch.randn and the like create there.

    FILE.py:NAME: a module (or its class), a function, or a function without arguments that returns (callable,
    arguments). Shows its graphs, what was fused and why, kernels with cost and time, ops without kernels, memory.
    """
    parts = [part.strip() for part in show.split(",") if part.strip()]
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        _fail(f"--show knows {', '.join(PARTS)}, not {', '.join(unknown)}")
    place = is_place(code)
    if not place and (inputs or train or ir or source or html):
        _fail("--input, --train, --ir, --source and --html are for a model: FILE.py:NAME")
    choose(driver, mode.value if mode is not None else None)
    if cold:
        os.environ["BRINGUP_CACHE"] = "off"
    index = first_device("explain")
    if place:
        from bringup.kit.graph_explain_command import explain_place

        problem = explain_place(code, index, inputs or [], train, ir, source, html)
        if problem:
            _fail(problem)
        return
    from bringup.kit import explain as explaining

    try:
        calls = explaining.explain(code, index)
    except Exception as error:  # the user's code, and the user's mistake to see
        _fail(f"{type(error).__name__}: {error}")
    if not calls:
        print("no op reached the device")
    for number, call in enumerate(calls, 1):
        for language, text in sections(number, call, parts):
            _print(language, text)


def is_place(text: str) -> bool:
    """True for ``model.py:fn``, which is a place in a file and no code.

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


def _fail(message: str) -> None:
    print(f"bringup explain: {message}", file=sys.stderr)
    raise typer.Exit(2)
