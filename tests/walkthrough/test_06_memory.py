"""Chapter 6. Memory is cached, counted and limited. Running out is an exception, and the program goes on."""


def test_allocated_reserved_and_given_back(run_python):
    run_python(
        """
        import torch

        x = torch.empty(1 << 20, device="sim")  # 4 MiB
        assert torch.sim.memory_allocated() == 4 << 20
        del x
        assert torch.sim.memory_allocated() == 0
        assert torch.sim.max_memory_allocated() == 4 << 20
        assert torch.sim.memory_reserved() > 0  # kept for the next tensor
        torch.sim.empty_cache()
        assert torch.sim.memory_reserved() == 0
        print(torch.sim.memory_summary())
        """,
        env={"BRINGUP_DRIVERS": "sim"},
    )


def test_out_of_memory(run_python):
    run_python(
        """
        import pytest, torch

        with pytest.raises(torch.OutOfMemoryError, match="tried to allocate 128.00 MiB"):
            torch.empty(1 << 25, device="sim")
        kept = torch.ones(1 << 20, device="sim")  # the process goes on
        with pytest.raises(torch.OutOfMemoryError):  # results of CPU kernels count too
            kept.expand(16, -1).sort(0)
        assert (kept + 1).sum().item() == 2 << 20
        """,
        env={"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "memory=64M"},
    )


def test_another_streams_use_keeps_a_block_until_it_is_done(run_python):
    run_python(
        """
        import torch

        side = torch.sim.Stream()
        x = torch.ones(1000, device="sim")
        address = x.data_ptr()
        with torch.sim.stream(side):
            torch.sim._sleep(100)
        x.record_stream(side)  # side still works on x
        del x
        assert torch.empty(1000, device="sim").data_ptr() != address
        side.synchronize()
        torch.sim.empty_cache()
        """,
        env={"BRINGUP_DRIVERS": "sim"},
    )
