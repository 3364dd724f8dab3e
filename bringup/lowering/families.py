"""The families of ops: importing one registers its lowerings."""

from __future__ import annotations

from importlib import import_module

#: One module each; the order does not matter.
FAMILIES = (
    "activations",
    "antialiasing",
    "arithmetic",
    "attention",
    "attention_backward",
    "batch_norm",
    "bessel",
    "bitwise",
    "casts_and_copies",
    "compaction",
    "comparison",
    "convolution",
    "convolution_backward",
    "distances",
    "embedding_bag",
    "extrema",
    "foreach",
    "fractional_pooling",
    "gaussian",
    "gradient_scaling",
    "grid_sampling",
    "hashing",
    "incomplete_gamma",
    "indexing",
    "losses",
    "losses_multilabel",
    "losses_pointwise",
    "matmul",
    "movement",
    "norms",
    "optimizers",
    "orthogonal",
    "padding",
    "pooling",
    "pooling_backward",
    "random_numbers",
    "resampling",
    "sampling",
    "scans",
    "scatter",
    "searching",
    "softmax",
    "sorting",
    "special_functions",
    "statistics",
    "sums",
    "truth",
    "vectors",
)


def load() -> None:
    """Registers every lowering.

    >>> load()
    """
    for family in FAMILIES:
        import_module(f"bringup.lowering.{family}")
