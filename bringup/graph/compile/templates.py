"""Graphs that were compiled before for dynamic sizes, and serve a new graph that is the same for certain sizes.

Dynamo compiles a function again when a dynamic size becomes 1 (or 0), and the new graph has that size written in. If an
earlier graph of this process has the same ops, and the same shapes once its symbols take the new sizes, then its
kernels are right for the new one, too: nothing is compiled.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from bringup.graph.compile.compiled import CompiledGraph

_lock = threading.Lock()
_templates: dict[tuple[Any, ...], list[weakref.ref[CompiledGraph]]] = {}


class _Differs(Exception):
    """The two graphs are not the same for any sizes."""


class SizedGraph:
    """A compiled graph with dynamic sizes, called with the arguments of a graph that has them written in."""

    def __init__(
        self, template: CompiledGraph, sizes: dict[str, int], places: Sequence[int | None], kept: Sequence[int]
    ) -> None:
        self.template = template
        sources = template.lowered.symbols.sources
        self._sizes = tuple(sizes[name] for name in sources)
        numbers = {n: sizes[name] for name, (n, d) in sources.items() if d is None}
        #: For each argument of the template: which of ours it is, or the size that it is.
        self._arguments = [(place, numbers.get(n)) for n, place in enumerate(places)]
        self._kept = kept
        self.device, self.options = template.device, template.options
        self.module = template.module

    @property
    def structures(self) -> Any:
        """Those of the template."""
        return self.template.structures

    @property
    def bindings(self) -> Any:
        """Those of the template."""
        return self.template.bindings

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Runs the graph."""
        given = [number if place is None else arguments[place] for place, number in self._arguments]
        results = self.template(given)
        return [results[n] for n in self._kept]


def remember(graph: CompiledGraph) -> None:
    """Offers a compiled graph to later ones; only graphs with dynamic sizes are worth it."""
    if graph.lowered.symbols.sources:
        skeleton = _Outline(graph.module).skeleton()
        with _lock:
            for key in list(_templates):
                _templates[key] = [one for one in _templates[key] if one() is not None]
                if not _templates[key]:
                    del _templates[key]
            _templates.setdefault(skeleton, []).append(weakref.ref(graph))


def served_by_template(module: GraphModule, device: torch.device, options: Any) -> SizedGraph | None:
    """An earlier graph that is this one for certain sizes, if there is one."""
    ours = _Outline(module)
    with _lock:
        known = [graph for one in _templates.get(ours.skeleton(), ()) if (graph := one()) is not None]
    for graph in known:
        if graph.device == device and graph.options == options:
            try:
                return _matched(graph, _Outline(graph.module), ours)
            except _Differs:
                continue
    return None


