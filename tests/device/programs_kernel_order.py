"""Sorting, selection and compaction on compiled kernels, against the CPU's stable order: every way through lines."""

from __future__ import annotations

import json
import math

import torch

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
DEVICE = "sim"


def lines(dtype: torch.dtype, shape: tuple[int, ...], kind: str) -> torch.Tensor:
    """Numbers of a kind: many equal ones, or all there are of a type."""
    if kind == "few" or dtype == torch.bool:
        return torch.randint(-2 if dtype.is_signed else 0, 2, shape).to(dtype)
    if not dtype.is_floating_point:
        return torch.randint(torch.iinfo(dtype).min, torch.iinfo(dtype).max, shape, dtype=dtype)
    x = torch.randn(shape).to(dtype)
    special = torch.tensor([math.nan, -0.0, math.inf, 0.0, -math.inf, math.nan]).to(dtype)
    x.view(-1)[: special.numel()] = special[: x.numel()]
    return x


def bits(x: torch.Tensor) -> torch.Tensor:
    """A tensor in which equal means the same bits, and all NaN are one."""
    x = x.cpu()
    return torch.stack((x.double().nan_to_num(7.5), torch.signbit(x).double() * ~x.isnan())) if x.numel() else x


def order(dtype: torch.dtype, shape: tuple[int, ...], kind: str) -> str | None:
    """None, or what is wrong."""
    x = lines(dtype, shape, kind)
    there = x.to(DEVICE)
    for dim in (-1, 0):
        extent = x.shape[dim]
        for descending in (False, True):
            values, places = x.sort(dim=dim, descending=descending, stable=True)
            found = there.sort(dim=dim, descending=descending, stable=True)
            if not torch.equal(found[1].cpu(), places) or not torch.equal(bits(found[0]), bits(values)):
                return f"sort {dim} {descending}"
            for kept in {0, min(1, extent), min(10, extent), extent // 2, extent} if dtype != torch.bool else ():
                top = there.topk(kept, dim, descending)
                if not torch.equal(top[1].cpu(), places.narrow(dim, 0, kept)):
                    return f"topk {dim} {descending} {kept}"
        for k in {1, extent // 2, extent} - {0} if dtype != torch.bool else ():
            values, places = x.sort(dim=dim, stable=True)
            if not torch.equal(there.kthvalue(k, dim)[1].cpu(), places.select(dim, k - 1)):
                return f"kthvalue {dim} {k}"
    return None


def compaction(shape: tuple[int, ...], share: float) -> str | None:
    """None, or what is wrong."""
    mask = torch.rand(shape) < share
    x = torch.randn(shape)
    for turned in (False, True):
        m, v = (mask.mT, x.mT) if turned and mask.ndim > 1 else (mask, x)
        there, values = m.to(DEVICE), v.to(DEVICE)
        if not torch.equal(there.nonzero().cpu(), m.nonzero()):
            return "nonzero"
        if not torch.equal(values.nonzero().cpu(), v.nonzero()):
            return "nonzero of numbers"
        if not torch.equal(values[there].cpu(), v[m]) or not torch.equal(values.masked_select(there).cpu(), v[m]):
            return "masked_select"
    return None


def main() -> None:
    torch.manual_seed(0)
    found = {}
    for shape in ((3, 16), (2, 65), (3, 600), (1, 2047), (2, 2049), (1, 33000)):
        for dtype in DTYPES:
            for kind in ("few", "wide"):
                found[f"{dtype} {shape} {kind}"] = order(dtype, shape, kind)
    for shape in ((), (0,), (3, 0), (1,), (1023,), (1024,), (1025,), (5, 7, 3), (40, 60, 3)):
        for share in (0.0, 0.1, 0.5, 1.1):
            found[f"mask {shape} {share}"] = compaction(shape, share)
    index, x = torch.randint(0, 37, (50, 41)), torch.randn(50, 41)
    added = torch.zeros(50, 41).to(DEVICE).scatter_add(1, index.to(DEVICE), x.to(DEVICE)).cpu()
    found["scatter_add"] = None if torch.equal(added, torch.zeros(50, 41).scatter_add(1, index, x)) else "differs"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
