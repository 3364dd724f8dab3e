"""A set of simulated DPUs, from Python: allocate, load a program, copy, launch, count.

    dpus = DpuSet(4)
    dpus.load(TEXT_OF_A_DPU_PROGRAM, tasklets=16)
    dpus.write("input", array)               # array[i] goes to DPU i: one batched transfer
    dpus.broadcast("weights", weights)       # the same bytes to all
    dpus.launch(rows=64)                     # __host variables by name, then every tasklet of every DPU
    out = dpus.read("output", np.float32, 100)       # shape (4, 100)
    dpus.counters["dma_read_bytes"]          # of the last launch, one number per DPU
    dpus.close()

Where something lies is a variable's name, or an integer: an offset in MRAM. Calls of one set come from one thread at a
time; the GIL is released while they run.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .compiler import compile_program
from .rv32 import calibration
from .timing import LaunchTime, Sample, launch_time
from .toolchain import MRAM_BYTES

if TYPE_CHECKING:
    import numpy.typing as npt

LIBRARY = Path(__file__).with_name("_dpu.so")
DPUS_MAX = 2556
#: What the linker calls the first byte of MRAM.
_MRAM_AT = 0x08000000
_TO, _FROM = 0, 1
_FAULT = 23
_SAMPLES_MAX = 4

#: What is counted of a launch, per DPU; native/upmem.h has the same order.
COUNTERS = (
    "dma_reads",
    "dma_read_bytes",
    "dma_writes",
    "dma_write_bytes",
    "barriers",
    "locks",
    "handshakes",
    "semaphores",
    "switches",
)
#: Of every column, an array with one number per DPU.
Counters = Mapping[str, "npt.NDArray[np.uint64]"]


class DpuError(RuntimeError):
    """A call of the DPU library failed; the message has its words."""


class DpuFault(DpuError):
    """A DPU stopped in fault; the message names DPU, tasklet, function and source line."""


class Symbol(NamedTuple):
    """A variable of a DPU program: where it lies and how many bytes it has."""

    address: int
    """From the start of WRAM; of MRAM's variables, 0x08000000 and more."""
    size: int

    @property
    def in_mram(self) -> bool:
        """Whether it lies in MRAM."""
        return self.address >= _MRAM_AT


class SetHandle(ctypes.Structure):
    """``struct dpu_set_t``, 24 bytes, passed by value."""

    _fields_ = (
        ("kind", ctypes.c_uint64),
        ("nr_ranks", ctypes.c_uint64),
        ("ranks", ctypes.c_void_p),
    )


class SymbolOut(ctypes.Structure):
    """``struct dpu_symbol_t``."""

    _fields_ = (("address", ctypes.c_uint32), ("size", ctypes.c_uint32))


