"""The mathematical functions of the reference: computed in float64 and rounded once to float32 (half types: twice).

Float32 results are within 0.501 ulp of the exact value, so a target's error against the interpreter is its own error.
Float64 results are those of NumPy and the C library, within about 1 ulp (digamma and erfinv 4, lgamma
10: Python's own).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from bringup.ir.dtypes import Array, DType, float64


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A scalar function over an array."""
    table = np.frompyfunc(function, 1, 1)

    def apply(x: Array) -> Array:
        return np.asarray(table(x)).astype(np.float64)

    return apply


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


# psi(x) ~ log x - 1/(2x) - sum B_2k / (2k x^2k), exact to the last bits from x = 10 up.
_DIGAMMA_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)


#: The positive root of digamma and its rest, and the series there: without it all digits would cancel.
_ROOT, _ROOT_REST = 1.4616321449683622, 9.549995429965697e-17
_ROOT_SERIES = (
    0.9676722454476212,
    -0.4427631689835921,
    0.2584997609556510,
    -0.1639427054424065,
    0.1078240506912624,
    -0.07219956125645471,
    0.04880428816414311,
    -0.03316112647484736,
)


def _digamma(x: float) -> float:
    if math.isnan(x) or x == math.inf:
        return x
    if x == 0:
        return math.copysign(math.inf, -x)
    if x == -math.inf or (x < 0 and x == math.floor(x)):
        return math.nan
    if x < 0:  # reflection; the fraction alone enters the tangent, which keeps it exact
        fraction = math.fmod(x, 1.0)
        return _digamma(1 - x) - math.pi / math.tan(math.pi * fraction)
    if abs(x - _ROOT) < 1e-2:
        t = (x - _ROOT) - _ROOT_REST
        total = 0.0
        for term in reversed(_ROOT_SERIES):
            total = total * t + term
        return total * t
    shift = 0.0
    while x < 10:
        shift -= 1 / x
        x += 1
    square = 1 / (x * x)
    tail = 0.0
    for term in reversed(_DIGAMMA_SERIES):
        tail = (tail + term) * square
    return shift + math.log(x) - 0.5 / x - tail


def _erfinv(x: float) -> float:
    if math.isnan(x) or abs(x) > 1:
        return math.nan
    if abs(x) == 1:
        return math.copysign(math.inf, x)
    if abs(x) < 1e-9:
        return x * (math.sqrt(math.pi) / 2)
    w = -math.log((1 - x) * (1 + x))  # Giles' start, then Halley on the side where nothing cancels
    y = math.sqrt(w) if w > 5 else 0.8862269 * abs(x) * (1 + 0.23 * w)
    small = 1 - abs(x)
    for _ in range(6):
        error = (math.erf(y) - abs(x)) if abs(x) < 0.5 else (small - math.erfc(y))
        step = error / (2 / math.sqrt(math.pi) * math.exp(-y * y))
        step /= 1 + y * step
        y -= step
        if abs(step) < 1e-17 * y:
            break
    return math.copysign(y, x)


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    **{name: getattr(np, name) for name in "exp exp2 expm1 log log1p log2 log10".split()},
    **{name: getattr(np, name) for name in "sin cos tan sinh cosh tanh".split()},
    **{f"a{name}": getattr(np, f"arc{name}") for name in "sin cos tan sinh cosh tanh".split()},
    "erf": _each(math.erf),
    "erfc": _each(math.erfc),
    "erfinv": _each(_erfinv),
    "lgamma": _each(_lgamma),
    "digamma": _each(_digamma),
}
_FUNCTIONS_2: dict[str, Callable[[Array, Array], Array]] = {
    "pow": np.power,
    "atan2": np.arctan2,
    "hypot": np.hypot,
}


def _contiguous(x: Array) -> Array:
    """Float64 in one line: NumPy's loops for other layouts round some last bits differently."""
    return np.array(x, dtype=np.float64).ravel()


def function(name: str, x: Array, dtype: DType) -> Array:
    """A function of one value in a float type; halves come back as float32, not yet rounded to the half.

    >>> from bringup.ir.dtypes import float32
    >>> function("exp", np.float32([0.0]), float32)
    array([1.], dtype=float32)
    """
    result = _FUNCTIONS[name](_contiguous(x)).reshape(np.shape(x))
    return result if dtype is float64 else result.astype(np.float32)


def function_of_two(name: str, a: Array, b: Array, dtype: DType) -> Array:
    """A function of two values in a float type, as ``function``.

    >>> from bringup.ir.dtypes import float64
    >>> function_of_two("pow", np.float64([2.0]), np.float64([3.0]), float64)
    array([8.])
    """
    a, b = np.broadcast_arrays(a, b)
    result = _FUNCTIONS_2[name](_contiguous(a), _contiguous(b)).reshape(a.shape)
    return result if dtype is float64 else result.astype(np.float32)
