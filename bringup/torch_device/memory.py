"""torch.<name>.memory: what the caching allocator holds, per device, with torch.cuda's names."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any

import torch

from bringup import _C
from bringup.driver import HostFlags, in_use
from bringup.driver.c_struct import DeviceSpecStruct
from bringup.torch_device.device_index import Device, device_index
from bringup.torch_device.memory_history import _dump_snapshot as _dump_snapshot
from bringup.torch_device.memory_history import _record_memory_history as _record_memory_history
from bringup.torch_device.memory_history import _snapshot as _snapshot


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """The allocator's statistics as it reports them: nested dictionaries."""
    if device is None and _C.device_count() == 0:
        return {}
    return torch._C._accelerator_getDeviceStats(device_index(device))


def memory_stats(device: Device = None) -> OrderedDict[str, Any]:
    """The allocator's statistics, flat and sorted.

    >>> torch.sim.memory_stats()["allocated_bytes.all.current"]  # doctest: +SKIP
    0
    """
    flat: dict[str, Any] = {}

    def flatten(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat[prefix] = value

    flatten("", memory_stats_as_nested_dict(device))
    return OrderedDict(sorted(flat.items()))


def _statistic(name: str, device: Device) -> int:
    return int(memory_stats(device).get(name, 0))


def memory_allocated(device: Device = None) -> int:
    """Bytes that tensors occupy now."""
    return _statistic("allocated_bytes.all.current", device)


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes tensors occupied since the start or the last reset_peak_memory_stats."""
    return _statistic("allocated_bytes.all.peak", device)


def memory_reserved(device: Device = None) -> int:
    """Bytes the allocator holds now, tensors and cache."""
    return _statistic("reserved_bytes.all.current", device)


def max_memory_reserved(device: Device = None) -> int:
    """The most bytes the allocator held since the start or the last reset_peak_memory_stats."""
    return _statistic("reserved_bytes.all.peak", device)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Lets every peak start again at the current value."""
    torch._C._accelerator_resetPeakStats(device_index(device))


def reset_max_memory_allocated(device: Device = None) -> None:
    """An older name of reset_peak_memory_stats."""
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Sets the historical totals (``.allocated`` and ``.freed``) to zero."""
    torch._C._accelerator_resetAccumulatedStats(device_index(device))


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """A table to print: what is allocated, reserved and cached, and how often memory ran out.

    ``abbreviated`` is torch.cuda's argument; the table is short either way.
    """
    index = device_index(device)
    stats, total = memory_stats_as_nested_dict(index), _C.memory_info(index)[1]
    share = _C.get_memory_fraction(index)
    limit = f", limit {_bytes(int(share * total))} (memory fraction {share:g})" if share < 1 else ""
    rule = "-" * 74
    lines = [f"Memory of {in_use.device_type()}:{index}: {_bytes(total)}{limit}"]
    lines += [f"{'':22} {'current':>12} {'peak':>12} {'in all':>12} {'freed':>12}", rule]
    for names, show in (_BYTES, _bytes), (_COUNTS, str):
        for name, title in names.items():
            for pool, inside in ("all", title), ("small_pool", "  small pool"), ("large_pool", "  large pool"):
                row = stats[name][pool]
                if pool == "all" or row["peak"] or row["allocated"]:
                    parts = (show(row[part]).rjust(12) for part in ("current", "peak", "allocated", "freed"))
                    lines.append(f"{inside:22} {' '.join(parts)}")
        lines.append(rule)
    free = [nbytes for *_, blocks in _C.memory_segments(index) for _, nbytes, _, _, active in blocks if not active]
    lines.append(
        f"driver allocations {stats['num_device_alloc']}, frees {stats['num_device_free']}; "
        f"retries {stats['num_alloc_retries']}; out of memory {stats['num_ooms']}; "
        f"largest free block {_bytes(max(free, default=0))}\n"
    )
    return "\n".join(lines)


def out_of_memory_message(text: str) -> str:
    """The core's words when an allocator has nothing left, and what holds the memory; other texts as they are."""
    found = re.fullmatch(r"(\w+:(\d+) is out of memory: tried to allocate )(\d+) bytes", text)
    if found is None:
        return text
    index = int(found[2])
    total = DeviceSpecStruct.from_buffer_copy(_C.device_spec(index)).memory_bytes
    share = _C.get_memory_fraction(index)
    segments = _C.memory_segments(index)
    blocks = [block for *_, inside in segments for block in inside]
    reserved = sum(size for _, size, *_ in segments)
    allocated = sum(size for _, size, _, held, _ in blocks if held)
    active = sum(size for _, size, _, _, used in blocks if used)
    rows = [("device memory", total, "in all")]
    if share < 1:
        rows.append(("limit", int(share * total), f"memory fraction {share:g}"))
    rows += [
        ("reserved", reserved, "taken from the driver by this process"),
        ("allocated", allocated, "in live tensors"),
        ("in flight", active - allocated, "freed, but another stream still uses it"),
        ("cached", reserved - active, "reserved, but free"),
        ("largest free block", max((block[1] for block in blocks if not block[4]), default=0), "of the cached"),
    ]
    lines = [f"{found[1]}{_bytes(int(found[3]))}."]
    lines += [
        f"  {name:20} {_bytes(count):>12}  {meaning}" for name, count, meaning in rows if count or name != "in flight"
    ]
    helps = (
        "What helps: a smaller batch; deleting tensors that are no longer needed; empty_cache() when much is cached in "
        "blocks that are too small"
    )
    return "\n".join([*lines, helps + ("; a higher set_per_process_memory_fraction()." if share < 1 else ".")])


_BYTES = {
    "allocated_bytes": "allocated",
    "requested_bytes": "requested",
    "active_bytes": "active",
    "reserved_bytes": "reserved",
    "inactive_split_bytes": "inactive split",
}
_COUNTS = {
    "allocation": "allocations",
    "active": "active blocks",
    "segment": "segments",
    "inactive_split": "inactive split blocks",
}


def _bytes(count: int) -> str:
    """A number of bytes to read: "1.50 MiB"."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while value >= 1023.995 and len(units) > 1:  # 1023.995 would print as 1024.00
        value, units = value / 1024, units[1:]
    return f"{count} B" if units[0] == "B" else f"{value:.2f} {units[0]}"


def memory_snapshot(device: Device = None) -> list[dict[str, Any]]:
    """The allocator's segments and blocks; of all opened devices if none is given."""
    indices = [i for i in range(_C.device_count()) if _C.is_open(i)] if device is None else [device_index(device)]
    return [_segment(index, *segment) for index in indices for segment in _C.memory_segments(index)]


def _segment(
    device: int, address: int, size: int, stream: int, large: bool, blocks: list[tuple[int, int, int, bool, bool]]
) -> dict[str, Any]:
    """One segment with torch.cuda's names."""
    return {
        "device": device,
        "address": address,
        "total_size": size,
        "stream": stream,
        "segment_type": "large" if large else "small",
        "allocated_size": sum(nbytes for _, nbytes, _, allocated, _ in blocks if allocated),
        "active_size": sum(nbytes for _, nbytes, _, _, active in blocks if active),
        "blocks": [
            {
                "address": start,
                "size": nbytes,
                "requested_size": requested,
                "state": "active_allocated" if allocated else "active_pending_free" if active else "inactive",
            }
            for start, nbytes, requested, allocated, active in blocks
        ],
    }


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """(free, total) bytes of the device.

    >>> free, total = torch.sim.mem_get_info()  # doctest: +SKIP
    """
    return _C.memory_info(device_index(device))


def empty_cache() -> None:
    """Gives cached memory that no tensor uses back to the devices."""
    if _C.device_count() > 0:
        torch._C._accelerator_emptyCache()


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limits what this process may allocate to a fraction of the device's memory.

    >>> torch.sim.set_per_process_memory_fraction(0.5)  # doctest: +SKIP
    """
    if not isinstance(fraction, (int, float)) or isinstance(fraction, bool):
        raise TypeError(f"a memory fraction is a float, not {type(fraction).__name__}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"a memory fraction is between 0 and 1, not {fraction}")
    _C.set_memory_fraction(device_index(device), float(fraction))


def get_per_process_memory_fraction(device: Device = None) -> float:
    """The limit set by set_per_process_memory_fraction; 1.0 without one."""
    return _C.get_memory_fraction(device_index(device))


#: Storages that are registered, by their address: they live until they are taken back.
_registered: dict[int, torch.UntypedStorage] = {}


def host_register(
    tensor: torch.Tensor, device: Device = None, *, mapped: bool = False, write_combined: bool = False
) -> None:
    """Pins the memory of a CPU tensor where it lies: ``is_pinned()`` is True from then on, of all that share it.

    Copies with ``non_blocking=True`` from and to it return at once. What is registered stays alive until
    :func:`host_unregister`. A device that cannot honour ``mapped`` or ``write_combined`` refuses it.

    >>> torch.sim.host_register(batch)  # doctest: +SKIP
    """
    storage = _host_storage(tensor)
    if storage.data_ptr() in _registered:
        raise ValueError("this memory is registered already")
    flags = HostFlags.PORTABLE | HostFlags.MAPPED * mapped | HostFlags.WRITE_COMBINED * write_combined
    try:
        _C.host_register(device_index(device), storage.data_ptr(), storage.nbytes(), int(flags))
    except NotImplementedError as error:
        raise NotImplementedError(f"{error}: use tensor.pin_memory(), which copies") from error
    _registered[storage.data_ptr()] = storage


def host_unregister(tensor: torch.Tensor) -> None:
    """Ends host_register, after the copies that use the memory."""
    pointer = _host_storage(tensor).data_ptr()
    _C.host_unregister(pointer)
    _registered.pop(pointer, None)


def _host_storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.untyped_storage().nbytes() == 0:
        raise ValueError(f"expected a tensor in the CPU's memory, got {tensor.numel()} elements on {tensor.device}")
    return tensor.untyped_storage()


class MemPool:
    """torch.cuda's pool of a user's own allocator: not there, and the error says what is.

    >>> torch.sim.MemPool()  # doctest: +SKIP
    Traceback (most recent call last):
    NotImplementedError: …
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(
            f"{torch._C._get_privateuse1_backend_name()} devices have no MemPool: every stream has a pool of its own, "
            "a graph takes one from graph_pool_handle(), and set_per_process_memory_fraction() limits them all"
        )


def use_mem_pool(pool: Any, device: Device = None) -> Any:
    """torch.cuda's way to allocate from a MemPool; raises the error of MemPool."""
    return MemPool(pool, device)
