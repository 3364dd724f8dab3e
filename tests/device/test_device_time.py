"""Device time: a described chip's events show that chip's time, by formula, whatever the host needed.

The chip is ``profiles/edge_npu.toml``. An op of its library takes the launch cost plus the longer of flops and bytes; a
copy over the link its latency plus bytes. One process measures every case twice; each case is a test of its own.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

LAUNCH_NS, BANDWIDTH = 5000, 32e9
PEAK = {"float32": 0.5e12, "float16": 2e12, "int8": 4e12, "other": 0.5e12}
LINK_LATENCY_NS, LINK_BANDWIDTH = 10000, 4e9


def kernel(flops: float, nbytes: float, dtype: str = "float32") -> float:
    """Nanoseconds of one kernel."""
    return LAUNCH_NS + 1e9 * max(flops / PEAK[dtype], nbytes / BANDWIDTH)


def link(nbytes: float) -> float:
    """Nanoseconds of a copy between host and device."""
    return LINK_LATENCY_NS + 1e9 * nbytes / LINK_BANDWIDTH


# name: (what is made before the clock starts, what is timed, nanoseconds)
M, K, N = 64, 512, 256
FACTORS = f"a, b, c = ones({M}, {K}), ones({K}, {N}), ones({M}, {N})"
MM_FLOPS, MM_BYTES = 2 * M * K * N, 4 * (M * K + K * N + M * N)
PAIR = "x, y, z = ones(1000, 1000), ones(1000, 1000), ones(1000, 1000)"
SIZE = 4_000_000  # bytes of one of them
CONV_FLOPS = 2 * (4 * 32 * 16 * 16) * (16 * 3 * 3)  # per output element: the weights of one filter
CONV_BYTES = 4 * (4 * 16 * 18 * 18 + 32 * 16 * 3 * 3 + 4 * 32 * 16 * 16)
CASES: dict[str, tuple[str, str, float]] = {
    "nothing": ("", "pass", 0),
    "empty": ("", "torch.empty(10, device=device)", 0),
    "view": (PAIR, "x.t()[1:].unsqueeze(0).expand(3, -1, -1)", 0),
    "mm": (FACTORS, "a @ b", kernel(MM_FLOPS, MM_BYTES)),
    "mm twice": (FACTORS, "a @ b; a @ b", 2 * kernel(MM_FLOPS, MM_BYTES)),
    "mm into out": (FACTORS, "torch.mm(a, b, out=c)", kernel(MM_FLOPS, MM_BYTES)),
    "mm float16": (
        FACTORS + "; a, b = a.half(), b.half()",
        "a @ b",
        kernel(MM_FLOPS, MM_BYTES / 2, "float16"),
    ),
    "mm float64": (FACTORS + "; a, b = a.double(), b.double()", "a @ b", kernel(MM_FLOPS, MM_BYTES * 2, "other")),
    "mm of a transposed": (FACTORS + "; b = b.t().contiguous().t()", "a @ b", kernel(MM_FLOPS, MM_BYTES)),
    "mm tall": ("a, b = ones(2048, 8), ones(8, 8)", "a @ b", kernel(2 * 2048 * 64, 4 * (2 * 2048 * 8 + 64))),
    "bmm": ("a, b = ones(3, 64, 512), ones(3, 512, 256)", "torch.bmm(a, b)", kernel(3 * MM_FLOPS, 3 * MM_BYTES)),
    "mv": (FACTORS, "torch.mv(a, b[:, 0])", kernel(2 * M * K, 4 * (M * K + K + M))),
    "addmm": (
        FACTORS,
        "torch.addmm(c, a, b)",
        kernel(MM_FLOPS + M * N, MM_BYTES + 4 * M * N),
    ),
    "linear": (FACTORS + "; w = b.t().contiguous()", "F.linear(a, w)", kernel(MM_FLOPS, MM_BYTES)),
    "conv2d": (
        "x, w = ones(4, 16, 18, 18), ones(32, 16, 3, 3)",
        "F.conv2d(x, w)",
        kernel(CONV_FLOPS, CONV_BYTES),
    ),
    "conv2d in groups": (
        "x, w = ones(4, 64, 18, 18), ones(32, 16, 3, 3)",
        "F.conv2d(x, w, groups=4)",
        kernel(CONV_FLOPS, 4 * (4 * 64 * 18 * 18 + 32 * 16 * 3 * 3 + 4 * 32 * 16 * 16)),
    ),
    "conv2d transposed": (
        "x, w = ones(4, 32, 16, 16), ones(32, 16, 3, 3)",
        "F.conv_transpose2d(x, w)",
        kernel(CONV_FLOPS, CONV_BYTES),
    ),
    "conv2d backward": (
        "x, w, g = ones(4, 16, 18, 18), ones(32, 16, 3, 3), ones(4, 32, 16, 16)",
        "torch.ops.aten.convolution_backward("
        "g, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])",
        kernel(2 * CONV_FLOPS, CONV_BYTES + 4 * (4 * 16 * 18 * 18 + 32 * 16 * 3 * 3)),
    ),
    "add": (PAIR, "x + y", kernel(0, 3 * SIZE)),
    "add in place": (PAIR, "x.add_(y)", kernel(0, 3 * SIZE)),
    "add into out": (PAIR, "torch.add(x, y, out=z)", kernel(0, 3 * SIZE)),
    "add a number": (PAIR, "x + 2", kernel(0, 2 * SIZE)),
    "mul broadcast": (PAIR, "x * y[0]", kernel(0, 2 * SIZE + 4000)),
    "relu": (PAIR, "x.relu()", kernel(0, 2 * SIZE)),
    "exp of a half": (PAIR, "x[:500].exp()", kernel(0, SIZE)),
    "sum": (PAIR, "x.sum()", kernel(0, SIZE + 4)),
    "tiny": ("x = ones(4)", "x + x", kernel(0, 48)),
    "to the device": ("x = torch.ones(1000, 1000)", "x.to(device)", link(SIZE)),
    "to the host": (PAIR, "x.cpu()", link(SIZE)),
    "one number to the host": ("x = ones(4)", "x.cpu()", link(16)),
    "copy within": (PAIR, "x.copy_(y)", kernel(0, 2 * SIZE)),
    "clone": (PAIR, "x.clone()", kernel(0, 2 * SIZE)),
    "transposed copy within": (PAIR, "x.t().copy_(y)", kernel(0, 2 * SIZE)),
    "conversion within": (PAIR, "x.half()", kernel(0, SIZE * 3 / 2)),
}

MEASURE = """
import json, sys, time, torch
from torch.nn import functional as F

