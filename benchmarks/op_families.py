"""What benchmarks/ops.py measures: statements by family, with the shapes and dtypes that are typical of each.

A statement uses names for its tensors (op_rows.py says what each means): ``x`` is random, ``i`` an index along the last
dimension, and so on. Numbers of elements follow from the size that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

#: Elements of one tensor: 4 KB, half of an L2 cache, and more than most caches of last level, in float32.
SIZES: dict[str, int] = {"small": 1 << 10, "cache": 1 << 17, "memory": 1 << 23}

DTYPES = {"f": "float32", "b": "bfloat16", "d": "float64", "i": "int64"}
FLOATS, NUMBERS = "fbd", "fbdi"

Shape = tuple[int, ...]


def _square(n: int) -> int:
    return max(1, isqrt(n))


#: What "long rows" and the like are for n elements.
MATRIX_SHAPES: dict[str, Callable[[int], Shape]] = {
    "rows": lambda n: (max(1, n // 4096), min(n, 4096)),
    "one row": lambda n: (1, n),
    "columns": lambda n: (n // max(16, n // 4096), max(16, n // 4096)),
    "many small": lambda n: (max(1, n // 16), 16),
    "odd": lambda n: (max(1, n // 1021) | 1, min(n, 1021)),
}
FLAT_SHAPES: dict[str, Callable[[int], Shape]] = {
    "flat": lambda n: (n,),
    "odd": lambda n: (max(1, n // 1021) | 1, min(n, 1021)),
}
SQUARE_SHAPES: dict[str, Callable[[int], Shape]] = {
    "square": lambda n: (_square(n), _square(n)),
    "odd": lambda n: (_square(n) | 1, max(1, n // (_square(n) | 1)) | 1),
}


def _image(channels: int) -> Callable[[int], Shape]:
    def shape(n: int) -> Shape:
        side = max(4, min(56, isqrt(n // channels)))
        return (max(1, n // (channels * side * side)), channels, side, side)

    return shape


IMAGE_SHAPES: dict[str, Callable[[int], Shape]] = {
    "few channels": _image(3),
    "channels": _image(64),
    "odd": lambda n: (max(1, n // (7 * 17 * 17)), 7, 17, 17),
}
VOLUME_SHAPES: dict[str, Callable[[int], Shape]] = {"volume": lambda n: (max(1, n // 8192), 2, 16, 16, 16)}
LINE_SHAPES: dict[str, Callable[[int], Shape]] = {"lines": lambda n: (max(1, n // 1024), 4, 256)}
HEAD_SHAPES: dict[str, Callable[[int], Shape]] = {
    "heads": lambda n: (1, 4, max(8, min(512, n // 256)), 64),
    "odd": lambda n: (3, 5, 77, 40),
}


@dataclass(frozen=True)
class Family:
    """Statements that have shapes and dtypes in common. ``shrink`` divides the sizes where a call costs that much."""

    shapes: dict[str, Callable[[int], Shape]]
    statements: dict[str, str]
    dtypes: str = "f"
    backward: bool = False
    shrink: int = 1


def _methods(text: str, form: str = "torch.{}(x)") -> dict[str, str]:
    return {name.rpartition(".")[2]: form.format(name) for name in text.split()}


_SPECIAL = "torch.special.{}(x)"

FAMILIES: dict[str, Family] = {
    "unary cheap": Family(
        FLAT_SHAPES,
        _methods("abs neg sign sgn relu square positive clone zeros_like ones_like signbit")
        | {
            "full_like": "torch.full_like(x, 2)",
            "fill_": "y.fill_(3)",
            "zero_": "y.zero_()",
            "clamp": "x.clamp(0, 1)",
            "clamp_min": "x.clamp_min(0)",
            "clamp_max": "x.clamp_max(0)",
            "add scalar": "x + 2",
            "rsub": "2 - x",
            "mul scalar": "x * 3",
            "sub scalar": "x.sub(3)",
            "eq scalar": "x == 0",
            "ne scalar": "x != 0",
            "lt scalar": "x < 0",
            "le scalar": "x <= 0",
            "gt scalar": "x > 0",
            "ge scalar": "x >= 0",
            "logical_not": "x.logical_not()",
            "copy_": "y.copy_(x)",
            "square scalar": "x.pow(2)",
        },
        NUMBERS,
    ),
    "unary float": Family(
        FLAT_SHAPES,
        _methods("ceil floor round trunc frac reciprocal sqrt rsqrt deg2rad rad2deg isnan isinf isposinf isneginf")
        | {
            "nan_to_num": "x.nan_to_num()",
            "round decimals": "x.round(decimals=2)",
            "div scalar": "x / 3",
            "remainder scalar": "x.remainder(0.7)",
            "fmod scalar": "x.fmod(0.7)",
            "floor_divide scalar": "x.floor_divide(0.7)",
            "div floor scalar": "x.div(0.7, rounding_mode='floor')",
            "copysign scalar": "x.copysign(-1.0)",
        },
        FLOATS,
    ),
    "cast": Family(
        FLAT_SHAPES,
        {
            f"to {to}": f"x.to(torch.{to})"
            for to in ("float32", "bfloat16", "float16", "float64", "int64", "int32", "uint8", "bool")
        },
        NUMBERS,
    ),
    "transcendental": Family(
        FLAT_SHAPES,
        _methods(
            "exp exp2 expm1 log log1p log2 log10 sin cos tan atan sinh cosh tanh asinh erf erfc sigmoid sinc angle"
        )
        | {name: f"torch.{name}(u)" for name in ("asin", "acos", "atanh", "erfinv", "logit")}
        | {
            "acosh": "torch.acosh(p + 1)",
            "pow scalar": "p.pow(2.3)",
            "scalar pow": "torch.pow(2.3, x)",
            "frexp": "torch.frexp(x)",
            "special_entr": "torch.special.entr(u)",
            "logit_backward": "torch.ops.aten.logit_backward(x, u)",
        },
        FLOATS,
        shrink=4,
    ),
    "activation": Family(
        FLAT_SHAPES,
        _methods(
            "relu relu6 leaky_relu hardtanh hardshrink softshrink hardsigmoid hardswish elu celu selu silu mish "
            "softplus logsigmoid gelu tanhshrink softsign",
            "F.{}(x)",
        )
        | {
            "gelu tanh": "F.gelu(x, approximate='tanh')",
            "threshold": "F.threshold(x, 0.1, 0.2)",
            "prelu": "F.prelu(x, one)",
            "tanh": "x.tanh()",
            "sigmoid": "x.sigmoid()",
        },
        FLOATS,
        backward=True,
        shrink=2,
    ),
    "glu": Family(MATRIX_SHAPES, {"glu": "F.glu(even)"}, FLOATS, backward=True, shrink=2),
    "binary": Family(
        FLAT_SHAPES,
        {
            "add": "x + y",
            "sub": "x - y",
            "add alpha": "x.add(y, alpha=3)",
            "mul": "x * y",
            "maximum": "torch.maximum(x, y)",
            "minimum": "torch.minimum(x, y)",
            "fmax": "torch.fmax(x, y)",
            "fmin": "torch.fmin(x, y)",
            "eq": "x == y",
            "ne": "x != y",
            "lt": "x < y",
            "le": "x <= y",
            "gt": "x > y",
            "ge": "x >= y",
            "addcmul": "z.addcmul(x, y)",
            "where": "torch.where(m, x, y)",
            "masked_fill": "x.masked_fill(m, 0)",
            "masked_fill tensor": "x.masked_fill(m, zero)",
            "clamp tensor": "x.clamp(y, z)",
            "clamp_min tensor": "x.clamp_min(y)",
            "clamp_max tensor": "x.clamp_max(y)",
            "logical_and": "x.logical_and(y)",
            "logical_or": "x.logical_or(y)",
            "logical_xor": "x.logical_xor(y)",
            "heaviside": "torch.heaviside(x, y)",
            "add_": "z.add_(x)",
            "broadcast row": "x + row",
            "broadcast column": "x + column",
        },
        NUMBERS,
    ),
    "binary float": Family(
        FLAT_SHAPES,
        {
            "div": "x / y",
            "addcdiv": "z.addcdiv(x, p)",
            "lerp": "torch.lerp(x, y, z)",
            "lerp scalar": "torch.lerp(x, y, 0.3)",
            "floor_divide": "x.floor_divide(p)",
            "div trunc": "x.div(p, rounding_mode='trunc')",
            "remainder": "x.remainder(p)",
            "scalar remainder": "torch.remainder(2.0, p)",
            "fmod": "x.fmod(p)",
            "hypot": "torch.hypot(x, y)",
            "copysign": "x.copysign(y)",
            "pow": "p.pow(y)",
            "atan2": "torch.atan2(x, y)",
            "xlogy": "torch.xlogy(x, p)",
            "xlogy scalar": "torch.xlogy(x, 2.0)",
            "scalar xlogy": "torch.xlogy(2.0, p)",
            "ldexp": "torch.ldexp(x, y)",
        },
        FLOATS,
        shrink=2,
    ),
    "binary rare": Family(
        FLAT_SHAPES,
        {
            "nextafter": "torch.nextafter(x, y)",
            "logaddexp": "torch.logaddexp(x, y)",
            "logaddexp2": "torch.logaddexp2(x, y)",
            "xlog1py": "torch.special.xlog1py(x, p)",
            "xlog1py scalar": "torch.special.xlog1py(x, 2.0)",
            "scalar xlog1py": "torch.special.xlog1py(2.0, p)",
            "zeta": "torch.special.zeta(p + 1.5, p + 1)",
            "zeta scalar": "torch.special.zeta(p + 1.5, 2.0)",
            "scalar zeta": "torch.special.zeta(2.5, p + 1)",
            "igamma": "torch.igamma(p, p)",
            "igammac": "torch.igammac(p, p)",
        },
        "fd",
        shrink=32,
    ),
    "special": Family(
        FLAT_SHAPES,
        _methods("lgamma digamma")
        | _methods(
            "i0 i0e i1 i1e erfcx log_ndtr modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 "
            "scaled_modified_bessel_k0 scaled_modified_bessel_k1 bessel_j0 bessel_j1 bessel_y0 bessel_y1 "
            "spherical_bessel_j0 airy_ai",
            "torch.special.{}(p)",
        )
        | {
            "ndtri": "torch.special.ndtri(u)",
            "mvlgamma": "torch.mvlgamma(p + 2, 2)",
            "polygamma": "torch.polygamma(2, p + 1)",
            **{
                f"{name} {form}": f"torch.special.{name}({arguments})"
                for name in (
                    *(f"{s}chebyshev_polynomial_{c}" for s in ("", "shifted_") for c in "tuvw"),
                    "hermite_polynomial_h",
                    "hermite_polynomial_he",
                )
                for form, arguments in (("n", "u, 5"), ("x", "0.3, degree"), ("both", "u, degree"))
            },
            "legendre_polynomial_p": "torch.special.legendre_polynomial_p(u, 5)",
            "laguerre_polynomial_l": "torch.special.laguerre_polynomial_l(u, 5)",
        },
        "fd",
        shrink=64,
    ),
    "bitwise": Family(
        FLAT_SHAPES,
        {
            "and": "x & y",
            "or": "x | y",
            "xor": "x ^ y",
            "not": "~x",
            "shl": "x << 3",
            "shr": "x >> 3",
            "shl tensor": "x << degree",
            "shr tensor": "x >> degree",
            "bitwise_left_shift": "torch.bitwise_left_shift(x, degree)",
            "bitwise_right_shift": "torch.bitwise_right_shift(x, degree)",
            "bitwise_left_shift scalar": "torch.bitwise_left_shift(x, 3)",
            "bitwise_right_shift scalar": "torch.bitwise_right_shift(x, 3)",
            "scalar bitwise_left_shift": "torch.bitwise_left_shift(3, degree)",
            "scalar bitwise_right_shift": "torch.bitwise_right_shift(300, degree)",
            "and scalar": "x & 12",
            "or scalar": "x | 12",
            "xor scalar": "x ^ 12",
            "scalar and": "torch.bitwise_and(12, x)",
            "scalar or": "torch.bitwise_or(12, x)",
            "scalar xor": "torch.bitwise_xor(12, x)",
        },
        "i",
    ),
    "integer": Family(
        FLAT_SHAPES,
        {
            "floor_divide": "x // (degree + 1)",
            "remainder": "x % (degree + 1)",
            "remainder scalar": "x % 7",
            "gcd": "torch.gcd(x, y)",
            "lcm": "torch.lcm(x, degree)",
        },
        "i",
        shrink=8,
    ),
    "factory": Family(
        FLAT_SHAPES,
        {
            "arange": "torch.arange(x.numel(), device=x.device)",
            "arange float": "torch.arange(0.0, x.numel(), device=x.device)",
            "linspace": "torch.linspace(0, 1, x.numel(), device=x.device)",
            "logspace": "torch.logspace(0, 1, x.numel(), device=x.device)",
            "zeros": "torch.zeros(x.shape, device=x.device)",
            "ones": "torch.ones(x.shape, device=x.device)",
            "full": "torch.full(x.shape, 3.0, device=x.device)",
        },
    ),
    "square": Family(
        SQUARE_SHAPES,
        {
            "tril": "x.tril()",
            "triu": "x.triu()",
            "eye": "torch.eye(*x.shape, device=x.device)",
            "trace": "x.trace()",
            "transposed copy": "x.t().contiguous()",
            "add transposed": "x + x.mT.reshape(x.shape)",
        },
        NUMBERS,
    ),
    "copies": Family(
        FLAT_SHAPES,
        {
            "host to device": "host.to(x.device, copy=True)",
            "device to host": "x.to('cpu', copy=True)",
            "device to device": "x.to(x.device, copy=True)",
            "into": "y.copy_(host)",
            "item": "one.item()",
        },
        NUMBERS,
    ),
    "sums": Family(
        MATRIX_SHAPES,
        {
            "sum": "x.sum(-1)",
            "sum first": "x.sum(0)",
            "sum all": "x.sum()",
            "count_nonzero": "x.count_nonzero(-1)",
            "count_nonzero all": "x.count_nonzero()",
            "prod": "x.prod(-1)",
            "prod all": "x.prod()",
        },
        NUMBERS,
    ),
    "float sums": Family(
        MATRIX_SHAPES,
        {
            "mean": "x.mean(-1)",
            "mean first": "x.mean(0)",
            "mean all": "x.mean()",
            "nansum": "x.nansum(-1)",
            "logsumexp": "x.logsumexp(-1)",
            "var": "x.var(-1)",
            "var first": "x.var(0)",
            "std": "x.std(-1)",
            "var_mean": "torch.var_mean(x, -1)",
            "std_mean": "torch.std_mean(x, -1)",
            "vector_norm": "torch.linalg.vector_norm(x, dim=-1)",
            "norm": "x.norm()",
            "norm dim": "x.norm(3.0, -1)",
            "norm dtype": "torch.ops.aten.norm.ScalarOpt_dim_dtype(x, 2, [-1], False, dtype=torch.float64)",
            "norm all dtype": "torch.ops.aten.norm.ScalarOpt_dtype(x, 2, dtype=torch.float64)",
            "norm scalar": "torch.ops.aten.norm.Scalar(x, 2)",
            "dist": "torch.dist(x, y)",
        },
        FLOATS,
        shrink=2,
    ),
    "extrema": Family(
        MATRIX_SHAPES,
        {
            "max": "x.max(-1)",
            "min": "x.min(-1)",
            "max first": "x.max(0)",
            "argmax": "x.argmax(-1)",
            "argmin": "x.argmin(-1)",
            "argmax all": "x.argmax()",
            "amax": "x.amax(-1)",
            "amin": "x.amin(0)",
            "max all": "x.max()",
            "min all": "x.min()",
            "aminmax": "torch.aminmax(x)",
            "all": "(x == x).all(-1)",
            "all all": "(x == x).all()",
            "any": "(x != x).any(-1)",
            "any all": "(x != x).any()",
            "any dims": "m.any((0, -1))",
            "all dims": "m.all((0, -1))",
        },
        NUMBERS,
        shrink=2,
    ),
    "scans": Family(
        MATRIX_SHAPES,
        {
            "cumsum": "x.cumsum(-1)",
            "cumsum first": "x.cumsum(0)",
            "cumprod": "x.cumprod(-1)",
            "cummax": "x.cummax(-1)",
            "cummin": "x.cummin(-1)",
        },
        NUMBERS,
        shrink=4,
    ),
    "float scans": Family(MATRIX_SHAPES, {"logcumsumexp": "x.logcumsumexp(-1)"}, FLOATS, shrink=8),
    "softmax": Family(
        MATRIX_SHAPES,
        {"softmax": "x.softmax(-1)", "log_softmax": "x.log_softmax(-1)", "softmax first": "x.softmax(0)"},
        FLOATS,
        backward=True,
        shrink=2,
    ),
    "safe softmax": Family(MATRIX_SHAPES, {"safe": "torch._safe_softmax(x, -1)"}, FLOATS, shrink=2),
    "norms": Family(
        MATRIX_SHAPES,
        {
            "layer_norm": "F.layer_norm(x, x.shape[-1:], row, row)",
            "rms_norm": "F.rms_norm(x, x.shape[-1:], row)",
            "weight_norm": "torch._weight_norm(x, column, 0)",
        },
        FLOATS,
        backward=True,
        shrink=2,
    ),
    "vectors": Family(
        MATRIX_SHAPES,
        {
            "renorm": "x.renorm(2, 0, 1.0)",
            "cross": "torch.linalg.cross(threes, threes)",
            "histc": "flat.histc(64)",
            "histc many": "flat.histc(1000)",
        },
        "fd",
        shrink=4,
    ),
    "sorting": Family(
        MATRIX_SHAPES,
        {
            "sort": "x.sort(-1)",
            "sort descending": "x.sort(-1, descending=True)",
            "argsort stable": "x.argsort(dim=-1, stable=True)",
            "sort first": "x.sort(0)",
            "topk 1": "x.topk(1)",
            "topk 10": "x.topk(10)",
            "topk half": "x.topk(x.shape[-1] // 2)",
            "kthvalue": "x.kthvalue(x.shape[-1] // 3 + 1)",
            "median": "x.median(-1)",
            "median all": "x.median()",
            "nanmedian": "x.nanmedian(-1)",
            "nanmedian all": "x.nanmedian()",
            "mode": "x.mode(-1)",
        },
        NUMBERS,
        shrink=8,
    ),
    "unique": Family(
        FLAT_SHAPES,
        {
            "unique": "x.unique()",
            "unique repeated": "few.unique()",
            "unique inverse": "few.unique(return_inverse=True)",
            "unique counts": "x.unique(return_counts=True)",
            "unique_consecutive": "few.unique_consecutive()",
            "unique_consecutive dim": "few.reshape(-1).unique_consecutive(dim=0)",
            "bincount": "place.bincount()",
            "isin": "torch.isin(few, seven)",
            "searchsorted": "torch.searchsorted(ascending, flat)",
            "bucketize": "torch.bucketize(flat, ascending)",
        },
        "fdi",
        shrink=16,
    ),
    "compaction": Family(
        FLAT_SHAPES,
        {
            "nonzero": "m.nonzero()",
            "nonzero few": "(few == 0).nonzero()",
            "nonzero numbers": "few.nonzero()",
            "masked_select": "x.masked_select(m)",
            "index by mask": "x[m]",
            "masked_scatter": "x.masked_scatter(m, y)",
            "nonzero_static": "flat.nonzero_static(size=flat.numel())",
        },
        NUMBERS,
        shrink=4,
    ),
    "gather": Family(
        MATRIX_SHAPES,
        {
            "gather": "x.gather(-1, i)",
            "take": "x.take(place)",
            "index_select": "x.index_select(0, pick)",
            "index rows": "x[pick]",
            "index last": "x[:, last]",
            "index pairs": "x[pick, last[:1]]",
            "embedding": "F.embedding(pick, x)",
            "take_along_dim": "x.take_along_dim(i, -1)",
        },
        NUMBERS,
        shrink=4,
    ),
    "scatter": Family(
        MATRIX_SHAPES,
        {
            "scatter": "z.scatter(-1, i, x)",
            "scatter value": "z.scatter(-1, i, 2)",
            "scatter add": "z.scatter(-1, i, x, reduce='add')",
            "scatter value add": "z.scatter(-1, i, 2, reduce='add')",
            "scatter_add": "z.scatter_add(-1, i, x)",
            "scatter_add first": "z.scatter_add(0, first, x)",
            "scatter_reduce": "z.scatter_reduce(-1, i, x, 'amax')",
            "index_add": "z.index_add(0, pick, x)",
            "index_add last": "z.index_add(1, last, x)",
            "index_copy": "z.index_copy(0, pick, x)",
            "index_fill": "z.index_fill(0, pick, 3)",
            "index_fill tensor": "z.index_fill(0, pick, zero)",
            "index_reduce": "z.index_reduce(0, pick, x, 'amax')",
            "index_put": "z.index_put((pick,), x)",
            "index_put accumulate": "z.index_put((pick,), x, accumulate=True)",
            "index_put_ accumulate": "z.index_put_((pick,), x, accumulate=True)",
            "put": "z.put(place, flat)",
        },
        NUMBERS,
        shrink=4,
    ),
    "embedding": Family(
        MATRIX_SHAPES,
        {
            "embedding": "F.embedding(pick, x)",
            "embedding_bag": "F.embedding_bag(pick.view(-1, 1), x, mode='sum')",
            "embedding_bag weighted": "F.embedding_bag(pick.view(-1, 1), x, per_sample_weights=column, mode='sum')",
        },
        "fd",
        backward=True,
        shrink=4,
    ),
    "embedding rare": Family(
        MATRIX_SHAPES,
        {
            "embedding_renorm_": "torch.embedding_renorm_(z, pick, 1.0, 2.0)",
            "segment_reduce": "torch.segment_reduce(x, 'sum', lengths=lengths, unsafe=True)",
        },
        "fd",
        shrink=4,
    ),
    "movement": Family(
        MATRIX_SHAPES,
        {
            "cat": "torch.cat((x, y))",
            "cat last": "torch.cat((x, y), -1)",
            "cat four": "torch.cat((x, y, z, x))",
            "stack": "torch.stack((x, y))",
            "flip": "x.flip(-1)",
            "flip first": "x.flip(0)",
            "roll": "x.roll(3, -1)",
            "roll first": "x.roll(1, 0)",
            "repeat": "x.repeat(2, 2)",
            "repeat_interleave": "x.repeat_interleave(2, 0)",
            "repeat_interleave tensor": "torch.repeat_interleave(counts)",
            "narrow_copy": "x.narrow_copy(-1, 0, x.shape[-1] // 2 + 1)",
            "transposed copy": "x.t().contiguous()",
            "strided copy": "x[:, ::2].contiguous()",
            "split and cat": "torch.cat(x.chunk(2), 0)",
            "constant_pad": "F.pad(x, (1, 2))",
            "equal": "torch.equal(x, x)",
            "conj_physical_": "x.conj_physical_()",
        },
        NUMBERS,
        shrink=2,
    ),
    "unfold": Family(MATRIX_SHAPES, {"unfold": "x.unfold(-1, 3, 2)"}, "fd", backward=True, shrink=4),
    "random": Family(
        FLAT_SHAPES,
        {
            "rand": "torch.rand(x.shape, device=x.device, dtype=x.dtype)",
            "randn": "torch.randn(x.shape, device=x.device, dtype=x.dtype)",
            "uniform_": "y.uniform_(-1, 1)",
            "normal_": "y.normal_(1, 2)",
            "normal tensors": "torch.normal(x, p)",
            "normal mean": "torch.normal(x, 1.0)",
            "normal std": "torch.normal(0.0, p)",
            "log_normal_": "y.log_normal_()",
            "exponential_": "y.exponential_()",
            "cauchy_": "y.cauchy_()",
            "geometric_": "y.geometric_(0.3)",
            "bernoulli": "u.bernoulli()",
            "bernoulli_": "y.bernoulli_(0.3)",
            "bernoulli_ tensor": "y.bernoulli_(u.float())",
            "dropout": "F.dropout(x, 0.3)",
            "rrelu": "F.rrelu(x, training=True)",
        },
        FLOATS,
        shrink=8,
    ),
    "random integers": Family(
        FLAT_SHAPES,
        {
            "randint": "torch.randint(1000, x.shape, device=x.device)",
            "random_": "y.random_()",
            "random_ to": "y.random_(100)",
            "random_ from": "y.random_(5, 100)",
            "randperm": "torch.randperm(x.numel(), device=x.device)",
        },
        "i",
        shrink=16,
    ),
    "sampling": Family(
        MATRIX_SHAPES, {"multinomial": "(p + 0.01).multinomial(1)", "dropout": "F.dropout(x, 0.3)"}, "fd", shrink=8
    ),
    "losses": Family(
        MATRIX_SHAPES,
        {
            "cross_entropy": "F.cross_entropy(x, target)",
            "cross_entropy none": "F.cross_entropy(x, target, reduction='none')",
            "cross_entropy smoothed": "F.cross_entropy(x, target, label_smoothing=0.1)",
            "nll_loss": "F.nll_loss(x, target)",
            "mse_loss": "F.mse_loss(x, y)",
            "l1_loss": "F.l1_loss(x, y)",
            "smooth_l1_loss": "F.smooth_l1_loss(x, y)",
            "huber_loss": "F.huber_loss(x, y)",
            "soft_margin_loss": "F.soft_margin_loss(x, y)",
            "kl_div": "F.kl_div(x, u, reduction='sum')",
            "bce": "F.binary_cross_entropy(v, u)",
            "bce logits": "F.binary_cross_entropy_with_logits(x, u)",
            "multi_margin_loss": "F.multi_margin_loss(x, target)",
            "multilabel_margin_loss": "F.multilabel_margin_loss(x[:, :16], i[:, :16].clamp(max=15))",
        },
        "fd",
        backward=True,
        shrink=4,
    ),
    "distances": Family(
        {"points": lambda n: (_square(n), 16), "odd": lambda n: (_square(n) | 1, 13)},
        {
            "cdist": "torch.cdist(x, y)",
            "cdist 1": "torch.cdist(x, y, p=1.0)",
            "pdist": "F.pdist(x)",
        },
        "fd",
        backward=True,
        shrink=16,
    ),
    "matmul": Family(
        SQUARE_SHAPES,
        {
            "mm": "x @ y.t()",
            "mm plain": "x.mm(y.t().contiguous())",
            "mv": "x.mv(row.reshape(-1))",
            "addmm": "torch.addmm(row.reshape(-1)[:1], x, y.t())",
            "addmv": "torch.addmv(column.reshape(-1), x, row.reshape(-1))",
            "dot": "x.view(-1).dot(y.view(-1))",
            "vdot": "torch.vdot(x.view(-1), y.view(-1))",
            "outer": "torch.outer(column.reshape(-1), row.reshape(-1))",
            "addr": "torch.addr(x, column.reshape(-1), row.reshape(-1))",
            "linear": "F.linear(x, y)",
            "addmm activation": "torch._addmm_activation(row.reshape(-1)[:1], x, y.t())",
        },
        NUMBERS.replace("i", ""),
        shrink=16,
    ),
    "matmul integers": Family(
        SQUARE_SHAPES,
        {
            "int64": "x @ y.t()",
            "int32": "x.int() @ y.int().t()",
            "_int_mm": "torch._int_mm(x.to(torch.int8), y.to(torch.int8).t())",
        },
        "i",
        shrink=32,
    ),
    "batched matmul": Family(
        HEAD_SHAPES,
        {
            "bmm": "x[0] @ x[0].mT",
            "baddbmm": "torch.baddbmm(x[0, :, :1, :1], x[0], x[0].mT)",
            "addbmm": "torch.addbmm(x[0, 0, :1, :1], x[0], x[0].mT)",
        },
        FLOATS,
    ),
    "attention": Family(
        HEAD_SHAPES,
        {
            "attention": "F.scaled_dot_product_attention(x, y, z)",
            "causal": "F.scaled_dot_product_attention(x, y, z, is_causal=True)",
        },
        "fb",
        backward=True,
    ),
    "convolution": Family(
        IMAGE_SHAPES,
        {
            "3x3": "F.conv2d(x, filters, padding=1)",
            "1x1": "F.conv2d(x, filters[:, :, :1, :1])",
            "depthwise 3x3": "F.conv2d(x, depthwise, padding=1, groups=x.shape[1])",
            "transposed": "F.conv_transpose2d(x, filters, padding=1)",
        },
        "fb",
        backward=True,
        shrink=16,
    ),
    "convolution lines": Family(LINE_SHAPES, {"conv1d": "F.conv1d(x, taps, padding=1)"}, "fb", backward=True, shrink=8),
    "image norms": Family(
        IMAGE_SHAPES,
        {
            "batch_norm": "F.batch_norm(x, mean, variance, training=True)",
            "instance_norm": "F.instance_norm(x)",
            "group_norm": "F.group_norm(x, 1)",
        },
        "fb",
        backward=True,
        shrink=4,
    ),
    "image norms inference": Family(IMAGE_SHAPES, {"batch_norm": "F.batch_norm(x, mean, variance)"}, "fb", shrink=4),
    "pooling": Family(
        IMAGE_SHAPES,
        {
            "max_pool2d": "F.max_pool2d(x, 2)",
            "max_pool2d 3": "F.max_pool2d(x, 3, 2, 1)",
            "avg_pool2d": "F.avg_pool2d(x, 2)",
            "adaptive_avg_pool2d": "F.adaptive_avg_pool2d(x, 2)",
            "adaptive_max_pool2d": "F.adaptive_max_pool2d(x, 2)",
            "fractional_max_pool2d": "F.fractional_max_pool2d(x, 2, 2)",
            "global average": "x.mean((2, 3))",
        },
        "fb",
        backward=True,
        shrink=4,
    ),
    "unpooling": Family(
        IMAGE_SHAPES,
        {"max_unpool2d": "F.max_unpool2d(x, spread, 2)"},
        "f",
        backward=True,
        shrink=16,
    ),
    "volumes": Family(
        VOLUME_SHAPES,
        {
            "max_pool3d": "F.max_pool3d(x, 2)",
            "avg_pool3d": "F.avg_pool3d(x, 2)",
            "adaptive_avg_pool3d": "F.adaptive_avg_pool3d(x, 2)",
            "adaptive_max_pool3d": "F.adaptive_max_pool3d(x, 2)",
            "fractional_max_pool3d": "F.fractional_max_pool3d(x, 2, 2)",
            "max_unpool3d": "F.max_unpool3d(x, spread, 2)",
            "nearest3d": "F.interpolate(x, scale_factor=2)",
            "nearest-exact3d": "F.interpolate(x, scale_factor=2, mode='nearest-exact')",
            "trilinear": "F.interpolate(x, scale_factor=2, mode='trilinear')",
            "reflection_pad3d": "F.pad(x, (1, 1, 1, 1, 1, 1), 'reflect')",
            "replication_pad3d": "F.pad(x, (1, 1, 1, 1, 1, 1), 'replicate')",
            "grid_sample": "F.grid_sample(x, points, align_corners=False)",
        },
        "f",
        backward=True,
        shrink=16,
    ),
    "interpolation": Family(
        IMAGE_SHAPES,
        {
            f"{mode}{' aa' if extra else ''}": f"F.interpolate(x, scale_factor={factor}, mode='{mode}'{extra})"
            for mode, extra, factor in (
                ("nearest", "", 2),
                ("nearest-exact", "", 2),
                ("bilinear", "", 2),
                ("bicubic", "", 2),
                ("bilinear", ", antialias=True", 0.5),
                ("bicubic", ", antialias=True", 0.5),
            )
        }
        | {
            "lanczos aa": "torch.ops.aten._upsample_lanczos2d_aa(x, [x.shape[2] // 2, x.shape[3] // 2], False)",
            "grid_sample": "F.grid_sample(x, points, align_corners=False)",
        },
        "f",
        backward=True,
        shrink=16,
    ),
    "lines": Family(
        LINE_SHAPES,
        {
            "nearest1d": "F.interpolate(x, scale_factor=2)",
            "nearest-exact1d": "F.interpolate(x, scale_factor=2, mode='nearest-exact')",
            "linear": "F.interpolate(x, scale_factor=2, mode='linear')",
            "reflection_pad1d": "F.pad(x, (1, 1), 'reflect')",
            "replication_pad1d": "F.pad(x, (1, 1), 'replicate')",
        },
        "f",
        backward=True,
        shrink=8,
    ),
    "image movement": Family(
        IMAGE_SHAPES,
        {
            "reflection_pad2d": "F.pad(x, (1, 1, 1, 1), 'reflect')",
            "replication_pad2d": "F.pad(x, (1, 1, 1, 1), 'replicate')",
            "constant_pad2d": "F.pad(x, (1, 1, 1, 1))",
            "unfold": "F.unfold(x, 2)",
            "pixel_shuffle": "F.pixel_shuffle(four, 2)",
            "pixel_unshuffle": "F.pixel_unshuffle(F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2)), 2)",
            "channel_shuffle": "F.channel_shuffle(x, x.shape[1])",
            "channels_last": "x.contiguous(memory_format=torch.channels_last)",
        },
        "f",
        backward=True,
        shrink=8,
    ),
    "folding": Family(
        {"columns": lambda n: (max(1, n // 1024), 4, 256)},
        {"fold": "F.fold(x, (32, 32), 2, stride=2)"},
        "f",
        backward=True,
        shrink=8,
    ),
    "cells": Family(
        {"batch": lambda n: (max(1, n // 256), 64)},
        {
            "lstm cell": "torch.lstm_cell(x, (x, x), wide4, wide4, bias4, bias4)",
            "gru cell": "torch.gru_cell(x, x, wide3, wide3, bias3, bias3)",
        },
        "f",
        backward=True,
        shrink=8,
    ),
    "optimizers": Family(
        FLAT_SHAPES,
        {
            "adam": "torch._fused_adam_([z], [x], [y], [p], [], [step], lr=1e-9, beta1=0.9, beta2=0.99, "
            "weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False)",
            "adamw": "torch._fused_adamw_([z], [x], [y], [p], [], [step], lr=1e-9, beta1=0.9, beta2=0.99, "
            "weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)",
            "sgd": "torch._fused_sgd_([z], [x], [y], weight_decay=0.0, momentum=0.9, lr=1e-9, dampening=0.0, "
            "nesterov=False, maximize=False, is_first_step=False)",
            "adagrad": "torch._fused_adagrad_([z], [x], [p], [step], lr=1e-9, lr_decay=0.0, weight_decay=0.0, "
            "eps=1e-8, maximize=False)",
            "unscale": "torch._amp_foreach_non_finite_check_and_unscale_([z], zero.view(1), one)",
            "update scale": "torch._amp_update_scale_(zero.view(1), whole, one, 2.0, 0.5, 4)",
        },
        "f",
        shrink=2,
    ),
    "many tensors": Family(
        {"parts": lambda n: (16, max(1, n // 16))},
        {
            **{
                name: f"torch._foreach_{name}(parts)"
                for name in (
                    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg "
                    "reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc norm max clone"
                ).split()
            },
            **{
                f"{name} list": f"torch._foreach_{name}(parts, others)"
                for name in "add sub mul div clamp_min clamp_max maximum minimum pow".split()
            },
            **{
                f"{name} scalar": f"torch._foreach_{name}(parts, 2.0)"
                for name in "add sub mul div clamp_min clamp_max maximum minimum pow".split()
            },
            "addcmul": "torch._foreach_addcmul(parts, others, others, 2.0)",
            "addcdiv": "torch._foreach_addcdiv(parts, others, others, 2.0)",
            "lerp": "torch._foreach_lerp(parts, others, 0.5)",
            "lerp list": "torch._foreach_lerp(parts, others, others)",
            "zero_": "torch._foreach_zero_(others)",
            "copy": "torch._foreach_copy_(parts, others)",
            "mm": "torch._foreach_mm(squares, squares)",
        },
        "f",
        shrink=4,
    ),
    "hashing": Family(FLAT_SHAPES, {"hash_tensor": "torch.hash_tensor(x)"}, NUMBERS, shrink=2),
}

#: Lowered ops that no statement above reaches, and why.
UNMEASURED: dict[str, str] = {
    "_embedding_bag_dense_backward": "on the device the backward of embedding_bag, which the CPU takes apart",
    "_fused_rms_norm": "what rms_norm is on the device; the CPU takes it apart",
    "_fused_rms_norm_backward": "its backward",
    "_index_put_impl": "what index_put is below autograd",
    "_masked_scale": "a dropout of old models",
    "_native_batch_norm_legit": "native_batch_norm for graphs",
    "_native_batch_norm_legit_functional": "native_batch_norm for graphs",
    "_native_batch_norm_legit_no_training": "native_batch_norm for graphs",
    "_thnn_fused_gru_cell": "what gru_cell is on the device",
    "_thnn_fused_gru_cell_backward": "its backward",
    "_thnn_fused_lstm_cell": "what lstm_cell is on the device",
    "_thnn_fused_lstm_cell_backward_impl": "its backward",
    "batch_norm_backward": "native_batch_norm_backward with another signature",
    "conj_physical": "of real numbers: a copy",
    "convolution_backward_overrideable": "what convolution's backward is on the device",
    "convolution_overrideable": "what convolution is on the device",
    "glu_jvp": "forward-mode gradients, as cheap as the backward",
    "native_dropout": "what dropout is on the device",
    "native_dropout_backward": "its backward",
    "nll_loss2d_backward": "nll_loss over images: the same loops",
    "nll_loss2d_forward": "nll_loss over images: the same loops",
    "rrelu_with_noise_backward": "one multiplication",
}
