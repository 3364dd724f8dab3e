"""What becomes of the ops of a piece of code on a device: every call, its route, its kernels, their cost, the times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bringup import _C
from bringup.compile.kernels import KernelRecord
from bringup.driver import in_use
from bringup.ir.cost import CostNumbers
from bringup.kit.op_table import device_table
from bringup.lowering.call import LoweredLaunch
from bringup.lowering.install import compiler_for
from bringup.lowering.observation import CallRecord
from bringup.lowering.symbolic import hint_of

#: How often the code runs again; the shortest time of each op counts.
WARM_RUNS = 20
#: Steps that a watched call takes although the disk cache made them unnecessary.
_SHOWN_ONLY = ("verify", "simplify", "render", "cost")


@dataclass
class OpCall:
    """One op that reached the device, in the order of the code.

    ``records``: the calls inside for which plans were made; none where nothing is to be launched, where the signature
    was known, or where the op has no kernel.
    """

    op: str
    arguments: str
    route: str
    records: list[CallRecord] = field(default_factory=list)
    fell_back: bool = False
    hits: int = 0
    first: float = 0.0
    warm: float = float("inf")

    @property
    def reason(self) -> str:
        """Why it took its route, where that needs a reason."""
        refusals = [record.refusal for record in self.records if record.refusal]
        if refusals:
            return "; ".join(refusals)
        if self.fell_back:
            return "it fell back to the CPU (counted by the ledger): no kernel of this device serves it"
        if not self.records and self.hits:
            return "known by its signature: launched without Python"
        words = {
            "native": "written in the core: nothing to compile",
            "library": "the device's own library",
            "decomposition": "PyTorch composes it of other ops",
        }
        return words.get(self.route, "nothing to launch") if not self.records else ""

    @property
    def steps(self) -> dict[str, float]:
        """Seconds of the first call by step; the last one is what is left of it."""
        found: dict[str, float] = {}
        for record in self.records:
            needed = [kernel.seconds if kernel.origin == "compiled" else _needed(kernel) for kernel in record.kernels]
            for part in (record.seconds, *needed):
                for name, seconds in part.items():
                    found[name] = found.get(name, 0.0) + seconds
        return {**found, "shapes, memory, launch": max(self.first - sum(found.values()), 0.0)}


def _needed(kernel: KernelRecord) -> dict[str, float]:
    """The steps of a kernel that was there already: the others were taken for the reader."""
    return {step: seconds for step, seconds in kernel.seconds.items() if step not in _SHOWN_ONLY}


def spent_on_watching(records: Sequence[CallRecord]) -> float:
    """Returns the seconds that an unobserved call does not take."""
    there = [kernel for record in records for kernel in record.kernels if kernel.origin != "compiled"]
    return sum(sum(kernel.seconds.values()) - sum(_needed(kernel).values()) for kernel in there)


def cost_of(launch: LoweredLaunch, record: KernelRecord) -> CostNumbers | None:
    """What one launch costs, for the sizes of its call; None for a vendor's function."""
    if record.cost is None:
        return None
    sizes = {size.name: hint_of(number) for size, number in zip(launch.kernel.sizes, launch.sizes)}
    return record.cost.evaluate(sizes)


class _Watch(TorchDispatchMode):
    """Notes every op on the way to the device; ``see`` is called with the op and a function that runs it."""

    def __init__(self, see: Callable[[Any, Sequence[Any], Callable[[], Any]], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.see = see

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        return self.see(func, [*args, *keywords.values()], lambda: func(*args, **keywords))


def explain(code: str, index: int) -> list[OpCall]:
    """Runs code with a device as the default one; returns every op that reached it.

    The code is run as ``python -c`` would: it can do whatever its writer can. An expression or statements; ``torch``,
    ``nn`` and ``F`` are there.

    >>> [call.op for call in explain("torch.ones(3).exp()", 0)]  # doctest: +SKIP
    ['aten::ones', 'aten::exp']
    """
    program = compiled(code)
    device = torch.device(in_use.device_type(), index)
    routes = {row.overload: row.route for row in device_table(index).rows}
    calls: list[OpCall] = []
    inside: list[CallRecord] = []

    def first_time(func: Any, arguments: Sequence[Any], run: Callable[[], Any]) -> Any:
        name = overload_name(func)
        call = OpCall(name, ", ".join(map(_described, arguments)), routes.get(name, "kernel"))
        inside.clear()
        before, hits = _fallback_calls(), _C.kernel_cache_info()["hits"]
        start = perf_counter()
        result = run()
        _C.synchronize(index)
        call.first = perf_counter() - start - spent_on_watching(inside)
        call.records, call.fell_back = list(inside), _fallback_calls() > before
        call.hits = _C.kernel_cache_info()["hits"] - hits
        calls.append(call)
        return result

    compiler = compiler_for(index)
    if compiler is not None:
        compiler.observers.append(inside.append)
    try:
        run_watched(program, device, first_time)
    finally:
        if compiler is not None:
            compiler.observers.remove(inside.append)
    for _ in range(WARM_RUNS):
        times: list[tuple[str, float]] = []

        def again(func: Any, arguments: Sequence[Any], run: Callable[[], Any], times: Any = times) -> Any:
            start = perf_counter()
            result = run()
            _C.synchronize(index)
            times.append((overload_name(func), perf_counter() - start))
            return result

        run_watched(program, device, again)
        if [name for name, _ in times] == [call.op for call in calls]:  # else the code took another path: no times
            for call, (_, seconds) in zip(calls, times):
                call.warm = min(call.warm, seconds)
    return calls


def compiled(code: str) -> Any:
    """The code as Python compiles it; SyntaxError says where it is wrong."""
    try:
        return compile(code, "<explain>", "eval")
    except SyntaxError:
        return compile(code, "<explain>", "exec")


def run_watched(
    program: Any, device: torch.device, see: Callable[[Any, Sequence[Any], Callable[[], Any]], Any]
) -> None:
    """Runs the user's program with a default device, every op of it through ``see``."""
    names = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
    with torch.device(device), _Watch(see):
        eval(program, names)


def overload_name(func: Any) -> str:
    """``aten::exp`` or ``aten::add.Tensor``, as the registry has it."""
    schema = func._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        strides = "" if value.is_contiguous() else f" strides {tuple(value.stride())}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{strides}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_described, value))}]"
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else repr(value)


def _fallback_calls() -> int:
    return sum(calls for _, _, calls, *_ in _C.ledger())
