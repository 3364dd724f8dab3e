"""The C++ core as Python sees it. Device indices are torch's: over all active drivers, 0 … device_count()-1."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch

TORCH_VERSION: str  # the torch this binary was built with, "2.13.0"

# ---- drivers and devices ----
def register_driver(
    struct_address: int, name: str, acknowledges: bool = False, visible: Sequence[int] | None = None
) -> tuple[int, int]:
    """Adds a bringup_driver struct (driver.h); returns (first device index, device count). Calls only device_count.

    ``visible``: which of the driver's devices, in which order; all of them without.
    Raises ValueError that names the driver for a wrong ABI version, a struct too small or a missing required function.
    """

def acknowledge() -> None:
    """A driver registered with acknowledges=True calls this first in every function: the call has reached it."""

def attach(type_name: str, special_arguments: dict[str, int]) -> None:
    """Registers guard, hooks, allocators, generator and all ops with PyTorch; call once, after the rename.

    ``special_arguments``: see ``bringup.torch_device.special_arguments``.
    """

def device_count() -> int: ...
def driver_of(device: int) -> tuple[str, int]:
    """(driver name, index inside that driver)"""

def current_device() -> int: ...
def set_device(device: int) -> None: ...
def ensure_open(device: int) -> None:
    """Opens the device if it is not open yet. Any call that needs the device does this by itself."""

def is_open(device: int) -> bool: ...
def reset_device(device: int) -> None:
    """Closes a device that holds nothing: its next use opens it again."""

def give_up(device: int, why: str) -> None:
    """Takes a device for lost, until it is reset: no call reaches its driver."""

def lives(device: int) -> int:
    """How often a device was reset."""

def device_spec(device: int) -> bytes:
    """A bringup_device_spec (DeviceSpecStruct.from_buffer_copy reads it); opens the device."""

def clock(device: int) -> int: ...
def finish_work(device: int) -> bool:
    """Waits for all work of a device and keeps its failures for synchronize(); False: the work may still run."""

def synchronize(device: int) -> None: ...
def give_up_late_collectives() -> bool:
    """At exit: ends collectives that have waited for other ranks for ten seconds; False: some still wait."""

def shut_down() -> None:
    """Registered with atexit: waits for streams, closes devices; afterwards no driver is called any more."""

def in_bad_fork() -> bool:
    """True in a forked child whose parent had opened a device: every device call raises there. Never raises itself."""

# ---- streams: (stream_id, device_index) of torch.Stream ----
def mark_busy(device: int, stream_id: int) -> None:
    """Work was queued on the stream behind the core's back (a driver's library op): the host waits before it looks."""

def sleep(device: int, stream: int, milliseconds: float) -> None:
    """Queues a wait of the host on a stream."""

def host_function(device: int, stream_id: int, function: Callable[[], None]) -> None: ...
def host_register(device: int, pointer: int, nbytes: int, flags: int) -> None:
    """Pins host memory; the caller keeps it alive until host_unregister."""

def host_unregister(pointer: int) -> None:
    """Waits for the devices of the driver that pinned the memory, and lets go of it."""

# ---- graphs (what torch.accelerator.Graph does not already give) ----
def refuse_capture(device: int, what: str) -> None:
    """RuntimeError, also of the capture, if this thread's stream there is captured: what comes next cannot be."""

# ---- memory (what torch.accelerator.* does not already give) ----
def memory_info(device: int) -> tuple[int, int]:
    """Bytes that nothing occupies, and all; opens the device."""

def can_access_peer(device: int, peer: int) -> bool:
    """Whether bytes come from ``peer`` without passing through the host; opens both."""

def memory_segments(device: int) -> list[tuple[int, int, int, bool, list[tuple[int, int, int, bool, bool]]]]:
    """(address, size, stream, large, blocks); a block: (address, size, requested size, allocated, active)."""

def observe_streams(function: Callable[..., None] | None) -> None:
    """Calls the function for what orders the work of streams, and for blocks as ``observe_memory`` does; None ends it.

    ``("recorded", device, event, stream)``, ``("waited", device, event, waiting device, stream)``, ``("host_waited",
    device, event)``, ``("synchronized", device, stream)`` and ``("shared", device, address of a block, stream)``, on
    the thread that asked.
    """

def observe_memory(function: Callable[[str, int, int, int, int], None] | None) -> None:
    """Calls function("allocated" or "freed", device, address, size, stream) for every block of a tensor."""

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
def ledger() -> list[tuple[str, int, int, int, float]]:
    """One row per op and device that fell back: op, device, calls, bytes, milliseconds."""