class _Outline:
    """The nodes of a graph that compute something, and where every tensor comes from: views are only other strides, and
    a graph with sizes written in has fewer of them."""

    def __init__(self, module: GraphModule) -> None:
        self.nodes: list[Node] = []
        self._owners: dict[int, tuple[int, int]] = {}  # storage → (number among the nodes, number of the result)
        self.results: Sequence[Any] = ()
        self.placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        for node in module.graph.nodes:
            if node.op == "output":
                self.results = node.args[0]  # type: ignore[assignment]
            elif not _is_size(node) and node.target is not operator.getitem and not self._is_view(node):
                for n, tensor in enumerate(_metas(node)):
                    if isinstance(tensor, torch.Tensor):
                        self._owners.setdefault(tensor.untyped_storage()._cdata, (len(self.nodes), n))
                self.nodes.append(node)

    def _is_view(self, node: Node) -> bool:
        tensors = [tensor for tensor in _metas(node) if isinstance(tensor, torch.Tensor)]
        known = all(tensor.untyped_storage()._cdata in self._owners for tensor in tensors)
        return node.op == "call_function" and bool(tensors) and known and not node.target._schema.is_mutable  # type: ignore[union-attr]

    def origin(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Which result of which node a tensor lies in."""
        return self._owners[tensor.untyped_storage()._cdata]

    def skeleton(self) -> tuple[Any, ...]:
        """What two graphs that differ in sizes alone agree in."""
        return tuple((node.op, str(node.target) if node.op == "call_function" else "") for node in self.nodes)


def _is_size(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.SymInt, int)) and node.op in ("placeholder", "call_function")


def _matched(template: CompiledGraph, theirs: _Outline, ours: _Outline) -> SizedGraph:
    pair = _Pair(theirs, ours)
    for old, new in zip(theirs.nodes, ours.nodes):
        for a, b in zip(_metas(old), _metas(new), strict=True):
            pair.same_tensor(a, b)
        if old.op == "get_attr" or set(old.kwargs) != set(new.kwargs) or len(old.args) != len(new.args):
            raise _Differs
        for a, b in zip((*old.args, *old.kwargs.values()), (*new.args, *(new.kwargs[name] for name in old.kwargs))):
            pair.same(a, b)
    kept = _aligned(theirs.results, ours.results)
    for n, result in zip(kept, ours.results):
        pair.same(theirs.results[n], result)
    if not set(template.lowered.symbols.sources) <= set(pair.sizes):
        raise _Differs
    partner = dict(zip(theirs.nodes, ours.nodes))
    places = {node: n for n, node in enumerate(ours.placeholders)}
    arguments = [places[partner[node]] if node in partner else None for node in theirs.placeholders]
    return SizedGraph(template, pair.sizes, arguments, kept)


def _aligned(old: Sequence[Any], new: Sequence[Any]) -> list[int]:
    """Which old result is which new one. The old graph also gives sizes that it keeps for its backward graph, and a
    backward graph gives None for an argument that was a size."""
    tensors = [n for n, result in enumerate(old) if isinstance(result, Node) and not _is_size(result)]
    nothing = [n for n, result in enumerate(old) if result is None]
    wanted = [result for result in new if result is not None]
    if len(tensors) != len(wanted) or (len(wanted) < len(new) and not nothing):
        raise _Differs
    left = iter(tensors)
    return [nothing[0] if result is None else next(left) for result in new]


class _Pair:
    """Two graphs side by side: the sizes for which the old one, so far, is the new one."""

    def __init__(self, old: _Outline, new: _Outline) -> None:
        self._old, self._new = old, new
        self.sizes: dict[str, int] = {}

    def same(self, old: Any, new: Any) -> None:
        """Two arguments."""
        if isinstance(old, (list, tuple)):
            if not isinstance(new, (list, tuple)) or len(old) != len(new):
                raise _Differs
            for a, b in zip(old, new):
                self.same(a, b)
            return
        old, new = _known(old), _known(new)
        if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
            self.same_tensor(old, new)
            if self._old.origin(old) != self._new.origin(new):
                raise _Differs
        elif isinstance(old, torch.SymInt):
            self.same_number(old, new)
        elif type(old) is not type(new) or old != new or repr(old) != repr(new):  # 0.0 == -0.0
            raise _Differs

    def same_tensor(self, old: Any, new: Any) -> None:
        """Two traced tensors, or twice no tensor."""
        if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
            if isinstance(old, torch.Tensor) or isinstance(new, torch.Tensor):
                raise _Differs
            return
        if (old.dtype, old.device, old.ndim, old.layout) != (new.dtype, new.device, new.ndim, new.layout):
            raise _Differs
        for a, b in zip(old.shape, new.shape):
            self.same_number(a, b)
        for a, b, extent in zip(old.stride(), new.stride(), new.shape):
            if extent != 1:  # where nothing is next, a stride says nothing
                self.same_number(a, b)
        self.same_number(old.storage_offset(), new.storage_offset())

    def same_number(self, old: Any, new: Any) -> None:
        """Two sizes, strides or offsets: a symbol takes the value that it must have."""
        if type(new) is not int:  # True is not a size: it promotes to another type than 1
            raise _Differs
        if not isinstance(old, torch.SymInt):
            if old != new:
                raise _Differs
            return
        expression = old.node.expr
        if expression.is_Symbol:
            if self.sizes.setdefault(str(expression), new) != new:
                raise _Differs
            return
        symbols = expression.free_symbols
        known = all(str(symbol) in self.sizes for symbol in symbols)
        if not known or int(expression.subs({symbol: self.sizes[str(symbol)] for symbol in symbols})) != new:
            raise _Differs


def _known(value: Any) -> Any:
    return value.meta["val"] if isinstance(value, Node) else value


def _metas(node: Node) -> list[Any]:
    value = node.meta.get("val")
    return list(value) if isinstance(value, (list, tuple)) else [value]
