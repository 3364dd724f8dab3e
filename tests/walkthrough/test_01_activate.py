"""Chapter 1. A driver becomes PyTorch's device: by name, by file, or as a class. Once per process."""

from tests.conftest import ROOT

DICTMEM = str(ROOT / "examples" / "drivers" / "dictmem.py")


def test_the_default_is_the_simulated_device(run_python):
    run_python(
        """
        import torch  # PyTorch finds bringup by itself

        assert torch.accelerator.current_accelerator() == torch.device("sim")
        assert torch.sim.device_count() == 2
        assert not torch.sim.is_initialized()  # nothing is opened before it is used
        """,
        env={"BRINGUP_DRIVERS": None, "BRINGUP_SIM": None},
    )


def test_a_file_is_named_in_the_environment(run_python):
    run_python(
        """
        import torch

        print(torch.ones(3, device="dictmem"))
        """,
        env={"BRINGUP_DRIVERS": DICTMEM},
    )


def test_a_class_is_activated_before_torch_is_imported(run_python):
    run_python(
        """
        import bringup
        from tests.walkthrough.test_00_a_driver_in_one_class import Notepad

        bringup.activate(Notepad)

        import torch

        assert torch.ones(3, device="notepad").device == bringup.device("notepad")
        """,
        env={"BRINGUP_DRIVERS": None},
    )


def test_the_choice_is_made_once(run_python):
    run_python(
        """
        import bringup, pytest, torch

        bringup.activate("sim")  # the same choice is fine
        with pytest.raises(RuntimeError, match="only once per process.*BRINGUP_DRIVERS=dictmem"):
            bringup.activate("dictmem")
        """,
        env={"BRINGUP_DRIVERS": None},
    )


def test_several_drivers_share_one_device_type(run_python):
    run_python(
        """
        import bringup, torch

        sim, dictmem = bringup.device("sim"), bringup.device("dictmem")
        assert (str(sim), str(dictmem)) == ("accel:0", "accel:2")  # sim has two devices
        assert torch.ones(3, device=sim).to(dictmem).device == dictmem
        """,
        env={"BRINGUP_DRIVERS": f"sim,{DICTMEM}", "BRINGUP_SIM": None},
    )
