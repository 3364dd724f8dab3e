"""``bringup ops``: which route every ATen overload takes on a device."""

from __future__ import annotations

import enum
import json
import os
import warnings
from pathlib import Path
from typing import Annotated

import typer

from bringup.kit.terminal import fail, print_table


class Mode(str, enum.Enum):
    """What sim's ops are."""

    kernels = "kernels"
    library = "library"


#: What ``bringup ops WORD`` was called before.
_MOVED = {"check": "bringup check --level table", "generate": "bringup generate"}


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
        fail(command, str(error))
    return int(index)


def ops(
    moved: Annotated[str | None, typer.Argument(hidden=True)] = None,
    driver: Annotated[str | None, typer.Option(help="A name, ./mychip.py or ./libmychip.so.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="sim only: as BRINGUP_SIM=mode=… says.")] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Only what falls back or has no kernel.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    page: Annotated[Path | None, typer.Option("--markdown", metavar="FILE", help="Write the page there.")] = None,
) -> None:
    """Show which route every ATen overload takes: library, kernel, native, decomposition, fallback or error."""
    if moved is not None:
        now = f"it is now `{_MOVED[moved]}`" if moved in _MOVED else "ops takes no argument"
        raise typer.BadParameter(f"`bringup ops {moved}`: {now}")
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
        routes: dict[str, dict[str, str]] = {}
        for row in rows:
            routes.setdefault(row.base, {})[row.overload] = row.route
        places = {base: where.split("\n") for base in routes if (where := table.where(base))}
        summary = {"lowered_ops": len(table.lowered), "native_overloads": table.native, "routes": table.by_route}
        print(json.dumps({"device": table.device, "summary": summary, "ops": routes, "defined": places}, indent=1))
        return
    else:
        groups = [(*group, table.where(f"aten::{group[0]}")) for group in op_table.grouped(rows)]
        columns = ("op", "route", "overloads", "defined in")
        print_table(columns, groups, f"{len(rows)} overloads on {table.device}", whole=(1,))
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    for line in op_table.summary_lines(table):
        console.print(line)
