"""When two results are the same: structure, dtype, shape, strides, device, NaN, values within PyTorch's tolerance."""

from __future__ import annotations

from typing import Any

import torch
from torch.testing._comparison import default_tolerances

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
    """Two results differ; the message says where and how.

    ``difference`` is the largest absolute one where only values differ and all of them are finite, else infinite.
    """

    def __init__(self, message: str, difference: float = float("inf")) -> None:
        super().__init__(message)
        self.difference = difference


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
    device: str | None,
    override: Tolerance | None = None,
    values: bool = True,
    where: str = "result",
) -> None:
    """Raise ``Mismatch`` unless ``actual``, computed on ``device``, is what the CPU's ``expected`` says.

    ``values=False`` compares all but the numbers (random results, uninitialised memory); ``device=None`` all but where
    tensors are (arguments, which may be on the CPU by intent).
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
    expected: torch.Tensor, actual: Any, device: str | None, override: Tolerance | None, values: bool, where: str
) -> None:
    if not isinstance(actual, torch.Tensor):
        raise Mismatch(f"{where}: a tensor expected, got {type(actual).__name__}")
    if device is not None and expected.device.type == "cpu":
        wanted = torch.device(device)
        if actual.device.type != wanted.type or wanted.index not in (None, actual.device.index or 0):
            raise Mismatch(f"{where}: is on {actual.device}, expected on {wanted}")
    for name in ("dtype", "shape", "layout"):
        if getattr(expected, name) != getattr(actual, name):
            raise Mismatch(f"{where}: {name} {getattr(expected, name)} expected, got {getattr(actual, name)}")
    if _order_of_strides(expected) != _order_of_strides(actual):
        raise Mismatch(f"{where}: strides like {expected.stride()} expected, got {actual.stride()}")
    if values:
        _assert_close(to_host(expected), to_host(actual), override, where)


def _order_of_strides(tensor: torch.Tensor) -> list[int]:
    """Dimensions of more than one element from the widest stride to the narrowest: what memory order can show."""
    if tensor.layout != torch.strided or tensor.is_nested or not tensor.numel():
        return []
    dims = [dim for dim in range(tensor.dim()) if tensor.size(dim) > 1]
    strides = tensor.stride()
    return sorted(dims, key=lambda dim: -strides[dim])


def tolerance(dtype: torch.dtype, override: Tolerance | None) -> Tolerance:
    """The (rtol, atol) of a dtype: PyTorch's default, or what its own tests grant the op if that is wider."""
    rtol, atol = default_tolerances(dtype)
    return (max(rtol, override[0]), max(atol, override[1])) if override else (rtol, atol)


def _assert_close(expected: torch.Tensor, actual: torch.Tensor, override: Tolerance | None, where: str) -> None:
    if expected.dtype in _WIDEN:
        expected, actual = expected.to(torch.float32), actual.to(torch.float32)
    rtol, atol = tolerance(expected.dtype, override)
    try:
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        raise Mismatch(f"{where}: {error}", _largest_difference(expected, actual, rtol, atol)) from None


def _largest_difference(expected: torch.Tensor, actual: torch.Tensor, rtol: float, atol: float) -> float:
    """Over elements out of tolerance; infinite where one of the two is not finite."""
    if expected.layout != torch.strided or (not expected.is_floating_point() and not expected.is_complex()):
        return float("inf")
    ours, theirs = as_reals(actual), as_reals(expected)
    differing = ~torch.isclose(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)
    if not bool(differing.any()):  # a complex number within tolerance in each part, but not as a whole
        differing = torch.ones_like(differing)
    return float((ours - theirs)[differing].abs().nan_to_num(float("inf")).max())


def is_as_exact(expected: Any, actual: Any, exact: Any, override: Tolerance | None = None) -> bool:
    """Whether each element of the device's result is the CPU's, or as close to the float64 result as the CPU's is: for
    results that differ because one of them rounds more often (half types: the CPU rounds between the steps of some ops,
    opmath only at the end).

    Everything but tensors of floating-point or complex numbers must be equal. An element that is out of tolerance must
    be finite in all three results, and its error is limited by two roundings of its dtype and twice what the CPU errs:
    at that place, or relative to the element anywhere in the tensor, as errors fall either way. What is off by more
    than the root of the dtype's unit is not rounding and licenses no other element.
    Where terms cancel to zero, both results are nothing but rounding errors, and of one size is all they can be (batch
    norm of two elements in bfloat16: 0.0018 on the CPU, 0.0019 here, though every op here is the more exact): there the
    largest error among the cancelled elements counts for each of them.
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
        rtol, atol = tolerance(expected.dtype, override)
        unit = torch.finfo(expected.dtype).eps
        ours, theirs, truth = (as_reals(tensor) for tensor in (ours, theirs, truth))
        open_questions = ~torch.isclose(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)
        finite = ours.isfinite() & theirs.isfinite() & truth.isfinite()
        if not bool(finite[open_questions].all()):
            return False
        error, allowed, size = (ours - truth).abs()[finite], (theirs - truth).abs()[finite], truth.abs()[finite]
        if not allowed.numel():
            return True
        cancelled = size <= unit * allowed.max()
        relative = (allowed / size)[~cancelled]
        rounding = relative[relative <= unit**0.5]
        worst = float(rounding.max()) if rounding.numel() else 0.0
        limit = (2 * allowed).clamp(max=unit**0.5 * float(size.max())).maximum(2 * worst * size) + 2 * unit * size
        if bool(cancelled.any()):
            limit[cancelled] = (2 + unit) * allowed[cancelled].max()
        return bool((error <= limit)[open_questions[finite]].all())
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            is_as_exact(v, actual.get(k), exact.get(k), override) for k, v in expected.items()
        )
    if isinstance(expected, (list, tuple)):
        parts = (expected, actual, exact)
        return all(isinstance(part, (list, tuple)) and len(part) == len(expected) for part in parts) and all(
            is_as_exact(*items, override) for items in zip(*parts)
        )
    if isinstance(expected, (bool, int, float, complex)):
        return bool(expected == actual or (expected != expected and actual != actual))
    return True  # others are arguments, which differ by device


def _shape_of(value: Any) -> str:
    length = f" of {len(value)}" if isinstance(value, (list, tuple)) else ""
    return f"{type(value).__name__}{length}"


def as_reals(tensor: torch.Tensor) -> torch.Tensor:
    """All numbers in float64, in one row; a complex one is two."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.to(torch.float64).flatten()
