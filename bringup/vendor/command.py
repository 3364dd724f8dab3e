"""``bringup generate`` and ``bringup check --level table``: an op table written out, and tested against the CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from bringup.vendor.install import Tables


def generate(
    driver: Annotated[str, typer.Option(help="A name, ./mychip.py or ./libmychip.so.")],
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


def check_table(driver: str, json_file: str | None = None) -> int:
    """Runs every example of a driver's op table against the CPU. Returns 0 if all are right, else 1; exits with 2 if
    the check cannot run."""
    from bringup.driver import in_use
    from bringup.vendor.check import cases, untested

    try:
        found = cases(driver)
    except Exception as error:  # a bad table, a missing library, a driver that cannot be activated
        _fail(f"{type(error).__name__}: {error}", "check")
    if not in_use.active_drivers():
        _fail(str(in_use.activation_error()), "check")
    from bringup.vendor.install import active_tables

    entries = [bound for bounds in active_tables().entries.values() for bound in bounds]
    if not entries:
        _fail(f"driver '{driver}' has no op table", "check")
    results: list[tuple[str, str]] = []  # (name, what is wrong)

    def show(name: str, wrong: str = "") -> None:
        results.append((name, wrong))
        print(f"fail  {name}: {wrong}" if wrong else f"pass  {name}", flush=True)

    for case in found:
        try:
            case.run()
            show(str(case))
        except Exception as error:
            show(str(case), f"{type(error).__name__}: {error}")
    for bound in untested(entries):
        show(f"entry {bound.entry.number} {bound.op}", "it has no examples")
    failed = sum(bool(wrong) for _, wrong in results)
    print(f"{len(entries)} entries: {len(results) - failed} passed, {failed} failed")
    if json_file:
        rows = [{"name": name, "status": "fail" if wrong else "pass", "message": wrong} for name, wrong in results]
        Path(json_file).write_text(json.dumps({"driver": driver, "results": rows}, indent=1) + "\n", encoding="utf-8")
        print(f"written: {json_file}")
    return 1 if failed else 0


def _fail(message: str, command: str = "generate") -> NoReturn:
    print(f"bringup {command}: {message}", file=sys.stderr)
    raise typer.Exit(2)
