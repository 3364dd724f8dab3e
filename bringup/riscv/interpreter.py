"""Our own machine: an interpreter in C (iss/), in this process, with vectors and all counts.

Rounding follows the instruction or frm, except that arithmetic cannot round ties away from zero (rmm; conversions to
integers can), and the flags of fflags stay 0. There is no CLINT and no PLIC: an interrupting device sets mip.MEIP.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .device import Bus
from .machine import Counts, FunctionCounts, Machine, MachineSpec, Stop
from .trap_report import instruction_at, reported_trap, trap_reason

if TYPE_CHECKING:
    from .device import Bytes, Device

_LIBRARY = Path(__file__).with_name("_iss.so")
_EXTENSIONS = {"m": 1, "a": 2, "f": 4, "d": 8, "c": 16, "v": 32, "zfhmin": 64, "zfh": 128, "zvfh": 256}
_FETCH_FAULT, _ILLEGAL = 1, 2
_BUDGET, _EXIT, _IDLE, _TRAPPED, _REFUSED = range(5)
#: Between two slices Python sees Ctrl-C and the clock.
_SLICE_SECONDS = 0.05
_FIRST_SLICE = 200_000

_Read = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint64)
)
_Write = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64)


class _Config(ctypes.Structure):
    _fields_ = (
        ("ram_base", ctypes.c_uint64),
        ("ram_bytes", ctypes.c_uint64),
        ("ram", ctypes.c_void_p),
        ("xlen", ctypes.c_uint32),
        ("vlen", ctypes.c_uint32),
        ("extensions", ctypes.c_uint32),
        ("portable", ctypes.c_uint32),
        ("read", _Read),
        ("write", _Write),
        ("user", ctypes.c_void_p),
    )


class _Stop(ctypes.Structure):
    _fields_ = (("reason", ctypes.c_uint64), ("code", ctypes.c_uint64), ("value", ctypes.c_uint64))


class Registers(ctypes.Structure):
    """The registers of the hart, shared with the interpreter."""

    _fields_ = (("x", ctypes.c_uint64 * 33), ("pc", ctypes.c_uint64), ("f", ctypes.c_uint64 * 32))


_COUNTERS = ("instructions", "loads", "stores", "vector", "lane_beats")


class _Counts(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in _COUNTERS)


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_LIBRARY))
    machine, u64, u32 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32
    signatures: dict[str, tuple[Any, ...]] = {
        "iss_create": (machine, ctypes.POINTER(_Config)),
        "iss_destroy": (None, machine),
        "iss_register_file": (ctypes.POINTER(Registers), machine),
        "iss_vector_file": (ctypes.POINTER(ctypes.c_uint8), machine),
        "iss_add_device": (ctypes.c_int, machine, u64, u64),
        "iss_run": (None, machine, u64, ctypes.POINTER(_Stop)),
        "iss_code_changed": (None, machine, u64, u64),
        "iss_set_interrupt": (None, machine, ctypes.c_int),
        "iss_interrupt_enabled": (ctypes.c_int, machine),
        "iss_yield": (None, machine),
        "iss_retired": (u64, machine),
        "iss_console": (u64, machine, ctypes.POINTER(ctypes.POINTER(ctypes.c_uint8))),
        "iss_set_ranges": (ctypes.c_int, machine, ctypes.POINTER(u64), u64),
        "iss_read_counts": (None, machine, ctypes.POINTER(_Counts), ctypes.POINTER(_Counts)),
        "iss_reset_counts": (None, machine),
        "iss_csr": (u64, machine, u32),
        "iss_expand": (u32, u32, ctypes.c_uint16),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def expanded(compressed: int, xlen: int) -> int:
    """The instruction of 32 bits that a compressed one stands for; 0 if it is illegal.

    >>> hex(expanded(0x4108, 64))  # c.lw a0, 0(a0)
    '0x52503'
    """
    return int(_library().iss_expand(xlen, compressed & 0xFFFF))


class Interpreter(Machine):
    """A hart in machine mode and its RAM.

    ``portable`` keeps it from instructions that only newer host processors have (the results are the same).
    """

    name: ClassVar[str] = "interpreter"

    def __init__(
        self,
        program: bytes | Path,
        spec: MachineSpec | None = None,
        devices: Mapping[int, Device] = MappingProxyType({}),
        *,
        portable: bool = False,
    ) -> None:
        super().__init__(program, spec, devices)
        spec = self.spec
        self._c = _library()
        self._ram = _fresh_ram(spec.ram_bytes)
        # A callback that held the machine would keep it alive through a cycle that C holds.
        this = weakref.ref(self)
        config = _Config(
            ram_base=spec.ram_base,
            ram_bytes=spec.ram_bytes,
            ram=self._ram.ctypes.data,
            xlen=spec.xlen,
            vlen=spec.vlen,
            extensions=sum(bit for name, bit in _EXTENSIONS.items() if name in spec.extensions),
            portable=portable,
            read=_Read(lambda _, address, size, value: _alive(this)._device_read(address, size, value)),
            write=_Write(lambda _, address, size, value: _alive(this)._device_write(address, size, value)),
        )
        handle = self._c.iss_create(ctypes.byref(config))
        if not handle:
            raise MemoryError(f"no address space for a machine with {spec.ram_bytes >> 20} MiB of RAM")
        self._handle = handle
        self._keep = config
        self._finalizer = weakref.finalize(self, _destroy, self._c, handle, config, self._ram)
        self.registers: Registers = self._c.iss_register_file(handle).contents
        """x0…x31, pc and f0…f31; x[32] takes writes to x0."""
        self.bus = Bus(devices, self._ram, spec.ram_base, lambda: _alive(this)._retired())
        for base, device in self.bus.devices.items():
            if self._c.iss_add_device(handle, base, device.size):
                raise ValueError("there are more than 64 devices")
        self._ended: Stop | None = None
        self._interrupt = False
        self._refusal: BaseException | None = None
        self._earlier: dict[str, FunctionCounts] = {}
        self._ranges: list[tuple[int, int, str]] = []
        self._ranges_stale = True
        for segment in self.program.segments:
            at = segment.address - spec.ram_base
            self._ram[at : at + len(segment.data)] = np.frombuffer(segment.data, np.uint8)
        self.registers.pc = self.program.entry

    # ---- running ----
    def run(self, *, instructions: int = 10**10, seconds: float = 60.0) -> Stop:
        """Runs until the program exits or waits; raises GuestError when it traps, or runs longer than the limits."""
        handle = self._open()
        if self._ended is not None:
            raise RuntimeError(f"the program has ended with exit code {self._ended.code}; make a new machine")
        if self._ranges_stale:
            self._send_ranges()
        stop = _Stop()
        started = time.monotonic()
        end = self._c.iss_retired(handle) + instructions
        size = _FIRST_SLICE
        while True:
            retired = self._c.iss_retired(handle)
            if retired >= end:
                raise self._error(f"ran longer than {instructions} instructions")
            self.bus.run_due()
            self._update_interrupt()
            alarm = self.bus.next_alarm()
            slice_size = min(size, end - retired) if alarm is None else min(size, end - retired, alarm)
            before = time.monotonic()
            self._c.iss_run(handle, slice_size, ctypes.byref(stop))
            now = time.monotonic()
            if stop.reason == _EXIT:
                return self._finish(int(stop.code))
            if stop.reason == _IDLE and not self._wakes():
                return Stop("idle")
            if stop.reason == _TRAPPED:
                raise self._error(self._describe_trap(int(stop.code), int(stop.value)))
            if stop.reason == _REFUSED:
                self._raise_refusal(int(stop.value))
            if now - started > seconds:
                raise self._error(f"ran longer than {seconds:g} s")
            if slice_size == size:
                size = _next_size(size, now - before)

    def _finish(self, code: int) -> Stop:
        self._ended = Stop("exit", code)
        error = reported_trap(self)
        if error is not None:
            raise error
        return self._ended

    def _retired(self) -> int:
        return int(self._c.iss_retired(self._open()))

    def _wakes(self) -> bool:
        """The guest waits: whether a device interrupts it, at once or later."""
        if not self._c.iss_interrupt_enabled(self._handle) or not self.bus.sleep():
            return False
        self._update_interrupt()
        return True

    def _update_interrupt(self) -> None:
        if self.bus.interrupt != self._interrupt:
            self._interrupt = self.bus.interrupt
            self._c.iss_set_interrupt(self._handle, self._interrupt)

    def _device_read(self, address: int, size: int, value: Any) -> int:
        try:
            value[0] = self.bus.read(address, size)
            return self._after_access()
        except BaseException as error:
            self._refusal = error
            return 1

    def _device_write(self, address: int, size: int, value: int) -> int:
        try:
            self.bus.write(address, size, value)
            return self._after_access()
        except BaseException as error:
            self._refusal = error
            return 1

    def _after_access(self) -> int:
        self._update_interrupt()
        if self.bus.next_alarm() is not None:
            self._c.iss_yield(self._handle)  # the rest of the slice may be longer than until the alarm
        return 0

    # ---- errors ----
    def _error(self, reason: str) -> Exception:
        pc = int(self.registers.pc)
        return self.guest_error(reason, pc, self.registers.x[:32], instruction_at(self, pc))

    def _raise_refusal(self, address: int) -> None:
        error, self._refusal = self._refusal, None
        if not isinstance(error, Exception):  # Ctrl-C while the device worked
            raise error or RuntimeError(f"the device at {address:#x} failed without saying why")
        raise self._error(f"device at {address:#x}: {error}") from error

    def _describe_trap(self, cause: int, value: int) -> str:
        words = trap_reason(cause, value)
        if cause == _ILLEGAL:
            return words + self._why_illegal(value)
        ra = int(self.registers.x[1])
        caller = self.program.function_at(ra - 2) if cause == _FETCH_FAULT else None
        if caller is None:
            return words
        line = self.program.line_at(ra - 2)
        return f"{words}; ra is in {caller}{f' ({line})' if line else ''}"

    def _why_illegal(self, raw: int) -> str:
        opcode = raw & 0x7F
        status = self._c.iss_csr(self._handle, 0x300)
        vector = opcode == 0x57 or (opcode in (0x07, 0x27) and (raw >> 12) & 7 in (0, 5, 6, 7))
        if vector and "v" not in self.spec.extensions:
            return f": a vector instruction, and the machine is {self.spec.isa}"
        if vector and not status & 0x600:
            return ": a vector instruction, and vectors are off (mstatus.VS)"
        if opcode in (0x07, 0x27, 0x43, 0x47, 0x4B, 0x4F, 0x53) and not vector:
            if "f" not in self.spec.extensions:
                return f": a float instruction, and the machine is {self.spec.isa}"
            return "" if status & 0x6000 else ": a float instruction, and floats are off (mstatus.FS)"
        return ""

    # ---- memory ----
    def read(self, address: int, nbytes: int) -> bytes:
        """Bytes of RAM."""
        return self._ram[self._place(address, nbytes)].tobytes()

    def write(self, address: int, data: bytes) -> None:
        """Changes RAM; code may be among it."""
        handle = self._open()
        self._ram[self._place(address, len(data))] = np.frombuffer(data, np.uint8)
        self._c.iss_code_changed(handle, address, len(data))

    # ---- counts ----
    @property
    def counts(self) -> Counts:
        """What retired since the last reset."""
        total, functions = self._read_counts()
        by_function = {name: FunctionCounts(**vars(counts)) for name, counts in self._earlier.items()}
        for name, counts in functions:
            _add(by_function.setdefault(name, FunctionCounts()), counts)
        rest = FunctionCounts(**total)
        for counted in by_function.values():
            for counter in _COUNTERS:
                setattr(rest, counter, getattr(rest, counter) - getattr(counted, counter))
        by_function["?"] = rest
        used = {name: counts for name, counts in by_function.items() if counts.instructions}
        return Counts(**total, by_function=used)

    def _read_counts(self) -> tuple[dict[str, int], list[tuple[str, _Counts]]]:
        total = _Counts()
        each = (_Counts * max(1, len(self._ranges)))()
        self._c.iss_read_counts(self._open(), ctypes.byref(total), each)
        named = [(name, counts) for (_, _, name), counts in zip(self._ranges, each) if counts.instructions]
        return {counter: int(getattr(total, counter)) for counter in _COUNTERS}, named

    def reset_counts(self) -> None:
        """Counts from zero again."""
        self._earlier.clear()
        self._c.iss_reset_counts(self._open())

    def name_range(self, name: str, start: int, end: int) -> None:
        """Names code that the host wrote into RAM, for counts and errors."""
        super().name_range(name, start, end)
        self._ranges_stale = True

    def _send_ranges(self) -> None:
        for name, counts in self._read_counts()[1]:
            _add(self._earlier.setdefault(name, FunctionCounts()), counts)
        self._ranges = self.program.functions
        bounds = [bound for start, end, _ in self._ranges for bound in (start, end)]
        if self._c.iss_set_ranges(self._handle, (ctypes.c_uint64 * len(bounds))(*bounds), len(self._ranges)):
            raise MemoryError("no memory for the names of functions")
        self._ranges_stale = False

    # ---- the rest ----
    @property
    def console(self) -> bytes:
        """What the guest wrote to its UART; 64 MiB at most."""
        text = ctypes.POINTER(ctypes.c_uint8)()
        count = self._c.iss_console(self._open(), ctypes.byref(text))
        return ctypes.string_at(text, count) if count else b""

    def csr(self, number: int) -> int:
        """A control and status register, such as 0xC20 for vl."""
        return int(self._c.iss_csr(self._open(), number))

    def vector_registers(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """v0…v31 as rows of bytes; a copy."""
        width = self.spec.vlen // 8
        data = ctypes.string_at(self._c.iss_vector_file(self._open()), 32 * width)
        return np.frombuffer(data, np.uint8).reshape(32, width)

    def close(self) -> None:
        """Gives back the memory; arrays of it that still exist keep theirs."""
        self._finalizer()
        self._handle = None

    def _open(self) -> Any:
        if self._handle is None:
            raise ValueError("the machine is closed")
        return self._handle

    @classmethod
    def absent_reason(cls) -> str | None:
        """None if it can run here, else what to do."""
        return None if _LIBRARY.exists() else f"{_LIBRARY.name} is not built; run make build"


def _fresh_ram(nbytes: int) -> Bytes:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), np.uint8)


def _destroy(library: ctypes.CDLL, handle: int, *_kept: object) -> None:
    library.iss_destroy(handle)


def _alive(reference: weakref.ref[Interpreter]) -> Interpreter:
    machine = reference()
    assert machine is not None, "only a machine that runs calls back"
    return machine


def _add(to: FunctionCounts, counts: _Counts) -> None:
    for counter in _COUNTERS:
        setattr(to, counter, getattr(to, counter) + int(getattr(counts, counter)))


def _next_size(size: int, seconds: float) -> int:
    """Slices as long as Ctrl-C may wait: instructions per second differ 100-fold between scalar and long vectors."""
    if seconds < _SLICE_SECONDS / 2:
        return min(size * 2, 1 << 28)
    return max(size // 2, 1000) if seconds > 2 * _SLICE_SECONDS else size
