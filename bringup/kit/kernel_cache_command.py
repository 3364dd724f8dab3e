"""``bringup cache``: where compiled kernels are kept, how many there are, how often they were used; ``clear``."""

from __future__ import annotations

import warnings

import typer

from bringup.compile.kernel_cache import default_cache


def cache_application() -> typer.Typer:
    """The command group; ``bringup.cli`` adds it."""
    application = typer.Typer(help="Show the disk cache of compiled kernels, or clear it.", no_args_is_help=False)
    application.callback(invoke_without_command=True)(show)
    application.command()(clear)
    return application


def show(context: typer.Context) -> None:
    """Show the disk cache of compiled kernels, or clear it."""
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console
    from rich.table import Table

    with warnings.catch_warnings(record=True) as problems:
        warnings.simplefilter("always")
        info = default_cache().info()
    asked = info.hits + info.misses
    table = Table("disk cache", "")
    table.add_row("path", info.path)
    table.add_row("entries", str(info.entries))
    table.add_row("size", f"{readable(info.nbytes)} of {readable(info.limit)}")
    table.add_row("hits", f"{info.hits} of {asked}" + (f" ({100 * info.hits / asked:.0f} %)" if asked else ""))
    for problem in problems:
        table.add_row("problem", str(problem.message))
    Console(markup=False, highlight=False, soft_wrap=True).print(table)


def clear() -> None:
    """Remove every compiled kernel."""
    cache = default_cache()
    before = cache.info()
    removed = cache.clear()
    cache.hits = cache.misses = 0
    print(f"removed {removed} of {before.entries} entries, {readable(before.nbytes)}, from {before.path}")


def readable(nbytes: int) -> str:
    """Bytes as people write them.

    >>> readable(1 << 30), readable(13521)
    ('1.0 GiB', '13.2 KiB')
    """
    size = float(nbytes)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{nbytes} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
