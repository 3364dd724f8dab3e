"""torch.<name>: the module PyTorch and its users reach a device type by, with the names of torch.cuda."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from bringup import _C
from bringup.driver import DTYPES, in_use
from bringup.driver.c_struct import DeviceSpecStruct
from bringup.graph.compile.inductor import NoInductor
from bringup.torch_device import amp, memory, nvtx, random, streams
from bringup.torch_device.capture import Graph, graph, graph_pool_handle, is_current_stream_capturing
from bringup.torch_device.device_index import Device, device_index
from bringup.torch_device.graphed_callables import make_graphed_callables
from bringup.torch_device.memory import (
    MemPool,
    empty_cache,
    get_per_process_memory_fraction,
    host_register,
    host_unregister,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
    use_mem_pool,
)
from bringup.torch_device.random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from bringup.torch_device.sharing import ipc_collect
from bringup.torch_device.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    launch_host_function,
    set_stream,
    stream,
    synchronize,
)
from bringup.torch_device.streams import sleep as _sleep
from bringup.torch_device.trace import trace as _trace

OutOfMemoryError = torch.OutOfMemoryError
#: Inductor asks for its code generator here, by these names.
Scheduling = PythonWrapperCodegen = CppWrapperCodegen = WrapperFxCodegen = NoInductor

#: Also importable as ``torch.<name>.<submodule>``.
SUBMODULES = ("amp", "memory", "nvtx", "random", "streams")

__all__ = [
    "DeviceProperties",
    "Event",
    "Graph",
    "MemPool",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "_sleep",
    "_trace",
    "amp",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "graph",
    "graph_pool_handle",
    "host_register",
    "host_unregister",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "launch_host_function",
    "make_graphed_callables",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "nvtx",
    "random",
    "reset_accumulated_memory_stats",
    "reset_device",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "streams",
    "synchronize",
    "use_mem_pool",
]


# ---- whether, how many, which ----
def is_available() -> bool:
    """Whether there is a device. Opens nothing and never raises."""
    return _C.device_count() > 0


def device_count() -> int:
    """How many devices there are, over all active drivers. Opens nothing."""
    return _C.device_count()


def current_device() -> int:
    """The index of the device this thread uses."""
    return _C.current_device()


def set_device(device: Device) -> None:
    """Selects the device this thread uses; a negative index changes nothing."""
    if not (isinstance(device, int) and device < 0):
        _C.set_device(device_index(device))


class device:
    """Selects a device for a ``with`` block; None and negative indices change nothing.

    >>> with torch.sim.device(1):  # doctest: +SKIP
    ...     x = torch.empty(3, device="sim")
    """

    def __init__(self, device: Device) -> None:
        keep = device is None or (isinstance(device, int) and device < 0)
        self.idx = -1 if keep else device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = _C.current_device()
            _C.set_device(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.idx >= 0:
            _C.set_device(self.prev_idx)


class device_of(device):
    """Selects the device of a tensor or storage for a ``with`` block; one of another type changes nothing."""

    def __init__(self, obj: Any) -> None:
        ours = obj.device.type == in_use.device_type()
        super().__init__(obj.device.index if ours else None)


# ---- what a device is ----
@dataclass(frozen=True)
class DeviceProperties:
    """What a device is and can do."""

    name: str
    driver: str
    driver_index: int  # inside its driver
    total_memory: int
    major: int
    minor: int
    partitions: int
    host_visible: bool
    host_library: bool
    peer_copy: bool
    alignment: int
    dtypes: tuple[str, ...]  # empty: all
    peak_flops: float  # float32, per second; 0 = unknown
    peak_bandwidth: float  # bytes per second; 0 = unknown

    @property
    def multi_processor_count(self) -> int:
        """CUDA's word for how many pieces work is dealt to: our memory partitions."""
        return self.partitions


