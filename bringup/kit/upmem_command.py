"""``bringup upmem run host.c --dpu kernel.c``: programs for UPMEM's SDK on the simulator."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from bringup.kit.terminal import fail
from bringup.kit.upmem_sweep import sweep


def upmem_application() -> typer.Typer:
    """The command group; ``bringup.cli`` adds it."""
    application = typer.Typer(help="Processing-in-memory programs for UPMEM.", no_args_is_help=True)
    application.callback()(lambda: None)
    application.command(context_settings={"ignore_unknown_options": True})(run)
    application.command()(path)
    application.command()(sweep)
    return application


def path() -> None:
    """Print the folder with the SDK's tools by name: PATH=$(bringup upmem path):$PATH make."""
    from bringup.upmem.tools import tools_folder

    try:
        print(tools_folder())
    except (OSError, RuntimeError) as error:
        fail("upmem path", str(error))


def run(
    host: Annotated[list[Path], typer.Argument(help="The host program's C files, and behind -- its arguments.")],
    dpu: Annotated[list[Path], typer.Option("--dpu", help="The DPU program's C files.")],
    tasklets: Annotated[int, typer.Option(help="NR_TASKLETS.")] = 16,
    define: Annotated[list[str] | None, typer.Option("-D", help="A macro for both: NAME or NAME=VALUE.")] = None,
    include: Annotated[list[Path] | None, typer.Option("-I", help="A folder of headers for both.")] = None,
    report: Annotated[bool, typer.Option(help="What it takes on the chip, on standard error.")] = True,
) -> None:
    """Compile a host program and a DPU program, and run them on the simulator.

    Both see NR_TASKLETS; the host program's DPU_BINARY is the DPU program. A host program that loads by another name
    gets the same program, if there is no file of that name.
    """
    from bringup.upmem.host import LIBRARY
    from bringup.upmem.toolchain import HOST_HEADERS
    from bringup.upmem.tools import write_tools

    sources = [one for one in host if one.suffix == ".c"]
    arguments = [str(one) for one in host if one.suffix != ".c"]
    if not sources:
        fail("upmem run", "no C file of a host program was given")
    if missing := [str(one) for one in (*sources, *dpu) if not one.is_file()]:
        fail("upmem run", f"there is no file {', '.join(missing)}")
    flags = [*(f"-D{one}" for one in define or ()), *(f"-I{one}" for one in include or ())]
    with tempfile.TemporaryDirectory(prefix="bringup-upmem-") as name:
        folder = Path(name)
        program, executable = folder / "dpu_program", folder / "host_program"
        try:
            from bringup.targets.toolchain import find_compiler

            program.write_bytes(_compiled(dpu, tasklets, flags, report))
            write_tools(folder)
            command = [*find_compiler(), "-O2", "-g", "-std=gnu11", f"-I{HOST_HEADERS}", *flags]
            command += [f"-DNR_TASKLETS={tasklets}", f'-DDPU_BINARY="{program}"', *map(str, sources)]
            command += ["-o", str(executable), str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}", "-lm", "-pthread"]
            built = subprocess.run(command, capture_output=True, text=True)
        except (OSError, RuntimeError) as error:
            fail("upmem run", str(error))
        if built.returncode:
            fail("upmem run", "the host program does not compile\n" + built.stderr.strip())
        events = folder / "events"
        environment = {**os.environ, "BRINGUP_UPMEM_PROGRAM": str(program)}
        if report:
            environment["BRINGUP_UPMEM_EVENTS"] = str(events)
        done = subprocess.run([str(executable), *arguments], env=environment)
        if events.exists() and not done.returncode:
            _print_report(events.read_text().splitlines())
    if done.returncode < 0:
        print(f"bringup upmem run: the host program ended by signal {-done.returncode}", file=sys.stderr)
        raise typer.Exit(128 - done.returncode)
    raise typer.Exit(done.returncode)


def _compiled(sources: list[Path], tasklets: int, flags: list[str], timed: bool) -> bytes:
    from bringup.upmem import DpuToolchainMissing, compile_program

    try:
        return compile_program(sources, tasklets=tasklets, flags=flags, timed=timed)
    except DpuToolchainMissing as reason:
        if not timed:
            raise
        program = compile_program(sources, tasklets=tasklets, flags=flags)
        print(f"bringup upmem run: launches are not timed: {reason}", file=sys.stderr)
        return program


def _print_report(lines: list[str]) -> None:
    from bringup.kit.terminal import readable_seconds
    from bringup.upmem.report import report_of

    found = report_of(lines)
    print("on the chip (estimates, not calibrated for this program):", file=sys.stderr)
    for name, phase in found.phases.items():
        note = f", {phase.uncounted} of them not counted" if phase.uncounted else ""
        print(
            f"  {name:<8} {readable_seconds(phase.seconds):>10}  {phase.calls} calls{note}, {phase.nbytes:,} bytes",
            file=sys.stderr,
        )
    for name, seconds in found.probes.items():
        print(f"  probe {name}: {readable_seconds(seconds)}", file=sys.stderr)
