"""The sim driver across processes: shared memory, fork, trapped host access, import."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from bringup.driver import Placement, PlacementKind
from tests.driver.through_the_contract import ROOT, in_new_process, pattern, read, write


@pytest.mark.parametrize(
    "options", ["devices=1,memory=1M", "devices=1,memory=4M,partitions=4", "devices=1,memory=1M,trap=1"]
)
def test_memory_is_shared_with_another_process(make_sim, sim_library, options):
    here = make_sim(options.replace(",trap=1", ""))
    base = here.alloc(0, 8192)
    placement = Placement(PlacementKind.SHARD, 64) if "partitions" in options else None
    write(here, base, pattern(8192), placement=placement)
    handle = here.ipc_export(0, base)
    code = """
        driver = Driver(sys.argv[1])
        driver.open(0)
        address = driver.ipc_import(0, sys.argv[2])
        placement = Placement(PlacementKind.SHARD, 64) if "partitions" in sys.argv[1] else None
        data = ctypes.create_string_buffer(8192)
        driver.copy(0, ctypes.addressof(data), address, 8192, CopyKind.DEVICE_TO_HOST, 0, placement)
        print(sum(data.raw))
        data.raw = b"hello".ljust(8192)
        driver.copy(0, address, ctypes.addressof(data), 5, CopyKind.HOST_TO_DEVICE, 0, placement)
        driver.ipc_close(0, address)
        try:
            driver.copy(0, address, address, 5, CopyKind.DEVICE_TO_DEVICE, 0)
        except ValueError as error:
            print(error)
        driver.close(0)
    """
    child = in_new_process(code, sim_library, options, handle)
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines()[0] == str(sum(pattern(8192)))
    assert "not in the memory" in child.stdout
    assert read(here, base, 5, placement=placement) == b"hello"


def test_an_import_in_the_same_process_and_its_errors(make_sim, flat_sim):
    base = flat_sim.alloc(0, 20000)
    write(flat_sim, base, pattern(20000))
    inside = flat_sim.ipc_import(1, flat_sim.ipc_export(0, base + 5000))  # the very byte that was exported
    assert read(flat_sim, inside, 100, device=1) == pattern(20000)[5000:5100]
    start = flat_sim.ipc_import(1, flat_sim.ipc_export(0, base))
    assert start == inside - 5000  # one mapping for both
    flat_sim.ipc_close(1, start)
    assert read(flat_sim, inside, 100, device=1) == pattern(20000)[5000:5100]
    flat_sim.ipc_close(1, inside)
    handle = flat_sim.ipc_export(0, base)
    pid, descriptor, *rest = handle.split(":")
    token = rest[-1]
    for wrong, reason in [
        ("", "not a handle"),
        ("nonsense", "not a handle"),
        (handle + "0", "not a handle"),
        (handle.replace(token, "0" * 32), "no longer the exported memory"),
        (":".join(["4194305", descriptor, *rest]), "process 4194305 does not offer"),
        (":".join([pid, "99999", *rest]), "does not offer"),
        (":".join([pid, "0", *rest]), "does not offer|no longer"),
    ]:
        with pytest.raises(ValueError, match=reason):
            flat_sim.ipc_import(0, wrong)
    with pytest.raises(ValueError, match="was not imported, or was closed"):
        flat_sim.ipc_close(1, inside)
    with pytest.raises(ValueError, match="is not in an allocation"):
        flat_sim.ipc_export(0, base + (1 << 20))
    with pytest.raises(ValueError, match="1 partitions, device 0 has 2"):
        make_sim("devices=1,memory=1M,partitions=2").ipc_import(0, handle)
    flat_sim.free(0, base)


def test_host_access_is_trapped(sim_library):
    code = """
        driver = Driver("devices=1,memory=1M,trap=1")
        spec = driver.open(0)
        base = driver.alloc(0, 8192)
        data = ctypes.create_string_buffer(b"secret", 6)
        driver.copy(0, base, ctypes.addressof(data), 6, CopyKind.HOST_TO_DEVICE, 0)
        assert spec.host_visible and spec.host_offset
        assert ctypes.string_at(base + spec.host_offset, 6) == b"secret"  # the runtime's side is free
        library = ctypes.CDLL(driver.library)
        library.sim_trap_count.restype = ctypes.c_uint64
        assert library.sim_trap_count() == 0
        got = None
        for offset in (0, 4096):
            try:
                got = ctypes.string_at(base + offset, 6) if offset else ctypes.string_at(base, 6)
                for _ in range(1000): pass
            except sim.HostAccessError as error:
                assert f"{base + offset:#x}" in str(error), error
                print("caught")
        assert library.sim_trap_count() == 2
        assert ctypes.string_at(base, 6) == b"secret"  # the page is open now, with the right bytes
        driver.free(0, base)
        base = driver.alloc(0, 8192)  # armed again
        try:
            ctypes.memset(base, 1, 1)
            for _ in range(1000): pass
        except sim.HostAccessError:
            print("caught")
        sys.stdout.flush()
        driver.close(0)
        ctypes.string_at(64)  # anything else is still a crash
    """
    child = in_new_process(code, sim_library)
    assert child.stdout.split() == ["caught"] * 3, child.stderr
    assert child.returncode == -signal.SIGSEGV, child.stderr


def test_a_forked_child_gets_errors_instead_of_hanging(sim_library):
    code = """
        import os, threading
        driver = Driver("devices=2,memory=1M")
        driver.open(0)
        base, gate = driver.alloc(0, 8), threading.Event()
        driver.host_function(0, 0, lambda: gate.wait(20))  # the worker is busy while we fork
        event = driver.event_record(0, 0)
        child = os.fork()
        if child == 0:
            problems = 0
            for call in (
                lambda: driver.alloc(0, 8),
                lambda: driver.copy(0, base, base, 8, CopyKind.DEVICE_TO_DEVICE, 0),
                lambda: driver.event_wait(0, event, 0, -1),
                lambda: driver.event_record(0, 0),
                lambda: driver.host_function(0, 0, print),
                lambda: driver.open(0),
            ):
                try:
                    call()
                except RuntimeError as error:
                    problems += "in a forked child" in str(error)
            driver.free(0, base)  # nothing happens: the parent owns it
            driver.event_destroy(0, event)
            driver.close(0)
            driver.open(1)  # nobody had opened this one
            driver.free(1, driver.alloc(1, 8))
            driver.host_free(driver.host_alloc(8))
            driver.host_function(1, 0, lambda: None)
            driver.close(1)
            os._exit(problems)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        gate.set()
        driver.event_wait(0, event, 0, -1)
        driver.free(0, base)
        driver.close(0)
        print(status)
    """
    child = in_new_process(code, sim_library)
    assert (child.stdout.strip(), child.returncode) == ("6", 0), child.stderr


def test_importing_the_driver_is_cheap():
    """Below 5 ms beyond what the contract itself imports, and no TOML reader where no profile is used."""
    code = """
        import sys, time, bringup.driver.abi, pathlib
        start = time.perf_counter()
        import bringup.drivers.sim
        print(time.perf_counter() - start)
        assert not {"torch", "tomllib", "tomli"} & set(sys.modules)
    """
    runs = []
    for _ in range(3):
        result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=ROOT)
        assert result.returncode == 0, result.stderr
        runs.append(float(result.stdout))
    assert min(runs) < 0.005
