"""``SIM_VISIBLE_DEVICES``: which of a driver's devices a process has, in which order; what is not a list of them."""

from __future__ import annotations

from typing import Any

import pytest

SIM = {"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "devices=3"}


def test_devices_are_chosen_and_ordered(run_python: Any) -> None:
    code = """
        import torch
        from bringup import _C
        assert torch.sim.device_count() == 2
        assert [_C.driver_of(n) for n in range(2)] == [("sim", 2), ("sim", 0)]
        x = torch.arange(3.0, device="sim:1") + 1
        assert x.to("sim:0").device.index == 0 and x.to("sim:0").tolist() == [1, 2, 3]
        try:
            torch.empty(1, device="sim:2")
        except ValueError as error:
            assert "sim:2" in str(error)
        else:
            raise AssertionError("sim:2 is not visible")
    """
    run_python(code, env={**SIM, "SIM_VISIBLE_DEVICES": "2, 0"})


def test_an_empty_list_is_no_device(run_python: Any) -> None:
    code = """
        import torch
        assert torch.sim.device_count() == 0 and not torch.sim.is_available()
        assert torch.ones(2).add(1).sum() == 4
    """
    run_python(code, env={**SIM, "SIM_VISIBLE_DEVICES": ""})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("1,x", "'x' is not a device number"),
        ("-1", "'-1' is not a device number"),
        ("1,1", "device 1 is listed twice"),
        ("0,3", "device 3 is to be visible, and driver 'sim' has 3"),
    ],
)
def test_a_bad_list_is_an_error_that_names_the_variable(given: str, said: str, run_python: Any) -> None:
    """A warning at the import; then the first use of the device raises with what went wrong as the cause."""
    code = """
        import torch
        try:
            torch.ones(1, device="sim")
        except RuntimeError as error:
            print(f"{error} <- {type(error.__cause__).__name__}: {error.__cause__}")
    """
    done = run_python(code, env={**SIM, "SIM_VISIBLE_DEVICES": given})
    for text in (done.stdout, done.stderr):
        assert said in text
        assert f"SIM_VISIBLE_DEVICES={given}" in text
    assert "<- ValueError: " in done.stdout
