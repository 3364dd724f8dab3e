"""What users of torch.cuda rely on without thinking of it; each test is a mistake this code once made."""

from __future__ import annotations

import copy
import io
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import bringup

DICTMEM = str(Path(__file__).resolve().parents[2] / "examples" / "drivers" / "dictmem.py")


def forget_op(name: str) -> None:
    """Takes back an op of a scoped library, also where torch.ops lists its names: torch.export asks for all of them."""
    delattr(torch.ops.bringup_scratch, name)
    torch.ops.bringup_scratch._dir.remove(name)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_recomputes_the_same_dropout(device: str, reentrant: bool) -> None:
    torch.ones(1, device=device)  # torch keeps the RNG state of initialised devices only
    x = torch.ones(256, device=device, requires_grad=True)
    y = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5), x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.equal(x.grad > 0, y > 0)


def test_a_thread_that_waits_does_not_hide_pending_work_from_another(device: str) -> None:
    module = torch.get_device_module(device)
    pinned, x = torch.full((4,), 7.0).pin_memory(), torch.zeros(4, device=device)
    module.synchronize()
    module._sleep(400)
    x.copy_(pinned, non_blocking=True)
    waiting = threading.Thread(target=module.synchronize)
    waiting.start()
    time.sleep(0.05)  # long enough to be inside synchronize
    assert not module.current_stream().query()
    assert (x + 0).tolist() == [7.0] * 4
    waiting.join()


def test_a_failed_wait_leaves_the_stream_busy(run_python: Any) -> None:
    code = """
import torch
x, pinned = torch.zeros(4, device="sim"), torch.full((4,), 7.0).pin_memory()
values = set()
for attempt in range(40):
    try:
        torch.sim._sleep(5)
        x.copy_(pinned, non_blocking=True)
        values.add(x[0].item())
        x.zero_()
    except RuntimeError as error:
        assert "injected" in str(error), error
print(values)
"""
    assert run_python(code, env={"BRINGUP_SIM": "fail=event:0.4,seed=3"}).stdout.strip() in ("{7.0}", "{0.0, 7.0}")


def test_ops_that_come_and_go_are_not_mixed_up(device: str) -> None:
    for _ in range(20):
        with torch.library._scoped_library("bringup_scratch", "FRAGMENT") as library:
            library.define("double(Tensor x, Tensor y) -> Tensor")
            library.impl("double", lambda x, y: x + y, "CPU")
            x = torch.ones(3, device=device)
            assert torch.ops.bringup_scratch.double(x, x).tolist() == [2.0] * 3
            forget_op("double")
        with torch.library._scoped_library("bringup_scratch", "FRAGMENT") as library:
            library.define("grow(Tensor(a!) x, int by) -> ()")
            library.impl("grow", lambda x, by: (x.add_(by), None)[1], "CPU")
            x = torch.ones(3, device=device)
            torch.ops.bringup_scratch.grow(x, 4)
            assert x.tolist() == [5.0] * 3
            forget_op("grow")


def test_what_a_users_cpu_kernel_keeps_is_cpu_memory(device: str) -> None:
    kept = []
    with torch.library._scoped_library("bringup_scratch", "FRAGMENT") as library:
        library.define("remember(Tensor x) -> Tensor")

        def remember(x: torch.Tensor) -> torch.Tensor:
            kept.append(torch.ones(1 << 20))
            return x + 1

        library.impl("remember", remember, "CPU")
        x = torch.ones(3, device=device)
        before = torch.accelerator.memory_allocated()
        assert torch.ops.bringup_scratch.remember(x).tolist() == [2.0] * 3
        assert torch.accelerator.memory_allocated() - before < 1 << 20
        forget_op("remember")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("low", "high"), [(0, 1), (2, 3), (-1, 1)])
def test_uniform_never_returns_its_open_end(device: str, dtype: torch.dtype, low: float, high: float) -> None:
    x = torch.empty(1 << 18, dtype=dtype, device=device).uniform_(low, high).cpu().float()
    assert low <= x.min()
    assert x.max() < high
    assert abs(x.mean().item() - (low + high) / 2) < 0.02


def test_empty_tensors_stay_on_the_device(device: str) -> None:
    x = torch.empty(0, 3, device=device)
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    for other in (copy.deepcopy(x), torch.load(file), torch.UntypedStorage(0, device=device)):
        assert other.device.type == torch.device(device).type


