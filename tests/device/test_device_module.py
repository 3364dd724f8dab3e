"""torch.<name>: what users of torch.cuda reach for, on the device under test."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

CHIP = Path(__file__).with_name("chip_driver.py")


@pytest.fixture(scope="module")
def module(device: str) -> ModuleType:
    return torch.get_device_module(device)


@pytest.fixture
def two_devices(module: ModuleType) -> None:
    if module.device_count() < 2:
        pytest.skip("needs two devices")


def is_asynchronous(module: ModuleType) -> bool:
    start = time.perf_counter()
    module._sleep(50)
    queued = time.perf_counter() - start
    module.synchronize()
    return queued < 0.04


# ---- devices ----
def test_availability(module: ModuleType, device: str) -> None:
    assert module.is_available()
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device(device)
    assert module.device_count() == torch.accelerator.device_count() > 0


@pytest.mark.usefixtures("two_devices")
def test_the_current_device(module: ModuleType, device: str) -> None:
    assert module.current_device() == 0
    with module.device(1):
        assert module.current_device() == torch.accelerator.current_device_index() == 1
        assert torch.empty(1, device=device).device.index == 1
        with module.device_of(torch.empty(1, device=f"{device}:0")):
            assert module.current_device() == 0
        with module.device_of(torch.empty(1)):
            assert module.current_device() == 1
    assert module.current_device() == 0
    module.set_device(f"{device}:1")
    try:
        assert torch.empty(1, device=device).get_device() == 1
    finally:
        module.set_device(0)


@pytest.mark.usefixtures("two_devices")
def test_the_current_device_is_per_thread(module: ModuleType) -> None:
    seen: list[int] = []
    with module.device(1):
        thread = threading.Thread(target=lambda: seen.append(module.current_device()))
        thread.start()
        thread.join()
    assert seen == [0]


def test_wrong_devices(module: ModuleType, device: str) -> None:
    count = module.device_count()
    for ask in (module.set_device, module.Stream, module.current_stream, module.get_device_properties):
        with pytest.raises(ValueError, match=f"no device {device}:{count}"):
            ask(count)
    with pytest.raises(ValueError, match=f"no device {device}:{count}"):
        torch.empty(1, device=f"{device}:{count}")
    with pytest.raises(ValueError, match="expected a"):
        module.synchronize("cpu")


def test_properties(module: ModuleType, device: str) -> None:
    properties = module.get_device_properties(0)
    assert properties.name == module.get_device_name(f"{device}:0")
    assert properties.total_memory == module.mem_get_info(0)[1] > 0
    assert (properties.major, properties.minor) == module.get_device_capability()
    assert properties.driver
    assert properties.partitions == properties.multi_processor_count >= 1
    assert isinstance(module.can_device_access_peer(0, module.device_count() - 1), bool)
    assert not module.can_device_access_peer(0, 0)
    module.init()
    assert module.is_initialized()
    assert not module._is_in_bad_fork()


def test_methods_on_tensors_modules_and_storages(device: str) -> None:
    x = torch.ones(3)
    moved = getattr(x, device)()
    assert moved.device.type == device
    assert getattr(moved, f"is_{device}")
    assert not getattr(x, f"is_{device}")
    linear = getattr(torch.nn.Linear(2, 2), device)()
    assert linear.weight.device.type == device
    assert getattr(x.untyped_storage(), device)().device.type == device
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert getattr(packed, device)().data.device.type == device


# ---- streams and events ----
def test_streams(module: ModuleType) -> None:
    side = module.Stream()
    default = module.current_stream()
    assert isinstance(default, module.Stream)
    assert not isinstance(torch.device("cpu"), module.Stream)
    assert default == module.default_stream()
    with module.stream(side) as inside:
        assert inside is side
        assert module.current_stream() == side
        with module.stream(None):
            assert module.current_stream() == side
    assert module.current_stream() == default
    assert module.Stream(device=0, priority=-1).device.index == 0
    assert side.query() in (True, False)
    side.synchronize()
    assert side.query()
    assert hash(module.current_stream()) == hash(default)


@pytest.mark.usefixtures("two_devices")
def test_a_stream_brings_its_device(module: ModuleType) -> None:
    side = module.Stream(device=1)
    with module.stream(side):
        assert module.current_device() == 1
        assert module.current_stream() == side
        assert module.current_stream(0) == module.default_stream(0)
    assert module.current_device() == 0
    assert module.current_stream(1) == module.default_stream(1)


def test_events_order_streams(module: ModuleType) -> None:
    side, other = module.Stream(), module.Stream()
    with module.stream(side):
        module._sleep(20)
    event = side.record_event()
    assert isinstance(event, module.Event)
    other.wait_event(event)
    other.wait_stream(side)
    done = module.Event()
    done.record(other)
    done.synchronize()
    assert event.query()
    assert side.query() or side.synchronize() is None


def test_elapsed_time(module: ModuleType) -> None:
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    start.record()
    module._sleep(20)
    end.record()
    end.synchronize()
    assert 0 <= start.elapsed_time(end) < 10_000
    with pytest.raises(ValueError, match="not both"):
        module.Event(enable_timing=True, interprocess=True)


def test_an_event_never_recorded_is_done(module: ModuleType) -> None:
    event = module.Event()
    assert event.query()
    event.synchronize()
    event.wait()


def test_two_streams_overlap(module: ModuleType) -> None:
    if not is_asynchronous(module):
        pytest.skip("the driver has no asynchrony")
    first, second = module.Stream(), module.Stream()
    with module.stream(first):
        module._sleep(300)
    with module.stream(second):
        module._sleep(1)
    second.synchronize()
    assert not first.query()
    first.synchronize()


def test_host_functions_run_in_stream_order(module: ModuleType) -> None:
    called: list[int] = []
    module._sleep(5)
    module.launch_host_function(lambda: called.append(1))
    module.launch_host_function(lambda: called.append(2))
    module.synchronize()
    assert called == [1, 2]
    with pytest.raises(TypeError, match="needs a callable"):
        module.launch_host_function(3)


def test_a_stream_of_another_type(module: ModuleType) -> None:
    class Elsewhere:
        device = torch.device("cpu")

    with pytest.raises(ValueError, match="stream, got one of cpu"):
        module.set_stream(Elsewhere())


# ---- memory ----
def test_memory_is_counted(module: ModuleType, device: str) -> None:
    module.empty_cache()
    module.reset_peak_memory_stats()
    before = module.memory_allocated()
    x = torch.empty(1 << 20, dtype=torch.uint8, device=device)
    assert module.memory_allocated() - before >= 1 << 20
    assert module.memory_reserved() >= module.memory_allocated()
    del x
    assert module.memory_allocated() == before
    assert module.max_memory_allocated() - before >= 1 << 20
    module.reset_peak_memory_stats()
    assert module.max_memory_allocated() == before
    assert module.max_memory_reserved() >= before
    module.reset_accumulated_memory_stats()
    module.empty_cache()
    free, total = module.mem_get_info()
    assert 0 < free <= total


def test_memory_reports(module: ModuleType, device: str) -> None:
    x = torch.empty(1000, device=device)
    stats = module.memory_stats()
    assert list(stats) == sorted(stats)
    assert stats["allocated_bytes.all.current"] == module.memory_allocated()
    assert module.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"] == module.memory_allocated()
    assert "allocated" in module.memory_summary().lower()
    snapshot = module.memory_snapshot(0)
    assert snapshot
    assert len(module.memory_snapshot()) >= len(snapshot)
    assert x.numel() == 1000


def test_a_memory_fraction_limits(module: ModuleType, device: str) -> None:
    total = module.mem_get_info()[1]
    module.empty_cache()
    module.set_per_process_memory_fraction(0.25)
    try:
        assert module.get_per_process_memory_fraction() == 0.25
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(total // 2, dtype=torch.uint8, device=device)
    finally:
        module.set_per_process_memory_fraction(1.0)
    assert module.get_per_process_memory_fraction() == 1.0


# ---- random numbers ----
def test_seeds(module: ModuleType, device: str) -> None:
    torch.manual_seed(3)
    first = torch.randn(100, device=device).cpu()
    assert module.initial_seed() == 3
    module.manual_seed(3)
    assert torch.equal(torch.randn(100, device=device).cpu(), first)
    state = module.get_rng_state()
    second = torch.randn(100, device=device).cpu()
    assert not torch.equal(first, second)
    module.set_rng_state(state)
    assert torch.equal(torch.randn(100, device=device).cpu(), second)
    assert module.seed() == module.initial_seed() != 3
    module.manual_seed_all(5)
    assert [generator.initial_seed() for generator in module.default_generators] == [5] * module.device_count()
    with pytest.raises(TypeError, match="uint8"):
        module.set_rng_state(torch.ones(3))


def test_fork_rng(module: ModuleType, device: str) -> None:
    module.manual_seed(0)
    with torch.random.fork_rng(devices=[0], device_type=device):
        inside = torch.rand(10, device=device).cpu()
    assert torch.equal(torch.rand(10, device=device).cpu(), inside)


# ---- AMP ----
def test_amp(module: ModuleType, device: str) -> None:
    supported = module.get_amp_supported_dtype()
    assert set(supported) <= {torch.float16, torch.bfloat16}
    assert module.is_bf16_supported() == (torch.bfloat16 in supported)
    x = torch.ones(4, 4, device=device)
    for dtype in supported:
        with module.amp.autocast(dtype=dtype):
            assert (x @ x).dtype == dtype
    scaler = module.amp.GradScaler(init_scale=4.0)
    assert scaler.scale(torch.ones((), device=device)).item() == 4.0

    class Function(torch.autograd.Function):
        @staticmethod
        @module.amp.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx, value):
            assert not torch.is_autocast_enabled(device)
            return value * 2

        @staticmethod
        @module.amp.custom_bwd
        def backward(ctx, grad):
            return grad * 2

    weight = torch.ones(2, device=device, requires_grad=True)
    with module.amp.autocast():
        Function.apply(weight).sum().backward()
    assert weight.grad.tolist() == [2, 2]


# ---- processes ----
def test_a_fork_before_the_device_is_opened_may_use_it(run_python, device: str) -> None:
    run_python(f"""
    import os, torch
    pid = os.fork()
    if pid == 0:
        os._exit(0 if torch.ones(2, device="{device}").sum().item() == 2 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert torch.ones(2, device="{device}").sum().item() == 2
    """)


def test_a_fork_after_that_is_an_error_but_seeds_work(run_python, device: str) -> None:
    run_python(f"""
    import os, torch
    x = torch.ones(2, device="{device}")
    pid = os.fork()
    if pid == 0:
        try:
            assert torch.{device}._is_in_bad_fork() and not torch.{device}.is_initialized()
            torch.manual_seed(1)
            assert torch.{device}.is_available()
            try:
                torch.ones(2, device="{device}")
            except RuntimeError as error:
                assert "fork" in str(error) and "spawn" in str(error), error
            else:
                raise AssertionError("no error")
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert x.sum().item() == 2
    """)


def test_more_devices_than_an_index_counts(run_python, tmp_path: Path) -> None:
    (tmp_path / "chip.py").write_text(CHIP.read_text().replace("return 2", "return 128"))
    env = {"BRINGUP_DRIVERS": str(tmp_path / "chip.py")}
    run_python("import torch, bringup; assert '127' in str(bringup.activation_error())", env=env)


def test_import_opens_nothing(run_python, device: str) -> None:
    run_python(f"""
    import torch
    assert not torch.{device}.is_initialized()
    torch.manual_seed(0)
    assert torch.{device}.memory_allocated() == 0
    torch.ones(2, requires_grad=True).sum().backward()
    assert not torch.{device}.is_initialized()
    torch.empty(1, device="{device}")
    assert torch.{device}.is_initialized()
    """)
