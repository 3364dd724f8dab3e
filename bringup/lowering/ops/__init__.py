"""The ops, by family: each op is defined once as loops, or composed of others. Importing a family registers its ops."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules


def load() -> None:
    """Registers the ops of every family.

    >>> load()
    """
    for family in iter_modules(__path__):
        import_module(f"{__name__}.{family.name}")
