"""Special values give what they give on the CPU, wherever the CPU's own result depends on neither length nor place."""

from __future__ import annotations

import pytest
import torch

from tests.device.special_values import FLOATS, INTEGERS, ROWS, cases, differences, rows_of, values_of

FLOAT_NAMES = [str(dtype).removeprefix("torch.") for dtype in FLOATS]
#: docs/gaps.md, "Special values", as beginnings of lines.
DECLARED = (
    "signbit torch.",
    "copysign torch.",
    *(f"nn.functional.{name} torch.{dtype} of (-0.0)" for name in ("relu", "relu6") for dtype in FLOAT_NAMES),
    *(f"special.bessel_j1 torch.{dtype} of (-0.0)" for dtype in FLOAT_NAMES),
    *(f"{name} torch.{dtype} of (nan, " for name in ("igamma", "igammac") for dtype in FLOAT_NAMES),
    *(f"special.zeta torch.{dtype} of (inf, " for dtype in FLOAT_NAMES),
    "special.zeta torch.int64 of (3, 922337203685477580",  # 5.9e-39, below the smallest normal number
    "special.zeta torch.int64 of (9223372036854775806, 2)",
    "instance_norm torch.bfloat16 of (",
    "erf torch.bfloat16 of (1.1754943508222875e-38)",
    "erf torch.bfloat16 of (-1.1754943508222875e-38)",
    "polygamma ",  # near its own zeros and below the smallest normal number
    "lgamma torch.float64 of (1.0000000000000002)",  # in units of 1, as math_library.py says
    "mvlgamma mvlgamma_p_1 torch.float64 of (1.0000000000000002)",
    "masked.prod torch.bfloat16",
    "prod torch.bfloat16",  # the order of factors decides whether infinity meets 0
)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
SAMPLED = ("sum", "amax", "softmax", "cumsum", "rms_norm")


def undeclared(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith(DECLARED)]


@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_floats_to_integers(source: torch.dtype) -> None:
    """Every length of tail, contiguous and strided; the CPU's uint32 depends on those where a number does not fit."""
    values = values_of(source)
    for target in (torch.bool, *INTEGERS, *UNSIGNED):
        expected = values.to(target)
        wide = values.repeat_interleave(2).to("sim")
        got = wide[::2].to(target).cpu()
        for start in range(0, len(values), 7):
            assert torch.equal(values[start:].to("sim").to(target).cpu(), got[start:]), (target, start)
        out = torch.zeros(len(values), 2, dtype=target, device="sim")[:, 1].copy_(wide[1::2])
        assert torch.equal(out.cpu(), got), target
        fits = (values > -(2.0**31)) & (values < 2.0**32) if target == torch.uint32 else torch.ones_like(values).bool()
        assert torch.equal(got[fits], expected[fits]), (target, values[fits & (got != expected)], got, expected)
        assert torch.equal(values.to("sim").to("cpu", target)[fits], expected[fits]), target


def test_two_conversions_agree() -> None:
    """On the device and then home, or home and then there."""
    x = torch.tensor([3e9, float("nan"), float("inf"), -1e20, 300.0], device="sim")
    for dtype in INTEGERS:
        assert torch.equal(x.to(dtype).cpu(), x.to("cpu", dtype)), dtype


@pytest.mark.parametrize("alpha", [0, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_product_times_0_is_left_out(alpha: float, dtype: torch.dtype) -> None:
    bad, added = torch.full((3, 4, 4), float("nan"), dtype=dtype), torch.arange(16, dtype=dtype).view(4, 4)
    there = bad.to("sim"), added.to("sim")
    for beta in (0, 1, 0.5):
        for call in (
            lambda bad, added, beta: torch.addmm(added, bad[0], bad[1], alpha=alpha, beta=beta),
            lambda bad, added, beta: torch.addmv(added[0], bad[0], bad[1, 0], alpha=alpha, beta=beta),
            lambda bad, added, beta: torch.addbmm(added, bad, bad, alpha=alpha, beta=beta),
        ):
            assert torch.equal(call(*there, beta).cpu(), call(bad, added, beta))


@pytest.mark.parametrize("padding", ["border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_places_that_are_no_numbers(mode: str, padding: str) -> None:
    """grid_sample holds NaN at the first element of an image and at the last of a volume, as the CPU."""
    nan, inf = float("nan"), float("inf")
    for dims in (2, 3):
        image = torch.arange(4.0**dims).view(1, 1, *[4] * dims)
        places = torch.tensor(
            [[nan, 0.0, 0.5], [0.25, nan, 0.5], [inf, -inf, 0.0], [nan, nan, nan], [0.5, 1e20, -1e20]]
        )
        grid = places[:, :dims].reshape(1, -1, *[1] * (dims - 1), dims)
        expected = torch.nn.functional.grid_sample(image, grid, mode, padding, align_corners=False)
        got = torch.nn.functional.grid_sample(image.to("sim"), grid.to("sim"), mode, padding, align_corners=False)
        torch.testing.assert_close(got.cpu(), expected)


@pytest.mark.parametrize("name", ["abs", "exp", "fmax", "div", "clamp", "round"])
def test_pointwise(name: str) -> None:
    pairs = {"fmax": torch.fmax, "div": torch.div}
    lines = []
    for dtype in FLOATS:
        x = values_of(dtype)
        if name in pairs:
            lines += differences(name, pairs[name], [x.repeat_interleave(len(x)), x.repeat(len(x))], False)
        else:
            function = (lambda x: x.clamp(-1, 2)) if name == "clamp" else getattr(torch, name)
            lines += differences(name, function, [x], False)
    assert not lines


@pytest.mark.parametrize("name", [name for name in SAMPLED if name in ROWS])
def test_along_rows(name: str) -> None:
    assert not undeclared([line for dtype in FLOATS for line in differences(name, ROWS[name], [rows_of(dtype)], True)])


@pytest.mark.sweep
@pytest.mark.timeout(3600)
def test_all_operators() -> None:
    """Every pointwise op and reduction of op_db in every type, and the ops along rows."""
    from torch.testing._internal.common_methods_invocations import op_db

    lines = [line for op in op_db for case in cases(op) for line in differences(*case)]
    for name, function in ROWS.items():
        for dtype in (*INTEGERS, *FLOATS):
            lines += differences(name, function, [rows_of(dtype)], True)
    assert not undeclared(lines)
