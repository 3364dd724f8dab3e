"""``bringup cache``: where compiled kernels are kept, how many there are, how often they were used; ``clear``."""

from __future__ import annotations

import warnings

import typer

from bringup.compile.kernel_cache import default_cache
from bringup.kit.terminal import print_facts, readable_bytes


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
    with warnings.catch_warnings(record=True) as problems:
        warnings.simplefilter("always")
        info = default_cache().info()
    asked = info.hits + info.misses
    facts = [
        ("path", info.path),
        ("entries", str(info.entries)),
        ("size", f"{readable_bytes(info.nbytes)} of {readable_bytes(info.limit)}"),
        ("hits", f"{info.hits} of {asked}" + (f" ({100 * info.hits / asked:.0f} %)" if asked else "")),
        *(("problem", str(problem.message)) for problem in problems),
    ]
    print_facts(facts)


def clear() -> None:
    """Remove every compiled kernel."""
    cache = default_cache()
    before = cache.info()
    removed = cache.clear()
    cache.hits = cache.misses = 0
    print(f"removed {removed} of {before.entries} entries, {readable_bytes(before.nbytes)}, from {before.path}")
