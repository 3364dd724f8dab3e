"""The command ``bringup``: what a driver must write, which drivers there are, what is wrong, what works.

Torch is imported only by the commands that need it: ``contract``, ``include``, ``drivers``, ``cache`` and
``check --level driver`` do without.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bringup import __version__

if TYPE_CHECKING:
    from bringup.driver import Driver
if TYPE_CHECKING or importlib.util.find_spec("typer"):
    import typer

_EXTRAS = "the command `bringup` needs typer and rich: pip install 'bringup[cli]'"


def main() -> None:
    """What the console script and ``python -m bringup`` run."""
    if not (importlib.util.find_spec("typer") and importlib.util.find_spec("rich")):
        print(_EXTRAS, file=sys.stderr)
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="replace")  # our texts hold signs that not every locale has
    app()()


def app() -> typer.Typer:
    """The typer application; tests call it through CliRunner."""
    application = typer.Typer(
        name="bringup",
        help="Brings any accelerator up in PyTorch.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    from bringup.kit.decompositions_command import decompositions
    from bringup.kit.explain_command import explain
    from bringup.kit.kernel_cache_command import cache_application
    from bringup.kit.ops_command import ops
    from bringup.kit.riscv_command import riscv_application
    from bringup.kit.scale_command import scale
    from bringup.kit.trace_command import trace
    from bringup.kit.upmem_command import upmem_application
    from bringup.vendor.command import generate

    commands = (
        contract,
        include,
        drivers,
        diagnose,
        check,
        ops,
        explain,
        trace,
        scale,
        passes,
        decompositions,
        generate,
    )
    for command in commands:
        application.command()(command)
    application.add_typer(cache_application(), name="cache")
    application.add_typer(riscv_application(), name="riscv")
    application.add_typer(upmem_application(), name="upmem")
    application.callback()(_options)
    return application


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


def contract(
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The whole reference: docs/reference.md.")] = False,
) -> None:
    """Print the driver contract, read from the code: every method with its signature, required or optional."""
    from bringup import driver
    from bringup.kit import reference

    if full:
        print(reference.reference(), end="")
        return
    rows = driver.contract()
    required = sum(needed for _, _, needed, _ in rows)
    signatures = {name: reference.signature(getattr(driver.Driver, name)) for name, *_ in rows}
    if as_json:
        names = ("method", "group", "required", "meaning")
        methods = [{**dict(zip(names, row)), "signature": signatures[row[0]]} for row in rows]
        print(json.dumps({"required": required, "optional": len(rows) - required, "methods": methods}, indent=2))
        return
    for group in dict.fromkeys(group for _, group, _, _ in rows):
        print(f"{group}:")
        for name, of_group, _, meaning in rows:
            if of_group == group:
                print(f"  {signatures[name]}\n      {meaning}")
    print(f"{required} required, {len(rows) - required} optional; the rest of the reference: bringup contract --full")


def include() -> None:
    """Print the folder of driver.h: cc -I$(bringup include) …"""
    print(Path(__file__).parent / "include")


def drivers() -> None:
    """List the drivers that can be asked for by name, where they come from and how many devices each has here."""
    _print_drivers()
    print("A file works too: BRINGUP_DRIVERS=./mychip.py or ./libmychip.so")


def diagnose() -> None:
    """Say what bringup sees on this machine, and what is wrong; opens no device. Exit status 1 when not active."""
    from bringup.kit.terminal import print_facts

    facts = [
        ("bringup", f"{__version__} ({Path(__file__).parent})"),
        ("Python", f"{sys.version.split()[0]} ({sys.executable})"),
        ("compiler", _compiler()),
        *[
            (name, value or "(empty)")
            for name, value in sorted(os.environ.items())
            if re.match(r"BRINGUP_|.+_VISIBLE_DEVICES$", name)
        ],
        ("autoload", _autoload_state()),
    ]
    try:
        import torch
    except ImportError as error:
        print_facts([*facts, ("torch", f"not importable: {error}")])
        raise typer.Exit(1) from None
    from bringup.driver import in_use
    from bringup.torch_device import core_binary

    facts.append(("torch", torch.__version__))
    try:
        facts.append(("C++ core", f"built for torch {core_binary.load(torch.__version__).TORCH_VERSION}"))
    except RuntimeError as error:
        facts.append(("C++ core", str(error)))
    active = in_use.active_drivers()
    problem = in_use.activation_error()
    if active and problem is None:
        held = [f"{one.name}: {one.count} device(s) from {in_use.device_type()}:{one.first}" for one in active]
        facts.append(("active", "; ".join(held)))
        facts.append(("chosen", in_use.choice_reason()))
    elif problem is not None:
        facts.append(("not active", f"{type(problem).__name__}: {problem}"))
    else:
        autoload = _autoload_state()
        why = (
            f"autoload is {autoload}"
            if autoload.startswith("off")
            else "another accelerator is here: set BRINGUP_DRIVERS"
        )
        facts.append(("not active", why))
    print_facts(facts)
    _print_drivers()
    if not active or problem is not None:
        raise typer.Exit(1)


class Level(str, enum.Enum):
    """What ``bringup check`` looks at."""

    driver = "driver"
    ops = "ops"
    compile = "compile"
    table = "table"
    profiler = "profiler"
    dlpack = "dlpack"
    ipc = "ipc"
    distributed = "distributed"


#: Options of ``bringup check`` that only the levels ops and compile have.
_OPS_OPTIONS = ("ops", "kinds", "dtypes", "samples", "workers", "gaps")


def _chosen_level(context: typer.Context, level: Level | None) -> Level:
    """The level that was asked for, or that the other options mean."""
    given = [
        name for name in _OPS_OPTIONS if (source := context.get_parameter_source(name)) and source.name != "DEFAULT"
    ]
    if level not in (None, Level.ops, Level.compile) and given:
        raise typer.BadParameter(f"--{given[0]} says which ops are compared: --level ops or --level compile")
    return level or (Level.ops if given else Level.driver)


def check(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[DRIVER]", help="The same as --driver.")] = None,
    driver: Annotated[str | None, typer.Option(help="A name, ./mychip.py or ./libmychip.so; else sim.")] = None,
    level: Annotated[
        Level | None,
        typer.Option(
            help="driver (the default): the contract, without torch. ops (where --ops and the like are given): every "
            "op against the CPU. compile: torch.compile of every op against eager. table: the examples of the "
            "driver's op table against the CPU. profiler, dlpack, ipc: what torch.profiler shows, tensors through "
            "DLPack, tensors and events in other processes. distributed: collectives and training on two processes."
        ),
    ] = None,
    index: Annotated[int, typer.Option(min=0, help="Which of the driver's devices.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds for one check.")] = 60.0,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the results there.")] = None,
    ops: Annotated[str | None, typer.Option(help="ops: only these, as patterns: add,nn.functional.*")] = None,
    kinds: Annotated[str, typer.Option(help="ops: forward,backward,error")] = "forward",
    dtypes: Annotated[str, typer.Option(help="ops: names, or all")] = "float32",
    samples: Annotated[str, typer.Option(help="ops: inputs per case, spread over all there are, or all")] = "8",
    workers: Annotated[int | None, typer.Option(min=1, help="ops: processes; all cores by default")] = None,
    gaps: Annotated[str | None, typer.Option(metavar="FILE", help="ops: the file of declared gaps")] = None,
) -> None:
    """Check a driver. Exit status 0: as it should be; 1: something is wrong; 2: the check could not run."""
    from bringup.driver.lookup import find_driver
    from bringup.kit.terminal import fail

    if name is not None and driver is not None and name != driver:
        raise typer.BadParameter(f"the driver is {name} or {driver}: name it once")
    driver = name or driver or "sim"
    level = _chosen_level(context, level)
    if driver == "cpu" and level is Level.ops:  # the CPU against itself: what the check calls equal
        device = "cpu"
    else:
        try:
            found = find_driver(driver)
        except RuntimeError as error:
            fail("check", str(error))
        if level is Level.driver:
            raise typer.Exit(_check_driver(found, index, timeout, json_file))
        if level is Level.table:
            from bringup.vendor.command import check_table

            raise typer.Exit(check_table(driver, json_file))
        if level in (Level.profiler, Level.dlpack, Level.ipc):
            from bringup.kit.device_checks import main_device

            raise typer.Exit(main_device(level.value, driver, index, json_file))
        if level is Level.distributed:
            from bringup.kit.distributed_checks import main_distributed

            raise typer.Exit(main_distributed(driver, index, timeout, json_file))
        device = f"{found.device_name or found.name}:{index}"
    if level is Level.compile:
        from bringup.kit.compile_checks import main_compile as main
    else:
        from bringup.kit.op_checks import main_ops as main

    if samples != "all" and not samples.isdecimal():
        raise typer.BadParameter(f"--samples takes a number or all, not {samples!r}")
    count = 0 if samples == "all" else int(samples)
    status = main(driver, device, ops, kinds, dtypes, count, workers, timeout, json_file, gaps)
    raise typer.Exit(status)


def passes() -> None:
    """Prints what is rewritten in a graph before it becomes kernels: the graph passes, in order, with file and line."""
    from bringup.graph.bare_metal.passes import PASSES
    from bringup.graph.passes import described
    from bringup.graph.passes import passes as graph_passes

    print("Graphs of torch.compile, bringup.export and TorchScript (bringup.graph_pass adds one):")
    for n, one in enumerate(graph_passes(), 1):
        print(f"{n:3}. {one.name} ({one.stage})  {one.where}\n     {one.summary}")
    print("Then, for bare metal, the steps of the program:")
    for n, step in enumerate(PASSES, 1):
        summary, where = described(step.function)
        print(f"{n:3}. {step.name} ({step.cores})  {where}\n     {summary}")


def _check_driver(driver: Driver, index: int, timeout: float, json_file: str | None) -> int:
    import faulthandler

    from bringup.driver import review as driver_review
    from bringup.kit.driver_checks import Check, CheckResult, all_checks, run_driver_checks

    if (stream := sys.__stderr__) is not None:
        faulthandler.enable(stream)  # where a driver crashes, the last name printed is the check
    for text in [*driver_review.misspelled(driver), *driver_review.wrong_parameters(driver)]:
        print(f"warning: {text}")
    width = max(len(each.name) for each in all_checks())

    def start(each: Check) -> None:
        print(f"{each.name:<{width}}  ", end="", flush=True)

    def show(result: CheckResult) -> None:
        name = f"{result.name:<{width}}  " if result.message.startswith("needs ") else ""
        reason = f": {result.message}" if result.message else ""
        print(f"{name}{result.status}  {result.seconds:6.2f} s{reason}", flush=True)

    results = run_driver_checks(driver, index, show, timeout, start)
    counts = Counter(result.status for result in results)
    print(f"{driver.name}: {counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped")
    if json_file:
        rows = [dataclasses.asdict(result) for result in results]
        Path(json_file).write_text(
            json.dumps({"driver": driver.name, "results": rows}, indent=1) + "\n", encoding="utf-8"
        )
        print(f"written: {json_file}")
    if counts["fail"]:
        return 1
    if not counts["pass"]:
        print("bringup check: nothing could be checked", file=sys.stderr)
        return 2
    return 0


def _print_drivers() -> None:
    from bringup.driver.lookup import find_driver, list_drivers
    from bringup.kit.terminal import print_table

    rows = []
    for name, source in list_drivers().items():
        try:
            count = str(find_driver(name).device_count())
        except Exception as error:  # one broken driver must not hide the others
            count = str(error)
        rows.append((name, source, count))
    print_table(("driver", "from", "devices"), rows)


def _compiler() -> str:
    command = [*os.environ.get("CXX", "c++").split(), "--version"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        return result.stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError) as error:
        return f"none: {error}"


def _autoload_state() -> str:
    from importlib.metadata import entry_points

    from bringup.torch_device.activation import ENTRY_POINT

    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        return "off: TORCH_DEVICE_BACKEND_AUTOLOAD is not 1; call bringup.activate"
    if not any(entry.value.startswith(ENTRY_POINT) for entry in entry_points(group="torch.backends")):
        return "off: bringup is not installed in this Python (pip install --no-build-isolation -e .)"
    return "on: `import torch` activates bringup"
