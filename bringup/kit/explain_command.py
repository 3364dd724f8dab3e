"""``bringup explain``: prints what becomes of some code on a device, op by op, down to the source of its kernels."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from bringup.kit.ops_command import Mode, choose, first_device

if TYPE_CHECKING:
    from bringup.kit.explain import OpCall
    from bringup.lowering.observation import CallRecord

PARTS = ("guards", "ir", "source", "cost", "time")


def explain(
    code: Annotated[str, typer.Argument(help="Python, run as `python -c` runs it: only give it code you would run.")],
    driver: Annotated[str | None, typer.Option(help="A name, ./mychip.py or ./libmychip.so.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="sim only: as BRINGUP_SIM=mode=… says.")] = Mode.kernels,
    show: Annotated[str, typer.Option(help=f"Parts, separated by commas: {','.join(PARTS)}.")] = ",".join(PARTS),
    cold: Annotated[bool, typer.Option("--cold", help="Compile everything: leave the disk cache alone.")] = False,
) -> None:
    """Show how the ops of some code run: route, guards, loop IR, source, cost, and where the time goes.

    The code runs with the device as default device, so that torch.randn and the like create there.
    """
    parts = [part.strip() for part in show.split(",") if part.strip()]
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        _fail(f"--show knows {', '.join(PARTS)}, not {', '.join(unknown)}")
    choose(driver, mode.value if mode is not None else None)
    if cold:
        os.environ["BRINGUP_CACHE"] = "off"
    index = first_device("explain")
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


def readable_seconds(seconds: float) -> str:
    """A time as people write it.

    >>> readable_seconds(0.0312), readable_seconds(4.2e-6)
    ('31.2 ms', '4.2 µs')
    """
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


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
