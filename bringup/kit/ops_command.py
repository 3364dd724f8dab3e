"""``bringup ops``: which route every ATen overload takes on a device; ``generate`` and ``check`` are of op tables."""

from __future__ import annotations

import enum
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer


class Mode(str, enum.Enum):
    """What sim's ops are."""

    kernels = "kernels"
    library = "library"


def ops_application() -> typer.Typer:
    """The command group; ``bringup.cli`` adds it."""
    from bringup.vendor.command import check, generate

    application = typer.Typer(no_args_is_help=False)
    application.callback(invoke_without_command=True)(show)
    application.command()(generate)
    application.command()(check)
    return application


def choose(driver: str | None, mode: str | None) -> None:
    """Says which driver this process uses, and how sim runs ops, before torch is imported."""
    if driver is not None:
        os.environ["BRINGUP_DRIVERS"] = driver
    if mode is not None:
        given = os.environ.get("BRINGUP_SIM", "")
        os.environ["BRINGUP_SIM"] = f"{given},mode={mode}" if given else f"mode={mode}"  # the later of two counts


def first_device(command: str) -> int:
    """The index of the first device of this process's drivers, opened; otherwise the command ends with status 2."""
    from bringup.torch_device import activation

    warnings.filterwarnings("ignore", message="bringup is not active")  # said below
    try:
        index = activation.device().index
        from bringup import _C

        _C.ensure_open(index)
    except (RuntimeError, ValueError, ImportError) as error:
        print(f"bringup {command}: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    return int(index)


def show(
    context: typer.Context,
    driver: Annotated[str | None, typer.Option(help="A name, ./mychip.py or ./libmychip.so.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="sim only: as BRINGUP_SIM=mode=… says.")] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Only what falls back or has no kernel.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    page: Annotated[Path | None, typer.Option("--markdown", metavar="FILE", help="Write the page there.")] = None,
) -> None:
    """Show which route every ATen overload takes: library, kernel, native, decomposition, fallback or error."""
    if context.invoked_subcommand is not None:
        return
    choose(driver, mode.value if mode is not None else None)
    index = first_device("ops")
    from bringup.kit import op_table

    table = op_table.device_table(index)
    rows = table.only(op_table.MISSING) if missing else table.rows
    if page is not None:
        import torch

        words = ["bringup ops", f"--driver {driver}" if driver else "", f"--mode {mode.value}" if mode else ""]
        command = " ".join(word for word in words if word)
        page.write_text(op_table.markdown(table, command, torch.__version__.split("+")[0]), encoding="utf-8")
        print(f"written: {page}")
    elif as_json:
        ops: dict[str, dict[str, str]] = {}
        for row in rows:
            ops.setdefault(row.base, {})[row.overload] = row.route
        places = {base: where.split("\n") for base in ops if (where := table.where(base))}
        summary = {"lowered_ops": len(table.lowered), "native_overloads": table.native, "routes": table.by_route}
        print(json.dumps({"device": table.device, "summary": summary, "ops": ops, "defined": places}, indent=1))
        return
    else:
        from rich.console import Console
        from rich.table import Table

        shown = Table("op", "route", "overloads", "defined in", title=f"{len(rows)} overloads on {table.device}")
        for column in shown.columns:  # a name that is too long goes on in the next line: nothing is cut off
            column.overflow = "fold"
        shown.columns[1].no_wrap = True
        for group in op_table.grouped(rows):
            own = group[1] in ("kernel", "native")
            shown.add_row(*group, table.where(f"aten::{group[0]}") if own else "")
        console = Console(markup=False, highlight=False)
        console.print(shown)
        for line in op_table.summary_lines(table):
            console.print(line)
        return
    for line in op_table.summary_lines(table):
        print(line)
