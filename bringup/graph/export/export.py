"""``bringup.export``: a model with its weights in one file, which ``bringup.load`` runs without the model's code.

The order to read: trace (the model as a graph), constant_folding, this file (the graph for every size it must serve, as
a program), artifact_manifest (the program as JSON), artifact (the file), load (and back).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from bringup.graph.export.containers import OtherContainer, tree_of
from bringup.graph.export.dims import name_of, open_dimensions
from bringup.graph.export.sizes import sizes_to_try
from bringup.graph.export.targets import compiler_of, find_target, is_driver
from bringup.graph.export.trace import ExportError, TracedModel, show_aliases, trace
from bringup.graph.graph_ops import FILE_LOWERINGS, GRAPH_LOWERINGS
from bringup.graph.lowered import DTYPE_CODES, DataDependent, GraphLowering, Held, LoweredGraph, op_name
from bringup.graph.passes import Facts, rewrite
from bringup.graph.program import INTEGER, ConstantSpec, GraphProgram, SizeSymbol, TensorSpec, span
from bringup.graph.structure import GraphStructure, serving
from bringup.graph.symbols import UnknownSize
from bringup.graph.variants import limits_of, variant_for_file
from bringup.graph.ways_out import ways_out
from bringup.ir.index import Index, Size, substitute
from bringup.lowering.registry import LOWERINGS, Lowering
from bringup.lowering.resolve import no_garbage_collection
from bringup.lowering.scalar_types import BY_CODE
from bringup.lowering.symbolic import IntLike, index_of
from bringup.targets.target import FusionLimits

#: A model that needs more lowered graphs than this is specialised to each of its sizes.
MOST_VARIANTS = 64
_ALL_ARGUMENTS = 1 << 20
_ASSERTIONS = ("aten::_assert_scalar", "aten::_assert_tensor_metadata", "aten::sym_constrain_range_for_size")


def export(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    out: str | PathLike[str],
    target: str | None = None,
    dynamic_shapes: Any = None,
    fold_batch_norm: bool | None = None,
    **options: Any,
) -> Path:
    """Writes a model for a target: ``"host"``, a driver (default: the active one), or who registered as a target.

    >>> batch = torch.export.Dim("batch", min=1, max=64)
    >>> bringup.export(model, (x,), out="model.bup", dynamic_shapes=({0: batch},))  # doctest: +SKIP

    ``args`` and ``kwargs`` are an example call; ``dynamic_shapes`` says which of its sizes are dynamic, as
    torch.export.export takes it. Call ``model.eval()`` first, unless the file is to train its batch norms and drop out.
    ``fold_batch_norm``: norms in evaluation become part of the weights before them, in other bits; None: as the
    target prefers.
    Other keywords are options of the target: docs/riscv.md has those of "riscv".
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"bringup.export takes a torch.nn.Module, not a {type(model).__name__}")
    if isinstance(args, Tensor) or not isinstance(args, (tuple, list)):
        raise TypeError("args is a tuple: bringup.export(model, (x,), …)")
    found = find_target(target)
    path = Path(out)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}")
    with torch.no_grad():
        traced = trace(model, args, kwargs or {}, dynamic_shapes, found.device, found.products_of_attention)
        fold = found.folds_batch_norms if fold_batch_norm is None else fold_batch_norm
        making = ProgramMaking(traced, found.device, found.name, dynamic_shapes, fold_batch_norm=fold)
        program, constants = making.program()
        examples = [leaf for leaf in pytree.tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor)]
        found.write(program, [constant_bytes(tensor) for tensor in constants], path, examples=examples, **options)
    return path


@cache
def _lowerings() -> dict[str, tuple[Lowering, int]]:
    """The lowerings of loops alone: a vendor's own functions are not part of a file."""
    from bringup.lowering import ops
    from bringup.lowering.overloads import served_overloads

    ops.load()
    return {one.name: (one.definition, one.arguments) for one in served_overloads(LOWERINGS)}


def _find(op: str) -> tuple[Lowering, int] | None:
    definition = GRAPH_LOWERINGS.get(op) or FILE_LOWERINGS.get(op)
    if definition is not None:
        return definition, _ALL_ARGUMENTS
    if op in LOWERINGS and op not in _lowerings():
        _lowerings.cache_clear()  # an op that was defined since
    return _lowerings().get(op)


def _load_none(device: int, kernels: Sequence[Any]) -> list[Any]:
    return [None] * len(kernels)


