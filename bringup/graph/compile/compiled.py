"""A compiled graph: called with tensors, it finds (or makes) the plan for their sizes, and the core runs it.

Three levels, as for a single op: a binding (plans for exact sizes; C++ runs them), a structure (kernels whose sizes are
open; new sizes cost a fill), and the traced graph itself (lowered again only if new sizes answer a guard differently).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule

from bringup.graph.binding import Binding
from bringup.graph.graph_ops import GRAPH_LOWERINGS
from bringup.graph.host_contents import brought_back, moved
from bringup.graph.lowered import CONSTANTS, GraphLowering, LoweredGraph
from bringup.graph.structure import GraphStructure, serving
from bringup.graph.variants import limits_of, variant_of
from bringup.lowering.registry import LOWERINGS, Lowering
from bringup.lowering.resolve import KernelCompiler, no_garbage_collection

#: Plans for exact sizes that a graph keeps.
BINDINGS = 64
_ALL = 1 << 20  # of a schema's arguments


class NoLowering(RuntimeError):
    """A node has no kernel, and the caller wants nothing else."""


@dataclass(frozen=True)
class GraphOptions:
    """What the user of a compiled graph may choose."""

    #: Join kernels; without it every op is its own launch.
    fuse: bool = True
    #: An op without a kernel is an error instead of an ordinary op.
    strict: bool = False


class CompiledGraph:
    """The graph of a GraphModule on one device, callable with a sequence of arguments; gives a list of results."""

    #: The device type of the traced tensors, where that is not the type of the device they will run on.
    traced_on: str | None = None

    def __init__(
        self, module: GraphModule, device: torch.device, compiler: KernelCompiler, options: GraphOptions | None = None
    ) -> None:
        self.module, self.device = module, device
        self.options = options or GraphOptions()
        self._compiler = compiler
        self._lock = threading.Lock()
        self.structures: list[GraphStructure] = []
        self.bindings: OrderedDict[tuple[Any, ...], Binding] = OrderedDict()
        #: Arguments that are numbers (0-dim tensors on the CPU) and decided something in any of the structures.
        self._guarded: tuple[int, ...] = ()
        with no_garbage_collection():
            self.lowered = lowered = self._lower({})
        #: Where the value of each dynamic size comes from: an argument and its dimension.
        self._sources = list(lowered.symbols.sources.values())
        self._constants = [_attribute(module, name) for name in lowered.constants]
        if not self._sources and not self._guarded:
            self._bind((), ())
        elif self._sources:
            self._serve_the_smallest(lowered)

    def _serve_the_smallest(self, lowered: LoweredGraph) -> None:
        """Kernels for small sizes differ (few rows of a matrix product): made now, and not at the first small batch."""
        if self._guarded:
            return
        names = list(lowered.call.trace.symbols)
        smallest = tuple(max(1, min(lowered.symbols.ranges[name][0], 2) - 1) for name in names)
        if not lowered.symbols.possible(smallest):
            return
        if serving(self.structures, smallest) is None:
            with no_garbage_collection():
                self._lower(dict(zip(names, smallest)))

    def _find(self, op: str) -> tuple[Lowering, int] | None:
        found = self._compiler.definition_of(op)
        if found is not None:
            return found
        definition = GRAPH_LOWERINGS.get(op) or LOWERINGS.get(op)
        return None if definition is None else (definition, _ALL)

    def _lower(self, hints: dict[str, Any]) -> LoweredGraph:
        """Adds a structure for sizes like these."""
        lowered = GraphLowering(self.module.graph, self.device, self._find, hints, self.traced_on).lowered
        if self.options.strict and lowered.eager:
            heading = "these nodes of the graph have no kernel, and strict mode allows nothing else:"
            raise NoLowering("\n".join([heading, *lowered.ordinary_ops()]))
        device, sizes = lowered.call.device, list(lowered.call.trace.symbols)
        variant = variant_of(lowered, limits_of(device) if self.options.fuse else None)
        structure = GraphStructure(variant, sizes, device, self._compiler.load_all, lowered)
        self.structures.append(structure)
        news = [n for n in structure.guarded if n not in self._guarded]
        if news:
            self._guarded += tuple(news)
            self.bindings.clear()  # their keys have fewer numbers
        return lowered

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Runs the graph."""
        sizes = tuple(int(arguments[n]) if d is None else arguments[n].shape[d] for n, d in self._sources)
        binding = self.bindings.get((sizes, self._numbers(arguments))) or self._bind(sizes, arguments)
        return binding.run(arguments, self._constants)

    def _numbers(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(arguments[n].item() for n in self._guarded)

    def _bind(self, sizes: tuple[int, ...], arguments: Sequence[Any]) -> Binding:
        """The plans for some sizes, and for the numbers among the arguments where these decide something."""
        with self._lock, no_garbage_collection():
            numbers = self._numbers(arguments)
            if (sizes, numbers) in self.bindings:
                return self.bindings[sizes, numbers]
            found = serving(self.structures, sizes, dict(zip(self._guarded, numbers)))
            if found is None:
                hints = dict(zip(self.structures[0].sizes, sizes))
                hints |= {f"argument {n}": one.item() for n, one in enumerate(arguments) if _is_number(one)}
                self._lower(hints)
                numbers = self._numbers(arguments)  # the new structure may ask for more of them
                new = self.structures[-1]
                found = new, new.values(sizes, dict(zip(self._guarded, numbers)))
            binding = Binding(*found, sizes, self.device)
            self.bindings[sizes, numbers] = binding
            if len(self.bindings) > BINDINGS:
                self.bindings.popitem(last=False)
            return binding


def _is_number(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor) and argument.ndim == 0 and argument.device.type == "cpu"


def _attribute(module: Any, path: str) -> torch.Tensor:
    for part in path.split("."):
        module = getattr(module, part)
    found: torch.Tensor = module
    return found


class OffloadedGraph(CompiledGraph):
    """A compiled graph on CPU tensors: arguments go to the device, results and written arguments come back."""

    traced_on = "cpu"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        with unset_fake_temporarily():  # a graph is compiled while PyTorch traces with fake tensors
            self._constants = [constant.to(self.device) for constant in self._constants]

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Runs the graph on the device."""
        there = [moved(one, self.device) if isinstance(one, torch.Tensor) else one for one in arguments]
        results = super().__call__(there)
        for kind, n in self.lowered.written:
            if kind == "tensor" and n < CONSTANTS:
                with torch.no_grad():
                    arguments[n].copy_(there[n])
        return brought_back(results, there, arguments)
