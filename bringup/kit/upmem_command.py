"""``bringup upmem run host.c --dpu kernel.c``: programs for UPMEM's SDK on the simulator."""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
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
    application.command(context_settings={"ignore_unknown_options": True})(compare)
    application.command()(path)
    application.command()(calibrate)
    application.command()(sweep)
    return application


def path() -> None:
    """Print the folder with the SDK's tools by name: PATH=$(bringup upmem path):$PATH make."""
    from bringup.upmem.tools import tools_folder

    try:
        print(tools_folder())
    except (OSError, RuntimeError) as error:
        fail("upmem path", str(error))


def calibrate() -> None:
    """Print the numbers that times stand on, each with where it comes from."""
    from bringup.kit.terminal import print_table
    from bringup.upmem.rv32 import CALIBRATION, calibration

    rows = []
    for group, values in calibration().items():
        entries = values.items() if group in ("routines", "kernels") else [("", values)]
        for name, entry in entries:
            numbers = ", ".join(f"{key} {value}" for key, value in entry.items() if not key.endswith("provenance"))
            notes = "; ".join(str(value) for key, value in entry.items() if key.endswith("provenance"))
            rows.append((f"{group} {name}".strip(), numbers, notes))
    print_table(("of", "numbers", "from"), rows, title=CALIBRATION.name)
    hardware = "found" if Path("/sys/class/dpu_rank").exists() else "not found: nothing can be measured again here"
    print(f"UPMEM hardware: {hardware}; benchmarks/prim.py --fit fits the kernels to a table of measured times")


_HostFiles = Annotated[list[Path], typer.Argument(help="The host program's C or C++ files; behind -- its arguments.")]
_DpuFiles = Annotated[list[Path], typer.Option("--dpu", help="The DPU program's C files.")]
_Tasklets = Annotated[int, typer.Option(help="NR_TASKLETS.")]
_Macros = Annotated[list[str] | None, typer.Option("-D", help="A macro for both: NAME or NAME=VALUE.")]
_Folders = Annotated[list[Path] | None, typer.Option("-I", help="A folder of headers for both.")]


def run(
    host: _HostFiles,
    dpu: _DpuFiles,
    tasklets: _Tasklets = 16,
    define: _Macros = None,
    include: _Folders = None,
    report: Annotated[bool, typer.Option(help="What it takes on the chip, on standard error.")] = True,
) -> None:
    """Compile a host program and a DPU program, and run them on the simulator.

    Both see NR_TASKLETS; the host program's DPU_BINARY is the DPU program. A host program that loads by another name
    gets the same program, if there is no file of that name.
    """
    from bringup.upmem.host import LIBRARY

    flags = [*(f"-D{one}" for one in define or ()), *(f"-I{one}" for one in include or ())]
    sources, arguments = _host_files("upmem run", host, dpu)
    with tempfile.TemporaryDirectory(prefix="bringup-upmem-") as name:
        folder = Path(name)
        program, executable = folder / "dpu_program", folder / "host_program"
        try:  # the DPU program first: the host program may contain it
            program.write_bytes(_compiled(dpu, tasklets, flags, report))
        except (OSError, RuntimeError) as error:
            fail("upmem run", str(error))
        _build_host("upmem run", sources, executable, program, LIBRARY, [*flags, f"-DNR_TASKLETS={tasklets}"])
        events = folder / "events"
        environment = {**os.environ, "BRINGUP_UPMEM_PROGRAM": str(program)}
        if report:
            environment["BRINGUP_UPMEM_EVENTS"] = str(events)
        done = subprocess.run([str(executable), *arguments], env=environment)
        if events.exists() and not done.returncode:
            _print_report(events.read_text(encoding="utf-8").splitlines())
    if done.returncode < 0:
        print(f"bringup upmem run: the host program ended by signal {-done.returncode}", file=sys.stderr)
        raise typer.Exit(128 - done.returncode)
    raise typer.Exit(done.returncode)


