"""What of a result is unique: some operators have several right answers, and what these share is compared.

Everything here runs on the host, on results that were read back, so that a device's own errors cannot cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bringup.kit.op_compare import to_host
from bringup.kit.op_samples import Call

#: Which of equal elements is named is not specified (without ``stable``): name → the argument that is ``dim``.
_TIES = {"sort": 1, "argsort": 1, "topk": 2, "kthvalue": 2, "mode": 1}
#: Their gradients go to the elements that were named, also where no index is among the results.
_TIED_GRADIENTS = frozenset({*_TIES, "msort"})

#: From the call and its result on the host to what is unique of it.
Unique = Callable[[Call, Any], Any]


def unique_part(name: str, kind: str, call: Call) -> Unique | None:
    """What to compare where the results themselves differ; None where a result is unique as it is."""
    if call.kwargs.get("stable"):
        return None
    if kind == "backward":
        return _sorted_gradients if name in _TIED_GRADIENTS else None
    if name in _TIES:
        return lambda call, value: _selected(name, call, value)
    return _FACTORS.get(name)


def _sorted_gradients(call: Call, value: Any) -> Any:
    """Equal elements have changed places, and their gradients with them."""
    del call
    count, gradients = value
    return count, [None if g is None else to_host(g).flatten().sort().values for g in gradients]


def _selected(name: str, call: Call, value: Any) -> Any:
    """What the indices of a sorting op select, in place of the indices, and whether these name each element once."""
    at = _TIES[name]
    dim = call.kwargs.get("dim", call.args[at] if len(call.args) > at else -1)
    values = [] if isinstance(value, torch.Tensor) else [to_host(value[0])]
    indices = to_host(value if isinstance(value, torch.Tensor) else value[1])
    given = to_host(call.args[0])
    if given.dim() == 0:
        return [*values, given.reshape(1)[indices.reshape(-1)]]
    once = [indices.sort(dim).values.diff(dim=dim) > 0] if name in ("sort", "argsort", "topk") else []
    if indices.dim() < given.dim():  # kthvalue without keepdim
        return [*values, given.gather(dim, indices.unsqueeze(dim))]
    return [*values, given.gather(dim, indices), *once]


# ---- factorisations: signs, phases and bases of equal values are free; products and orthogonality are not ----
def _gram(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.mH @ matrix


def _svd(call: Call, value: Any) -> Any:
    del call
    u, s, vh = (to_host(t) for t in value)
    return _product(u, s, vh), s, _gram(u), _gram(vh.mH)


def _old_svd(call: Call, value: Any) -> Any:
    u, s, v = (to_host(t) for t in value)
    return _svd(call, (u, s, v.mH))


def _product(u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> torch.Tensor:
    count = s.shape[-1]
    return (u[..., :, :count] * s.unsqueeze(-2)) @ vh[..., :count, :]


def _eigh(call: Call, value: Any) -> Any:
    del call
    values, vectors = (to_host(t) for t in value)
    return (vectors * values.unsqueeze(-2)) @ vectors.mH, values, _gram(vectors)


def _eig(call: Call, value: Any) -> Any:
    values, vectors = (to_host(t) for t in value)
    matrix = to_host(call.args[0]).to(vectors.dtype)
    residue = matrix @ vectors - vectors * values.unsqueeze(-2)
    order = torch.view_as_real(values.resolve_conj()).round(decimals=3)
    key = order[..., 0] * 1e6 + order[..., 1]
    return residue, values.gather(-1, key.argsort(-1)), torch.linalg.vector_norm(vectors, dim=-2)


def _qr(call: Call, value: Any) -> Any:
    q, r = (to_host(t) for t in value)
    if not q.numel():  # mode="r"
        return _gram(r), r.tril(-1)
    return q[..., :, : r.shape[-2]] @ r, _gram(q), r.tril(-1)


def _geqrf(call: Call, value: Any) -> Any:
    packed, tau = (to_host(t) for t in value)
    if packed.shape[-2] < packed.shape[-1]:  # reflectors are columns of the square part
        q = torch.linalg.householder_product(packed[..., :, : packed.shape[-2]], tau)
        return q @ packed.triu(), _gram(q)
    q = torch.linalg.householder_product(packed, tau)
    return q @ packed.triu()[..., : packed.shape[-1], :], _gram(q)


_FACTORS: dict[str, Unique] = {
    "linalg.eig": _eig,
    "linalg.eigh": _eigh,
    "linalg.svd": _svd,
    "linalg.qr": _qr,
    "svd": _old_svd,
    "qr": _qr,
    "geqrf": _geqrf,
    "svd_lowrank": _old_svd,
    "pca_lowrank": _old_svd,
}
