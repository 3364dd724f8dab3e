"""When two results are the same: structure, dtype, shape, device, values within PyTorch's own tolerance, and NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.testing._comparison import default_tolerances

from bringup.kit.op_samples import tensors_in

#: Tests of PyTorch whose tolerance overrides mean "another implementation of this op against the CPU's".
_FORWARD_TESTS = frozenset(
    {"test_compare_cpu", "test_noncontiguous_samples", "test_variant_consistency_eager", "test_out", None}
)
_BACKWARD_TESTS = frozenset(
    {"test_noncontiguous_samples", "test_variant_consistency_eager", "test_grad", "test_vjp", None}
)
_TEST_CLASSES = frozenset({"TestCommon", "TestOperators", None})
#: Bits of one-byte floats; ``assert_close`` cannot subtract them.
_WIDEN = {
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
}


class Mismatch(AssertionError):
    """Two results differ; the message says where and how."""


Tolerance = tuple[float, float]


def tolerance_override(op: Any, dtype: torch.dtype, kind: str) -> Tolerance | None:
    """The widest (rtol, atol) that PyTorch's own device tests grant this op in this dtype, if any."""
    tests = _BACKWARD_TESTS if kind == "backward" else _FORWARD_TESTS
    found: Tolerance | None = None
    for entry in op.decorators:
        scoped = hasattr(entry, "decorators")
        if scoped and (
            entry.cls_name not in _TEST_CLASSES
            or entry.test_name not in tests
            or entry.device_type not in (None, "cpu", "cuda")
            or (entry.dtypes is not None and dtype not in entry.dtypes)
            or entry.active_if is not True
        ):
            continue
        for decorator in entry.decorators if scoped else [entry]:
            overrides = getattr(decorator, "d", None)
            if isinstance(overrides, dict) and dtype in overrides:
                granted = overrides[dtype]  # a tol(atol, rtol), or the atol alone (precisionOverride)
                rtol, atol = (0.0, granted) if isinstance(granted, float) else (granted.rtol, granted.atol)
                found = (max(rtol, found[0]), max(atol, found[1])) if found else (rtol, atol)
    return found


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A detached copy on the CPU, with lazy conjugation and negation done."""
    return tensor.detach().to("cpu", copy=True).resolve_conj().resolve_neg()


def compare(
    expected: Any,
    actual: Any,
    device: str,
    override: Tolerance | None = None,
    values: bool = True,
    where: str = "result",
) -> None:
    """Raise ``Mismatch`` unless ``actual``, computed on ``device``, is what the CPU's ``expected`` says.

    ``values=False`` compares all but the numbers (random results, uninitialised memory).
    """
    if isinstance(expected, torch.Tensor):
        _compare_tensors(expected, actual, device, override, values, where)
    elif isinstance(expected, dict):
        if not isinstance(actual, dict) or expected.keys() != actual.keys():
            raise Mismatch(f"{where}: keys {list(expected)} expected, got {actual!r}")
        for key, item in expected.items():
            if key == "device":  # a factory's argument, which differs by intent
                continue
            compare(item, actual[key], device, override, values, f"{where}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        if not isinstance(actual, type(expected)) or len(expected) != len(actual):
            raise Mismatch(f"{where}: {_shape_of(expected)} expected, got {_shape_of(actual)}")
        for index, (item, other) in enumerate(zip(expected, actual)):
            compare(item, other, device, override, values, f"{where}[{index}]")
    elif type(expected) is not type(actual):
        raise Mismatch(f"{where}: {type(expected).__name__} expected, got {type(actual).__name__}")
    elif isinstance(expected, (float, complex)):
        if values:
            _assert_close(torch.tensor(expected), torch.tensor(actual), override, where)
    elif expected == "cpu":  # a device's name among the arguments
        return
    elif values and isinstance(expected, (bool, int, str, torch.dtype, torch.layout)) and expected != actual:
        raise Mismatch(f"{where}: {expected!r} expected, got {actual!r}")


def _compare_tensors(
    expected: torch.Tensor, actual: Any, device: str, override: Tolerance | None, values: bool, where: str
) -> None:
    if not isinstance(actual, torch.Tensor):
        raise Mismatch(f"{where}: a tensor expected, got {type(actual).__name__}")
    wanted = torch.device(device)
    if where.startswith("result[1]") and actual.device.type == "cpu":
        pass  # an argument that PyTorch takes from the CPU
    elif expected.device.type == "cpu" and actual.device.type != wanted.type:
        raise Mismatch(f"{where}: is on {actual.device}, expected on {wanted.type}")
    for name in ("dtype", "shape", "layout"):
        if getattr(expected, name) != getattr(actual, name):
            raise Mismatch(f"{where}: {name} {getattr(expected, name)} expected, got {getattr(actual, name)}")
    if values:
        _assert_close(to_host(expected), to_host(actual), override, where)


def _assert_close(expected: torch.Tensor, actual: torch.Tensor, override: Tolerance | None, where: str) -> None:
    if expected.dtype in _WIDEN:
        expected, actual = expected.to(torch.float32), actual.to(torch.float32)
    rtol, atol = default_tolerances(expected.dtype)
    if override is not None:
        rtol, atol = max(rtol, override[0]), max(atol, override[1])
    try:
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        raise Mismatch(f"{where}: {error}") from None


def is_as_exact(expected: Any, actual: Any, exact: Any) -> bool:
    """Whether the device is as close to the float64 result as the CPU is: for results that differ because one of them
    rounds more often (half types: the CPU rounds between the steps of some ops, opmath only at the end).

    Everything but tensors of floating-point or complex numbers must be equal; NaN and infinities must be in the same
    places. Where terms cancel to zero, both results are nothing but rounding errors, and of one size is all they can be
    (batch norm of two elements in bfloat16: 0.0018 on the CPU, 0.0019 here, though every op here is the more exact).
    """
    if isinstance(expected, torch.Tensor):
        if not isinstance(actual, torch.Tensor) or not isinstance(exact, torch.Tensor):
            return False
        if (expected.dtype, expected.shape) != (actual.dtype, actual.shape) or expected.layout != torch.strided:
            return False
        ours, theirs, truth = to_host(actual), to_host(expected), to_host(exact)
        if not expected.is_floating_point() and not expected.is_complex():
            return torch.equal(ours, theirs)
        if truth.shape != ours.shape or truth.is_complex() != ours.is_complex():
            return False
        unit = torch.finfo(expected.dtype).eps
        ours, theirs, truth = (_as_reals(tensor) for tensor in (ours, theirs, truth))
        finite = theirs.isfinite()
        if not torch.equal(ours[~finite].nan_to_num(0.5), theirs[~finite].nan_to_num(0.5)) or not bool(finite.any()):
            return torch.equal(ours.nan_to_num(0.5), theirs.nan_to_num(0.5))
        allowed = (theirs - truth)[finite].abs().max()
        exact_size = truth[finite].abs()
        limit = torch.where(exact_size <= unit * allowed, (2 + unit) * allowed, allowed + unit * exact_size)
        return bool(((ours - truth)[finite].abs() <= limit).all())
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            is_as_exact(v, actual.get(k), exact.get(k)) for k, v in expected.items()
        )
    if isinstance(expected, (list, tuple)):
        parts = (expected, actual, exact)
        return all(isinstance(part, (list, tuple)) and len(part) == len(expected) for part in parts) and all(
            is_as_exact(*items) for items in zip(*parts)
        )
    return True  # plain values were compared before


def _shape_of(value: Any) -> str:
    length = f" of {len(value)}" if isinstance(value, (list, tuple)) else ""
    return f"{type(value).__name__}{length}"


def check_distribution(expected: Sequence[Any], actual: Sequence[Any]) -> None:
    """Raise ``Mismatch`` if pooled random numbers of the device do not look like the CPU's.

    Two-sample Kolmogorov-Smirnov with a false alarm in a million; below a hundred numbers it says nothing.
    """
    pools = []
    for results in (expected, actual):
        numbers = [_as_reals(to_host(t)) for t in tensors_in(list(results)) if not t.is_sparse]
        pools.append(torch.cat(numbers).sort().values if numbers else torch.empty(0, dtype=torch.float64))
    ours, theirs = pools[1], pools[0]
    if min(len(ours), len(theirs)) < 100:
        return
    points = torch.cat([ours, theirs])
    steps = [torch.searchsorted(pool, points, right=True).double() / len(pool) for pool in (ours, theirs)]
    distance = float((steps[0] - steps[1]).abs().max())
    limit = 2.69 * (1 / len(ours) + 1 / len(theirs)) ** 0.5
    if distance > limit:
        raise Mismatch(
            f"random numbers are distributed differently: Kolmogorov-Smirnov distance {distance:.3f} > {limit:.3f}, "
            f"{len(ours)} numbers; mean {float(ours.mean()):.4g} on the device, {float(theirs.mean()):.4g} on the CPU"
        )


def _as_reals(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.to(torch.float64).flatten()
