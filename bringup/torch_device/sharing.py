"""Tensors that travel to another process: multiprocessing pickles a storage of ours as a handle, not as bytes.

PyTorch's own reducers take tensors apart down to their UntypedStorage; only there do we step in, and only for storages
of our device. The sender keeps a sent storage alive until the receiver has dropped it: the receiver sets a byte
of a small shared CPU storage, and the sender looks at those bytes whenever it sends again or calls
``torch.<name>.ipc_collect()``.

A receiving process may import this file before torch; so torch and the core are imported where they are used.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import bringup
from bringup.driver import in_use

if TYPE_CHECKING:
    import torch

#: Storages one shared block of flags can follow.
_FLAGS = 4096


class _Sent:
    """Storages other processes look at, each with the byte its receiver sets when it is done."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.flags: torch.UntypedStorage | None = None
        self.used = 0
        self.alive: list[tuple[torch.UntypedStorage, int, torch.UntypedStorage]] = []

    def keep(self, storage: torch.UntypedStorage) -> tuple[torch.UntypedStorage, int]:
        """Keeps a storage alive; returns the flag the receiver has to set."""
        with self.lock:
            self._drop_released()
            import torch

            if self.flags is None or self.used == _FLAGS:
                self.flags = torch.UntypedStorage._new_shared(_FLAGS).fill_(0)
                self.used = 0
            slot = self.used
            self.used += 1
            self.alive.append((self.flags, slot, storage))
            return self.flags, slot

    def drop_released(self) -> None:
        with self.lock:
            self._drop_released()

    def _drop_released(self) -> None:
        self.alive = [entry for entry in self.alive if not entry[0][entry[1]]]


_sent = _Sent()


def ipc_collect() -> None:
    """Frees memory that was sent to other processes and that none of them uses any more."""
    _sent.drop_released()


def register() -> None:
    """Steps in before torch's reducer of UntypedStorage, for storages of ours."""
    import torch

    torch_reduce: Callable[[Any], Any] = ForkingPickler._extra_reducers[torch.UntypedStorage]  # type: ignore[attr-defined]

    def reduce_storage(storage: torch.UntypedStorage) -> Any:
        if storage.device.type != in_use.device_type():
            return torch_reduce(storage)
        return _reduce(storage)

    ForkingPickler.register(torch.UntypedStorage, reduce_storage)


def _reduce(storage: torch.UntypedStorage) -> Any:
    from bringup import _C

    driver = in_use.driver_of(storage.device.index)
    inside = storage.device.index - driver.first
    if storage.nbytes() == 0:
        return _rebuild_empty, (driver.name, inside)
    try:
        _, handle, offset, nbytes = _C.ipc_export(storage)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"the {driver.name} driver cannot share memory between processes ({error}): send tensor.cpu() instead"
        ) from error
    flags, slot = _sent.keep(storage)
    return _rebuild, (driver.name, inside, handle, offset, nbytes, flags, slot, _C.storage_metadata(storage))


def _rebuild_empty(driver: str, index: int) -> torch.UntypedStorage:
    import torch

    return torch.UntypedStorage(0, device=bringup.device(driver, index))


def _rebuild(
    driver: str,
    index: int,
    handle: str,
    offset: int,
    nbytes: int,
    flags: torch.UntypedStorage,
    slot: int,
    metadata: bytes | None,
) -> torch.UntypedStorage:
    device = bringup.device(driver, index)
    from bringup import _C

    storage = _C.ipc_import(device.index, handle, offset, nbytes)
    if metadata is not None:
        _C.set_storage_metadata(storage, metadata)
    weakref.finalize(storage, _release, device.index, flags, slot)
    return storage


def _release(index: int, flags: torch.UntypedStorage, slot: int) -> None:
    """Tells the sender that its memory is free, once no queued work of ours reads it."""
    from bringup import _C

    if not _C.is_open(index) or _C.finish_work(index):
        flags[slot] = 1
