"""The same set of DPUs by UPMEM's own libdpu.so: by the SDK's public calls alone, so that programs reach hardware.

    sdk = find_sdk()                         # None where there is no SDK
    dpus = SdkSet(64, sdk)

Programs are C text or files, for the SDK's compiler. Nothing is counted or estimated: ``spent`` is what the last call
took, measured. Only a stand-in was tested so far: a copy of bringup's own library, which exports the same calls.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import shutil
import subprocess
import tempfile
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .host import DpuError, DpuSet, SetHandle, Symbol, SymbolOut, free_set
from .toolchain import DpuCompileError, DpuToolchainMissing

if TYPE_CHECKING:
    from .timing import LaunchTime

COMPILER = "dpu-upmem-dpurte-clang"
_DEFAULT = 0


class Sdk(NamedTuple):
    """Where UPMEM's SDK is."""

    library: Path
    compiler: Path

    def compile(self, source: str | Path, tasklets: int, stack_bytes: int = 1024) -> bytes:
        """The DPU program of C text or a file; raises DpuCompileError, with the compiler's words."""
        with tempfile.TemporaryDirectory(prefix="bringup-sdk-") as folder:
            file, output = Path(folder, "kernel.c"), Path(folder, "program")
            if isinstance(source, str):
                file.write_text(source, encoding="utf-8")
            words = [str(self.compiler), "-O2", f"-DNR_TASKLETS={tasklets}", f"-DSTACK_SIZE_DEFAULT={stack_bytes}"]
            words += ["-o", str(output), str(file if isinstance(source, str) else source)]
            done = subprocess.run(words, capture_output=True, text=True)
            if done.returncode:
                raise DpuCompileError(f"{self.compiler} refused a DPU program\n{done.stderr.strip()}")
            return output.read_bytes()


def find_sdk(library: Path | None = None) -> Sdk | None:
    """The SDK that ``UPMEM_HOME`` names, or that the linker finds; or that of a given libdpu.so."""
    if library is None:
        home = os.environ.get("UPMEM_HOME")
        found = str(Path(home, "lib", "libdpu.so")) if home else ctypes.util.find_library("dpu")
        library = Path(found) if found else None
    if library is None or (library.is_absolute() and not library.is_file()):
        return None
    folders = [str(library.parent), str(library.parent.parent / "bin"), os.environ.get("PATH", os.defpath)]
    compiler = shutil.which(COMPILER, path=os.pathsep.join(folders))
    return Sdk(library, Path(compiler)) if compiler else None


class _RankIterator(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
        ("next_idx", ctypes.c_uint32),
        ("has_next", ctypes.c_bool),
        ("next", SetHandle),
    )


class _DpuIterator(ctypes.Structure):
    _fields_ = (
        ("ranks", _RankIterator),
        ("count", ctypes.c_uint32),
        ("next_idx", ctypes.c_uint32),
        ("has_next", ctypes.c_bool),
        ("next", SetHandle),
    )


def _bound(path: Path) -> ctypes.CDLL:
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise DpuToolchainMissing(f"{path} cannot be loaded: {error}") from None
    handle, by_pointer, pointer, text = SetHandle, ctypes.POINTER(SetHandle), ctypes.c_void_p, ctypes.c_char_p
    u32, size, iterator = ctypes.c_uint32, ctypes.c_size_t, ctypes.POINTER(_DpuIterator)
    for name, (result, *arguments) in {
        "dpu_alloc": (ctypes.c_int, u32, text, by_pointer),
        "dpu_free": (ctypes.c_int, handle),
        "dpu_load_from_memory": (ctypes.c_int, handle, text, size, ctypes.POINTER(pointer)),
        "dpu_get_symbol": (ctypes.c_int, pointer, text, ctypes.POINTER(SymbolOut)),
        "dpu_launch": (ctypes.c_int, handle, ctypes.c_int),
        "dpu_prepare_xfer": (ctypes.c_int, handle, pointer),
        "dpu_push_xfer_symbol": (ctypes.c_int, handle, ctypes.c_int, SymbolOut, u32, size, ctypes.c_int),
        "dpu_broadcast_to_symbol": (ctypes.c_int, handle, SymbolOut, u32, pointer, size, ctypes.c_int),
        "dpu_log_read": (ctypes.c_int, handle, pointer),
        "dpu_error_to_string": (pointer, ctypes.c_int),
        "dpu_set_dpu_iterator_from": (_DpuIterator, by_pointer),
        "dpu_set_dpu_iterator_next": (None, iterator),
    }.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            raise DpuToolchainMissing(f"{path} has no {name}: it is not libdpu") from None
        function.restype, function.argtypes = result, arguments
    return loaded