device = "sim"
def ones(*shape):
    return torch.ones(*shape, device=device)

def measure(setup, timed, pause=0.0):
    names = {**globals()}
    exec(setup, names)
    torch.sim.synchronize()
    start, end = torch.sim.Event(enable_timing=True), torch.sim.Event(enable_timing=True)
    start.record()
    time.sleep(pause)
    exec(timed, names)
    time.sleep(pause)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e6

cases = json.loads(sys.argv[1])
with torch.no_grad():
    print(json.dumps({name: [measure(*case), measure(*case, 0.003)] for name, case in cases.items()}))
"""


@pytest.fixture(scope="module")
def measured(run_python) -> dict[str, list[float]]:
    """Nanoseconds of each case, twice: once with pauses of the host in between."""
    cases = json.dumps({name: case[:2] for name, case in CASES.items()})
    environment = {"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "profile=edge_npu,mode=library"}
    return json.loads(run_python(MEASURE, cases, env=environment).stdout)


@pytest.mark.parametrize("name", CASES)
def test_a_described_chip_takes_its_time(name: str, measured: dict[str, list[float]]) -> None:
    first, again = measured[name]
    assert first == pytest.approx(CASES[name][2], rel=1e-6, abs=0.5), "nanoseconds, by the formula of the chip"
    assert again == pytest.approx(first, rel=1e-9, abs=1e-3), "the host's pauses are not the chip's time"


def run_sim(run_python: Any, options: str, code: str) -> str:
    return run_python("import time, torch\n" + code, env={"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": options}).stdout


def test_streams_of_a_described_chip_overlap(run_python) -> None:
    """Two streams work at the same time; one stream does one thing after the other."""
    out = run_sim(
        run_python,
        "profile=edge_npu",
        """
x, y = torch.ones(1000, 1000, device="sim"), torch.ones(1000, 1000, device="sim")
one, two = torch.sim.Stream(), torch.sim.Stream()
torch.sim.synchronize()
before = torch.sim.current_stream().record_event(torch.sim.Event(enable_timing=True))
for stream in (one, two):
    stream.wait_event(before)
    with torch.sim.stream(stream):
        x + y
for stream in (one, two):
    torch.sim.current_stream().wait_stream(stream)
after = torch.sim.current_stream().record_event(torch.sim.Event(enable_timing=True))
after.synchronize()
print(before.elapsed_time(after) * 1e6)
""",
    )
    assert float(out) == pytest.approx(kernel(0, 3 * SIZE), rel=1e-6)


def test_a_described_chip_names_its_numbers(run_python) -> None:
    out = run_sim(
        run_python,
        "profile=edge_npu",
        """
chip = torch.sim.get_device_properties()
print(chip.peak_flops, chip.peak_bandwidth, chip.name)
""",
    )
    assert out.startswith(f"{PEAK['float32']} {BANDWIDTH} Example edge NPU")


def test_the_clock_stands_still_without_work(run_python) -> None:
    out = run_sim(
        run_python,
        "profile=edge_npu",
        """
from bringup import _C
x = torch.ones(1000, 1000, device="sim")
torch.sim.synchronize()
first = _C.clock(0)
time.sleep(0.02)
second = _C.clock(0)
x + x
torch.sim.synchronize()
print(second - first, _C.clock(0) - second)
""",
    )
    idle, busy = map(int, out.split())
    assert idle == 0
    assert busy == pytest.approx(kernel(0, 3 * SIZE), abs=1)


def test_without_a_profile_time_is_wall_time(run_python) -> None:
    out = run_sim(
        run_python,
        "",
        """
start, end = torch.sim.Event(enable_timing=True), torch.sim.Event(enable_timing=True)
torch.sim.synchronize()
began = time.perf_counter()
start.record()
torch.sim._sleep(30)
end.record()
end.synchronize()
print(start.elapsed_time(end), (time.perf_counter() - began) * 1e3)
""",
    )
    device_ms, host_ms = map(float, out.split())
    assert 30 <= device_ms <= host_ms


@pytest.mark.parametrize("words", ["no such file", "known: name, memory"])
def test_a_wrong_profile_is_named(words: str, run_python, tmp_path) -> None:
    path = tmp_path / "chip.toml"
    if words != "no such file":
        path.write_text("speed = 3\n")
    code = """
import warnings
warnings.simplefilter("ignore")
import torch, bringup
try:
    bringup.device("sim")
except RuntimeError as error:
    print(error)
"""
    out = run_python(code, env={"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": f"profile={path}"}).stdout
    assert words in out
    assert "chip.toml" in out


def test_the_cases_know_their_dtypes() -> None:
    """The formulas above count 4 bytes to a number: torch's default is float32 here."""
    assert torch.get_default_dtype() == torch.float32
