"""The sim driver's streams, events, device time and injected faults: real threads, exact numbers."""

from __future__ import annotations

import ctypes
import os
import threading

import pytest

from bringup.driver.abi import DriverError
from tests.driver.through_the_contract import D2D, D2H, H2D, HOST, LARGE, address_of, pattern, read, synchronize, write


# ---- streams and events ----
def test_a_stream_is_first_in_first_out(flat_sim):
    """Short and long copies and host functions behind a gate: each sees what the one before it left."""
    stream, gate, seen = flat_sim.stream_create(0, 0), threading.Event(), []
    cell = flat_sim.alloc(0, LARGE)
    datas = [pattern(LARGE if i % 3 else 16, start=i) for i in range(12)]
    flat_sim.host_function(0, stream, gate.wait)
    for data in datas:
        flat_sim.copy(0, cell, address_of(data), len(data), H2D, stream)
        flat_sim.host_function(0, stream, lambda data=data: seen.append(ctypes.string_at(cell, len(data))))
    end = flat_sim.event_record(0, stream)
    assert not flat_sim.event_query(0, end)
    assert seen == []
    gate.set()
    flat_sim.event_wait(0, end, 0, HOST)
    assert seen == datas
    flat_sim.event_destroy(0, end)
    flat_sim.stream_destroy(0, stream)
    flat_sim.free(0, cell)


def test_a_busy_stream_does_not_delay_another(flat_sim):
    busy, other, gate = flat_sim.stream_create(0, 0), flat_sim.stream_create(0, -1), threading.Event()
    cell = flat_sim.alloc(0, LARGE)
    flat_sim.host_function(0, busy, gate.wait)
    blocked = flat_sim.event_record(0, busy)
    for stream in (0, other):
        data = pattern(LARGE, start=stream % 99)
        write(flat_sim, cell, data, stream)  # queued on its own worker, and waited for
        assert read(flat_sim, cell, LARGE, stream) == data
    assert not flat_sim.event_query(0, blocked)
    gate.set()
    flat_sim.event_wait(0, blocked, 0, HOST)
    assert flat_sim.event_query(0, blocked)
    for stream in (busy, other):
        flat_sim.stream_destroy(0, stream)
    flat_sim.free(0, cell)


def test_work_on_an_idle_stream_starts_no_thread(make_sim):
    driver = make_sim("devices=1,memory=1M")
    before = set(os.listdir("/proc/self/task"))
    cell = driver.alloc(0, 64)
    for _ in range(10):
        write(driver, cell, b"inline")
    assert set(os.listdir("/proc/self/task")) <= before
    done = threading.Event()
    driver.host_function(0, 0, done.set)
    synchronize(driver)
    assert done.is_set()
    assert len(set(os.listdir("/proc/self/task")) - before) == 1
    driver.close(0)
    assert set(os.listdir("/proc/self/task")) <= before


def test_jitter_delays_work_and_keeps_its_order(make_sim):
    """Short copies on an idle stream go to the worker; every one sees what the one before it left."""
    driver = make_sim("devices=1,memory=1M,jitter=3")
    before = set(os.listdir("/proc/self/task"))
    cell, late = driver.alloc(0, 8), 0
    datas = [i.to_bytes(8, "little") for i in range(64)]  # kept: copies are asynchronous
    seen = [ctypes.create_string_buffer(8) for _ in datas]
    for data, buffer in zip(datas, seen):
        driver.copy(0, cell, address_of(data), 8, H2D, 0)
        driver.copy(0, ctypes.addressof(buffer), cell, 8, D2H, 0)
        event = driver.event_record(0, 0)
        late += not driver.event_query(0, event)
        driver.event_wait(0, event, 0, HOST)
        driver.event_destroy(0, event)
    assert [buffer.raw for buffer in seen] == datas
    assert late > 0, "all of it ran at once"
    assert len(set(os.listdir("/proc/self/task")) - before) == 1
    driver.close(0)


@pytest.mark.parametrize("across", [0, 1])
def test_a_stream_waits_for_an_event_also_of_another_device(flat_sim, across):
    producer, consumer, gate, order = (
        flat_sim.stream_create(0, 0),
        flat_sim.stream_create(across, 0),
        threading.Event(),
        [],
    )
    flat_sim.host_function(0, producer, gate.wait)
    flat_sim.host_function(0, producer, lambda: order.append("produced"))
    ready = flat_sim.event_record(0, producer)
    flat_sim.event_wait(0, ready, across, consumer)
    flat_sim.event_destroy(0, ready)  # while it is pending and waited for
    flat_sim.host_function(across, consumer, lambda: order.append("consumed"))
    end = flat_sim.event_record(across, consumer)
    assert not flat_sim.event_query(across, end)
    gate.set()
    flat_sim.event_wait(across, end, 0, HOST)
    assert order == ["produced", "consumed"]
    flat_sim.stream_destroy(0, producer)
    flat_sim.stream_destroy(across, consumer)


