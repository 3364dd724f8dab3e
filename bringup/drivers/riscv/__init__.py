"""Bare-metal RISC-V guests as PyTorch devices: eager ops are kernels that run in an emulator.

    BRINGUP_RISCV="isa=rv64gcv,vlen=256" BRINGUP_DRIVERS=riscv python train.py

Options (environment variable ``BRINGUP_RISCV``, comma-separated, the later of two equal keys counts):

===============  =====================================================================================================
devices          1 to 64 guests (default 2)
machine          ``interpreter`` (default: bringup's own) or ``qemu``
isa              ``rv64gc`` (default) or ``rv64gcv``
vlen             bits of a vector register, 128 to 1024 (default 256, with rv64gcv)
memory           RAM per guest, with K, M or G (default 256M)
seconds          a kernel that runs longer is stopped with an error (default 60)
===============  =====================================================================================================

guest is one device, in_order its streams and events, kernels the cross compiler, command_loop.c what runs in the guest.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bringup.driver import CopyKind, DeviceSpec, EventFlags, Launch, Placement
from bringup.driver import Driver as Base
from bringup.drivers.riscv.in_order import Event, InOrder
from bringup.drivers.riscv.options import parse_options

if TYPE_CHECKING:
    from bringup.drivers.riscv.guest import Kernel, ServingMachine

#: flops + bytes of a launch that the calling thread runs itself: 10,000 instructions of an addition, 30 µs in the
#: interpreter, about what a trip through another thread costs.
_SHORT = 20_000
_DEFAULT_STREAM = 0
_HOST = -1


@dataclass
class _Opened:
    guest: ServingMachine
    streams: dict[int, InOrder]
    kernels: dict[int, Kernel] = field(default_factory=dict)
    events: dict[int, Event] = field(default_factory=dict)


class Driver(Base):
    """The riscv driver; ``options`` stands in for the environment variable ``BRINGUP_RISCV``.

    >>> Driver("devices=1").target()  # doctest: +SKIP
    'c; vector=0 fma=1 isa=rv64gc'
    """

    name = "riscv"

    def __init__(self, options: str | None = None) -> None:
        self._options = parse_options(os.environ.get("BRINGUP_RISCV", "") if options is None else options)
        self._opened: dict[int, _Opened] = {}
        self._lock = threading.Lock()
        self._handles = itertools.count(1)

    # ---- devices ----
    def device_count(self) -> int:
        """As many as the options ask for; 0 where something is missing."""
        return 0 if self._missing else self._options.devices

    def absent_reason(self) -> str:
        """What to install."""
        return self._missing or super().absent_reason()

    @functools.cached_property
    def _missing(self) -> str:
        from bringup.riscv.machine import machine_class
        from bringup.riscv.toolchain import ToolchainMissing, find_toolchain

        try:
            find_toolchain()
        except ToolchainMissing as missing:
            return str(missing)
        reason = machine_class(self._options.machine).absent_reason()
        return f"machine '{self._options.machine}' cannot run here: {reason}" if reason else ""

    def open(self, device: int) -> DeviceSpec:
        """Boots the guest."""
        from bringup.drivers.riscv.guest import ServingMachine

        if not 0 <= device < self.device_count():
            raise ValueError(f"there is no device {device}: riscv has {self.device_count()}")
        with self._lock:
            if device not in self._opened:
                streams = {_DEFAULT_STREAM: InOrder(f"riscv:{device}")}
                self._opened[device] = _Opened(ServingMachine(self._options), streams)
            heap = self._opened[device].guest.heap
        options = self._options
        core = f"{options.isa}, vlen {options.vlen}" if options.vectors else options.isa
        return DeviceSpec(
            name=f"RISC-V guest ({core}, {options.machine})",
            memory_bytes=heap.end - heap.start,
            alignment=heap.alignment,
        )

    def close(self, device: int) -> None:
        """Ends the guest after its work."""
        with self._lock:
            opened = self._opened.pop(device, None)
        if opened is not None:
            for stream in opened.streams.values():
                stream.end()
            for stream in opened.streams.values():
                stream.join()
            opened.guest.close()

    def _device(self, device: int) -> _Opened:
        opened = self._opened.get(device)
        if opened is None:
            raise ValueError(f"device {device} is not open")
        return opened

    def _stream(self, device: int, stream: int) -> InOrder:
        found = self._device(device).streams.get(stream)
        if found is None:
            raise ValueError(f"device {device} has no stream {stream}")
        return found

    # ---- memory ----
    def alloc(self, device: int, nbytes: int) -> int:
        """Bytes of the guest's RAM."""
        return self._device(device).guest.heap.allocate(nbytes)

    def free(self, device: int, address: int) -> None:
        """Gives them back."""
        self._device(device).guest.heap.free(address)

    def copy(
        self,
        device: int,
        dst: int,
        src: int,
        nbytes: int,
        kind: CopyKind,
        stream: int,
        placement: Placement | None = None,
    ) -> None:
        """Reads or writes the guest's RAM while it sleeps."""
        guest, queue = self._device(device).guest, self._stream(device, stream)
        queue.raise_failure()
        if nbytes == 0:
            return
        for address, host_kind in ((dst, CopyKind.DEVICE_TO_HOST), (src, CopyKind.HOST_TO_DEVICE)):
            if kind != host_kind:
                guest.check(address, nbytes)

        def move() -> None:
            data = ctypes.string_at(src, nbytes) if kind == CopyKind.HOST_TO_DEVICE else guest.read(src, nbytes)
            if kind == CopyKind.DEVICE_TO_HOST:
                ctypes.memmove(dst, data, nbytes)
            else:
                guest.write(dst, data)

        queue.submit(move, short=True)

    # ---- kernels ----
    def target(self) -> str:
        """C for the core of the guests."""
        from bringup.riscv.toolchain import find_toolchain

        return self._options.target(find_toolchain().vectors).describe()

    def compile(self, source: str) -> bytes:
        """An ELF file of code that runs at any address."""
        from bringup.drivers.riscv.kernels import compile_kernel

        return compile_kernel(source, self._options.isa)

    def compiler_identity(self) -> str:
        """The cross compiler, its version and its flags."""
        from bringup.drivers.riscv.kernels import compiler_identity

        return compiler_identity(self._options.isa)

    def load(self, device: int, binary: bytes, entry: str) -> int:
        """Puts a kernel into the guest's RAM."""
        opened = self._device(device)
        kernel = opened.guest.load(binary, entry)
        handle = next(self._handles)
        opened.kernels[handle] = kernel
        return handle

    def launch(self, device: int, kernel: int, launch: Launch) -> bool:
        """Wakes the guest, which calls the kernel once for the whole grid."""
        opened, queue = self._device(device), self._stream(device, launch.stream)
        called = opened.kernels.get(kernel)
        if called is None:
            raise ValueError(f"device {device} has no kernel {kernel}")
        guest, args, grid = opened.guest, launch.args, launch.grid
        guest.check_arguments(len(args))
        queue.raise_failure()
        short = grid == 0 or launch.flops + launch.bytes <= _SHORT
        run = functools.partial(guest.call, called, args, grid) if grid else _nothing
        return queue.submit(run, short)

    # ---- streams and events ----
    def stream_create(self, device: int, priority: int) -> int:
        """A queue; all queues of a device share its hart."""
        stream = next(self._handles)
        self._device(device).streams[stream] = InOrder(f"riscv:{device} stream {stream}")
        return stream

    def stream_destroy(self, device: int, stream: int) -> None:
        """Its work is finished all the same."""
        if stream == _DEFAULT_STREAM:
            raise ValueError("the default stream cannot be destroyed")
        self._stream(device, stream).end()
        del self._device(device).streams[stream]

    def event_record(self, device: int, stream: int, flags: EventFlags = EventFlags.NONE) -> int:
        """Complete when the queue has come to it."""
        opened, queue = self._device(device), self._stream(device, stream)
        handle, event = next(self._handles), Event(queue)

        def reach() -> None:
            event.time = opened.guest.clock()
            event.reached.set()

        opened.events[handle] = event
        queue.submit(reach, short=True)
        return handle

    def event_query(self, device: int, event: int) -> bool:
        """Whether the queue has come to it."""
        return self._event(device, event).reached.is_set()

    def event_wait(self, device: int, event: int, wait_device: int, wait_stream: int) -> None:
        """Blocks the caller, or a stream."""
        awaited = self._event(device, event)
        if wait_stream == _HOST:
            awaited.reached.wait()
            awaited.stream.raise_failure()
            return
        queue = self._stream(wait_device, wait_stream)
        if not awaited.reached.is_set():
            queue.submit(awaited.reached.wait, short=False)

    def event_elapsed(self, device: int, start: int, end: int) -> float:
        """Milliseconds of a clock that counts each instruction as a nanosecond."""
        first, last = self._event(device, start), self._event(device, end)
        if not (first.reached.is_set() and last.reached.is_set()):
            raise ValueError("both events must be complete")
        return (last.time - first.time) / 1e6

    def event_destroy(self, device: int, event: int) -> None:
        """Forgets an event; what waits for it still does."""
        if self._device(device).events.pop(event, None) is None:
            raise ValueError(f"device {device} has no event {event}")

    def _event(self, device: int, event: int) -> Event:
        found = self._device(device).events.get(event)
        if found is None:
            raise ValueError(f"device {device} has no event {event}")
        return found

    def host_function(self, device: int, stream: int, function: Callable[[], None]) -> None:
        """Calls it when the queue has come to it, on the queue's thread."""
        self._stream(device, stream).submit(function, short=False)

    # ---- time ----
    def clock(self, device: int) -> int:
        """Retired instructions, each taken for a nanosecond."""
        return self._device(device).guest.clock()


def _nothing() -> None:
    pass
