"""PyTorch on bare-metal RISC-V guests: the tests and programs of every device, and what is the guests' own."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bringup.riscv import machine_class
from tests.device.device_programs import load_programs
from tests.device.test_other_drivers import Variant, run_programs
from tests.optional_packages import no_riscv_compiler

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(no_riscv_compiler()), reason=no_riscv_compiler() or "there is a compiler"),
]

FOLDER = Path(__file__).parent
ENVIRONMENT = {"BRINGUP_DRIVERS": "riscv", "BRINGUP_RISCV": "devices=2", "BRINGUP_TEST_DEVICE": "riscv"}

#: Without those that look at many dtypes and layouts, each a kernel to compile: op_db has them (test_riscv_ops.py).
PROGRAMS = """
    nothing_and_one_number views_share_memory saving_loading_and_copying storages deterministic_mode
    flat_devices_know_one_placement non_blocking_copies streams_and_events four_threads neighbours_in_one_storage
    data_loaders memory_is_counted_and_limited nothing_leaks modes_of_a_program moving_between_devices
    moved_parameters_stay_the_same_objects
""".split()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory):
    variant = Variant("riscv", "riscv:0", frozenset({"flat"}), {"BRINGUP_RISCV": "devices=2"})
    return run_programs(variant, "riscv", tmp_path_factory.mktemp("programs"), PROGRAMS)


def test_the_programs_exist() -> None:
    assert set(PROGRAMS) <= set(load_programs())


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, results) -> None:
    if results[name]["error"] is not None:
        pytest.fail(results[name]["error"], pytrace=False)


@pytest.mark.slow
def test_the_process_ends_well(results) -> None:
    assert (results[""]["status"], results[""]["output"]) == (0, "")


#: One that sleeps on the host and wants device time to pass: a guest that waits retires no instruction.
LEFT_OUT = "test_events_measure_device_time"


@pytest.fixture(scope="module")
def outcomes(run_python, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str | None]]:
    """Runs tests of any device, in a process of their own; says what went wrong in each."""
    return lambda *tests: outcomes_of(tests, run_python, tmp_path_factory.mktemp("tests") / "report.xml")


def outcomes_of(tests: Sequence[str], run_python, report: Path) -> dict[str, str | None]:
    places = [str(FOLDER / test) for test in tests]
    options = [*places, f"--junitxml={report}", "-p", "no:cacheprovider", "-k", f"not {LEFT_OUT}"]
    code = f"import pytest; pytest.main({options!r})"
    done = run_python(code, env={**ENVIRONMENT, "BRINGUP_FALLBACK": "error"}, check=False, timeout=580)
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, str | None] = {}
    for case in xml.parse(report).iter("testcase"):
        wrong = [*case.iter("failure"), *case.iter("error"), *case.iter("skipped")]
        found[case.attrib["name"]] = f"{wrong[0].attrib.get('message')}\n{wrong[0].text}" if wrong else None
    return found


TRAINED = ("sgd-plain", "adamw-foreach")


@pytest.mark.sweep
@pytest.mark.parametrize("how", TRAINED)
def test_a_training_step_is_as_exact_as_the_cpus(how: str, outcomes: Callable[..., dict[str, str | None]]) -> None:
    """The rule of test_training.py; no op falls back to the CPU."""
    name = f"test_one_step_is_as_exact_as_the_cpu[mlp-{how}]"
    assert outcomes(f"test_training.py::{name}") == {name: None}


@pytest.mark.slow
def test_streams_and_events_are_those_of_every_device(outcomes: Callable[..., dict[str, str | None]]) -> None:
    streams = outcomes("test_streams.py")
    assert len(streams) >= 15
    assert {name: wrong for name, wrong in streams.items() if wrong is not None} == {}


# ---- the guests' own ----
@pytest.fixture(scope="module")
def run(run_python):
    def run(code: str, options: str = "devices=1,memory=32M", **environment: str) -> str:
        env = {"BRINGUP_DRIVERS": "riscv", "BRINGUP_RISCV": options, **environment}
        return run_python("import torch, bringup\n" + code, env=env).stdout

    return run


def test_no_memory_left(run) -> None:
    run("""
kept = torch.ones(1 << 20, device="riscv")
try:
    torch.empty(8 << 20, device="riscv")
