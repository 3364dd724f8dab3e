"""Windows (depthwise convolutions) in C against the interpreter, bit for bit, and against PyTorch's float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bringup.ir.dtypes import Array, DType, bfloat16, float32, float64
from bringup.ir.parser import parse
from bringup.ir.window_form import recognise_window
from bringup.targets.c.contract import contraction
from bringup.targets.c.target import CTarget
from bringup.targets.c.window import windowed
from tests.unit.targets.c_contract_cases import HOST, assert_same_bits, numbers, parsed, within
from tests.unit.targets.test_c_contract import NARROW

pytestmark = pytest.mark.skipif(HOST.vector_bytes < 16, reason="windows are for vectors")


def window_kernel(
    layout: str, taps: tuple[int, ...], stride: int = 1, dilation: int = 1, dtype: str = "float32", more: str = "total"
) -> str:
    """y[b, c, u…] = more(sum over r of f[c, r…] × x[b, c, s·u + d·r - p…]); padding p is a size."""
    names = "hw"[-len(taps) :]
    out, tap, axes = ([f"{letter}{n}" for n in names] for letter in ("o", "r", "u"))
    places = [f"{stride}*{u} + {dilation}*{r} - p" for u, r in zip(axes, tap)]
    guards = [within(place, n) for place, n in zip(places, names)]
    guard = guards[0] if len(guards) == 1 else f"({' & '.join(guards)})"
    inside, outside = "*".join(names), "*".join(out)
    last = layout == "last"

    def strides(extents: list[str], whole: str) -> str:
        inner = ["*".join([*extents[at + 1 :], *(["c"] if last else [])]) or "1" for at in range(len(extents))]
        return f"[c*{whole}, {'1' if last else whole}, {', '.join(inner)}]"

    grid = ["b < nb", *(f"{u} < {o}" for u, o in zip(axes, out))]
    grid = [*grid, "e < c"] if last else ["e < c", *grid]
    wide = "float64" if dtype == "float64" else "float32"
    convert = (lambda text: text) if dtype == wide else (lambda text: f"{wide}({text})")
    x = convert(f"(x[b, e, {', '.join(places)}] if {guard})")
    f = convert(f"f[e, {', '.join(tap)}]")
    sizes = " ".join(f"size {name}" for name in ("nb", "c", *names, *out, "p"))
    weights = [str(np.prod(taps[at:], dtype=int)) for at in range(len(taps))] + ["1"]
    result = f"{dtype}({more})" if dtype != wide else more
    return f"""kernel window {sizes}
      in x: {dtype}[nb, c, {", ".join(names)}] strides {strides(list(names), inside)}
      in f: {dtype}[c, {", ".join(map(str, taps))}] strides [{", ".join(weights)}]
      inout y: {dtype}[nb, c, {", ".join(out)}] strides {strides(out, outside)}
      grid {", ".join(grid)}
      {{ reduce (total) over {", ".join(f"{r} < {n}" for r, n in zip(tap, taps))} lanes 1
          {{ init ({wide}(0.0)) value (({f} * {x})) combine (m), (n) -> ((m + n)) }}
        store y[b, e, {", ".join(axes)}] = {result} }}"""


def images(
    layout: str, taps: tuple[int, ...], nb: int, c: int, extents: tuple[int, ...], p: int, stride: int, dilation: int,
    dtype: DType = float32,
) -> tuple[dict[str, Array], dict[str, int]]:  # fmt: skip
    out = [max((n + 2 * p - dilation * (k - 1) - 1) // stride + 1, 0) for n, k in zip(extents, taps)]
    order = list(range(2 + len(taps)))
    order = [0, *order[2:], 1] if layout == "last" else order
    arrays = {
        "x": numbers((nb, c, *extents), dtype, 1, order),
        "f": numbers((c, *taps), dtype, 2),
        "y": numbers((nb, c, *out), dtype, 3, order),
    }
    names = "hw"[-len(taps) :]
    sizes = {"nb": nb, "c": c, "p": p, **dict(zip(names, extents)), **{f"o{n}": o for n, o in zip(names, out)}}
    return arrays, sizes


def check(
    layout: str, taps: tuple[int, ...], shape: tuple[int, int, tuple[int, ...]], p: int, stride: int = 1,
    dilation: int = 1, dtype: DType = float32, target: CTarget = HOST, more: str = "total", spoil: float | None = None,
) -> None:  # fmt: skip
    text = window_kernel(layout, taps, stride, dilation, dtype.name, more)
    assert windowed(parsed(text), target) is not None
    assert contraction(parsed(text), target) is None
    arrays, sizes = images(layout, taps, *shape, p, stride, dilation, dtype)
    if spoil is not None:
        arrays["x"].reshape(-1)[::7] = spoil
        arrays["f"].reshape(-1)[::5] = spoil
    assert_same_bits(text, arrays, sizes, target=target, parts=2)


LAYOUTS = ("first", "last")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2), (3, 1), (1, 3)])
def test_strides_and_dilations(layout: str, stride: int, dilation: int) -> None:
    if layout == "first" and stride == 3:
        assert windowed(parsed(window_kernel(layout, (3, 3), stride)), HOST) is None
        return
    for shape in [(2, 3, (9, 11)), (1, 17, (20, 33))]:
        check(layout, (3, 3), shape, 1, stride, dilation)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("taps", [(7, 7), (5, 5), (1, 7), (6, 2), (3,), (9,)], ids=str)
def test_taps(layout: str, taps: tuple[int, ...]) -> None:
    check(layout, taps, (1, 18, (13, 19)[-len(taps) :]), taps[-1] // 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_width_around_the_vectors(layout: str) -> None:
    for width, height in itertools.product((1, 2, 15, 16, 17, 31, 33), (1, 8, 9)):
        check(layout, (3, 3), (1, width if layout == "last" else 2, (height, width)), 1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stride", [1, 2])
def test_several_blocks(layout: str, stride: int) -> None:
    """More rows, columns and channels than one work unit has."""
    check(layout, (5, 5), (1, 2 if layout == "first" else 33, (75, 290 if layout == "first" else 139)), 2, stride)
    check(layout, (3,), (2, 2 if layout == "first" else 17, (2100,)), 1, stride)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_to_do_and_nothing_to_read(layout: str) -> None:
    check(layout, (3, 3), (0, 3, (5, 5)), 1)
    check(layout, (3, 3), (2, 0, (5, 5)), 1)
    check(layout, (3, 3), (1, 2, (0, 4)), 2)  # outputs that are padding only
    check(layout, (5, 5), (1, 2, (2, 2)), 3)  # more padding than image


@pytest.mark.parametrize("dtype", [float64, bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_types(layout: str, dtype: DType) -> None:
    check(layout, (3, 3), (2, 18, (7, 21)), 1, dtype=dtype)
    check(layout, (3, 3), (2, 18, (7, 21)), 1, 2, dtype=dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("spoil", [np.nan, np.inf, -0.0])
def test_special_values(layout: str, spoil: float) -> None:
    """Padding is a zero that is multiplied as every element is: the interpreter says what that gives."""
    check(layout, (3, 3), (1, 5, (6, 19)), 1, spoil=spoil)


@pytest.mark.parametrize("target", NARROW, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_vector_widths(layout: str, target: CTarget) -> None:
    if target.vector_bytes == 0:
        assert windowed(parsed(window_kernel(layout, (3, 3))), target) is None
        return
    check(layout, (3, 3), (2, 11, (9, 21)), 1, target=target)
    check(layout, (5, 5), (1, 11, (9, 21)), 2, 2, target=target)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_epilogue(layout: str) -> None:
    check(layout, (3, 3), (2, 19, (9, 21)), 1, more="max((total + f[e, 0, 1]), float32(0.0))")


def test_what_is_not_windows() -> None:
    """A factor that moves with the output, too many taps, sums in another order."""
    text = window_kernel("first", (3, 3))
    assert recognise_window(parse(text)) is not None
    assert recognise_window(parse(text.replace("f[e, rh, rw]", "f[e, rh, uw]"))) is None
    assert recognise_window(parse(text.replace("lanes 1", "lanes 32"))) is None
    assert recognise_window(parse(text.replace("init (float32(0.0))", "init (float32(1.0))"))) is None
    assert recognise_window(parse(window_kernel("first", (8, 8)))) is None
