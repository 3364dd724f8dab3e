"""The C code that counts the blocks unicorn runs (iss/unicorn_blocks.c), and how unicorn calls it."""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

LIBRARY = Path(__file__).with_name("_iss.so")
_BLOCK = np.dtype([("address", "u8"), ("runs", "u8"), ("bytes", "u4"), ("instructions", "u4")])


class _Blocks(ctypes.Structure):
    """Blocks of unicorn_blocks.c."""

    _fields_ = (
        ("ram", ctypes.c_void_p),
        ("ram_base", ctypes.c_uint64),
        ("ram_bytes", ctypes.c_uint64),
        ("stop", ctypes.c_void_p),
        ("retired", ctypes.c_uint64),
        ("stop_at", ctypes.c_uint64),
        ("blocks_left", ctypes.c_uint64),
        ("table", ctypes.c_void_p),
        ("places", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint32),
        ("stopped", ctypes.c_uint32),
        ("failed", ctypes.c_uint32),
    )


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(LIBRARY))
    blocks = ctypes.POINTER(_Blocks)
    library.bringup_blocks_new.restype = blocks
    library.bringup_blocks_new.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p]
    library.bringup_blocks_add.argtypes = [blocks, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int64]
    library.bringup_blocks_cut.argtypes = [blocks, ctypes.c_uint64]
    for name in ("bringup_blocks_free", "bringup_blocks_forget"):
        getattr(library, name).argtypes = [blocks]
    return library


class BlockCounter:
    """How often each block ran in an engine, and how many instructions that were."""

    def __init__(self, engine: Any, ram: np.ndarray[Any, np.dtype[np.uint8]], ram_base: int) -> None:
        binding: Any = importlib.import_module("unicorn.unicorn_py3.unicorn")
        self._library = _library()
        stop = ctypes.cast(binding.uclib.uc_emu_stop, ctypes.c_void_p)
        self._blocks = self._library.bringup_blocks_new(ram.ctypes.data, ram_base, ram.size, stop)
        if not self._blocks:
            raise MemoryError("no memory to count blocks")
        self._ram = ram  # the C code reads it
        hook = ctypes.cast(self._library.bringup_blocks_hook, ctypes.c_void_p)
        self._hook = ctypes.c_size_t()
        # By the C interface: the Python one takes Python functions only, which cost more than the blocks themselves.
        status = binding.uclib.uc_hook_add(
            engine._uch,
            ctypes.byref(self._hook),
            binding.uc.UC_HOOK_BLOCK,
            hook,
            ctypes.cast(self._blocks, ctypes.c_void_p),
            ctypes.c_uint64(1),
            ctypes.c_uint64(0),
        )
        if status != binding.uc.UC_ERR_OK:
            raise RuntimeError(f"unicorn refused a hook: {binding.UcError(status)}")

    @property
    def retired(self) -> int:
        """Instructions so far."""
        return int(self._blocks.contents.retired)

    def start(self, stop_at: int, blocks: int = (1 << 64) - 1) -> None:
        """Lets unicorn run as long as ``retired`` stays up to that, and not more than so many blocks."""
        state = self._blocks.contents
        state.stop_at, state.blocks_left, state.stopped = stop_at, blocks, 0

    def stopped_at(self, pc: int) -> bool:
        """Takes back what a stopped block did not run; says whether it was we who stopped it."""
        self._library.bringup_blocks_cut(self._blocks, pc)
        if self._blocks.contents.failed:
            raise MemoryError("no memory to count blocks")
        return bool(self._blocks.contents.stopped)

    def add(self, pc: int, nbytes: int) -> None:
        """Counts an instruction that unicorn did not run."""
        self._library.bringup_blocks_add(self._blocks, pc, nbytes, 1)

    def take(self) -> Iterator[tuple[int, int, int]]:
        """(address, bytes, runs) of what ran since the last time."""
        blocks = self._blocks.contents
        table = np.ctypeslib.as_array((ctypes.c_uint8 * (blocks.places * _BLOCK.itemsize)).from_address(blocks.table))
        ran = table.view(_BLOCK)
        ran = ran[(ran["bytes"] > 0) & (ran["runs"] > 0)].copy()
        self._library.bringup_blocks_forget(self._blocks)
        for block in ran:
            yield int(block["address"]), int(block["bytes"]), int(block["runs"])

    def close(self) -> None:
        """Frees the table; the engine must not run any more."""
        if self._blocks:
            self._library.bringup_blocks_free(self._blocks)
            self._blocks = None
