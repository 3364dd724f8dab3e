"""Special values through pointwise ops, reductions and normalisations: the device's against the CPU's.

NaN, infinities, both zeros, subnormal and huge numbers and the ends of integer types, all pairs of them for ops of two
tensors, and one in a row of ordinary numbers for ops along a row. Where the CPU's own result depends on length, stride
or position there is nothing to compare with: those elements are left out.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
#: How far two computations of one number may be apart, by type: a few units in the last place.
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2, torch.float16: 4e-3}

#: Polynomials of degree 1e20, random slopes, and CUDA's own.
LEFT_OUT = ("polynomial", "rrelu", "jiterator")

#: Results of the size of 1 that a sum is subtracted from: the tolerance is absolute, and no variance overflows.
NORMS = ("layer_norm", "group_norm", "instance_norm")

#: Ops along rows that op_db does not call reductions.
ROWS: dict[str, Callable[[Tensor], Any]] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x[:, None], 1),
    "instance_norm": lambda x: F.instance_norm(x[:, None]),
    "normalize": lambda x: F.normalize(x),
    "logsumexp": lambda x: x.logsumexp(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "cummax": lambda x: x.cummax(-1),
    "cummin": lambda x: x.cummin(-1),
    "sort": lambda x: x.sort(-1, stable=True),
    "max": lambda x: x.max(-1),
    "min": lambda x: x.min(-1),
    "median": lambda x: x.median(-1)[0],
    "nanmedian": lambda x: x.nanmedian(-1)[0],
    "norm 1": lambda x: x.norm(1, dim=-1),
    "norm 3": lambda x: x.norm(3, dim=-1),
    "norm inf": lambda x: x.norm(math.inf, dim=-1),
    "avg_pool": lambda x: F.avg_pool1d(x, 3),
    "max_pool": lambda x: F.max_pool1d(x, 3),
    "mm": lambda x: x @ torch.ones_like(x).t(),
}


def values_of(dtype: torch.dtype) -> Tensor:
    """The special values of a type, and a few ordinary ones."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        ends = torch.iinfo(dtype)
        numbers = {ends.min, ends.min + 1, ends.max, ends.max - 1, 0, 1, 2, 3, 7, 100}
        if ends.min < 0:
            numbers |= {-1, -2, -3, -100}
        return torch.tensor(sorted(numbers), dtype=dtype)
    ends = torch.finfo(dtype)
    numbers = [
        math.nan,
        math.inf,
        -math.inf,
        0.0,
        -0.0,
        ends.max,
        ends.min,
        ends.tiny,
        -ends.tiny,
        ends.smallest_normal,
    ]
    numbers += [
        ends.smallest_normal / 4,
        -ends.smallest_normal / 4,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.0,
        3.0,
        -2.5,
        100.0,
        -100.0,
    ]
    numbers += [1e20, -1e20, 3e9, -3e9, 70000.0, -300.0, 1e-20, ends.eps, 1 + ends.eps]
    return torch.tensor(numbers, dtype=torch.float64).to(dtype)


def pairs_of(dtype: torch.dtype, name: str = "") -> tuple[Tensor, Tensor]:
    """All pairs of special values, but for those that integer division on the CPU refuses (0) or dies of (least)."""
    values = values_of(dtype)
    if (
        not dtype.is_floating_point
        and dtype != torch.bool
        and any(s in name for s in ("div", "mod", "remainder", "lcm"))
    ):
        values = values[(values != 0) & ((values != torch.iinfo(dtype).min) | (values > 0))]
    return values.repeat_interleave(len(values)), values.repeat(len(values))


def rows_of(dtype: torch.dtype) -> Tensor:
    """A row for each special value: it stands among small numbers, once early and once late."""
    values = values_of(dtype)
    rows = (torch.arange(len(values) * 37).view(-1, 37) % 5).to(dtype)
    rows[:, 4], rows[::2, 35] = values, values[::2]
    return rows


def _strided(x: Tensor) -> Tensor:
    wide = torch.zeros(*x.shape, 2, dtype=x.dtype)
    wide[..., 0] = x
    return wide[..., 0]


