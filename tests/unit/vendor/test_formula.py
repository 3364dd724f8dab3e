"""The language of formulas: over traced tensors (guards), PyTorch's and a driver's, and written out as source."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from bringup.driver import Tensor as DriverTensor  # noqa: E402
from bringup.ir.dtypes import float32  # noqa: E402
from bringup.lowering.call import Number, Tensor  # noqa: E402
from bringup.lowering.symbolic import Trace, hint_of  # noqa: E402
from bringup.vendor.formula import Extent, FormulaError, read  # noqa: E402

VALUES = [
    ("2 * n + 1", 7),
    ("-n // 2", -2),
    ("n % 2", 1),
    ("max(1, min(n, 2))", 2),
    ("x.shape[0] * x.shape[-1]", 12),
    ("x.numel - x.ndim", 10),
    ("1 < n <= 3 and not n == 2", True),
    ("n if x.stride[1] == 1 else 0", 3),
    ("x.shape == y.shape", False),
    ("x.shape != y.shape or n", True),
    ("x.ld + y.transposed", 4),
    ("sizes[1]", 8),
]


@pytest.mark.parametrize(("text", "value"), VALUES)
@pytest.mark.parametrize("kind", ["torch", "driver", "traced"])
def test_values(text: str, value: object, kind: str) -> None:
    shapes = {"x": ((3, 4), (4, 1)), "y": ((4,), (1,))}
    values: dict[str, object] = {"n": 3, "sizes": [7, 8]}
    trace = Trace()
    for name, (shape, strides) in shapes.items():
        if kind == "torch":
            values[name] = torch.empty_strided(shape, strides, device="meta")
        elif kind == "driver":
            values[name] = DriverTensor(0, 64, shape, strides, "float32", 0)
        else:
            sizes = tuple(trace.symbol(f"{name}_n{d}", size) for d, size in enumerate(shape))
            steps = tuple(trace.symbol(f"{name}_s{d}", step) for d, step in enumerate(strides))
            values[name] = Tensor(("tensor", 0), float32, sizes, steps)
    found = read(text, values.keys())(values)
    assert (found if isinstance(found, bool) else hint_of(found)) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n +", "cannot be read"),
        ("m", "there is no 'm' here, only n, x"),
        ("x.size", ".size is not known; a tensor has shape"),
        ("x.shape[n]", "the number of a dimension is an integer"),
        ("n ** 2", "not part of the language"),
        ("__import__('os')", "not part of the language"),
        ("max(n)", "max takes two numbers"),
        ("x.shape[0]()", "not part of the language"),
        ("'a'", "not part of the language"),
    ],
)
def test_bad_formulas(text: str, reason: str) -> None:
    with pytest.raises(FormulaError, match=reason.replace("(", r"\(")):
        read(text, {"n", "x"})


def test_a_dimension_that_is_not_there() -> None:
    with pytest.raises(FormulaError, match=r"x.shape\[2\]: it has 2 dimensions in this call"):
        read("x.shape[2]", {"x"})({"x": torch.empty(2, 3)})
    with pytest.raises(FormulaError, match="x is not a tensor in this call"):
        read("x.ld", {"x"})({"x": None})


def test_comparisons_of_traced_sizes_and_numbers_are_guards() -> None:
    trace = Trace()
    n = trace.symbol("n", 8)
    number = Number(0, 0.5, None, False, trace)
    assert read("n >= 4 and beta != 0 and 1 > beta", {"n", "beta"})({"n": n, "beta": number})
    assert [relation for relation, _ in trace.guards] == ["ge"]
    assert list(trace.scalar_guards) == [(0, "ne", 0), (0, "lt", 1)]


def test_a_contiguous_tensor_leaves_no_guard() -> None:
    trace = Trace()
    rows, columns = trace.symbol("r", 3), trace.symbol("c", 4)
    matrix = Tensor(("tensor", 0), float32, (rows, columns), (columns, 1), contiguous=True)
    extent = Extent.of(matrix)
    assert extent.is_matrix()
    assert extent.is_row_major()
    assert (hint_of(extent.ld), extent.transposed) == (4, 0)
    assert trace.guards == []


@pytest.mark.parametrize(
    ("shape", "strides", "blas", "row_major", "transposed", "ld"),
    [
        ((3, 4), (4, 1), True, True, 0, 4),
        ((3, 4), (9, 1), True, True, 0, 9),
        ((3, 4), (1, 3), True, False, 1, 3),
        ((3, 4), (0, 1), False, False, 0, 0),  # expanded: rows overlap
        ((3, 4), (8, 2), False, False, 0, 0),
        ((1, 4), (0, 1), True, True, 0, 4),  # the stride of a single row does not matter
        ((1, 4), (1, 1), True, True, 0, 4),
        ((3, 1), (1, 7), True, True, 0, 1),
        ((3, 0), (1, 1), True, True, 0, 1),
        ((5,), (2,), True, False, 0, 2),
        ((5,), (0,), False, False, 0, 0),
        ((1,), (0,), True, True, 0, 1),
    ],
)
def test_layouts_as_blas_sees_them(shape, strides, blas, row_major, transposed, ld) -> None:
    extent = Extent(shape, strides)
    assert (extent.is_matrix(), extent.is_row_major()) == (blas, row_major)
    if blas:
        assert (extent.transposed, extent.ld) == (transposed, ld)


def test_as_source() -> None:
    formula = read("max(1, x.stride[0]) if x.transposed and not n == 2 else x.shape[-1] // 2 + x.numel", {"x", "n"})
    assert formula.cpp() == (
        "((transposed(x) && !(n == 2)) ? std::max<int64_t>(1, x.stride(0)) : ((x.size(-1) / 2) + x.numel()))"
    )
    assert formula.python() == (
        "max(1, x.stride()[0]) if transposed(x) and (not n == 2) else x.shape[-1] // 2 + x.numel()"
    )
