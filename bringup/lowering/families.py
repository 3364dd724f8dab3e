"""The families of ops: importing one registers its lowerings."""

from __future__ import annotations

from importlib import import_module

#: One module each; the order does not matter.
FAMILIES = ("arithmetic", "softmax", "sums")


def load() -> None:
    """Registers every lowering.

    >>> load()
    """
    for family in FAMILIES:
        import_module(f"bringup.lowering.{family}")
