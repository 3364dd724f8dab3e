"""Every verified trap of PyTorch has a test: which one. A test that is renamed or removed is missed here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

#: Rule of the design → (file, test).
TRAPS = {
    1: ("unit/test_activation.py", "test_another_choice_is_an_error_that_names_the_variable"),
    2: ("unit/test_activation.py", "test_another_accelerator_keeps_us_away_until_asked"),
    3: ("unit/test_activation.py", "test_a_binary_for_another_torch"),
    4: ("device/test_absent_hardware.py", "test_the_cpu_works"),
    5: ("unit/test_driver_adapt.py", "test_device_count"),
    6: ("unit/test_activation.py", "test_names_torch_cannot_use"),
    7: ("unit/test_activation.py", "test_nothing_heavy_is_imported"),
    8: ("unit/test_activation.py", "test_seeds_before_the_device_is_opened"),
    9: ("unit/test_activation.py", "test_a_binary_that_names_another_torch_is_not_loaded"),
    10: ("device/test_traps.py", "test_trap_10_conjugate_and_negative_views"),
    11: ("device/test_traps.py", "test_trap_11_growing_out"),
    12: ("device/test_traps.py", "test_trap_12_views_alias_their_storage"),
    13: ("device/test_traps.py", "test_trap_13_outputs_are_counted_and_limited"),
    14: ("device/test_traps.py", "test_trap_14_mixed_devices_are_refused"),
    15: ("device/test_traps.py", "test_trap_15_ops_with_their_own_cpu_kernel_have_a_route"),
    16: ("device/test_traps_ops.py", "test_trap_16_ops_without_a_cpu_kernel_work_or_name_themselves"),
    17: ("device/test_traps_random.py", "test_trap_17_the_layout_does_not_matter"),
    18: ("device/test_traps.py", "test_trap_18_library_mode_is_no_fallback"),
    19: ("device/test_streams.py", "test_two_streams_overlap"),
    20: ("device/test_processes.py", "test_exit_is_clean"),
    21: ("driver/test_driver_checks.py", "test_a_broken_driver_is_caught"),
    22: ("device/test_semantics.py", "torch.accelerator.memory_allocated"),
    23: ("device/test_traps_runtime.py", "test_trap_23_at_most_127_devices"),
    24: ("device/test_traps_runtime.py", "test_trap_24_checkpoints_remember_the_device_and_can_be_mapped"),
    25: ("device/test_traps_runtime.py", "test_trap_25_metadata_survives_views_copies_and_files"),
    26: ("device/test_traps_runtime.py", "test_trap_26_host_access_becomes_a_python_interrupt"),
    27: ("device/test_traps_runtime.py", "test_trap_27_share_memory_is_no_silent_no_op"),
    28: ("device/test_traps_signature.py", "test_trap_28_the_key_holds_what_a_kernel_depends_on"),
    29: ("device/test_traps_signature.py", "test_trap_29_scalars_are_data"),
    30: ("device/test_traps_signature.py", "test_trap_30_a_miss_sees_no_mode_and_holds_no_lock"),
    31: ("device/test_traps_signature.py", "test_trap_31_the_disk_key_holds_what_decides_the_binary"),
    32: ("device/test_training.py", "test_one_step_is_as_exact_as_the_cpu"),
    33: ("device/test_training.py", "test_evaluation_after_training_agrees"),
    34: ("unit/test_op_checks.py", "test_a_crash_costs_one_case_and_says_the_signal"),
    35: ("sanitize/sim_stress.c", "int main"),
}


@pytest.mark.parametrize("rule", TRAPS)
def test_the_rule_has_its_test(rule: int) -> None:
    file, name = TRAPS[rule]
    source = (TESTS / file).read_text()
    assert re.search(rf"\b{re.escape(name)}", source), f"rule {rule}: {file} has no {name}"


def test_no_rule_is_forgotten() -> None:
    assert set(TRAPS) == set(range(1, 36))