def test_stale_handles_are_errors(flat_sim):
    event, stream = flat_sim.event_record(0, 0), flat_sim.stream_create(0, 0)
    assert flat_sim.event_query(0, event)  # an idle stream completes it at once
    flat_sim.event_destroy(0, event)
    again = flat_sim.event_record(0, 0)  # takes the same slot
    assert again != event
    for call in (
        lambda: flat_sim.event_query(0, event),
        lambda: flat_sim.event_wait(0, event, 0, HOST),
        lambda: flat_sim.event_wait(0, event, 0, 0),
        lambda: flat_sim.event_elapsed(0, event, again),
        lambda: flat_sim.event_elapsed(0, again, event),
        lambda: flat_sim.event_destroy(0, event),
    ):
        with pytest.raises(ValueError, match=f"event {event} of device 0 does not exist, or was destroyed"):
            call()
    for number in (0, 1 << 40, (1 << 64) - 1):
        with pytest.raises(ValueError, match="event"):
            flat_sim.event_query(0, number)
    flat_sim.stream_destroy(0, stream)
    fresh = flat_sim.stream_create(0, 0)  # takes the same slot
    assert fresh != stream
    for call in (
        lambda: flat_sim.stream_destroy(0, stream),
        lambda: flat_sim.event_record(0, stream),
        lambda: flat_sim.host_function(0, stream, print),
        lambda: flat_sim.event_wait(0, again, 0, stream),
    ):
        with pytest.raises(ValueError, match=f"stream {stream} of device 0 does not exist, or was destroyed"):
            call()
    with pytest.raises(ValueError, match="default stream"):
        flat_sim.stream_destroy(0, 0)
    flat_sim.event_destroy(0, again)
    flat_sim.stream_destroy(0, fresh)


def test_elapsed_needs_completed_events(flat_sim):
    gate = threading.Event()
    start = flat_sim.event_record(0, 0)
    flat_sim.host_function(0, 0, gate.wait)
    end = flat_sim.event_record(0, 0)
    with pytest.raises(ValueError, match=f"event {end} of device 0 has not completed"):
        flat_sim.event_elapsed(0, start, end)
    gate.set()
    flat_sim.event_wait(0, end, 0, HOST)
    assert 0 < flat_sim.event_elapsed(0, start, end) == -flat_sim.event_elapsed(0, end, start)
    assert flat_sim.clock(0) <= flat_sim.clock(0)


def test_close_drains_and_a_device_opens_again(make_sim):
    driver, ran = make_sim("devices=1,memory=1M"), []
    gate = threading.Event()
    stream, address = driver.stream_create(0, 0), driver.alloc(0, 8)
    driver.host_function(0, stream, lambda: gate.wait(5))
    driver.host_function(0, stream, lambda: ran.append(1))
    gate.set()
    driver.close(0)
    assert ran == [1]
    with pytest.raises(ValueError, match="not open"):
        driver.copy(0, address, address, 8, D2D, 0)
    driver.close(0)  # twice is once
    driver.open(0)
    assert read(driver, driver.alloc(0, 8), 8) == bytes(8)
    with pytest.raises(ValueError, match="stream"):
        driver.event_record(0, stream)


def test_close_from_a_host_function_is_refused(flat_sim):
    problems = []

    def close_myself() -> None:
        try:
            flat_sim.close(0)
        except ValueError as error:
            problems.append(str(error))

    flat_sim.host_function(0, 0, close_myself)
    synchronize(flat_sim)
    assert "host function" in problems[0]


# ---- time ----
CHIP = "devices=2,memory=64M,peak_flops.float32=1e12,peak_flops.float16=4e12,bandwidth=1e11,launch_ns=1000"
LINK = "link_bandwidth=1e10,link_latency_ns=500"
FLOAT16, FLOAT32, FLOAT64 = 6, 8, 9


