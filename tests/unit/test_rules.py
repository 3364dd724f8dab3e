"""The rules that the code cites by name: each stands in docs/rules.md, and each about PyTorch has a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bringup.graph.fusion.steps import Rule

ROOT = Path(__file__).resolve().parents[2]
ABOUT_PYTORCH, FUSION = (ROOT / "docs" / "rules.md").read_text().split("## When two kernels become one")
SOURCES = {".cpp", ".h", ".py"}
NAME = re.compile(r"^\*\*(.+?)\*\*", re.MULTILINE)

#: Rule → (file, test).
TESTED = {
    "named once": ("unit/test_activation.py", "test_another_choice_is_an_error_that_names_the_variable"),
    "other accelerators first": ("unit/test_activation.py", "test_another_accelerator_keeps_us_away_until_asked"),
    "autoload never raises": ("unit/test_activation.py", "test_a_binary_for_another_torch"),
    "complete registration": ("device/test_absent_hardware.py", "test_the_cpu_works"),
    "constant device count": ("unit/test_driver_adapt.py", "test_device_count"),
    "usable names": ("unit/test_activation.py", "test_names_torch_cannot_use"),
    "light import": ("unit/test_activation.py", "test_nothing_heavy_is_imported"),
    "seeds before first use": ("unit/test_activation.py", "test_seeds_before_the_device_is_opened"),
    "one torch per binary": ("unit/test_activation.py", "test_a_binary_that_names_another_torch_is_not_loaded"),
    "flags of a stand-in": ("device/test_traps.py", "test_trap_10_conjugate_and_negative_views"),
    "growing `out=`": ("device/test_traps.py", "test_trap_11_growing_out"),
    "views are never routed": ("device/test_traps.py", "test_trap_12_views_alias_their_storage"),
    "outputs in device memory": ("device/test_traps.py", "test_trap_13_outputs_are_counted_and_limited"),
    "one device per call": ("device/test_traps.py", "test_trap_14_mixed_devices_are_refused"),
    "hidden by composites": ("device/test_traps.py", "test_trap_15_ops_with_their_own_cpu_kernel_have_a_route"),
    "ops without a CPU kernel": (
        "device/test_traps_ops.py",
        "test_trap_16_ops_without_a_cpu_kernel_work_or_name_themselves",
    ),
    "element i of a random tensor": ("device/test_traps_random.py", "test_trap_17_the_layout_does_not_matter"),
    "library mode is not a fallback": ("device/test_traps.py", "test_trap_18_library_mode_is_no_fallback"),
    "short work runs inline": ("device/test_streams.py", "test_two_streams_overlap"),
    "no lock around a driver": ("device/test_processes.py", "test_exit_is_clean"),
    "opaque addresses": ("driver/test_driver_checks.py", "test_a_broken_driver_is_caught"),
    "statistics of our allocator": ("device/test_semantics.py", "torch.accelerator.memory_allocated"),
    "127 devices": ("device/test_traps_runtime.py", "test_trap_23_at_most_127_devices"),
    "portable checkpoints": (
        "device/test_traps_runtime.py",
        "test_trap_24_checkpoints_remember_the_device_and_can_be_mapped",
    ),
    "metadata on storages": ("device/test_traps_runtime.py", "test_trap_25_metadata_survives_views_copies_and_files"),
    "caught host access": ("device/test_traps_runtime.py", "test_trap_26_host_access_becomes_a_python_interrupt"),
    "sharing is our own": ("device/test_traps_runtime.py", "test_trap_27_share_memory_is_no_silent_no_op"),
    "complete key": ("device/test_traps_signature.py", "test_trap_28_the_key_holds_what_a_kernel_depends_on"),
    "scalars are data": ("device/test_traps_signature.py", "test_trap_29_scalars_are_data"),
    "misses see no mode": ("device/test_traps_signature.py", "test_trap_30_a_miss_sees_no_mode_and_holds_no_lock"),
    "complete disk key": ("device/test_traps_signature.py", "test_trap_31_the_disk_key_holds_what_decides_the_binary"),
    "judged by float64": ("device/test_training.py", "test_one_step_is_as_exact_as_the_cpu"),
    "copies for comparison": ("device/test_training.py", "test_evaluation_after_training_agrees"),
    "crashes cost one case": ("unit/test_op_checks.py", "test_a_crash_costs_one_case_and_says_the_signal"),
    "sanitizers without torch": ("sanitize/sim_stress.c", "int main"),
}


@pytest.mark.parametrize("rule", TESTED)
def test_the_rule_has_its_test(rule: str) -> None:
    file, name = TESTED[rule]
    source = (ROOT / "tests" / file).read_text()
    assert re.search(rf"\b{re.escape(name)}", source), f"{rule}: {file} has no {name}"


def test_no_rule_is_forgotten() -> None:
    assert set(TESTED) == set(NAME.findall(ABOUT_PYTORCH))
    assert {rule.value for rule in Rule} == set(NAME.findall(FUSION))


def test_rules_that_the_code_cites_exist() -> None:
    files = [path for folder in ("bringup", "tests") for path in (ROOT / folder).rglob("*") if path.suffix in SOURCES]
    cited = {
        re.sub(r"\s+(// |# )?", " ", name): path
        for path in files
        for name in re.findall(r"(?<= )\(rule: ([a-z0-9][^):,]+)\)", path.read_text())
    }
    known = set(NAME.findall(ABOUT_PYTORCH)) | {rule.value for rule in Rule}
    assert {name: str(path) for name, path in cited.items() if name not in known} == {}
    assert len(cited) > 8
