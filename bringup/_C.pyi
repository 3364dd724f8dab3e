"""The C++ core as Python sees it. Device indices are torch's: over all active drivers, 0 … device_count()-1."""

from collections.abc import Callable
from typing import Any

import torch

TORCH_VERSION: str  # the torch this binary was built with, "2.13.0"

# ---- drivers and devices ----
def register_driver(struct_address: int, name: str, acknowledges: bool = False) -> tuple[int, int]:
    """Adds a bringup_driver struct (driver.h); returns (first device index, device count). Calls only device_count.

    Raises ValueError that names the driver for a wrong ABI version, a struct too small or a missing required function.
    """

def acknowledge() -> None:
    """A driver registered with acknowledges=True calls this first in every function: the call has reached it."""

def attach(type_name: str) -> None:
    """Registers guard, hooks, allocators, generator and all ops with PyTorch; call once, after the rename."""

def device_count() -> int: ...
def driver_of(device: int) -> tuple[str, int]:
    """(driver name, index inside that driver)"""

def current_device() -> int: ...
def set_device(device: int) -> None: ...
def ensure_open(device: int) -> None:
    """Opens the device if it is not open yet. Any call that needs the device does this by itself."""

def is_open(device: int) -> bool: ...
def device_spec(device: int) -> dict[str, Any]:
    """The fields of DeviceSpec; opens the device."""

def clock(device: int) -> int: ...
def synchronize(device: int) -> None: ...
def shut_down() -> None:
    """Registered with atexit: waits for streams, closes devices; afterwards no driver is called any more."""

def in_bad_fork() -> bool:
    """True in a forked child whose parent had opened a device: every device call raises there. Never raises itself."""

# ---- streams: (stream_id, device_index) of torch.Stream ----
def mark_busy(device: int, stream_id: int) -> None:
    """Work was queued on the stream behind the core's back (a driver's library op): the host waits before it looks."""

def sleep(device: int, stream_id: int, milliseconds: float) -> None:
    """Queues work that takes this long on the stream (host_function + nanosleep)."""

def host_function(device: int, stream_id: int, function: Callable[[], None]) -> None: ...

# ---- memory (what torch.accelerator.* does not already give) ----
def memory_segments(device: int) -> list[tuple[int, int, int, bool, list[tuple[int, int, int, bool, bool]]]]:
    """(address, size, stream, large, blocks); a block: (address, size, requested size, allocated, active)."""

def memory_summary(device: int) -> str: ...
def set_memory_fraction(device: int, fraction: float) -> None: ...
def get_memory_fraction(device: int) -> float: ...

# ---- random numbers ----
def default_generator(device: int) -> torch.Generator:
    """Does not open the device."""

# ---- storages ----
def storage_metadata(storage: torch.UntypedStorage) -> bytes | None: ...
def set_storage_metadata(storage: torch.UntypedStorage, metadata: bytes | None) -> None: ...
def placement(storage: torch.UntypedStorage) -> tuple[int, int]:
    """(PlacementKind, block)"""

def relayout(storage: torch.UntypedStorage, kind: int, block: int) -> None:
    """Moves the storage's bytes into another placement, in place."""

def ipc_export(storage: torch.UntypedStorage) -> tuple[int, str, int, int]:
    """(device, handle, offset of the storage in the exported allocation, nbytes)"""

def ipc_import(device: int, handle: str, offset: int, nbytes: int) -> torch.UntypedStorage: ...
def tensor_address(tensor: torch.Tensor) -> int:
    """The address the driver sees for the tensor's first element."""

# ---- fallback ledger ----
def ledger() -> list[dict[str, Any]]:
    """One row per op that fell back: op, calls, bytes, ms, stack, device."""

def ledger_reset() -> None: ...
def set_fallback_policy(policy: str) -> None:
    """allow, warn or error"""

def fallback_policy() -> str: ...
def set_op_policy(op: str, policy: str | None) -> None:
    """Per-op override ("aten::sort" or "aten::sort.stable"); None removes it."""

def op_policies() -> dict[str, str]: ...
def set_stack_capture(function: Callable[[], str] | None) -> None:
    """How the first fallback of each op records where it came from."""

# ---- routes ----
def routes() -> dict[str, str]:
    """Every ATen op on the device: name with overload → library | native | random | composite | error."""
