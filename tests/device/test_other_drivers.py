"""A driver with only the required methods runs any PyTorch program: the same programs on every kind of driver.

One process per variant runs all its programs; each (variant, program) is a test of its own. A process that dies fails
the program it died in, and another one goes on with the rest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server
from tests.c_compiler import compile_c
from tests.device.device_programs import load_programs
from tests.sweeps import swept_unless

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "drivers"
DICTMEM = str(EXAMPLES / "dictmem.py")
HOSTMEM = "hostmem"  # compiled by the fixture


@dataclass(frozen=True)
class Variant:
    """One way to be a device: the drivers of the process, the device to use, what programs may rely on."""

    drivers: str
    device: str
    traits: frozenset[str]
    options: dict[str, str] = field(default_factory=dict)


def sim(options: str, *traits: str, device: str = "sim:0") -> Variant:
    return Variant("sim", device, frozenset(traits or ("flat",)), {"BRINGUP_SIM": options})


VARIANTS = {
    "dictmem": Variant(DICTMEM, "dictmem:0", frozenset({"flat", "fallbacks"})),
    "hostmem": Variant(HOSTMEM, "hostmem:0", frozenset({"flat", "fallbacks"})),
    "shard": sim("partitions=4,placement=shard", "partitions"),
    "shard of 8 bytes": sim("partitions=3,placement=shard,shard_block=8", "partitions", device="sim:1"),
    "auto": sim("partitions=4,placement=auto", "partitions"),
    "replicate": sim("partitions=4,placement=replicate", "partitions"),
    "single": sim("partitions=4,placement=single", "partitions"),
    "library": sim("mode=library"),
    "trap": sim("trap=1", "flat", "trap"),
    "small": sim("devices=1,memory=64M"),
    "edge_npu": sim("profile=edge_npu", device="sim:1"),
    "several": Variant(f"sim,{DICTMEM}", "accel:2", frozenset({"flat", "fallbacks", "several"})),
}

#: Variants whose ops are kernels.
KERNELS = ("small", "trap", "edge_npu", "shard", "shard of 8 bytes", "replicate", "single", "auto")
#: Drawn by another algorithm there, or with other last bits in float64: the logarithm and the sine are bringup's own.
DRAWN_BY_KERNELS = {"multinomial", "randn float64", "randperm"}

PROGRAMS = load_programs()
MAIN = """
import sys, warnings
warnings.simplefilter("ignore")
from tests.device.device_programs import main
main(sys.argv[1], sys.argv[2], sys.argv[3:])
"""
Results = dict[str, dict[str, Any]]


def programs_of(variant: Variant) -> list[str]:
    return [name for name, program in PROGRAMS.items() if program.needs is None or program.needs in variant.traits]


#: Variants that `make test` leaves to `make test-all`: each is like another one.
SWEPT = {"shard of 8 bytes", "replicate", "single", "edge_npu"}
RUN = [name for name in VARIANTS if name not in SWEPT]
CASES = [(variant, name) for variant in VARIANTS for name in programs_of(VARIANTS[variant])]


def run_programs(variant: Variant, drivers: str, folder: Path, names: list[str]) -> Results:
    """Runs programs on a variant; a program whose process died has the end of its output as error."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("BRINGUP_")}
    environment |= {"BRINGUP_DRIVERS": drivers, "BRINGUP_CACHE": os.environ["BRINGUP_CACHE"], **variant.options}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    results: Results = {}
    for attempt in range(len(names)):
        file = folder / f"{attempt}.jsonl"
        left = [name for name in names if name not in results]
        process = fork_server.run(
            MAIN, variant.device, str(file), *left, env=environment, cwd=folder, timeout=280, whole_end=True
        )
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        results |= {line["name"]: line for line in lines if "name" in line}
        died = {line["begin"] for line in lines if "begin" in line} - set(results)
        if not died and any(name not in results for name in names):
            died = set(left)  # before the first program, or after the last
        for name in died:
            error = f"the process ended with status {process.returncode}\n{process.stderr[-3000:]}"
            results[name] = {"name": name, "error": error, "value": None}
        if all(name in results for name in names):
            results[""] = {"status": process.returncode, "output": process.stdout + process.stderr}
            break
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """The results of a variant by its name; its process runs when somebody asks first."""
    known: dict[str, Results] = {}

    def of(name: str) -> Results:
        if name not in known:
            variant, folder = VARIANTS[name], tmp_path_factory.mktemp("programs")
            drivers = variant.drivers
            if drivers == HOSTMEM:
                source = (EXAMPLES / "hostmem.c").read_text()
                drivers = str(compile_c(folder, source, "-shared", "-fPIC", name="hostmem"))
            known[name] = run_programs(variant, drivers, folder, programs_of(variant))
        return known[name]

    return of