def ledger_reset() -> None: ...
def ledger_ask_again() -> None:
    """Another policy counts from now on: the next fallback of every op asks again."""

def ask_about_fallbacks(function: Callable[[str, int, str], None]) -> None:
    """function(op, device, why there is no kernel) before the first fallback of an op on a device; may refuse it."""

# ---- routes ----
def routes() -> dict[str, str]:
    """The ops that bringup has a kernel for: name with overload → library | native | kernel."""

# ---- compiled kernels ----
SOURCES: tuple[str, ...]
"""Kinds of a launch's arguments, by their number."""
RELATIONS: tuple[str, ...]
PLAN_FLAGS: list[int]
"""POINTWISE, RANDOM, REFUSED, APART"""
WRAP: int
"""Is added to the scalar type of a number that wraps around."""

class Plan:
    """What calls of one signature launch; made by make_plan, immutable, may serve several signatures."""

def load_kernel(device: int, binary: bytes, entry: str, block: int = 0, local_bytes: int = 0) -> int:
    """The driver's handle of a compiled kernel; it lives as long as the process."""

def load_kernel_again(device: int, kernel: int, binary: bytes, entry: str) -> None:
    """A kernel that was loaded before its device was reset."""

def load_again_with(function: Callable[[int, int], None]) -> None:
    """Who is asked for such a kernel, by device and handle; it calls ``load_kernel_again``."""

def library_kernel(name: str, function: int, context: int) -> int:
    """The same for a function of a chip's library, by its address: bringup_library_function in driver.h."""

def make_plan(
    launches: Sequence[tuple[Any, ...]],
    temporaries: Sequence[int],
    guards: Sequence[tuple[int, int, float]],
    flags: int,
    outputs: Sequence[tuple[int, Sequence[int], Sequence[int]] | tuple[int] | None] | None = None,
    reason: str = "",
) -> Plan:
    """A plan: which kernels run, one after the other, and where their arguments come from.

    ``launches``: (kernel, work units, flops, bytes, args), and for partitioned memory how it may be shared out, as
    ``bringup.lowering.spreading.Spread``; one of 0 units is skipped. An argument is (kind, a, b):
    0 immediate (a: 64 bits), 1 tensor (a: tensor slot, b: byte offset), 2 output (a: index, b: byte offset),
    3 temporary (a: index, b: byte offset), 4 scalar (a: scalar slot, b: scalar type of the argument), 5 seed, 6 offset.
    Addresses come first. A Scalar that its type cannot hold is an error, unless 256 is added to b: then it wraps
    around, as the value of a 0-dim tensor always does.
    ``temporaries``: bytes of each. ``guards``: (scalar slot, relation, value), which must all hold; relations are
    0 ==, 1 !=, 2 <, 3 >=, 4 >, 5 <=, where each odd one is "not the one before", also of NaN.
    ``flags``: 1 POINTWISE: an input may be the memory of an output, element for element (an in-place op whose plan may
    write self where it lies sets it too); without it an in-place call, and an out= call that overlaps an input, runs
    the functional form and copies. 2 RANDOM: reserve Philox numbers, once per call.
    8 REFUSED: no kernel serves calls that the guards describe. 16 APART: what is written may not overlap an input;
    PyTorch's error if it does.
    ``outputs``: for an op without a meta kernel, per returned tensor (scalar type, sizes, strides), (tensor slot,), or
    None for an undefined one. ``reason``: why a call is REFUSED, for errors and warnings of the fallback policy.
    """

def before_first_use(function: Callable[[], None]) -> None:
    """Called once, when the first device is opened."""

class GraphPlan:
    """A whole graph, ready to run on a device: outputs and arena (the plan's temporaries) are new at each run."""

    def __init__(self, plan: Plan, device: int, tensors: int, numbers: int = 0) -> None: ...
    def run(
        self,
        tensors: Sequence[torch.Tensor],
        numbers: Sequence[torch.Tensor] = ...,
        draws: Sequence[tuple[int, int, bool]] = ...,
    ) -> list[torch.Tensor]:
        """The plan's outputs. ``numbers`` are 0-dim CPU tensors; missing ``draws`` are reserved."""

def reserve_draw(device: int, generator: torch.Generator | None = None) -> tuple[int, int, bool]:
    """(seed, offset, whether a capture replaces them) of one random call, from a generator or the device's default."""

