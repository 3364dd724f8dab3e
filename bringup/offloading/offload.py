"""``bringup.offload(model, device)`` and what belongs to it: ``restore``, ``report``, ``register``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.fx import GraphModule, symbolic_trace

from bringup.offloading import table
from bringup.offloading.graphs import offload_graph
from bringup.offloading.report import OffloadReport, UnitReport
from bringup.offloading.table import Selection
from bringup.offloading.unit import Offloaded, Unit, without_hooks
from bringup.offloading.weights import Weights
from bringup.torch_device.device_index import device_index

Mode: TypeAlias = Literal["module", "fx", "compile"]
_MODES = ("module", "fx", "compile")
#: A 128 × 64 by 64 × 64 product: less is done by a CPU core before the tensors have gone there and back.
MIN_FLOPS = 1e6


@dataclass
class _Offloading:
    """What is known of an offloaded model."""

    original: nn.Module
    device: torch.device
    mode: Mode
    weights: Weights
    units: list[Unit] = field(default_factory=list)
    #: The places whose module was swapped: the parent's children, the name there, the module that was there.
    swapped: list[tuple[dict[str, nn.Module | None], str, nn.Module]] = field(default_factory=list)


_offloaded: WeakKeyDictionary[nn.Module, _Offloading] = WeakKeyDictionary()


class Offload:
    """Runs chosen operators of a model on a device; model, inputs and results stay on the CPU.

    >>> fast = bringup.offload(model, "sim", ops=["linear", "relu"], min_flops=0)  # doctest: +SKIP
    >>> print(bringup.offload.report(fast))  # doctest: +SKIP
    >>> model = bringup.offload.restore(fast)  # doctest: +SKIP
    """

    def __call__(
        self,
        model: nn.Module,
        device: torch.device | str | int,
        ops: Iterable[str] | None = None,
        min_flops: float = MIN_FLOPS,
        mode: Mode = "module",
    ) -> nn.Module:
        """Returns the model with its chosen ops on the device: the same object with ``mode="module"``, else another.

        ``module`` swaps layers, ``fx`` rewrites the traced program so that neighbours go together, ``compile`` does so
        in what Dynamo finds and compiles them for the device. What takes fewer flops than ``min_flops`` stays.
        """
        if not isinstance(model, nn.Module):
            raise TypeError(f"offload takes a torch.nn.Module, not {type(model).__name__}")
        if mode not in _MODES:
            raise ValueError(f"there is no mode {mode!r}: choose one of {', '.join(_MODES)}")
        if not min_flops >= 0:
            raise ValueError(f"min_flops is a number of operations from 0 on, not {min_flops!r}")
        if model in _offloaded:
            raise ValueError("this model is offloaded already: bringup.offload.restore(model) first")
        kind = torch.device("cpu" if isinstance(device, int) else device).type
        if kind == "cpu" and not isinstance(device, int):
            raise ValueError("offload moves work from the CPU to a device: name one, such as 'sim'")
        where = torch.device(torch._C._get_privateuse1_backend_name(), device_index(device))
        chosen = table.selection(ops)
        elsewhere = {str(tensor.device) for tensor in model.parameters() if tensor.device.type != "cpu"}
        if elsewhere:
            raise ValueError(f"offload leaves the model on the CPU, this one is on {', '.join(sorted(elsewhere))}")
        state = _Offloading(model, where, mode, Weights(model, where))
        make = {"module": _swap_modules, "fx": _rewrite_graph, "compile": _compile}[mode]
        result = make(model, state, chosen, float(min_flops))
        _offloaded[result] = state
        return result

    def restore(self, model: nn.Module) -> nn.Module:
        """Returns the model as it was; the device's copies of its weights are freed."""
        state = self._state(model)
        del _offloaded[model]
        for children, name, module in state.swapped:
            children[name] = module
        state.weights.clear()
        state.units.clear()
        return state.original if isinstance(model, Offloaded) else model

    def report(self, model: nn.Module) -> OffloadReport:
        """Returns what of a model ran where, how often, what moved, and why."""
        state = self._state(model)
        units = [
            UnitReport(
                *(unit.name, unit.ops, unit.device_calls, unit.cpu_calls),
                *(unit.flops, unit.bytes_to, unit.bytes_from, unit.reason),
            )
            for unit in state.units
        ]
        moved, resident = state.weights.bytes_moved, state.weights.resident_bytes
        return OffloadReport(str(state.device), state.mode, tuple(units), moved, resident)

    def register(
        self,
        name: str,
        *modules: type[nn.Module],
        functions: Iterable[Callable[..., Any]] = (),
        methods: Iterable[str] = (),
        replacement: table.Replacement | None = None,
    ) -> None:
        """Adds modules, functions or methods to an op of the table, or a new op.

        ``replacement(module, device)`` returns the module that runs on the device in the place of one of ``modules``.
        """
        table.register(name, *modules, functions=functions, methods=methods, replacement=replacement)

    def ops(self) -> list[str]:
        """Returns the names that ``ops`` may hold."""
        return table.names()

    def _state(self, model: nn.Module) -> _Offloading:
        if model not in _offloaded:
            raise ValueError("this model is not offloaded: pass what bringup.offload returned")
        return _offloaded[model]


