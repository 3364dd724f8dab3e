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
from torch.fx import GraphModule

from bringup.graph.binding import Binding
from bringup.graph.graph_ops import GRAPH_LOWERINGS
from bringup.graph.lowered import GraphLowering, LoweredGraph
from bringup.graph.structure import GraphStructure, structure_of
from bringup.lowering.registry import LOWERINGS, Lowering
from bringup.lowering.resolve import Resolver, no_garbage_collection

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
        self, module: GraphModule, device: torch.device, resolver: Resolver, options: GraphOptions | None = None
    ) -> None:
        self.module, self.device = module, device
        self.options = options or GraphOptions()
        self._resolver = resolver
        self._lock = threading.Lock()
        self.structures: list[GraphStructure] = []
        self.bindings: OrderedDict[tuple[Any, ...], Binding] = OrderedDict()
        with no_garbage_collection():
            first = self._structure({})
        lowered = first.lowered
        self._sources = list(lowered.symbols.sources.values())
        self._constants = [_attribute(module, name) for name in lowered.constants]
        if not self._sources and not lowered.guarded_numbers():
            self._bind((), ())
        elif self._sources:
            self._serve_the_smallest(lowered)

    def _serve_the_smallest(self, lowered: LoweredGraph) -> None:
        """Kernels for small sizes differ (few rows of a matrix product): made now, and not at the first small batch."""
        if lowered.guarded_numbers():
            return
        names = list(lowered.call.trace.symbols)
        smallest = tuple(max(1, min(lowered.symbols.ranges[name][0], 2) - 1) for name in names)
        if not any(s.holds(smallest, s.lowered.values(smallest, ())) for s in self.structures):
            with no_garbage_collection():
                self._structure(dict(zip(names, smallest)))

    def _find(self, op: str) -> tuple[Lowering, int] | None:
        found = self._resolver.definition_of(op)
        if found is not None:
            return found
        definition = GRAPH_LOWERINGS.get(op) or LOWERINGS.get(op)
        return None if definition is None else (definition, _ALL)

    def _structure(self, hints: dict[str, Any]) -> GraphStructure:
        lowered = GraphLowering(self.module.graph, self.device, self._find, hints, self.traced_on).lowered
        if self.options.strict and lowered.eager:
            raise NoLowering(_unsupported(lowered))
        structure = structure_of(lowered, self._resolver.load, self.options.fuse)
        self.structures.append(structure)
        return structure

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Runs the graph."""
        sizes = tuple(int(arguments[n]) if d is None else arguments[n].shape[d] for n, d in self._sources)
        guarded = self.structures[0].lowered.guarded_numbers()
        numbers = tuple(arguments[n].item() for n in guarded) if guarded else ()
        binding = self.bindings.get((sizes, numbers)) or self._bind(sizes, numbers)
        return binding.run(arguments, self._constants)

    def _bind(self, sizes: tuple[int, ...], numbers: tuple[Any, ...]) -> Binding:
        """The plans for some sizes."""
        key = (sizes, numbers)
        with self._lock, no_garbage_collection():
            if key in self.bindings:
                return self.bindings[key]
            structure = next((s for s in self.structures if s.holds(sizes, s.lowered.values(sizes, numbers))), None)
            if structure is None:
                first = self.structures[0].lowered
                named = {f"argument {n}": number for n, number in zip(first.guarded_numbers(), numbers)}
                structure = self._structure({**dict(zip(first.call.trace.symbols, sizes)), **named})
            values = structure.lowered.values(sizes, numbers)
            binding = Binding(structure, sizes, values, self.device)
            self.bindings[key] = binding
            if len(self.bindings) > BINDINGS:
                self.bindings.popitem(last=False)
            return binding


def _attribute(module: Any, path: str) -> torch.Tensor:
    for part in path.split("."):
        module = getattr(module, part)
    found: torch.Tensor = module
    return found


def _unsupported(lowered: LoweredGraph) -> str:
    lines = ["these nodes of the graph have no kernel, and strict mode allows nothing else:"]
    for call in lowered.eager.values():
        lines.append(f"  {call.name}: {call.target}: {call.reason}")
        if call.stack:
            lines.append("    " + call.stack.strip().replace("\n", "\n    "))
    return "\n".join(lines)
