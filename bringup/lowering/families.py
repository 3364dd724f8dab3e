"""The families of ops: importing one registers its lowerings."""

from __future__ import annotations

from importlib import import_module

#: One module each; the order does not matter.
FAMILIES = (
    "activations",
    "arithmetic",
    "bitwise",
    "casts_and_copies",
    "comparison",
    "extrema",
    "foreach",
    "indexing",
    "losses_pointwise",
    "matmul",
    "movement",
    "optimizers",
    "scatter",
    "searching",
    "softmax",
    "sorting",
    "special_functions",
    "statistics",
    "sums",
    "truth",
)


def load() -> None:
    """Registers every lowering.

    >>> load()
    """
    for family in FAMILIES:
        import_module(f"bringup.lowering.{family}")
