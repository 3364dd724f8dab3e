"""The driver checks pass on good drivers and name the fault of bad ones."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest

from bringup.driver import DeviceSpec, Driver, DriverAbsent
from bringup.driver.lookup import find_driver
from bringup.kit.driver_checks import CheckResult, all_checks, run_driver_checks
from tests.c_compiler import ROOT, compile_c
from tests.driver import broken_drivers as faulty
from tests.driver.asynchronous import AsynchronousDictmem, Dictmem


def failures(results: list[CheckResult]) -> dict[str, str]:
    return {result.name: result.message for result in results if result.status == "fail"}


def passed(results: list[CheckResult]) -> set[str]:
    return {result.name for result in results if result.status == "pass"}


REQUIRED_CHECKS = {
    "device_count", "groups", "torch_name", "open_spec", "bad_device", "alloc_alignment", "alloc_distinct",
    "alloc_zero",
    "out_of_memory", "free_returns_memory", "free_any_order", "copy_round_trip", "copy_nothing",
    "copy_device_to_device", "every_device", "eight_threads",
}  # fmt: skip
STREAM_CHECKS = {
    "event_completes", "streams_distinct", "stream_order", "stream_destroy_drains", "event_host_wait",
    "event_stream_wait", "event_device_wait", "event_elapsed", "host_function", "eight_threads_of_events",
}  # fmt: skip


# ---- good drivers ----
def test_the_python_example_passes() -> None:
    results = run_driver_checks(Dictmem())
    assert failures(results) == {}
    assert passed(results) >= REQUIRED_CHECKS


def test_the_c_example_passes(tmp_path: Path) -> None:
    source = (ROOT / "examples" / "drivers" / "hostmem.c").read_text()
    library = compile_c(tmp_path, source, "-shared", "-fPIC", "-Wextra", name="hostmem")
    driver = find_driver(str(library))
    assert driver.name == "hostmem"
    results = run_driver_checks(driver)
    assert failures(results) == {}
    assert passed(results) >= REQUIRED_CHECKS | {"host_visible", "clock"}


def test_an_asynchronous_driver_passes() -> None:
    results = run_driver_checks(AsynchronousDictmem())
    assert failures(results) == {}
    assert passed(results) >= REQUIRED_CHECKS | STREAM_CHECKS


def test_sim_passes() -> None:
    results = run_driver_checks(find_driver("sim"))
    assert failures(results) == {}
    assert passed(results) >= REQUIRED_CHECKS | STREAM_CHECKS | {"clock"}


def test_the_example_is_short() -> None:
    assert len((ROOT / "examples" / "drivers" / "dictmem.py").read_text().splitlines()) <= 60


# ---- the run itself ----
def test_results_are_json_and_reported_as_they_come() -> None:
    seen: list[CheckResult] = []
    results = run_driver_checks(Dictmem(), progress=seen.append)
    assert seen == results
    assert json.loads(json.dumps([dataclasses.asdict(result) for result in results]))[0]["name"] == "device_count"


def test_every_check_has_a_name_and_a_meaning() -> None:
    checks = all_checks()
    names = [check.name for check in checks]
    assert len(set(names)) == len(names) >= 30
    for number, check in enumerate(checks):
        assert check.meaning.endswith(".")
        assert "\n" not in check.meaning
        assert set(check.needs) <= set(names[:number]), f"{check.name} needs what runs later"


def test_no_device_skips_everything() -> None:
    class NoDevice(Dictmem):
        def device_count(self) -> int:
            return 0

    assert {result.status for result in run_driver_checks(NoDevice())} == {"skip"}


def test_absent_hardware_skips_what_needs_it() -> None:
    class Absent(Dictmem):
        def open(self, device: int) -> DeviceSpec:
            raise DriverAbsent("no /dev/chip0")

    results = {result.name: result for result in run_driver_checks(Absent())}
    assert failures(list(results.values())) == {}
    assert results["open_spec"].message == "no /dev/chip0"
    assert results["copy_round_trip"].message == "needs open_spec"


def test_the_device_under_test_can_be_chosen() -> None:
    class FirstBroken(Dictmem):
        def alloc(self, device: int, nbytes: int) -> int:
            if device == 0:
                raise RuntimeError("device 0 is broken")
            return super().alloc(device, nbytes)

    assert "alloc_alignment" in failures(run_driver_checks(FirstBroken()))
    assert set(failures(run_driver_checks(FirstBroken(), device=1))) == {"every_device"}
    assert "there is no device 2" in failures(run_driver_checks(Dictmem(), device=2))["device_count"]


# ---- broken drivers: each is caught by the check that is meant for its fault ----
@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        (faulty.ShortCopy, "copy_round_trip"),
        (faulty.LongCopy, "copy_round_trip"),
        (faulty.IgnoredOffset, "copy_round_trip"),
        (faulty.BackwardsDeviceCopy, "copy_device_to_device"),
        (faulty.LeakingFree, "free_returns_memory"),
        (faulty.OverlappingAlloc, "alloc_distinct"),
        (faulty.SharedMemory, "every_device"),
        (faulty.RaisingCount, "device_count"),
        (faulty.GrowingCount, "device_count"),
        (faulty.OpeningCount, "device_count"),
        (faulty.SlowCount, "device_count"),
        (faulty.UnreadableName, "torch_name"),
        (faulty.WrongSpec, "open_spec"),
        (faulty.NotHostVisible, "host_visible"),
        (faulty.UnalignedAlloc, "alloc_alignment"),
        (faulty.WrongMemoryError, "out_of_memory"),
        (faulty.NoLimit, "out_of_memory"),
        (faulty.AnyDevice, "bad_device"),
        (faulty.HangingCopy, "every_device"),
        (faulty.RacyAlloc, "eight_threads"),
        (faulty.HalfAsynchronous, "groups"),
    ],
)
def test_a_broken_driver_is_caught(broken: type[Driver], caught_by: str) -> None:
    found = failures(run_driver_checks(broken(), timeout=3))
    assert caught_by in found, found


@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        (faulty.ShortCopy, {"copy_round_trip", "alloc_distinct"}),
        (faulty.BackwardsDeviceCopy, {"copy_device_to_device", "stream_order"}),
        (faulty.LeakingFree, {"free_returns_memory"}),
        (faulty.UnalignedAlloc, {"alloc_alignment"}),
        (faulty.AnyDevice, {"bad_device"}),
        (faulty.HangingCopy, {"every_device"}),
    ],
)
def test_one_fault_does_not_make_other_checks_fail(broken: type[Driver], caught_by: set[str]) -> None:
    assert set(failures(run_driver_checks(broken(), timeout=3))) == caught_by


@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        (faulty.LostWakeUp, "event_completes"),
        (faulty.EarlyEvent, "event_host_wait"),
        (faulty.IgnoredStreamWait, "event_stream_wait"),
        (faulty.IgnoredStreamWait, "event_device_wait"),
        (faulty.UnorderedStream, "stream_order"),
        (faulty.BackwardsTime, "event_elapsed"),
        (faulty.TwiceRun, "host_function"),
        (faulty.DroppedWork, "stream_destroy_drains"),
        (faulty.BackwardsClock, "clock"),
    ],
)
def test_a_broken_asynchronous_driver_is_caught(broken: type[Driver], caught_by: str) -> None:
    started = time.perf_counter()
    found = failures(run_driver_checks(broken(), timeout=3))
    assert caught_by in found, found
    assert time.perf_counter() - started < 60


def test_a_lost_event_is_caught_and_the_memory_checks_still_run() -> None:
    results = run_driver_checks(faulty.LostEvent(), timeout=3)
    assert set(failures(results)) == {"event_completes"}
    assert passed(results) >= REQUIRED_CHECKS


def test_partitioned_memory() -> None:
    results = run_driver_checks(faulty.Banks())
    assert failures(results) == {}
    assert "placements" in passed(results)
    found = failures(run_driver_checks(faulty.WrongRelayout()))
    assert set(found) == {"placements"}
    assert "relayout from" in found["placements"]
