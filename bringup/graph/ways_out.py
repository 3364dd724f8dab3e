"""What to do about ops that have no kernel, by family: the last lines of an error that names such ops."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

_AROUND = (
    "  or keep it outside: export the parts before and after it and compute it between them on the host; with "
    "torch.compile, put it into a function with @torch.compiler.disable, and the rest is still compiled"
)
#: (how names of ops begin, what to do instead)
_FAMILIES = (
    (
        ("_fft_", "fft_", "stft", "istft"),
        "a Fourier transform runs on the host only; of a fixed length n it is a product with the constant matrices "
        "torch.view_as_real(torch.fft.fft(torch.eye(n)))",
    ),
    (
        ("linalg_", "_linalg_", "cholesky", "lu_", "ormqr", "geqrf", "triangular_solve", "logdet", "slogdet"),
        "factorisations and solvers run on the host only, but for linalg.inv and linalg.solve of small matrices; what "
        "belongs to a constant matrix can be computed beforehand, as a buffer of the model",
    ),
    (
        ("complex", "polar", "view_as_complex", "view_as_real", "_conj"),
        "complex numbers have no kernels; compute with real and imaginary parts as two tensors",
    ),
)
_DYNAMIC = (
    "results with as many elements as the data say have no kernel; torch.where and masked_fill keep all elements, and "
    "topk, minlength= and output_size= give a fixed number"
)


def ways_out(ops: Iterable[Any]) -> list[str]:
    """What to do instead of some ops: a line for each family among them, then the one that always works.

    >>> ways_out([torch.ops.aten._linalg_det.default])[0].partition(";")[0]
    '  factorisations and solvers run on the host only, but for linalg.inv and linalg.solve of small matrices'
    >>> ways_out([torch.ops.aten.nonzero.default])[0][:21]
    '  results with as man'
    >>> ways_out([])
    []
    """
    found: dict[str, None] = {}
    some = list(ops)
    for op in some:
        known = isinstance(op, torch._ops.OpOverload)
        name = str(op.name() if known else op).rpartition("::")[2]
        for starts, instead in _FAMILIES:
            if name.startswith(starts):
                found[f"  {instead}"] = None
        if known and torch.Tag.dynamic_output_shape in op.tags:
            found[f"  {_DYNAMIC}"] = None
    return [*found, *([_AROUND] if some else [])]