def philox(seed: int, offset: int, begin: int, count: int) -> bytes:
    """The raw 32-bit draws ``begin`` to ``begin + count - 1`` (csrc/runtime/philox.h)."""

def count_flops_with(function: Callable[[str, list[Any], list[Any], bool], float]) -> None:
    """What an op costs on a described chip, by the sizes of its inputs and outputs (torch_device/op_flops.py)."""

def set_kernel_resolver(
    resolve: Callable[[str, int, list[Any], list[Any] | None], Plan | None] | None,
) -> None:
    """Who makes the plan of a signature that is met for the first time: resolve(op, device, arguments, outputs).

    Called with the GIL, from any thread (autograd's as well), once per signature, without the user's modes. Its
    exception is the call's; None means that no kernel serves such calls, which is remembered. Ops that it calls itself
    and that miss take the old route.

    ``arguments``, one per argument of the schema: a device tensor is ("t", slot, scalar type, sizes, strides, flags)
    with flags 1 wrapped number, 2 contiguous, and 256 times its placement; a 0-dim CPU tensor is ("n", scalar slot,
    scalar type, value, flags); a Scalar or float ("s", scalar slot, None, value, 0); lists of them are lists; anything
    else is its plain value (dtypes are ints), and None for generators and undefined tensors. An out= tensor is shown as
    it will be, resized.
    ``outputs``, one per returned tensor, lists flattened: ("new", scalar type, sizes, strides) or ("arg", slot), None
    where nothing is to be computed; None in place of the list if the op has no meta kernel.
    """

def register_kernels(overloads: Sequence[tuple[str, str]], own_outputs: Set[str] = ...) -> None:
    """Serves overloads by compiled kernels, on devices whose driver has them: ("aten::add_.Tensor", functional form).

    The functional form ("aten::add.Tensor", or "") stands in where a kernel may not write its output in place. What ran
    before still runs on other devices, and where the resolver has no plan. For functional forms among ``own_outputs``
    the resolver says what the outputs are, and PyTorch's meta kernel is not asked.
    """

def compose_ops(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Overload → the function that makes it of other ops, in the place of the core's kernel if there is one.

    Arguments come as the schema orders them, those that are keyword-only by name; None is an undefined tensor.
    """

def call_key(op: str, arguments: Sequence[torch.Tensor]) -> list[int]:
    """What the cache of plans knows a call of an op with these tensors by."""

def kernel_cache_info() -> dict[str, int]:
    """entries (signatures), plans, refused (signatures without a kernel), hits and misses, over all ops."""

def kernel_cache_clear() -> None: ...

# ---- TorchScript ----
def jit_enable(
    make_groups: Callable[[torch._C.Graph], None],
    group: Callable[[torch._C.Graph], Callable[[bytes, int, list[Any]], list[torch.Tensor] | None]],
    device: int,
    first_device: int,
    device_count: int,
) -> None:
    """Registers the pass, and what makes of a group's graph a function of signature, device and inputs.

    Its None has the ops run one by one. ``device`` gets groups of CPU tensors.
    """

def jit_disable() -> None: ...
def jit_prepare(graph: torch._C.Graph) -> None:
    """Takes profiles and tuples out of a graph."""

def jit_remove_mutation(graph: torch._C.Graph, wanted: Callable[[torch._C.Node], bool]) -> None:
    """Makes ops in place plain ones, where ``wanted`` says so and nothing else sees the memory."""

def jit_forget_shapes(graph: torch._C.Graph) -> None: ...
def jit_is_mutable(aliases: Any, node: torch._C.Node) -> bool:
    """Whether a node writes to what is an input of it."""

def jit_merge(aliases: Any, node: torch._C.Node, group: torch._C.Node) -> None:
    """Moves a node into the group behind it; alias analysis stays right."""

def jit_unmerge(group: torch._C.Node) -> None: ...
def jit_group(group_id: int) -> tuple[dict[str, int], Any]:
    """Calls that ran op by op for what their inputs are, by reason, and the Group that has the code (None: no call)."""

# ---- torch.distributed ----
def process_group(host: Any, name: str, store: Any) -> Any:
    """A c10d::Backend for device tensors over one for CPU tensors (``host``); ``name`` is the group's."""

def observe_failures(function: Callable[[str, str], None]) -> None:
    """Calls ``function(group, why)`` for every collective that fails, on the thread that met it."""
