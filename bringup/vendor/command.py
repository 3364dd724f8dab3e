"""``bringup ops generate`` and ``bringup ops check``: an op table written out, and tested against the CPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bringup.vendor.install import Tables

_Driver = Annotated[str, typer.Option(help="A name, ./mychip.py or ./libmychip.so.")]


def generate(
    driver: _Driver,
    out: Annotated[Path, typer.Option(help="The folder to write to.")],
) -> None:
    """Write a driver's op table out as C++ and Python source that need no bringup, with its documentation table."""
    from bringup.driver.lookup import find_driver
    from bringup.vendor.table import TableError

    try:
        found = find_driver(driver)
        if found.op_table is None:
            _fail(f"driver '{found.name}' has no op table")
        from bringup.vendor.install import read_tables

        tables = read_tables([found])
    except (RuntimeError, TableError) as error:
        _fail(str(error))
    for path in write(found.name, tables, out):
        print(f"written: {path}")


def write(driver: str, tables: Tables, out: Path) -> list[Path]:
    """The files of one driver's table: DRIVER_ops.cpp, DRIVER_ops.py and DRIVER_ops.md."""
    from bringup.vendor.document import markdown
    from bringup.vendor.generate_cpp import cpp_source
    from bringup.vendor.generate_python import python_source

    entries = tables.entries[driver]
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, text in (
        ("cpp", cpp_source(driver, entries, tables.ops)),
        ("py", python_source(driver, entries, tables.ops)),
        ("md", markdown(driver, entries, tables.ops)),
    ):
        path = out / f"{driver}_ops.{suffix}"
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def check(driver: _Driver) -> None:
    """Run every example of a driver's op table against the CPU. Exit status 0: all are right; 1: not; 2: cannot run."""
    from bringup.driver import in_use
    from bringup.vendor.check import cases, untested

    try:
        found = cases(driver)
    except Exception as error:  # a bad table, a missing library, a driver that cannot be activated
        _fail(f"{type(error).__name__}: {error}")
    if not in_use.active_drivers():
        _fail(str(in_use.activation_error()))
    from bringup.vendor.install import active_tables

    entries = [bound for bounds in active_tables().entries.values() for bound in bounds]
    if not entries:
        _fail(f"driver '{driver}' has no op table")
    wrong = passed = 0
    for case in found:
        try:
            case.run()
            passed += 1
            print(f"pass  {case}", flush=True)
        except Exception as error:
            wrong += 1
            print(f"fail  {case}: {type(error).__name__}: {error}", flush=True)
    for bound in untested(entries):
        wrong += 1
        print(f"fail  entry {bound.entry.number} {bound.op}: it has no examples", flush=True)
    print(f"{len(entries)} entries: {passed} passed, {wrong} failed")
    raise typer.Exit(1 if wrong else 0)


def _fail(message: str) -> None:
    print(f"bringup ops: {message}", file=sys.stderr)
    raise typer.Exit(2)
