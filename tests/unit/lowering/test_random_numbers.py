"""Random ops by their lowerings: the float32 numbers are those of csrc/runtime/philox.h, bit for bit."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.lowering.interpreted import interpret
from tests.unit.test_philox import build, fill

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
SEED = 0x1234_5678_9ABC_DEF1
COUNT = 3001


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return build(tmp_path_factory.mktemp("philox"), "-O1", "-ffp-contract=off")


def drawn(op: str, *arguments: Any, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (COUNT,)) -> Any:
    """What an in-place op leaves in a tensor."""
    return interpret(op, torch.empty(shape, dtype=dtype), *arguments, seed=SEED)[0]


@pytest.mark.parametrize(
    ("op", "arguments", "name"),
    [
        ("aten::uniform_", (0.0, 1.0), "uniform"),
        ("aten::normal_", (0.0, 1.0), "normal"),
        ("aten::exponential_", (1.0,), "exponential"),
    ],
)
def test_the_numbers_are_the_core_s(core: Any, op: str, arguments: tuple[float, ...], name: str) -> None:
    single = fill(core, f"{name}_f32", SEED, 0, 0, COUNT)
    assert np.array_equal(drawn(op, *arguments).numpy().view("u4"), single.view("u4"))
    double = fill(core, f"{name}_f64", SEED, 0, 0, COUNT)
    np.testing.assert_allclose(drawn(op, *arguments, dtype=torch.float64).numpy(), double, rtol=1e-14, atol=1e-15)


def test_any_layout_gets_the_same_numbers_in_logical_order() -> None:
    straight = drawn("aten::normal_", 0.0, 1.0, shape=(6, 10))
    turned = interpret("aten::normal_", torch.empty(10, 6).t(), 0.0, 1.0, seed=SEED)[0]
    assert torch.equal(turned, straight)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.bfloat16])
def test_coins(core: Any, dtype: torch.dtype) -> None:
    for p in (0.0, 0.25, 0.3, 1.0):
        words = fill(core, "u32", SEED, 0, 0, COUNT).astype("u8")
        expected = torch.from_numpy(words < int(p * 2**32)).to(dtype)
        assert torch.equal(drawn("aten::bernoulli_.float", p, dtype=dtype), expected), p


def test_coins_with_probabilities_of_their_own(core: Any) -> None:
    chances = torch.linspace(0, 1, COUNT)
    words = fill(core, "u32", SEED, 0, 0, COUNT).astype("f8")
    expected = torch.from_numpy(words < chances.double().numpy() * 2.0**32)
    assert torch.equal(interpret("aten::bernoulli", chances, seed=SEED)[0] == 1, expected)
    assert torch.equal(drawn("aten::bernoulli_.Tensor", chances, dtype=torch.bool), expected)
    half = drawn("aten::bernoulli_.Tensor", torch.tensor([0.0, 1.0]), shape=(500, 2))  # broadcast
    assert torch.equal(half, torch.tensor([0.0, 1.0]).expand(500, 2))
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(IndexError):
            interpret("aten::bernoulli", torch.tensor([0.5, bad]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_scaled_draws_stay_in_their_range(dtype: torch.dtype) -> None:
    values = drawn("aten::uniform_", -3.0, 5.0, dtype=dtype).double()
    assert -3 <= values.min() < -2.9
    assert 4.9 < values.max() < 5
    assert abs(values.mean() - 1) < 0.2
    assert abs(drawn("aten::normal_", 2.0, 3.0, dtype=dtype).double().std() - 3) < 0.2
    assert abs(drawn("aten::exponential_", 4.0, dtype=dtype).double().mean() - 0.25) < 0.02
    assert abs(drawn("aten::log_normal_", 1.0, 0.5, dtype=dtype).double().log().mean() - 1) < 0.05
    assert abs(drawn("aten::cauchy_", 2.0, 1.0, dtype=dtype).double().median() - 2) < 0.2
    assert abs(drawn("aten::geometric_", 0.25, dtype=dtype).double().mean() - 4) < 0.3


def test_integers() -> None:
    small = drawn("aten::random_.from", -3, 4, dtype=torch.int32)
    assert set(small.tolist()) == set(range(-3, 4))
    assert drawn("aten::random_.to", 1 << 31, dtype=torch.int64).double().mean() / (1 << 30) == pytest.approx(1, 0.05)
    assert drawn("aten::geometric_", 0.5, dtype=torch.int64).min() == 1


def test_dropout_zeroes_and_scales() -> None:
    x = torch.randn(COUNT)
    y, mask = interpret("aten::native_dropout", x, 0.25, True, seed=SEED)
    assert abs(mask.float().mean() - 0.75) < 0.03
    assert torch.equal(y, torch.where(mask, x * (1 / 0.75), torch.zeros(())))


def test_normal_around_tensors() -> None:
    unit = drawn("aten::normal_", 0.0, 1.0, shape=(6, 4))
    mean, deviation = torch.randn(6, 4), torch.rand(4)
    assert torch.equal(interpret("aten::normal.Tensor_float", mean, 2.0, seed=SEED)[0], unit * 2 + mean)
    found = interpret("aten::normal.Tensor_Tensor", mean, deviation, seed=SEED)[0]
    assert torch.equal(found, unit * deviation + mean)
    wide = deviation.expand(6, 4).contiguous()
    assert torch.equal(interpret("aten::normal.float_Tensor", 3.0, wide, seed=SEED)[0], unit * wide + 3)
    with pytest.raises(IndexError):
        interpret("aten::normal.float_Tensor", 0.0, -wide)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rrelu_keeps_its_slopes(dtype: torch.dtype) -> None:
    x, noise = torch.randn(500, dtype=dtype), torch.empty(500, dtype=dtype)
    y = interpret("aten::rrelu_with_noise", x, noise, 0.25, 0.5, True, seed=SEED)[0]
    assert torch.equal(y, x * noise)
    assert torch.equal(noise == 1, x > 0)
    slopes = noise[x <= 0]
    assert 0.25 <= slopes.min() < 0.27
    assert 0.48 < slopes.max() <= 0.5
    calm = interpret("aten::rrelu_with_noise", x, noise, 0.25, 0.5, False)[0]
    torch.testing.assert_close(calm, torch.nn.functional.rrelu(x, 0.25, 0.5))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.float16])
def test_randperm(core: Any, dtype: torch.dtype) -> None:
    for n in (0, 1, 2, 37):
        found = interpret("aten::randperm.generator_out", n, None, outputs=[torch.empty(n, dtype=dtype)], seed=SEED)[0]
        order = np.argsort(fill(core, "u64", SEED, 0, 0, n), kind="stable")
        assert np.array_equal(found.double().numpy(), order), n


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize(("samples", "replacement"), [(1, False), (3, False), (400, True)])
def test_multinomial(dtype: torch.dtype, samples: int, replacement: bool) -> None:
    p = torch.tensor([0.0, 1.0, 3.0, 0.0, 4.0, 0.0], dtype=dtype).expand(200, 6)
    found = interpret("aten::multinomial", p, samples, replacement, seed=SEED)[0]
    assert found.shape == (200, samples)
    share = torch.bincount(found.flatten(), minlength=6) / found.numel()
    assert share[[0, 3, 5]].sum() == 0
    if samples == 3:
        assert torch.equal(found.sort(1).values, torch.tensor([1, 2, 4]).expand(200, 3))
        share = torch.bincount(found[:, 0], minlength=6) / 200
    assert (share - p[0].float() / 8).abs().max() < 0.1
    assert interpret("aten::multinomial", p[0], samples, replacement, seed=SEED)[0].shape == (samples,)


@pytest.mark.parametrize(("samples", "replacement"), [(1, False), (2, False), (4, True)])
@pytest.mark.parametrize("bad", [[0.5, -0.1, 1.0], [0.5, float("nan"), 1.0], [0.5, float("inf"), 1.0], [0.0, 0.0, 0.0]])
def test_impossible_distributions_are_reported(samples: int, replacement: bool, bad: list[float]) -> None:
    with pytest.raises(IndexError, match=r"multinomial_of"):
        interpret("aten::multinomial", torch.tensor([[0.2, 0.3, 0.5], bad]), samples, replacement)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [2, 34, 35])
def test_pairs_of_normal_numbers_are_those_of_one_by_one(dtype: torch.dtype, count: int) -> None:
    for mean, deviation in ((0.0, 1.0), (2.0, 3.0)):
        whole = interpret("aten::normal_", torch.empty(count, dtype=dtype), mean, deviation, None, seed=5)[0]
        every_second = torch.empty(count, 2, dtype=dtype)[:, 0]
        strided = interpret("aten::normal_", every_second, mean, deviation, None, seed=5, outputs=[every_second])[0]
        assert torch.equal(whole, strided)
        assert whole.unique().numel() > count // 2
