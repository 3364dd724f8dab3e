"""A second language: kernels of the scalar emitter and the portable ops, run as WebAssembly, equal what the interpreter
computes; and a chip that knows nothing but this language is a PyTorch device."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("wasmtime")

from bringup.compile.failure import NoKernel
from bringup.compile.rendering import rendered
from bringup.driver import CopyKind, Launch
from bringup.driver.lookup import find_driver
from bringup.ir.arguments import bind_sizes
from bringup.ir.dtypes import Array, DType, float16, float32, float64, int32, int64, uint8
from bringup.ir.expr import Binary, Cast, Expr, Fma, Number, Unary
from bringup.ir.index import AxisVar, Size, evaluate_sizes
from bringup.ir.interpret import run
from bringup.ir.kernel import Axis, Kernel, SizeRange, Store, dense
from bringup.targets import registry
from bringup.targets.portable_ops import expanded
from bringup.targets.registry import parse_target
from bringup.targets.target import CannotRender
from tests.loops import random_kernel
from tests.loops.bits import ulp_distance
from tests.loops.compiled import launch_words
from tests.sweeps import swept_unless

FILE = Path(__file__).resolve().parents[3] / "examples" / "targets" / "webassembly.py"


@pytest.fixture(scope="module")
def chip() -> Iterator[Any]:
    driver = find_driver(str(FILE))
    driver.open(0)
    yield driver
    registry._registered.pop("wasm")


def run_on(
    chip: Any, kernel: Kernel, arrays: Mapping[str, Array], sizes: Mapping[str, int], params: Mapping[str, Number]
) -> None:
    """Runs a kernel on arrays that are copied to the chip and back, with their strides."""
    source = parse_target(chip.target()).render(kernel)
    handle = chip.load(0, chip.compile(source.text), source.entry)
    known = bind_sizes(kernel, arrays, sizes)
    words = list(launch_words(kernel, arrays, known, params))
    held = []
    for n, buffer in enumerate(kernel.buffers):
        array = arrays[buffer.name]
        low, high = np.lib.array_utils.byte_bounds(array) if array.size else (words[n], words[n])
        address = chip.alloc(0, max(high - low, 1))
        chip.copy(0, address, low, high - low, CopyKind.HOST_TO_DEVICE, 0)
        words[n] += address - low
        held.append((address, low, high - low))
    try:
        chip.launch(0, handle, Launch(tuple(words), evaluate_sizes(source.units, known), 0))
    finally:
        for address, low, nbytes in held:
            chip.copy(0, low, address, nbytes, CopyKind.DEVICE_TO_HOST, 0)
            chip.free(0, address)


def index_error(action: Any) -> bool:
    try:
        action()
    except IndexError:
        return True
    return False


@pytest.mark.parametrize("batch", swept_unless(range(4), range(60)))
def test_random_kernels(chip, monkeypatch, batch: int) -> None:
    """Bit for bit; a function such as exp within 1 ulp. At least every third one has code."""
    known = (float32, float64, int32, int64, uint8)
    monkeypatch.setattr(random_kernel, "DTYPES", {dtype.name: dtype for dtype in known})
    monkeypatch.setattr(random_kernel, "FLOATS", (float32, float64))
    ran = 0
    seeds = range(50 * batch, 50 * batch + 50)
    for seed in seeds:
        case = random_kernel.random_case(random.Random(seed), functions=seed % 4 == 3)
        got, want = case.fresh_inputs(), case.fresh_inputs()
        try:
            made = rendered(case.kernel, parse_target("wasm"))
        except NoKernel:  # a type or an op without code
            continue
        ran += 1
        kernel = made.kernel
        assert parse_target("wasm").render(kernel) == made.source, "a kernel's text is the same each time"
        failed = [
            index_error(lambda: run(case.kernel, want, case.sizes, case.params)),  # noqa: B023
            index_error(lambda: run_on(chip, kernel, got, case.sizes, case.params)),  # noqa: B023
        ]
        assert failed[0] == failed[1], f"seed {seed}: an index is out of range"
        for buffer in [] if failed[0] else kernel.buffers:
            distance = ulp_distance(got[buffer.name], want[buffer.name], buffer.dtype)
            assert np.all(distance <= min(case.ulp, 1)), f"seed {seed}: {buffer.name} is {distance.max()} ulp off"
    assert ran >= len(seeds) / 3


def pointwise(chip: Any, make: Any, *inputs: Array) -> tuple[Array, Array]:
    """A value over arrays: of the chip, and of the interpreter."""
    names = {np.dtype(np.float32): float32, np.dtype(np.int64): int64, np.dtype(np.int32): int32}
    names |= {np.dtype(np.uint8): uint8, np.dtype(np.float64): float64}
    n, i = Size("n"), AxisVar("i")
    buffers = [dense(f"x{at}", names[array.dtype], (n,), "in") for at, array in enumerate(inputs)]
    value: Expr = make(*(buffer[i] for buffer in buffers))
    result = dense("y", value.dtype, (n,), "out")
    body = (Store("y", (i,), value),)
    kernel = Kernel("k", sizes=(SizeRange("n"),), buffers=(*buffers, result), axes=(Axis("i", n),), body=body)
    outputs = []
    for action in (lambda arrays: run_on(chip, kernel, arrays, {}, {}), lambda arrays: run(kernel, arrays)):
        arrays = {f"x{at}": array for at, array in enumerate(inputs)}
        arrays["y"] = np.zeros(inputs[0].shape, value.dtype.storage)
        action(arrays)
        outputs.append(arrays["y"])
    return outputs[0], outputs[1]


def floats(count: int, seed: int = 0) -> Array:
    """float32 values of all magnitudes and signs, with the special ones in front."""
    bits = np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    special = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, 3.4e38, 1.1754944e-38])
    return np.concatenate([special, bits.view(np.float32)])


@pytest.mark.parametrize("op", ["exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "tanh"])
def test_functions_are_exact_to_one_ulp(chip, op: str) -> None:
    near = np.random.default_rng(1).normal(0, 3, 20_000).astype(np.float32)
    got, want = pointwise(chip, lambda x: Unary(op, x), np.concatenate([floats(20_000), near, near * 1e-3]))
    distance = ulp_distance(got, want, float32)
    assert distance.max() <= 1
    assert np.mean(distance > 0) < 0.01


@pytest.mark.parametrize("op", ["sign", "rsqrt", "reciprocal", "isnan", "isinf", "isfinite", "signbit", "abs", "round"])
def test_ops_of_floats_are_exact(chip, op: str) -> None:
    got, want = pointwise(chip, lambda x: Unary(op, x), floats(5_000))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("op", ["min", "max", "copysign"])
def test_ops_of_two_floats_keep_signs_and_nans(chip, op: str) -> None:
    special = floats(0)
    a, b = (array.ravel().copy() for array in np.meshgrid(special, special))
    got, want = pointwise(chip, lambda a, b: Binary(op, a, b), a, b)
    np.testing.assert_array_equal(got, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(want[numbers]))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("op", ["truncdiv", "floordiv", "fmod", "remainder", "shl", "shr", "min", "max"])
def test_ops_of_integers_are_exact(chip, op: str, dtype: Any) -> None:
    limits = np.iinfo(dtype)
    edges = np.array([limits.min, limits.max, 0, 1, 2, 3, 7, 8, limits.max - 1], dtype)
    edges = edges if limits.min == 0 else np.concatenate([edges, np.array([-1, -2, -7, limits.min + 1], dtype)])
    a, b = (array.ravel().copy() for array in np.meshgrid(edges, edges))
    got, want = pointwise(chip, lambda a, b: Binary(op, a, b), a, b)
    np.testing.assert_array_equal(got, want)


def test_a_product_and_a_sum_are_rounded_once(chip) -> None:
    """Also where the sum lies next to the middle of two float32s, which rounding twice gets wrong."""
    rng = np.random.default_rng(2)
    a, b = (rng.integers(1, 1 << 24, 20_000).astype(np.float32) for _ in range(2))
    c = (rng.integers(-(1 << 24), 1 << 24, 20_000) * 2.0 ** rng.integers(-40, 40, 20_000)).astype(np.float32)
    middle = (
        np.float32([1 + 2**-12, 2**-24, 1 + 2**-23]),
        np.float32([1 + 2**-12, 1, 1]),
        np.float32([2**-60, 1, 2**-24]),
    )
    arrays = [np.concatenate([x, y, floats(3_000, seed)]) for seed, (x, y) in enumerate(zip((a, b, c), middle))]
    got, want = pointwise(chip, lambda a, b, c: Fma(a, b, c), *arrays)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("to", [int64, int32, uint8])
@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_floats_become_integers_as_the_ir_says(chip, source: Any, to: DType) -> None:
    edges = np.float64([2**31, -(2.0**31), 2**31 - 1, -(2.0**31) - 1, 2**63, -(2.0**63), 256, -1, 1e30])
    with np.errstate(invalid="ignore"):
        values = np.concatenate([floats(2_000), edges]).astype(source)
    got, want = pointwise(chip, lambda x: Cast(x, to), values)
    np.testing.assert_array_equal(got, want)


def test_what_has_no_code_says_so(chip) -> None:
    with pytest.raises(CannotRender, match="sin of float32"):
        pointwise(chip, lambda x: Unary("sin", x), floats(1))
    assert expanded(Fma(*(Unary("neg", dense("x", float64, (1,), "in")[0]) for _ in range(3)))) is None
    n, i = Size("n"), AxisVar("i")
    half, out = dense("x", float16, (n,), "in"), dense("y", float16, (n,), "out")
    body = (Store("y", (i,), half[i] + half[i]),)
    kernel = Kernel("k", (SizeRange("n"),), buffers=(half, out), axes=(Axis("i", n),), body=body)
    with pytest.raises(CannotRender, match="float16 values"):
        parse_target("wasm").render(kernel)


TORCH = """
import bringup, torch