def compare(
    host: _HostFiles,
    dpu: _DpuFiles,
    tasklets: _Tasklets = 16,
    define: _Macros = None,
    include: _Folders = None,
    library: Annotated[Path | None, typer.Option(help="The other libdpu.so (default: the SDK's).")] = None,
    compiler: Annotated[str, typer.Option(help="Its compiler of DPU programs.")] = "dpu-upmem-dpurte-clang",
) -> None:
    """Run one program on the simulator and on another libdpu, the hardware's, and print what differs.

    Compared is what the host program prints, and its exit code. Exit status 1 when they differ.
    """
    from bringup.upmem.host import LIBRARY
    from bringup.upmem.sdk import find_sdk

    sdk = find_sdk()
    other = library or (sdk.library if sdk else None)
    if other is None or not other.is_file():
        fail(
            "upmem compare",
            f"there is no hardware side: {other or 'libdpu.so'} was not found; install UPMEM's SDK, or name its "
            "libdpu.so with --library",
        )
    words = shlex.split(compiler)
    if not words or shutil.which(words[0]) is None:
        fail(
            "upmem compare", f"there is no program '{compiler}' to compile for {other} (source the SDK's upmem_env.sh)"
        )
    flags = [*(f"-D{one}" for one in define or ()), *(f"-I{one}" for one in include or ())]
    flags.append(f"-DNR_TASKLETS={tasklets}")
    sources, arguments = _host_files("upmem compare", host, dpu)
    results = []
    with tempfile.TemporaryDirectory(prefix="bringup-upmem-") as name:
        for side, one in (("simulator", LIBRARY), ("other", other)):
            program, executable = Path(name, f"dpu_{side}"), Path(name, f"host_{side}")
            try:
                if one is LIBRARY:
                    program.write_bytes(_compiled(dpu, tasklets, flags[:-1], False))
                else:
                    command = [*words, "-O2", *flags, "-o", str(program), *map(str, dpu)]
                    subprocess.run(command, check=True, capture_output=True, text=True)
            except subprocess.CalledProcessError as error:
                fail("upmem compare", f"{shlex.join(error.cmd)}\n{error.stderr or error.stdout}")
            except (OSError, RuntimeError) as error:
                fail("upmem compare", str(error))
            _build_host("upmem compare", sources, executable, program, one, flags)
            results.append(subprocess.run([str(executable), *arguments], capture_output=True, text=True))
    ours, theirs = results
    lines = list(
        difflib.unified_diff(ours.stdout.splitlines(), theirs.stdout.splitlines(), "simulator", str(other), lineterm="")
    )
    if ours.returncode != theirs.returncode:
        lines.append(f"exit code: {ours.returncode} on the simulator, {theirs.returncode} with {other}")
        lines += [text for text in (ours.stderr.strip(), theirs.stderr.strip()) if text]
    print(
        "\n".join(lines)
        if lines
        else f"no difference: {len(ours.stdout.splitlines())} lines, exit code {ours.returncode}"
    )
    raise typer.Exit(1 if lines else 0)


def _host_files(command: str, host: list[Path], dpu: list[Path]) -> tuple[list[Path], list[str]]:
    """Returns the host program's files and its arguments."""
    sources = [one for one in host if one.suffix in (".c", ".cpp", ".cc")]
    if not sources:
        fail(command, "no C or C++ file of a host program was given")
    if missing := [str(one) for one in (*sources, *dpu) if not one.is_file()]:
        fail(command, f"there is no file {', '.join(missing)}")
    return sources, [str(one) for one in host if one not in sources]


def _build_host(
    command: str, sources: list[Path], executable: Path, program: Path, library: Path, flags: list[str]
) -> None:
    """Compiles the host program against a libdpu."""
    from bringup.targets.toolchain import CompilerMissing, find_compiler
    from bringup.upmem.toolchain import HOST_HEADERS

    try:
        words = [*find_compiler(), "-O2", "-g", f"-I{HOST_HEADERS}", *flags, f'-DDPU_BINARY="{program}"']
    except CompilerMissing as error:
        fail(command, str(error))
    words += [
        *map(str, sources),
        "-o",
        str(executable),
        str(library),
        f"-Wl,-rpath,{library.parent}",
        "-lm",
        "-pthread",
        *(["-lstdc++"] if any(one.suffix != ".c" for one in sources) else []),
    ]
    built = subprocess.run(words, capture_output=True, text=True)
    if built.returncode:
        fail(command, "the host program does not compile\n" + built.stderr.strip())


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