@dataclass
class ProgramMaking:
    """From a traced model to a program; ``traced_on``: the device type of its tensors, if it is another."""

    traced: TracedModel
    device: torch.device
    target: str
    dynamic_shapes: Any = None
    traced_on: str | None = None
    fold_batch_norm: bool = False
    #: Symbol → the size that calls decide, by the name that the user gave to it.
    _sizes: dict[str, SizeSymbol] = field(default_factory=dict)

    def program(self) -> tuple[GraphProgram, list[Tensor]]:
        """The program and the values of its constants."""
        traced, graph = self.traced, self.traced.module.graph
        facts = Facts(traced.constants, frozenset(traced.updates), traced.names, self.fold_batch_norm)
        rewrite(graph, "graph", facts)
        constants = facts.constants or {}
        places = [node for node in graph.nodes if node.op == "placeholder"]
        traced.names.update({node.name: node.meta["called"] for node in places if "called" in node.meta})
        self._inputs = [node for node in places if node.name not in constants]
        self._before = len(constants)
        self._assertions = _taken_out(graph)
        show_aliases(graph)
        with no_garbage_collection():
            first = self._lowered(graph, {})
            self._sizes = self._named_sizes(first)
            structures = self._structures(graph, first)
        order = list(constants)
        program = GraphProgram(
            target=self.target,
            sizes=tuple(self._sizes.values()),
            inputs=tuple(self._input(n, first) for n in range(len(self._inputs))),
            constants=tuple(self._constant(name, constants[name]) for name in order),
            variants=tuple(structure.variant for structure in structures),
            parameters=traced.parameters,
            takes=self._takes(),
            gives=self._gives(first),
            updates=tuple((order.index(name), n) for n, name in enumerate(traced.updates)),
            folded_norms=facts.folded_norms,
        )
        return program, [constants[name] for name in order]

    # ---- variants ----

    def _structures(self, graph: Graph, first: LoweredGraph) -> list[GraphStructure]:
        """The graph, lowered for every size in its range."""
        structures = [self._structure(graph, first)]
        ranges = [(size.low, size.high) for size in self._sizes.values()]
        for sizes in sizes_to_try(ranges) if ranges else []:
            known = dict(zip(self._sizes, sizes))
            self._check_assertions(known)
            if serving(structures, sizes) is None:
                structures.append(self._structure(graph, self._lowered(graph, known)))
            if len(structures) > MOST_VARIANTS:
                raise ExportError(
                    f"the model needs another graph for nearly every one of its sizes (more than {MOST_VARIANTS}): "
                    "make the range of its dynamic sizes smaller"
                )
        return structures

    def _lowered(self, graph: Graph, sizes: dict[str, int]) -> LoweredGraph:
        shown = f" for {', '.join(f'{name} = {size}' for name, size in sizes.items())}" if sizes else ""
        try:
            lowered = GraphLowering(graph, self.device, _find, sizes, self.traced_on).lowered
        except (NotImplementedError, DataDependent, UnknownSize) as error:
            op = error.op if isinstance(error, DataDependent) else None
            ways = ways_out([op] if op is not None else [])
            raise ExportError("\n".join([f"the graph cannot be lowered{shown}: {error}", *ways])) from error
        if lowered.eager:
            heading = f"the model has ops without a kernel{shown}, and a file can hold nothing else:"
            ways = ways_out(call.target for call in lowered.eager.values())
            raise ExportError("\n".join([heading, *lowered.ordinary_ops(), *ways]))
        for number in lowered.numbers:
            _check_number(number)
        for result in lowered.results:
            if isinstance(result, Held):
                dtype_name(result.dtype, "a result")
        # PyTorch traces as if no dynamic size were below 2; kernels must be right in the range that was asked for.
        lowered.symbols.ranges.update({n: r for n, r in self.traced.ranges.items() if n in lowered.symbols.ranges})
        return lowered

    def _structure(self, graph: Graph, lowered: LoweredGraph) -> GraphStructure:
        # A file for a driver is one whose kernels compile here; other targets have compilers of their own.
        index, limits, load_all = lowered.call.device, FusionLimits(), _load_none
        if is_driver(self.target):
            limits, load_all = limits_of(index), compiler_of(self.device).load_all
        names = {symbol: size.name for symbol, size in self._sizes.items()}
        variant = variant_for_file(lowered, limits, names, graph)
        return GraphStructure(variant, list(names.values()), index, load_all)

    def _check_assertions(self, known: dict[str, int]) -> None:
        for expression, message in self._assertions:
            if not expression.subs({symbol: known[str(symbol)] for symbol in expression.free_symbols}):
                raise ExportError(f"the model asserts {expression} ({message}), which is not so for {known}")

    # ---- inputs, constants, sizes ----

    def _named_sizes(self, lowered: LoweredGraph) -> dict[str, SizeSymbol]:
        asked = self._asked_names()
        found: dict[str, SizeSymbol] = {}
        for symbol, example in lowered.call.trace.symbols.items():
            argument, dimension = lowered.symbols.sources[symbol]
            number = argument - self._before
            name = asked.get((self._inputs[number].name, dimension), symbol)
            name = name if name not in {size.name for size in found.values()} else symbol
            low, high = self.traced.ranges.get(symbol, (0, None))
            found[symbol] = SizeSymbol(name, low, high, number, dimension, example)
        return found

    def _asked_names(self) -> dict[tuple[str | None, int | None], str]:
        """(input, dimension) → the name that the user gave to this size."""
        traced = self.traced
        found: dict[tuple[str | None, int | None], str] = {}
        args, kwargs = traced.takes
        for place, dimension, dim in open_dimensions(args, kwargs, traced.parameters, self.dynamic_shapes):
            name = name_of(dim)
            if name is not None:
                found[traced.inputs[place], dimension] = name
        return found

    def _formula(self, number: IntLike) -> Index:
        """A formula, over the names that the user gave to sizes."""
        return substitute(index_of(number), sizes={symbol: Size(size.name) for symbol, size in self._sizes.items()})

    def _input(self, number: int, lowered: LoweredGraph) -> TensorSpec:
        name, fake = self._inputs[number].name, self._inputs[number].meta["val"]
        memory = ("tensor", self._before + number)
        if not isinstance(fake, Tensor):
            return TensorSpec(memory, INTEGER, (), (), name=name)
        dims = lowered.symbols.dims
        shape, strides = (tuple(map(self._formula, dims(one))) for one in (fake.shape, fake.stride()))
        return TensorSpec(memory, dtype_name(fake.dtype, f"input '{name}'"), shape, strides, name=name)

    def _constant(self, name: str, value: Tensor) -> ConstantSpec:
        called = self.traced.names.get(name, name)
        dtype = dtype_name(value.dtype, f"'{called}'")
        return ConstantSpec(called, dtype, tuple(value.shape), value.stride(), name in self.traced.updates)

    def _takes(self) -> Any:
        traced = self.traced
        order = {node.name: n for n, node in enumerate(self._inputs)}

        def leaf(place: Any) -> tuple[str, Any]:
            name = traced.inputs[place]
            return ("value", _plain(traced.fixed[place], "an argument")) if name is None else ("input", order[name])

        return _tree(traced.takes, leaf, "the arguments")

    def _gives(self, lowered: LoweredGraph) -> Any:
        tensors = [n for n, result in enumerate(lowered.results) if isinstance(result, Held)]

        def leaf(place: Any) -> tuple[str, Any]:
            result = lowered.results[place]
            if isinstance(result, Held):
                return "result", tensors.index(place)
            if isinstance(result, torch.SymInt):
                return "size", self._formula(lowered.symbols.dim(result))
            return "value", _plain(result, "a result")

        return _tree(self.traced.gives, leaf, "the results")