torch.manual_seed(0)
f = torch.nn.functional
x, y = torch.randn(5, 7), torch.randn(5, 7).exp()
i, j = torch.randint(-9, 9, (5, 7)), torch.randint(1, 9, (5, 7))
POINTWISE = {
    "abs": torch.abs, "neg": torch.neg, "sign": torch.sign, "floor": torch.floor, "ceil": torch.ceil,
    "trunc": torch.trunc, "round": torch.round, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "square": torch.square,
    "reciprocal": torch.reciprocal, "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log,
    "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "relu": torch.relu, "silu": f.silu, "softplus": f.softplus, "leaky_relu": f.leaky_relu, "elu": f.elu,
    "hardtanh": f.hardtanh, "isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite,
    "clamp": lambda a: a.clamp(0.25, 1.5), "to_int": lambda a: a.to(torch.int64), "bool": lambda a: a.bool(),
}
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
    "minimum": torch.minimum, "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt,
    "ge": torch.ge, "where": lambda a, b: torch.where(a > b, a, b),
}
INTEGER = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "floor_divide": torch.floor_divide,
    "remainder": torch.remainder, "fmod": torch.fmod, "bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor, "lt": torch.lt, "eq": torch.eq, "maximum": torch.maximum,
    "shift": lambda a, b: a << (b & 3),
}
REDUCTIONS = {
    "sum": lambda a: a.sum(1), "prod": lambda a: a.prod(0), "amax": lambda a: a.amax(1), "amin": lambda a: a.amin(0),
    "argmax": lambda a: a.argmax(1), "argmin": lambda a: a.argmin(0), "any": lambda a: (a > 0).any(1),
    "all": lambda a: (a > 0).all(0), "cumsum": lambda a: a.cumsum(1), "matmul": lambda a: a @ a.t(),
}
OF_FLOATS = {
    "mean": lambda a: a.mean(0), "var": lambda a: a.var(1), "softmax": lambda a: a.softmax(1),
    "norm": lambda a: torch.linalg.vector_norm(a, dim=1), "logsumexp": lambda a: a.logsumexp(0),
}