@functools.cache
def library() -> ctypes.CDLL:
    """The simulator: libdpu's calls, and ours."""
    if not LIBRARY.exists():
        raise DpuError(f"the DPU simulator was not built ({LIBRARY} is missing): run make build")
    loaded = ctypes.CDLL(str(LIBRARY))
    handle, by_pointer = SetHandle, ctypes.POINTER(SetHandle)
    u32, u64, pointer, text = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_char_p
    signatures: dict[str, tuple[Any, ...]] = {
        "dpu_alloc": (ctypes.c_int, u32, text, by_pointer),
        "dpu_free": (ctypes.c_int, handle),
        "dpu_load_from_memory": (ctypes.c_int, handle, text, ctypes.c_size_t, ctypes.POINTER(pointer)),
        "dpu_get_symbol": (ctypes.c_int, pointer, text, ctypes.POINTER(SymbolOut)),
        "dpu_launch": (ctypes.c_int, handle, ctypes.c_int),
        "bringup_upmem_transfer": (ctypes.c_int, by_pointer, u32, u32, u32, u32, u32, u32, pointer, u64, u64),
        "bringup_upmem_counters": (None, by_pointer, pointer),
        "bringup_upmem_counter_count": (u32,),
        "bringup_upmem_limit": (None, by_pointer, ctypes.c_double),
        "bringup_upmem_check": (ctypes.c_int, by_pointer),
        "bringup_upmem_mram": (pointer, by_pointer, ctypes.POINTER(u64)),
        "bringup_upmem_log": (pointer, by_pointer, u32, ctypes.POINTER(u64)),
        "bringup_upmem_failure": (text,),
        "bringup_upmem_samples": (u32, by_pointer, pointer, u64),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    if loaded.bringup_upmem_counter_count() != len(COUNTERS):
        raise DpuError(f"{LIBRARY} is of another version than host.py: run make build")
    return loaded


def free_set(loaded: ctypes.CDLL, handle: SetHandle) -> None:
    """Gives a set back."""
    loaded.dpu_free(handle)


class DpuSet:
    """``count`` DPUs with 64 MB of MRAM each, of which only touched pages take memory here.

    A launch that takes longer than ``seconds`` on this machine is a DpuFault. ``checks`` makes a fault of DMA that
    reads MRAM which neither the host nor DMA has written (the chip holds anything there, here it is 0); what a program
    writes to MRAM by plain assignments, or Python through ``mram``, is not seen.

    >>> with DpuSet(2) as dpus:
    ...     dpus.load('''
    ...         #include <mram.h>
    ...         __host int factor;
    ...         __mram_noinit long long values[8];
    ...         int main() { values[0] *= factor; return 0; }''', tasklets=1)
    ...     dpus.write("values", np.array([[20], [30]]))
    ...     dpus.launch(factor=3)
    ...     dpus.read("values", np.int64, 1).ravel().tolist()
    [60, 90]
    """

    def __init__(self, count: int, *, seconds: float = 600.0, checks: bool = False) -> None:
        self._c = library()
        self._handle = SetHandle()
        if not 1 <= count <= DPUS_MAX:
            raise DpuError(f"a set of {count:,} DPUs: a machine has 1 to {DPUS_MAX:,}")
        self._check(self._c.dpu_alloc(count, None, ctypes.byref(self._handle)))
        self._finalizer = weakref.finalize(self, free_set, self._c, self._handle)
        self.count = count
        """How many DPUs."""
        self.spent: float | None = None
        """Seconds that the last call took on hardware; None on the simulator, whose time says nothing of a DPU's."""
        self._program = ctypes.c_void_p()
        self._symbols: dict[str, Symbol] = {}
        self._c.bringup_upmem_limit(ctypes.byref(self._handle), seconds)
        if checks:
            self._check(self._c.bringup_upmem_check(ctypes.byref(self._handle)))

    def __enter__(self) -> DpuSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the DPUs back; also done when the object goes."""
        self._finalizer()

    # ---- programs ----
    def load(
        self, program: str | bytes | Path, *, tasklets: int = 16, stack_bytes: int = 1024, timed: bool = False
    ) -> None:
        """Loads a program into every DPU: C text, a C file, or what ``compile_program`` returned.

        ``timed`` lets ``time`` estimate its launches.
        WRAM gets the program's initial values; MRAM keeps its contents, but for initialised ``__mram`` variables.
        """
        if not isinstance(program, bytes):
            program = self._compiled(program, tasklets, stack_bytes, timed)
        self._open()
        loaded = ctypes.c_void_p()
        self._check(self._c.dpu_load_from_memory(self._handle, program, len(program), ctypes.byref(loaded)))
        self._program, self._symbols = loaded, {}

    def _compiled(self, program: str | Path, tasklets: int, stack_bytes: int, timed: bool) -> bytes:
        return compile_program(program, tasklets=tasklets, stack_bytes=stack_bytes, timed=timed)

    def symbol(self, name: str) -> Symbol:
        """Where a variable of the program lies."""
        found = self._symbols.get(name)
        if found is None:
            if not self._program:
                raise DpuError(f"no program is loaded, and so there is no variable '{name}': call load() first")
            out = SymbolOut()
            self._check(self._c.dpu_get_symbol(self._program, name.encode(), ctypes.byref(out)))
            found = self._symbols[name] = Symbol(out.address, out.size)
        return found

    @property
    def heap(self) -> int:
        """The offset in MRAM behind the program's own variables (DPU_MRAM_HEAP_POINTER)."""
        return self.symbol("__sys_used_mram_end").address - _MRAM_AT

    # ---- transfers ----
    def write(self, where: str | int, data: npt.ArrayLike, offset: int = 0, *, first: int = 0) -> None:
        """Copies ``data[i]`` to DPU ``first + i``, all in one transfer; offset in bytes."""
        array = np.ascontiguousarray(data)
        if array.ndim == 0 or not 1 <= array.shape[0] <= self.count - first:
            raise ValueError(
                f"data of shape {array.shape} for {self.count - first} DPUs: its first dimension counts the DPUs"
            )
        count = array.shape[0]
        self.transfer(where, array.ctypes.data, array.nbytes // count, to=True, offset=offset, first=first, count=count)

    def broadcast(self, where: str | int, data: npt.ArrayLike | bytes, offset: int = 0) -> None:
        """Copies the same bytes to every DPU."""
        array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data)
        self.transfer(where, array.ctypes.data, array.nbytes, to=True, stride=0, offset=offset)

    def read(
        self,
        where: str | int,
        dtype: npt.DTypeLike,
        length: int,
        offset: int = 0,
        *,
        first: int = 0,
        count: int | None = None,
    ) -> npt.NDArray[Any]:
        """Copies ``length`` elements out of each DPU: an array of shape (DPUs, length)."""
        out = np.empty((self.count - first if count is None else count, length), dtype)
        nbytes = out.nbytes // max(1, len(out))
        self.transfer(where, out.ctypes.data, nbytes, to=False, offset=offset, first=first, count=len(out))
        return out

    def transfer(
        self,
        where: str | int,
        address: int,
        nbytes: int,
        *,
        to: bool,
        stride: int | None = None,
        offset: int = 0,
        first: int = 0,
        count: int | None = None,
    ) -> None:
        """Copies ``nbytes`` between host memory at ``address + i * stride`` and DPU ``first + i``.

        To DPUs a stride of 0 is a broadcast.
        """
        if stride is None:
            stride = nbytes
        if stride == 0 and not to and nbytes:
            raise ValueError("every DPU would write to the same bytes: give a stride")
        self._open()
        if isinstance(where, str):
            symbol, name = self.symbol(where), f"'{where}'"
        else:
            if not 0 <= where <= MRAM_BYTES:
                raise DpuError(f"offset {where:,} in MRAM, which has {MRAM_BYTES:,} bytes")
            symbol, name = Symbol(_MRAM_AT + where, MRAM_BYTES - where), f"MRAM at {where:,}"
        if count is None:
            count = self.count - first
        if first < 0 or count < 0 or first + count > self.count:
            raise DpuError(f"DPUs {first} to {first + count} of a set of {self.count}")
        if offset < 0 or offset + nbytes > symbol.size:
            raise DpuError(f"{nbytes:,} bytes at offset {offset:,} of {name}, which has {symbol.size:,} bytes")
        if not nbytes or not count:
            return
        self._check(self._move(_TO if to else _FROM, symbol, offset, first, count, address, stride, nbytes), name)

    def _move(
        self, direction: int, symbol: Symbol, offset: int, first: int, count: int, host: int, stride: int, nbytes: int
    ) -> int:
        return int(
            self._c.bringup_upmem_transfer(
                ctypes.byref(self._handle), direction, *symbol, offset, first, count, host, stride, nbytes
            )
        )

    # ---- launches ----
    def launch(self, **arguments: Any) -> None:
        """Runs the program on every DPU until all tasklets have ended; raises DpuFault if one stops in fault.

        ``arguments`` are ``__host`` variables by name: bytes, an array, or a number, which is converted to an integer
        or float of the variable's size. With one value per DPU use ``write``.
        """
        self._open()
        for name, value in arguments.items():
            self.broadcast(name, self._argument(name, value))
        self._check(self._run())

    def _run(self) -> int:
        return int(self._c.dpu_launch(self._handle, 1))

    def _argument(self, name: str, value: Any) -> npt.ArrayLike | bytes:
        if isinstance(value, (bytes, np.ndarray, np.generic)):
            return value
        size = self.symbol(name).size
        kind = "f" if isinstance(value, float) else "i"
        if size not in (1, 2, 4, 8) or (kind == "f" and size < 4):
            raise TypeError(f"'{name}' has {size} bytes: give its value as bytes or a NumPy array")
        if kind == "i" and not -(1 << (8 * size - 1)) <= int(value) < 1 << (8 * size):
            raise OverflowError(f"{value} does not fit in the {size} bytes of '{name}'")
        if kind == "i":
            return int(value).to_bytes(size, "little", signed=int(value) < 0)
        return np.array(value, f"f{size}")

    @property
    def counters(self) -> Counters:
        """What the last launch did: for each name of ``COUNTERS`` an array with one number per DPU."""
        self._open()
        rows = np.zeros((self.count, len(COUNTERS)), np.uint64)
        self._c.bringup_upmem_counters(ctypes.byref(self._handle), rows.ctypes.data)
        return {name: rows[:, column] for column, name in enumerate(COUNTERS)}

    def time(self, kernel: str | None = None) -> LaunchTime:
        """How long the last launch takes on the chip: an estimate (timing.py), for a program loaded with ``timed``.

        ``kernel`` names one of those that were fitted to measured times (``calibration.json``). A launch of the same
        program with the same ``__host`` variables is counted once.
        """
        return launch_time(self.counters, self._samples(), calibration(), kernel=kernel)

    def _samples(self) -> list[Sample]:
        self._open()
        rows = np.zeros((_SAMPLES_MAX, Sample.WIDTH))
        count = self._c.bringup_upmem_samples(ctypes.byref(self._handle), rows.ctypes.data, rows.nbytes)
        if not count:
            raise DpuError("the last launch was not counted: load the program with timed=True, then launch")
        return [Sample.of_row(row) for row in rows[:count]]

    def log(self) -> list[str]:
        """What each DPU has printed since the last call."""
        self._open()
        texts = []
        for index in range(self.count):
            nbytes = ctypes.c_uint64()
            text = self._c.bringup_upmem_log(ctypes.byref(self._handle), index, ctypes.byref(nbytes))
            texts.append(ctypes.string_at(text, nbytes.value).decode(errors="replace") if nbytes.value else "")
        return texts

    @property
    def mram(self) -> npt.NDArray[np.uint8]:
        """The MRAM of every DPU as one array, (DPUs, 67,108,864), without a copy: only a simulator has that.

        It must not be used after ``close``.
        """
        self._open()
        stride = ctypes.c_uint64()
        base = self._c.bringup_upmem_mram(ctypes.byref(self._handle), ctypes.byref(stride))
        everything = (ctypes.c_uint8 * (self.count * stride.value)).from_address(base)
        return np.ctypeslib.as_array(everything).reshape(self.count, stride.value)

    def _open(self) -> None:
        if not self._finalizer.alive:
            raise DpuError("this set of DPUs was closed")

    def _check(self, status: int, where: str = "") -> None:
        if status:
            words = self._words(status)
            raise (DpuFault if status == _FAULT else DpuError)(f"{where}: {words}" if where else words)

    def _words(self, status: int) -> str:
        return str(self._c.bringup_upmem_failure().decode(errors="replace"))