class SdkSet(DpuSet):
    """``count`` DPUs of the SDK's library, with the methods of ``DpuSet``; counters, times and ``mram`` it has not."""

    def __init__(self, count: int, sdk: Sdk) -> None:
        self._c, self._sdk = _bound(sdk.library), sdk
        self._handle = SetHandle()
        self.count = count
        self.spent = 0.0
        self._program = ctypes.c_void_p()
        self._symbols: dict[str, Symbol] = {}
        self._check(self._c.dpu_alloc(count, None, ctypes.byref(self._handle)))
        self._finalizer = weakref.finalize(self, free_set, self._c, self._handle)
        self._each: list[SetHandle] = []
        iterator = self._c.dpu_set_dpu_iterator_from(ctypes.byref(self._handle))
        while iterator.has_next:
            self._each.append(SetHandle.from_buffer_copy(iterator.next))
            self._c.dpu_set_dpu_iterator_next(ctypes.byref(iterator))

    def _compiled(self, program: str | Path, tasklets: int, stack_bytes: int, timed: bool) -> bytes:
        if timed:
            raise DpuError("launches on hardware are measured: load the program without timed=True")
        return self._sdk.compile(program, tasklets, stack_bytes)

    def _move(
        self, direction: int, symbol: Symbol, offset: int, first: int, count: int, host: int, stride: int, nbytes: int
    ) -> int:
        start, where = time.perf_counter(), SymbolOut(*symbol)
        if stride == 0 and count == self.count:
            status = self._c.dpu_broadcast_to_symbol(self._handle, where, offset, host, nbytes, _DEFAULT)
        else:
            for i in range(count):
                self._c.dpu_prepare_xfer(self._each[first + i], host + i * stride)
            status = self._c.dpu_push_xfer_symbol(self._handle, direction, where, offset, nbytes, _DEFAULT)
        self.spent = time.perf_counter() - start
        return int(status)

    def _run(self) -> int:
        start = time.perf_counter()
        status = self._c.dpu_launch(self._handle, 1)
        self.spent = time.perf_counter() - start
        return int(status)

    def log(self) -> list[str]:
        """What each DPU has printed."""
        self._open()
        libc = ctypes.CDLL(None)
        libc.fdopen.restype = ctypes.c_void_p
        texts = []
        for one in self._each:
            with tempfile.TemporaryFile() as file:
                stream = ctypes.c_void_p(libc.fdopen(os.dup(file.fileno()), b"w"))
                self._c.dpu_log_read(one, stream)
                libc.fclose(stream)
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        return texts

    def time(self, kernel: str | None = None) -> LaunchTime:
        """Is not there: see ``spent``."""
        raise DpuError("nothing is estimated on hardware: spent is what the last call took")

    @property
    def counters(self) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.uint64]]]:
        """Are not there."""
        raise DpuError("hardware counts no DMA or barriers")

    @property
    def mram(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        """Is not in reach."""
        raise DpuError("the MRAM of hardware is reached by transfers alone")

    def _words(self, status: int) -> str:
        text = self._c.dpu_error_to_string(status)
        words = ctypes.string_at(text).decode(errors="replace")
        ctypes.CDLL(None).free(ctypes.c_void_p(text))
        return words