def _check_number(number: Any) -> None:
    if isinstance(number, (torch.SymFloat, torch.SymBool)):
        raise ExportError(
            f"the model computes with {number}, and files hold integer formulas of sizes only: compute it from "
            "tensors, or fix the size"
        )
    if isinstance(number, Held):
        raise ExportError("the model takes a number from a tensor on the CPU, while it runs on a device")


def dtype_name(dtype: torch.dtype, what: str) -> str:
    """A type of tensors as files name it.

    >>> dtype_name(torch.float32, "x")
    'float32'
    """
    if DTYPE_CODES.get(dtype) not in BY_CODE:
        raise ExportError(f"{what} is {dtype}, which is not a kernel type")
    return str(dtype).removeprefix("torch.")


def _plain(value: Any, what: str) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise ExportError(f"{what} is a {type(value).__name__}: a file holds tensors, numbers, texts and None")


def _tree(value: Any, leaf: Callable[[Any], tuple[str, Any]], what: str) -> Any:
    """The tree of a value whose leaves are numbers: those of arguments or results."""

    def numbered(place: Any) -> tuple[str, Any]:
        if type(place) is not int:
            raise OtherContainer(f"a {type(place).__name__}; there are tuples, lists and dicts in a file")
        return leaf(place)

    try:
        return tree_of(value, numbered)
    except OtherContainer as error:
        raise ExportError(f"{what}: {error}") from error


def _taken_out(graph: Graph) -> list[tuple[Any, str]]:
    """Removes assertions about sizes; what they say, as (expression, message)."""
    found = []
    for node in list(graph.nodes):
        if not isinstance(node.target, torch._ops.OpOverload) or op_name(node.target) not in _ASSERTIONS:
            continue
        claim = node.args[0].meta.get("val") if isinstance(node.args[0], Node) else node.args[0]
        if isinstance(claim, torch.SymBool):
            found.append((claim.node.expr, str(node.args[1]) if len(node.args) > 1 else ""))
        graph.erase_node(node)
    return found


def constant_bytes(tensor: Tensor) -> memoryview:
    """What a constant's shape and strides span, with zeros where no element lies."""
    if not tensor.numel():
        return memoryview(b"")
    flat = torch.zeros(span(tensor.shape, tensor.stride()), dtype=tensor.dtype)
    flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor)
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]