@pytest.mark.parametrize(
    ("variant", "program"),
    swept_unless(lambda _, case: case[0] not in SWEPT, CASES),
    ids=[f"{variant}-{name}" for variant, name in CASES],
)
def test_program(variant: str, program: str, results: Callable[[str], Results]) -> None:
    error = results(variant)[program]["error"]
    if error is not None:
        pytest.fail(error, pytrace=False)


@pytest.mark.parametrize("variant", swept_unless(RUN, VARIANTS))
def test_the_process_ends_well(variant: str, results: Callable[[str], Results]) -> None:
    """Exit with an open device, live tensors and worker threads: no crash, nothing said."""
    end = results(variant)[""]
    assert end["status"] == 0, end["output"][-3000:]
    assert not end["output"], end["output"][-3000:]


@pytest.mark.parametrize("variant", swept_unless(RUN[1:], [name for name in VARIANTS if name != "dictmem"]))
def test_the_same_seed_gives_the_same_numbers(variant: str, results: Callable[[str], Results]) -> None:
    expected, actual = (results(name)["random_numbers"]["value"] for name in ("dictmem", variant))
    assert expected is not None
    assert actual is not None
    others = {name for name in expected if expected[name] != actual[name]}
    if variant not in KERNELS:
        assert others == set()
    else:
        assert others == DRAWN_BY_KERNELS
        assert actual == results(KERNELS[0])["random_numbers"]["value"]


def test_a_fallback_moves_bytes_unless_the_host_sees_them(results: Callable[[str], Results]) -> None:
    """36 float32 there and 36 float32 and 36 int64 back for sort; there and back for mul_; nothing on host memory."""
    assert results("dictmem")["fallbacks_are_counted"]["value"] == {"sort": 3 * 36 * (4 + 4 + 8), "mul_": 36 * (4 + 4)}
    assert results("several")["fallbacks_are_counted"]["value"] == results("dictmem")["fallbacks_are_counted"]["value"]
    assert results("hostmem")["fallbacks_are_counted"]["value"] == {"sort": 0, "mul_": 0}


def test_the_environment_can_refuse_fallbacks(run_python) -> None:
    code = """
import torch
x = torch.ones(3, device="dictmem")
try:
    x.cumsum(0)
except NotImplementedError as error:
    assert "aten::cumsum" in str(error) and "dictmem:0" in str(error), error
else:
    raise AssertionError("it ran")
print((x.cpu() + x.sort()[0].cpu()).tolist())
"""
    run = run_python(
        code, env={"BRINGUP_DRIVERS": DICTMEM, "BRINGUP_FALLBACK": "error,aten::sort=allow,aten::fill_=allow"}
    )
    assert run.stdout == "[2.0, 2.0, 2.0]\n"


def test_a_failure_and_a_dead_process_are_noticed(tmp_path: Path) -> None:
    names = ["a_program_that_fails", "a_program_that_kills_the_process", "nothing_and_one_number"]
    failed, died, went_on = (run_programs(sim(""), "sim", tmp_path, names)[name]["error"] for name in names)
    assert "two is not one" in failed
    assert "status 7" in died
    assert went_on is None