except torch.OutOfMemoryError as error:
    assert "riscv" in str(error), error
else:
    raise AssertionError("32 MiB hold 36")
assert kept.sum().item() == 1 << 20
""")


def test_a_bad_index(run) -> None:
    run("""
table = torch.arange(8.0, device="riscv").view(4, 2)
try:
    torch.nn.functional.embedding(torch.tensor([1, 4], device="riscv"), table)
except IndexError as error:
    assert "index 4 is out of range for a dimension of 4" in str(error), error
else:
    raise AssertionError("no error")
row = torch.nn.functional.embedding(torch.tensor([3], device="riscv"), table)
assert row.tolist() == [[6.0, 7.0]]
""")


def test_a_kernel_that_takes_too_long(run) -> None:
    """The error shows the guest's registers, the device goes on, and its memory is what it was."""
    run(
        """
x = torch.arange(6.0, device="riscv")
a = torch.ones(512, 512, device="riscv")
try:
    (a @ a).cpu()
except RuntimeError as error:
    for words in ("RISC-V guest on interpreter: ran longer than 0.05 s", "in bringup_mm", "sp 0x", "a0 0x"):
        assert words in str(error), error
else:
    raise AssertionError("fast machine: 268 million operations in 0.05 s")
assert (x + 1).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
""",
        "devices=1,seconds=0.05",
    )


def test_device_time_is_instructions(run) -> None:
    """The same in every run, and on every emulator."""
    code = """
x = torch.arange(1000.0, device="riscv").sin()
start, end = (torch.riscv.Event(enable_timing=True) for _ in range(2))
start.record()
for _ in range(3):
    x = x * x + 1
end.record()
end.synchronize()
print(round(start.elapsed_time(end) * 1e6))
"""
    others = ["machine=qemu"] if machine_class("qemu").absent_reason() is None else []
    times = [run(code), run(code), *(run(code, options) for options in others)]
    assert len(set(times)) == 1
    assert int(times[0]) > 3000


def test_two_guests(run) -> None:
    run(
        """
one, two = (torch.nn.Linear(8, 8, device=f"riscv:{i}") for i in range(2))
x = torch.randn(4, 8, device="riscv:0", requires_grad=True)
y = two(one(x).to("riscv:1"))
y.sum().backward()
first, second = (torch.nn.functional.linear(x.cpu(), one.weight.cpu(), one.bias.cpu()), two.cpu())
torch.testing.assert_close(y.cpu(), second(first))
assert y.device.index == 1 and x.grad.device.index == 0
torch.testing.assert_close(x.grad.cpu(), (torch.ones(4, 8) @ second.weight) @ one.weight.cpu())
assert bringup.fallbacks().calls == 0
""",
        "devices=2,memory=32M",
    )


@pytest.mark.parametrize("options", ["isa=rv64gcv,vlen=128", "isa=rv64gcv,vlen=1024", "machine=qemu"])
def test_the_bits_are_the_same_on_every_machine(run, options: str) -> None:
    if "qemu" in options and (reason := machine_class("qemu").absent_reason()):
        pytest.skip(reason)
    code = """
torch.manual_seed(3)
x = torch.randn(33, 70, device="riscv")
y = torch.nn.functional.gelu(torch.layer_norm(x @ x.t(), (33,))).softmax(-1)
print(y.cpu().view(torch.int32).flatten().tolist())
"""
    assert run(code) == run(code, options)


def test_without_a_compiler_there_is_no_device(run) -> None:
    run(
        """
assert torch.riscv.device_count() == 0 and not torch.riscv.is_available()
try:
    bringup.device()
except RuntimeError as error:
    assert "no riscv device: BRINGUP_RISCV_CC=no-such-compiler" in str(error), error
else:
    raise AssertionError("no error")
assert torch.ones(3).sum() == 3
""",
        BRINGUP_RISCV_CC="no-such-compiler",
    )


def test_a_wrong_option_is_told_at_import(run_python) -> None:
    env = {"BRINGUP_DRIVERS": "riscv", "BRINGUP_RISCV": "devices=none"}
    done = run_python("import torch; torch.ones(1, device='riscv')", env=env, check=False)
    assert done.returncode != 0
    assert "BRINGUP_RISCV: devices=none: allowed is 1 to 64" in done.stderr