def test_a_cpu_tensor_is_not_indexed_or_written_by_the_device(device: str) -> None:
    index, value = torch.tensor([1, 2], device=device), torch.tensor(2.0, device=device)
    for use in (
        lambda: torch.arange(4.0)[index],
        lambda: torch.arange(4.0).index_put_((index,), value),
        lambda: torch.tensor(1.0).add_(value),
    ):
        with pytest.raises(RuntimeError, match="device"):
            use()
    assert torch.arange(4.0, device=device)[torch.tensor([1, 2])].tolist() == [
        1.0,
        2.0,
    ]  # indices may come from the CPU


def test_streams_that_do_not_exist_are_refused(device: str) -> None:
    index, kind = torch.accelerator.current_device_index(), 20
    x = torch.ones(4, device=device)
    with pytest.raises(ValueError, match="no stream 100"):
        x.record_stream(torch.Stream(stream_id=100, device_index=index, device_type=kind))


def test_a_host_function_may_not_wait_for_its_device(device: str, capfd: pytest.CaptureFixture[str]) -> None:
    module, heard = torch.get_device_module(device), []

    def wait() -> None:
        try:
            module.synchronize()
        except (RuntimeError, ValueError) as error:
            heard.append(str(error))

    module.launch_host_function(wait)
    module.synchronize()
    assert not heard or "waits for unfinished work" in heard[0]


def test_warnings_come_after_silent_fallbacks(run_python: Any) -> None:
    code = """
import warnings, torch, bringup
x = torch.ones(3, device="dictmem")
x.sort()
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    bringup.fallback_policy("warn")
    x.sort(); x.sort()
print(sum("aten::sort" in str(w.message) for w in seen))
"""
    assert run_python(code, env={"BRINGUP_DRIVERS": DICTMEM}).stdout.strip() == "1"


def test_flags_of_views_survive_copies_into_far_memory(run_python: Any) -> None:
    code = """
import torch
z = torch.zeros(3, dtype=torch.complex64, device="dictmem")
z.conj().copy_(torch.full((3,), 1 + 2j))
assert z.tolist() == [1 - 2j] * 3, z
z.conj().imag.copy_(torch.full((3,), 5.0, dtype=torch.float64))
assert z.imag.tolist() == [-5.0] * 3, z
base = torch.arange(10.0, device="dictmem")
torch.cumsum(torch.ones(3, device="dictmem"), 0, out=base[4:4])
assert base.tolist() == [0, 1, 2, 3, 1, 2, 3, 7, 8, 9], base
print("right")
"""
    assert "right" in run_python(code, env={"BRINGUP_DRIVERS": DICTMEM}).stdout


def test_a_driver_that_runs_host_functions_at_once_may_be_used_inside_them(run_python: Any, tmp_path: Path) -> None:
    source = (
        Path(DICTMEM).read_text() + "\n    def host_function(self, device, stream, function):\n        function()\n"
    )
    (tmp_path / "atonce.py").write_text(source.replace('"dictmem"', '"atonce"'))
    code = """
import torch
x = torch.ones(3, device="atonce")
seen = []
torch.atonce.launch_host_function(lambda: seen.append((x + 1).tolist()))
print(seen)
"""
    run = run_python(code, env={"BRINGUP_DRIVERS": str(tmp_path / "atonce.py")})
    assert run.stdout.strip() == "[[2.0, 2.0, 2.0]]", run.stdout + run.stderr


def test_the_module_has_what_torch_cuda_has(device: str) -> None:
    module = torch.get_device_module(device)
    assert module.OutOfMemoryError is torch.OutOfMemoryError
    assert module.is_current_stream_capturing() is False
    properties = module.get_device_properties()
    assert properties.total_memory == module.mem_get_info()[1]
    assert bringup.fallbacks() is not None


def test_copies_that_the_cpu_does_are_in_the_ledger(run_python: Any) -> None:
    code = """
import torch, bringup
x = torch.ones(3, 2, device="dictmem")
bringup.reset_fallbacks()
x.t().contiguous(); x.double(); x.clone()
row = next(row for row in bringup.fallbacks() if row.op == "aten::copy_")
assert row.calls == 2 and row.bytes > 0, row
bringup.fallback_policy("error")
try:
    x.double()
except NotImplementedError as error:
    print(error)
print(x.cpu().double().sum().item())
"""
    out = run_python(code, env={"BRINGUP_DRIVERS": DICTMEM}).stdout
    assert out.startswith("aten::copy_ has no kernel on dictmem:0")
    assert out.endswith("6.0\n")