# ---- the three levels ----
def _swap_modules(model: nn.Module, state: _Offloading, chosen: Selection, min_flops: float) -> nn.Module:
    made: dict[nn.Module, nn.Module] = {}

    def swapped(module: nn.Module, name: str) -> nn.Module | None:
        op = chosen.of_module(module)
        if op is None:
            return None
        if module not in made:  # a layer that is used in two places stays one
            bare = without_hooks(module)
            replacement = None if op.replacement is None else op.replacement(module, state.device)
            unit = Unit(name, (op.name,), bare, state.weights, min_flops, replacement=replacement)
            state.units.append(unit)
            made[module] = Offloaded(module, unit, bare)
        return made[module]

    def walk(parent: nn.Module, prefix: str) -> None:
        for name, child in list(parent._modules.items()):
            if child is None or isinstance(child, Offloaded):
                continue
            new = swapped(child, prefix + name)
            if new is None:
                walk(child, f"{prefix}{name}.")
            else:
                state.swapped.append((parent._modules, name, child))
                parent._modules[name] = new

    root = swapped(model, type(model).__name__)
    if root is not None:
        return root
    walk(model, "")
    return model


def _rewrite_graph(model: nn.Module, state: _Offloading, chosen: Selection, min_flops: float) -> nn.Module:
    bare = without_hooks(model)
    signature = inspect.signature(bare.forward)
    graphs: dict[tuple[Any, ...], nn.Module] = {}
    every = False  # bools, ints and texts are written into the program, too

    def traced(arguments: dict[str, Any]) -> nn.Module:
        """Returns the program for the arguments that are no tensors; it has those and the mode written in."""
        nonlocal every
        while True:
            fixed = {name: value for name, value in arguments.items() if _is_fixed(value, every)}
            key = (bare.training, tuple((name, type(value), value) for name, value in fixed.items()))
            if key in graphs:
                return graphs[key]
            try:
                module = symbolic_trace(bare, concrete_args=fixed or None)
            except Exception as error:
                if not every:
                    every = True
                    continue
                raise ValueError(
                    f"{type(model).__name__} cannot be traced for mode='fx' ({type(error).__name__}: {error}): "
                    "use mode='compile', or mode='module'"
                ) from error
            graphs[key], units = offload_graph(module, chosen, state.weights, min_flops, compiled=False)
            state.units += units
            return graphs[key]

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        # A tracer may name its inputs anew: they are given in their order.
        return traced(bound.arguments)(*bound.args, *bound.kwargs.values())

    traced({name: one.default for name, one in signature.parameters.items() if one.default is not one.empty})
    return Offloaded(model, call, bare)


def _is_fixed(value: object, every: bool) -> bool:
    """Whether an argument becomes a part of a traced program: None, which a tracer's stand-in never is, or a choice."""
    return value is None or (every and isinstance(value, (bool, int, str)))


def _compile(model: nn.Module, state: _Offloading, chosen: Selection, min_flops: float) -> nn.Module:
    def backend(module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        split, units = offload_graph(module, chosen, state.weights, min_flops, compiled=True)
        state.units += units
        return split.forward

    bare = without_hooks(model)
    return Offloaded(model, torch.compile(bare, backend=backend), bare)


offload = Offload()