def test_a_described_chip_has_exact_times(make_sim):
    driver = make_sim(f"{CHIP},{LINK}")
    cell = driver.alloc(0, LARGE)

    def cost(work) -> float:
        start = driver.event_record(0, 0)
        work()
        end = driver.event_record(0, 0)
        driver.event_wait(0, end, 0, HOST)
        return driver.event_elapsed(0, start, end) * 1e6  # ns

    assert cost(lambda: driver.charge(0, 0, FLOAT32, 2e6, 1e5)) == pytest.approx(1000 + 2000)  # compute-bound
    assert cost(lambda: driver.charge(0, 0, FLOAT16, 2e6, 0)) == pytest.approx(1000 + 500)
    assert cost(lambda: driver.charge(0, 0, FLOAT64, 2e6, 0)) == pytest.approx(
        1000 + 2000
    )  # not listed: float32's rate
    assert cost(lambda: driver.charge(0, 0, FLOAT32, 2e6, 1e6)) == pytest.approx(1000 + 10000)  # memory-bound
    assert cost(lambda: driver.charge(0, 0, FLOAT32, 0, 0)) == pytest.approx(1000)
    for n in (1000, LARGE):  # inline and queued cost the same device time
        data = bytes(n)
        expected = 500 + n / 1e10 * 1e9
        assert cost(lambda n=n, d=data: driver.copy(0, cell, address_of(d), n, H2D, 0)) == pytest.approx(expected)
    assert cost(lambda: driver.copy(0, cell, cell, 1000, D2D, 0)) == pytest.approx(1000 + 2 * 1000 / 1e11 * 1e9)
    total = 3000 + 1500 + 3000 + 11000 + 1000 + 600 + 500 + LARGE / 10 + 1020
    assert driver.clock(0) == pytest.approx(total, abs=1)
    assert driver.clock(1) == 0
    spec = driver.open(0)
    assert (spec.peak_flops, spec.peak_bandwidth) == (1e12, 1e11)
    for dtype, flops in ((18, 1.0), (-1, 1.0), (FLOAT32, -1.0), (FLOAT32, float("nan"))):
        with pytest.raises(ValueError, match="charge"):
            driver.charge(0, 0, dtype, flops, 0.0)


def test_streams_of_a_described_chip_overlap_and_join(make_sim):
    driver = make_sim(CHIP)
    a, b = driver.stream_create(0, 0), driver.stream_create(0, 0)
    start = driver.event_record(0, a)
    driver.charge(0, a, FLOAT32, 9e6, 0)  # 10 µs
    driver.charge(0, b, FLOAT32, 3e6, 0)  # 4 µs at the same time
    ready = driver.event_record(0, a)
    assert driver.clock(0) == 10000
    driver.event_wait(0, ready, 0, b)
    driver.charge(0, b, FLOAT32, 1e6, 0)
    end = driver.event_record(0, b)
    driver.event_wait(0, end, 0, HOST)
    assert driver.event_elapsed(0, start, end) == pytest.approx(0.012)
    # What the host submits after it has waited starts after what it waited for: on every stream and device.
    driver.charge(1, 0, FLOAT32, 1e6, 0)
    assert driver.clock(1) == 14000
    fresh = driver.stream_create(0, 0)
    driver.charge(0, fresh, FLOAT32, 0, 0)
    assert driver.clock(0) == 13000
    driver.stream_destroy(0, fresh)
    assert driver.clock(0) == 13000


def test_the_shipped_profile(make_sim, tmp_path):
    driver = make_sim("devices=1,profile=edge_npu,memory=8M")
    spec = driver.open(0)
    assert (spec.name, spec.memory_bytes) == ("Example edge NPU (invented)", 8 << 20)
    assert (spec.peak_flops, spec.peak_bandwidth) == (0.5e12, 32e9)
    driver.charge(0, 0, FLOAT16, 2e6, 0)
    assert driver.clock(0) == 5000 + 1000
    for text, reason in [
        ("bandwith = 1", "unknown key bandwith"),
        ("bandwidth = 'fast'", "bandwidth = 'fast' is not a float"),
        ("peak_flops = 3", "must be a table"),
        ("name =", "not valid TOML"),
        ("[peak_flops]\nfloat33 = 1", "float33"),
        ("[link]\nspeed = 1", "link.speed"),
    ]:
        path = tmp_path / "chip.toml"
        path.write_text(text)
        with pytest.raises(DriverError, match=reason):
            make_sim(f"profile={path}", open_devices=False)


# ---- faults ----
def test_injected_faults_repeat_by_seed(make_sim):
    def outcomes(options: str) -> list[str]:
        driver, result = make_sim(f"devices=1,memory=1M,{options}"), []
        for _ in range(200):
            try:
                driver.free(0, driver.alloc(0, 8))
                result.append("")
            except MemoryError as error:
                result.append(str(error))
        return result

    first = outcomes("fail=alloc:0.2,seed=7")
    assert 15 < sum(map(bool, first)) < 75
    assert all("injected fault: alloc number" in message for message in first if message)
    assert outcomes("fail=alloc:0.2,copy:0.5,seed=7") == first
    assert outcomes("fail=alloc:0.2,seed=8") != first
    assert not any(outcomes("fail=alloc:0"))


def test_injected_faults_of_copies_and_events(make_sim):
    driver = make_sim("devices=1,memory=1M,fail=copy:1,event:1")
    cell = driver.alloc(0, 8)
    with pytest.raises(RuntimeError, match="injected fault: copy"):
        driver.copy(0, cell, cell, 8, D2D, 0)
    with pytest.raises(RuntimeError, match="injected fault: event"):
        driver.event_record(0, 0)
