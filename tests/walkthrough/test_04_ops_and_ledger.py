"""Chapter 4. Where does an op run? The ledger counts every op that left the device, and a policy can forbid it."""

from tests.conftest import ROOT

DICTMEM = {"BRINGUP_DRIVERS": str(ROOT / "examples" / "drivers" / "dictmem.py")}


def test_a_driver_with_five_methods_falls_back_for_every_op(run_python):
    run_python(
        """
        import bringup, torch

        x = torch.ones(1000, device="dictmem")
        bringup.reset_fallbacks()
        y = x + 1
        row = bringup.fallbacks()["aten::add.Tensor"]
        assert row.calls == 1
        assert row.bytes == 2 * 4000  # x came out, y went in
        assert "<string>" in row.stack  # where the first call was
        print(bringup.fallbacks())
        """,
        env=DICTMEM,
    )


def test_a_policy_allows_warns_or_forbids(run_python):
    run_python(
        """
        import bringup, pytest, torch

        x = torch.ones(3, device="dictmem")
        with bringup.fallback_policy("warn"), pytest.warns(UserWarning, match="aten::sort.*runs on the CPU"):
            x.sort()
        with bringup.fallback_policy("error", ops={"aten::add": "allow"}):
            x + 1
            with pytest.raises(NotImplementedError, match="aten::mul.Tensor has no kernel on dictmem:0"):
                x * 2
        """,
        env=DICTMEM,
    )


def test_a_library_op_keeps_the_work_on_the_chip(run_python):
    run_python(
        """
        import ctypes
        import numpy as np
        import bringup
        from tests.walkthrough.test_00_a_driver_in_one_class import Notepad

        def neg(out, x):  # what the driver sees is plain data: addresses, shapes, strides
            size = int(np.prod(x.shape))
            source, target = ((ctypes.c_float * size).from_address(t.address) for t in (x, out))
            np.negative(np.ctypeslib.as_array(source), out=np.ctypeslib.as_array(target))

        class Chip(Notepad):
            name = "chip"
            ops = {"aten::neg": neg}

        bringup.activate(Chip)
        import torch

        x = torch.arange(4.0).to("chip")
        assert (-x).cpu().tolist() == [0, -1, -2, -3]
        x.neg_()  # the in-place form uses the same function
        assert x.cpu().tolist() == [0, -1, -2, -3]
        assert len(bringup.fallbacks()) == 0
        """,
        env={"BRINGUP_DRIVERS": None},
    )


def test_sim_compiles_a_kernel_for_each_op(run_python):
    run_python(
        """
        import bringup, torch

        torch.randn(8, 8, device="sim").sort().values.cumsum(0)
        assert len(bringup.fallbacks()) == 0
        torch.linalg.qr(torch.randn(8, 8, device="sim"))  # factorizations have no kernel
        assert [row.op for row in bringup.fallbacks()] == ["aten::linalg_qr"]
        """,
        env={"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": None},
    )