def check(name, op, *arguments):
    got, want = op(*(a.to("wasm") for a in arguments)), op(*arguments)
    assert got.device.type == "wasm" and got.dtype == want.dtype, name
    near = {"equal_nan": True, "rtol": 2e-6, "atol": 2e-6}
    torch.testing.assert_close(got.cpu(), want, **near, msg=lambda text: f"{name}: {text}")


for name, op in POINTWISE.items():
    check(name, op, x)
    check(name, op, y.t())
for name, op in BINARY.items():
    check(name, op, x, y)
    check(name, op, x, y[:, :1])
for name, op in INTEGER.items():
    check(name, op, i, j)
for name, op in {**REDUCTIONS, **OF_FLOATS}.items():
    check(name, op, x)
for name, op in REDUCTIONS.items():
    check(name, op, i)
assert len(POINTWISE) >= 30 and len(REDUCTIONS) >= 8
assert not bringup.fallbacks(), bringup.fallbacks()

# An index out of range, and what has no code: the op falls back, and the ledger says why.
try:
    x.to("wasm")[torch.tensor([5], device="wasm")].cpu()
except IndexError as error:
    assert "index 5 is out of bounds for dimension" in str(error), error
else:
    raise AssertionError("index 5 of 5 was read")
check("sin", torch.sin, x)
assert "aten::sin" in str(bringup.fallbacks()), bringup.fallbacks()


# A training step.
def trained(device):
    torch.manual_seed(1)
    layers = torch.nn.Linear(7, 16), torch.nn.GELU(approximate="tanh"), torch.nn.Linear(16, 3)
    net = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = f.cross_entropy(net(x.to(device)), torch.arange(5, device=device) % 3)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in net.parameters()]


torch.testing.assert_close(trained("wasm"), trained("cpu"), rtol=1e-5, atol=1e-6)
"""


def test_a_chip_of_this_language_is_a_device(run_python) -> None:
    run_python(TORCH, env={"BRINGUP_DRIVERS": str(FILE), "BRINGUP_FALLBACK": None})


def test_the_example_is_one_page() -> None:
    assert len(FILE.read_text().splitlines()) <= 300
