"""Driver checks at the limits: bad arguments, many threads, no memory left, memory that does not come back."""

from __future__ import annotations

import threading

from bringup.kit.driver_checks import Probe, check, difference, expect, pattern, threads


def _still_works(probe: Probe) -> None:
    data = pattern(512, 9)
    address = probe.alloc(512)
    probe.write(address, data)
    got = probe.read(address, 512)
    expect(got == data, f"afterwards the device does not work: {difference(got, data)}")
    probe.free(address)


@check(needs=("open_spec",))
def bad_device(probe: Probe) -> None:
    """A device index that does not exist is an error, and does no harm."""
    for device in (probe.session.count, -1, 1000):
        for name, arguments in (("open", (device,)), ("alloc", (device, 64))):
            try:
                getattr(probe.driver, name)(*arguments)
            except Exception:
                continue
            expect(False, f"{name} on device {device} of {probe.session.count} did not raise")
    _still_works(probe)


@check(needs=("open_spec",))
def alloc_zero(probe: Probe) -> None:
    """alloc(0) gives an address that free takes, or raises; the device works on."""
    try:
        address = probe.driver.alloc(probe.device, 0)
    except (ValueError, MemoryError):
        pass
    else:
        probe.driver.free(probe.device, address)
    _still_works(probe)


@check(needs=("open_spec", "copy_round_trip"))
def eight_threads(probe: Probe) -> None:
    """Eight threads can allocate, copy and free at once."""
    together = threading.Barrier(8)

    def work(number: int) -> None:
        mine = Probe(probe.session)
        try:
            for turn in range(25):
                data = pattern(3000 + 17 * turn, number * 31 + turn)
                together.wait()  # all eight call alloc at the same moment
                base = mine.alloc(len(data))
                mine.write(base, data)
                together.wait()  # and all eight blocks are in use before the first is read
                got = mine.read(base, len(data))
                expect(got == data, f"thread {number}, turn {turn}: {difference(got, data)}")
                mine.give_back()
        except BaseException:
            together.abort()
            raise

    threads(8, work)


@check(needs=("open_spec", "groups"))
def compile_error(probe: Probe) -> None:
    """Source that cannot be compiled is an error, not a crash."""
    probe.need("target", "compile")
    expect(probe.driver.target(), "target() is empty")
    try:
        probe.driver.compile("this is not source code {")
    except Exception as error:
        expect(str(error), f"{type(error).__name__} without a text: the mistake in the kernel cannot be found")
        return
    expect(False, "compile accepted text that is not source code")


@check(needs=("open_spec",))
def free_returns_memory(probe: Probe) -> None:
    """free gives memory back: allocating twice the memory piece by piece succeeds."""
    memory = probe.spec.memory_bytes
    chunk = max(memory // 4, 1)
    while True:
        try:
            probe.free(probe.alloc(chunk))
            break
        except MemoryError:
            expect(chunk > memory // 4096, f"not even {chunk} of {memory} bytes can be allocated")
            chunk //= 2
    done = chunk
    while done < 2 * memory:
        try:
            probe.free(probe.alloc(chunk))
        except MemoryError as error:
            expect(False, f"after {done} bytes were allocated and freed again, {chunk} more do not fit: {error}")
        done += chunk


@check(needs=("open_spec", "free_returns_memory"))
def out_of_memory(probe: Probe) -> None:
    """Too much memory is a MemoryError, and the device works on."""
    memory = probe.spec.memory_bytes
    for nbytes in (memory + 1, 2 * memory, 1 << 62, (1 << 64) - 1):
        try:
            address = probe.driver.alloc(probe.device, nbytes)
        except MemoryError:
            continue
        except Exception as error:
            expect(False, f"alloc({nbytes}) raised {type(error).__name__} instead of MemoryError: {error}")
        probe.driver.free(probe.device, address)
        expect(False, f"alloc({nbytes}) succeeded on a device of {memory} bytes")
    chunk, blocks = max(memory // 4, 1), []
    try:
        for _ in range(5):
            blocks.append(probe.alloc(chunk))
    except MemoryError:
        pass
    expect(len(blocks) * chunk <= memory, f"{len(blocks)} blocks of {chunk} bytes fit into {memory} bytes of memory")
    for address in blocks:
        probe.free(address)
    _still_works(probe)
