"""What the commands print: tables, errors, and times, sizes, counts and names as people write them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn


def fail(command: str, message: str, status: int = 2) -> NoReturn:
    """Ends a command with an error on standard error; status 2 means that it could not do its work."""
    import typer

    print(f"bringup {command}: {message}", file=sys.stderr)
    raise typer.Exit(status)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Prints names and values, one in a line; nothing is folded."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print(f"{name:<{width}}  {value}")


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, whole: Sequence[int] = (0,)
) -> None:
    """Prints a table as wide as the terminal; long cells continue in the next line, except in the columns ``whole``."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, title=title)
    for number, column in enumerate(table.columns):
        column.no_wrap, column.overflow = number in whole, "fold"
    for row in rows:
        table.add_row(*row)
    Console(markup=False, highlight=False).print(table)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for a page of the documentation.

    >>> print(markdown_table(("op", "by"), [("`a|b`", "us")]))
    | op | by |
    |---|---|
    | `a\\|b` | us |
    """
    head, *cells = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (columns, *rows))
    return "\n".join([head, "|" + "---|" * len(columns), *cells])


def readable_seconds(seconds: float) -> str:
    """A time.

    >>> readable_seconds(0.0312), readable_seconds(4.2e-6)
    ('31.2 ms', '4.2 µs')
    """
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def readable_bytes(nbytes: float) -> str:
    """A size.

    >>> readable_bytes(512), readable_bytes(16_900), readable_bytes(5 << 20)
    ('512 B', '16.5 KiB', '5.0 MiB')
    """
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    for unit in ("KiB", "MiB"):
        nbytes /= 1024
        if nbytes < 1024:
            return f"{nbytes:.1f} {unit}"
    return f"{nbytes / 1024:.1f} GiB"


def readable_count(number: float) -> str:
    """A count.

    >>> readable_count(9_500), readable_count(63_488), readable_count(1_580_176)
    ('9,500', '63.5 k', '1.58 M')
    """
    for limit, size, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if number >= limit:
            return f"{number / size:.3g} {unit}"
    return f"{number:,.0f}"


def shortened(text: str, most: int) -> str:
    """A long name with its middle left out.

    >>> shortened("native_layer_norm_backward_add_Tensor", 20)
    'native_lay…dd_Tensor'
    """
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-(most - half - 1) :]}"