def _parts(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [part for part in value if isinstance(part, Tensor)]


def _run(function: Callable[..., Any], arguments: list[Tensor]) -> list[Tensor] | str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return [part.detach().cpu() for part in _parts(function(*arguments))]
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
            return type(error).__name__


def same(a: Tensor, b: Tensor, absolute: bool = False) -> Tensor:
    """Where two results agree: NaN with NaN, infinities and zeros with their signs, numbers within the tolerance."""
    if absolute:
        return (a == b) | ((a - b).abs() <= TOLERANCE[a.dtype]) | (a.isnan() & b.isnan())
    if not a.dtype.is_floating_point:
        return a == b
    x, y = a.double(), b.double()
    near = (x - y).abs() <= TOLERANCE.get(a.dtype, 1e-5) * torch.maximum(x.abs(), y.abs())
    near |= (x - y).abs() <= 2 * torch.finfo(a.dtype).smallest_normal * torch.finfo(a.dtype).eps  # subnormal numbers
    zeros = (x == 0) & (y == 0) & (x.signbit() == y.signbit())
    return torch.where(x.isnan() | y.isnan(), x.isnan() & y.isnan(), torch.where(x == 0, zeros, near | (x == y)))


def differences(name: str, function: Callable[..., Any], arguments: list[Tensor], rows: bool) -> Iterator[str]:
    """What the device says differently from a CPU that agrees with itself."""
    norm = name in NORMS
    if norm:
        arguments = [x[~(x.isfinite() & (x.abs() > 1e15)).any(-1)] for x in arguments]
    expected = _run(function, arguments)
    if isinstance(expected, str):
        return  # no such op of this type on the CPU
    actual = _run(function, [x.to("sim") for x in arguments])
    if isinstance(actual, str) or len(actual) != len(expected):
        yield f"{name} {arguments[0].dtype}: {actual if isinstance(actual, str) else 'other results'}"
        return
    others = [_run(function, [_strided(x) for x in arguments])]
    if not rows:  # one more element in front: another place in the CPU's vectors
        shifted = _run(function, [torch.cat([x[:1], x, x[:3]]) for x in arguments])
        others.append([part[1:-3] for part in shifted] if not isinstance(shifted, str) else shifted)
    for n, (a, b) in enumerate(zip(expected, actual)):
        if a.dtype != b.dtype or a.shape != b.shape:
            yield f"{name} {arguments[0].dtype}: {b.dtype} {tuple(b.shape)}; the CPU: {a.dtype} {tuple(a.shape)}"
            continue
        settled = torch.ones(a.shape, dtype=torch.bool)
        for other in others:
            if not isinstance(other, str) and other[n].shape == a.shape:
                settled &= same(a, other[n], norm)
        wrong = (settled & ~same(a, b, norm)).nonzero()
        for place in wrong[:3].tolist():
            at = tuple(place)
            given = [x[at[: x.dim()]] if not rows else x[at[0], 4] for x in arguments] if at else arguments
            numbers = ", ".join(f"{x.item()!r}" if isinstance(x, Tensor) and x.dim() == 0 else "…" for x in given)
            yield f"{name} {arguments[0].dtype} of ({numbers}): {b[at].item()!r}; the CPU: {a[at].item()!r}"


def _beside(x: Tensor, kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to(x.device) if isinstance(value, Tensor) else value for name, value in kwargs.items()}


def cases(op: Any) -> Iterator[tuple[str, Callable[..., Any], list[Tensor], bool]]:
    """Calls of an OpInfo with special values, by what PyTorch says it is: one tensor, two, or a reduction."""
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo

    name = f"{op.name} {op.variant_test_name}".strip()
    if any(word in name for word in LEFT_OUT):
        return
    for dtype in (torch.bool, *INTEGERS, *FLOATS):
        if not op.supports_dtype(dtype, "cpu"):
            continue
        if isinstance(op, UnaryUfuncInfo):
            kwargs = op.sample_kwargs("cpu", dtype, values_of(dtype))[0]
            yield name, lambda x, kwargs=kwargs: op.op(x, **_beside(x, kwargs)), [values_of(dtype)], False
        elif isinstance(op, BinaryUfuncInfo):
            yield name, op.op, list(pairs_of(dtype, name)), False
        elif isinstance(op, ReductionOpInfo):
            yield name, lambda x: op.op(x, dim=-1), [rows_of(dtype)], True