def get_device_properties(device: Device = None) -> DeviceProperties:
    """What a device is and can do; opens it.

    >>> torch.sim.get_device_properties(0).total_memory  # doctest: +SKIP
    1073741824
    """
    index = device_index(device)
    spec = DeviceSpecStruct.from_buffer_copy(_C.device_spec(index))
    driver, inside = _C.driver_of(index)
    return DeviceProperties(
        name=spec.name.decode(errors="replace"),
        driver=driver,
        driver_index=inside,
        total_memory=spec.memory_bytes * spec.partitions,
        major=spec.capability_major,
        minor=spec.capability_minor,
        partitions=spec.partitions,
        host_visible=bool(spec.host_visible),
        host_library=bool(spec.host_library),
        peer_copy=bool(spec.peer_copy),
        alignment=spec.alignment,
        dtypes=_dtype_names(spec.dtypes),
        peak_flops=spec.peak_flops,
        peak_bandwidth=spec.peak_bandwidth,
    )


def get_device_name(device: Device = None) -> str:
    """The name a device gives itself; opens it."""
    return get_device_properties(device).name


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """(major, minor) as the driver reports them; opens the device."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Whether bytes move between two devices without passing through the host; opens both."""
    return _C.can_access_peer(device_index(device), device_index(peer_device))


def _supports(dtype: str) -> bool:
    """Whether every device in use has a dtype; asks the current device if none is in use yet."""
    if not is_available():
        return True
    opened = [index for index in range(device_count()) if _C.is_open(index)]
    opened = opened or [current_device()]
    masks = [DeviceSpecStruct.from_buffer_copy(_C.device_spec(index)).dtypes for index in opened]
    return all(mask == 0 or dtype in _dtype_names(mask) for mask in masks)


def _dtype_names(mask: int) -> tuple[str, ...]:
    return tuple(name for bit, name in enumerate(DTYPES) if mask >> bit & 1)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the devices in use have bfloat16."""
    return is_available() and _supports("bfloat16")


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes autocast may use: those that every device in use has."""
    return [dtype for dtype in (torch.float16, torch.bfloat16) if _supports(str(dtype).removeprefix("torch."))]


# ---- life ----
def init() -> None:
    """Opens the current device. There is no need to call it: first use does the same."""
    _C.ensure_open(device_index())


def reset_device(device: Device = None, timeout: float | None = 60.0) -> None:
    """Closes a device and forgets all of its state; its next use opens it anew, also one that was lost.

    Its work is waited for, and what fails of it is forgotten; a device that is stuck is a TimeoutError. Nothing may be
    left that points into its memory: drop its tensors first. Streams, generators and compiled kernels stay good;
    events that were recorded before count as done, and graphs have to be captured again.

    >>> torch.sim.reset_device(0)  # doctest: +SKIP
    """
    index = device_index(device)
    for _ in range(streams.COUNT):  # each failure of queued work is told once
        try:
            synchronize(index, timeout)
            break
        except TimeoutError:
            raise
        except Exception:
            if not _C.is_open(index):  # it is lost
                break
    ipc_collect()
    try:
        _C.reset_device(index)
    except RuntimeError:  # what only garbage holds goes first
        gc.collect()
        _C.reset_device(index)


def _lazy_init() -> None:
    """What PyTorch calls before it asks for a stream, also in CPU-only programs: so it opens nothing."""


def is_initialized() -> bool:
    """Whether a device is open in this process."""
    return not _C.in_bad_fork() and any(_C.is_open(index) for index in range(device_count()))


def __getattr__(name: str) -> Any:
    if name == "_initialized":  # torch.utils.checkpoint asks: only then does it keep the RNG state
        return is_initialized()
    for active in in_use.active_drivers():
        if name in active.driver.device_functions:
            return getattr(active.driver, name)
    raise AttributeError(f"module 'torch.{in_use.device_type()}' has no attribute '{name}'")


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had opened a device. Never raises."""
    return _C.in_bad_fork()


# ---- what PyTorch asks for by name ----
def _get_device_index(device: Device, optional: bool = False, allow_cpu: bool = False) -> int:
    if allow_cpu and isinstance(device, (str, torch.device)) and torch.device(device).type == "cpu":
        return -1
    if device is None and not optional:
        raise ValueError(f"expected a {in_use.device_type()} device with an index, got None")
    return device_index(device)


def _get_generator(device: torch.device) -> torch.Generator:
    return _C.default_generator(device_index(device))


def _get_rng_state_offset(device: Device = None) -> int:
    return _C.default_generator(device_index(device)).get_offset()


def _set_rng_state_offset(offset: int, device: Device = None) -> None:
    _C.default_generator(device_index(device)).set_offset(offset)


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    set_stream(streams.stream_of(stream_id, device_index, device_type))
