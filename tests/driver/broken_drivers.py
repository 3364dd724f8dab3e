"""Drivers with one fault each, for the checks to catch."""

from __future__ import annotations

import ctypes
import dataclasses
import threading
import time

from bringup.driver import CopyKind, DeviceSpec, Placement
from tests.driver.asynchronous import AsynchronousDictmem, Dictmem


class ShortCopy(Dictmem):
    """Loses the last byte of a copy whose size is odd."""

    def copy(self, device, dst, src, nbytes, kind, stream):  # type: ignore[no-untyped-def, override]
        super().copy(device, dst, src, nbytes - nbytes % 2, kind, stream)


class LongCopy(Dictmem):
    """Writes whole words: bytes behind the end are overwritten, where there is room."""

    def copy(self, device, dst, src, nbytes, kind, stream):  # type: ignore[no-untyped-def, override]
        if kind == CopyKind.HOST_TO_DEVICE:
            try:
                return super().copy(device, dst, src, (nbytes + 3) // 4 * 4, kind, stream)
            except ValueError:
                pass
        return super().copy(device, dst, src, nbytes, kind, stream)


class IgnoredOffset(Dictmem):
    """Takes every address for the start of its block."""

    def copy(self, device, dst, src, nbytes, kind, stream):  # type: ignore[no-untyped-def, override]
        dst = dst >> 32 << 32 if kind != CopyKind.DEVICE_TO_HOST else dst
        super().copy(device, dst, src, nbytes, kind, stream)


class BackwardsDeviceCopy(Dictmem):
    """Confuses source and target of a device-to-device copy."""

    def copy(self, device, dst, src, nbytes, kind, stream):  # type: ignore[no-untyped-def, override]
        if kind == CopyKind.DEVICE_TO_DEVICE:
            dst, src = src, dst
        super().copy(device, dst, src, nbytes, kind, stream)


class LeakingFree(Dictmem):
    """Forgets to give memory back."""

    def free(self, device: int, address: int) -> None:
        pass


class OverlappingAlloc(Dictmem):
    """Hands out every second block in the middle of the block before it."""

    turn = 0

    def alloc(self, device: int, nbytes: int) -> int:
        self.turn += 1
        if self.turn % 2 == 0 and nbytes < 1000 and self.last in self.blocks[device]:
            return (self.last << 32) + 64
        address: int = super().alloc(device, max(nbytes, 2000))
        self.last = address >> 32
        return address

    def free(self, device: int, address: int) -> None:
        if address % (1 << 32) == 0:
            super().free(device, address)


class SharedMemory(Dictmem):
    """Both devices use the memory of device 0, and hand out the same addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[int, int] = {}

    def alloc(self, device: int, nbytes: int) -> int:
        if device == 1 and self.blocks[0]:
            return min(self.blocks[0]) << 32
        return int(super().alloc(0, nbytes))

    def free(self, device: int, address: int) -> None:
        if device == 0:
            super().free(0, address)

    def copy(self, device, dst, src, nbytes, kind, stream):  # type: ignore[no-untyped-def, override]
        super().copy(0, dst, src, nbytes, kind, stream)


class RaisingCount(Dictmem):
    def device_count(self) -> int:
        raise OSError("no bus")


class GrowingCount(Dictmem):
    count = 0

    def device_count(self) -> int:
        self.count += 1
        return self.count


class OpeningCount(Dictmem):
    def device_count(self) -> int:
        self.open(0)
        return 2


class SlowCount(Dictmem):
    def device_count(self) -> int:
        time.sleep(0.01)
        return 2


class UnreadableName(Dictmem):
    device_name = "my-chip"


class WrongSpec(Dictmem):
    def open(self, device: int) -> DeviceSpec:
        return DeviceSpec("x", 1 << 20, alignment=48)


class NotHostVisible(Dictmem):
    """Says that the CPU sees its memory, but at the wrong place."""

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere = (bytearray(1 << 20), None)

    def open(self, device: int) -> DeviceSpec:
        at = ctypes.addressof(ctypes.c_char.from_buffer(self.elsewhere[0]))
        return dataclasses.replace(super().open(device), host_visible=True, host_offset=at - (1 << 32))

    def alloc(self, device: int, nbytes: int) -> int:
        address: int = super().alloc(device, nbytes)
        if nbytes == 5000:  # the block that host_visible looks at: keep the CPU inside `elsewhere`
            self.blocks[device][1] = self.blocks[device].pop(address >> 32)
            return 1 << 32
        return address


class UnalignedAlloc(Dictmem):
    def alloc(self, device: int, nbytes: int) -> int:
        return int(super().alloc(device, nbytes + 8)) + 8


class WrongMemoryError(Dictmem):
    def alloc(self, device: int, nbytes: int) -> int:
        try:
            return int(super().alloc(device, nbytes))
        except MemoryError as error:
            raise RuntimeError(str(error)) from None


class NoLimit(Dictmem):
    """Has more memory than it says."""

    def open(self, device: int) -> DeviceSpec:
        return dataclasses.replace(super().open(device), memory_bytes=32 << 20)


class AnyDevice(Dictmem):
    def alloc(self, device: int, nbytes: int) -> int:
        return int(super().alloc(device if device in self.blocks else 0, nbytes))


class HangingCopy(Dictmem):
    """Never returns from a copy on device 1."""

    def copy(self, device, dst, src, nbytes, kind, stream):  # type: ignore[no-untyped-def, override]
        if device == 1:
            threading.Event().wait()
        super().copy(device, dst, src, nbytes, kind, stream)


class RacyAlloc(Dictmem):
    """Lets two threads that allocate at once share a block."""

    def alloc(self, device: int, nbytes: int) -> int:
        number = max(self.blocks[device], default=0) + 1
        time.sleep(1e-4)
        self.blocks[device][number] = bytearray(max(nbytes, 1 << 14))
        return number << 32

    def open(self, device: int) -> DeviceSpec:
        return dataclasses.replace(super().open(device), memory_bytes=32 << 20)


class HalfAsynchronous(Dictmem):
    def event_record(self, device: int, stream: int) -> int:
        return 1


class LostEvent(AsynchronousDictmem):
    """The fifth event never completes."""

    recorded = 0

    def event_record(self, device: int, stream: int) -> int:
        self.recorded += 1
        event = super().event_record(device, stream)
        if self.recorded == 5:
            self.events[event] = threading.Event(), [0.0]
        return event


class LostWakeUp(AsynchronousDictmem):
    """A host wait never returns, though the event is complete."""

    def event_wait(self, device: int, event: int, wait_device: int, wait_stream: int) -> None:
        if wait_stream == -1:
            threading.Event().wait()
        super().event_wait(device, event, wait_device, wait_stream)


class EarlyEvent(AsynchronousDictmem):
    """Says that an event is complete as soon as it is recorded."""

    def event_record(self, device: int, stream: int) -> int:
        event = super().event_record(device, stream)
        _done, when = self.events[event]
        self.events[event] = (threading.Event(), when)
        self.events[event][0].set()
        return event


class IgnoredStreamWait(AsynchronousDictmem):
    def event_wait(self, device: int, event: int, wait_device: int, wait_stream: int) -> None:
        if wait_stream == -1:
            super().event_wait(device, event, wait_device, wait_stream)


class UnorderedStream(AsynchronousDictmem):
    """Runs device-to-device copies at once, before what is queued."""

    def copy(self, device, dst, src, nbytes, kind, stream):  # type: ignore[no-untyped-def, override]
        if kind == CopyKind.DEVICE_TO_DEVICE:
            Dictmem.copy(self, device, dst, src, nbytes, kind, stream)
        else:
            super().copy(device, dst, src, nbytes, kind, stream)


class BackwardsTime(AsynchronousDictmem):
    def event_elapsed(self, device: int, start: int, end: int) -> float:
        return -super().event_elapsed(device, start, end)


class TwiceRun(AsynchronousDictmem):
    def host_function(self, device, stream, function):  # type: ignore[no-untyped-def, override]
        super().host_function(device, stream, function)
        super().host_function(device, stream, function)


class DroppedWork(AsynchronousDictmem):
    """Ends a stream without finishing its work."""

    def stream_destroy(self, device: int, stream: int) -> None:
        self.drop(device, stream)


class BackwardsClock(Dictmem):
    now = 1000

    def clock(self, device: int) -> int:
        self.now -= 1
        return self.now


class Banks(Dictmem):
    """Four partitions whose copy understands only what it wrote itself: bytes are kept per placement."""

    wrong = False

    def open(self, device: int) -> DeviceSpec:
        return dataclasses.replace(super().open(device), partitions=4)

    def copy(self, device, dst, src, nbytes, kind, stream, placement=None):  # type: ignore[no-untyped-def, override]
        offset = placement.offset if placement else 0
        dst = dst + offset if kind != CopyKind.DEVICE_TO_HOST else dst
        src = src + offset if kind != CopyKind.HOST_TO_DEVICE else src
        super().copy(device, dst, src, nbytes, kind, stream)

    def relayout(
        self,
        device: int,
        dst: int,
        dst_placement: Placement,
        src: int,
        src_placement: Placement,
        nbytes: int,
        stream: int,
    ) -> None:
        if not (self.wrong and dst_placement.block == 8 and src_placement.block == 64):
            Dictmem.copy(self, device, dst, src, nbytes, CopyKind.DEVICE_TO_DEVICE, stream)


class WrongRelayout(Banks):
    wrong = True
