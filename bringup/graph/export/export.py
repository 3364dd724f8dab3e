"""``bringup.export``: a model with its weights in one file, which ``bringup.load`` runs without the model's code.

The order to read: exported_trace (the model as a graph), constant_folding, this file (the graph for every size it must
serve, as a program), artifact_manifest (the program as JSON), artifact (the file), loaded (and back).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from bringup.graph.export.targets import find_target, is_driver
from bringup.graph.export.trace import ExportError, TracedModel, show_aliases, trace
from bringup.graph.graph_ops import FILE_LOWERINGS, GRAPH_LOWERINGS
from bringup.graph.lowered import DataDependent, GraphLowering, LoweredGraph
from bringup.graph.notes import notes_of
from bringup.graph.passes import Facts, rewrite
from bringup.graph.program import (
    INTEGER,
    ConstantSpec,
    Formulas,
    Given,
    GraphProgram,
    InputSpec,
    KernelCall,
    ResultSpec,
    SizeSymbol,
    Variant,
    span,
)
from bringup.graph.structure import GraphStructure, bits_of, limits_of, structure_of
from bringup.graph.symbols import UnknownSize
from bringup.graph.values import DTYPE_CODES, Held, Memory, NumberSource
from bringup.graph.ways_out import ways_out
from bringup.ir.index import Index, Size, substitute
from bringup.ir.kernel import Kernel
from bringup.ir.printer import kernel_text
from bringup.lowering.call import Launch, Number
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

    ``args`` and ``kwargs`` are an example call; ``dynamic_shapes`` says which of its sizes are open, as
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
        traced = trace(model, args, kwargs or {}, dynamic_shapes, found.device)
        fold = found.folds_batch_norms if fold_batch_norm is None else fold_batch_norm
        program, constants = program_of(traced, found.device, found.name, dynamic_shapes, fold_batch_norm=fold)
        examples = [leaf for leaf in pytree.tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor)]
        found.write(program, [constant_bytes(tensor) for tensor in constants], path, examples=examples, **options)
    return path


def program_of(
    traced: TracedModel,
    device: torch.device,
    target: str,
    dynamic_shapes: Any = None,
    traced_on: str | None = None,
    fold_batch_norm: bool = False,
) -> tuple[GraphProgram, list[Tensor]]:
    """A traced model as a program, and its constants; ``traced_on``: the device of its tensors, if it is another."""
    return _Exporter(traced, device, target, dynamic_shapes, traced_on, fold_batch_norm).program()


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


class _Exporter:
    """From a traced model to a program."""

    def __init__(
        self,
        traced: TracedModel,
        device: torch.device,
        target: str,
        dynamic_shapes: Any,
        traced_on: str | None,
        fold_batch_norm: bool,
    ) -> None:
        self._traced, self._device, self._target = traced, device, target
        self._dynamic_shapes = dynamic_shapes
        self._traced_on, self._fold_batch_norm = traced_on, fold_batch_norm
        #: A file for a driver is one whose kernels compile here; other targets have compilers of their own.
        self._checks = is_driver(target)
        self._names: dict[str, str] = {}
        self._kernels: dict[str, tuple[int, Kernel]] = {}

    def program(self) -> tuple[GraphProgram, list[Tensor]]:
        """The program and the values of its constants."""
        traced, graph = self._traced, self._traced.module.graph
        facts = Facts(traced.constants, frozenset(traced.updates), traced.names, self._fold_batch_norm)
        rewrite(graph, "graph", facts)
        constants = facts.constants or {}
        places = [node for node in graph.nodes if node.op == "placeholder"]
        traced.names.update({node.name: node.meta["called"] for node in places if "called" in node.meta})
        self._inputs = [node for node in places if node.name not in constants]
        self._assertions = _taken_out(graph)
        show_aliases(graph)
        with no_garbage_collection():
            structures = self._structures(graph)
        first = structures[0].lowered
        sizes = self._sizes(first, len(constants))
        order = list(constants)
        program = GraphProgram(
            target=self._target,
            sizes=sizes,
            inputs=tuple(self._input(node, first) for node in self._inputs),
            constants=tuple(self._constant(name, constants[name]) for name in order),
            variants=tuple(self._variant(structure) for structure in structures),
            kernels=tuple(kernel for _, kernel in self._kernels.values()),
            parameters=traced.parameters,
            takes=self._takes(),
            gives=self._gives(first),
            updates=tuple((order.index(name), n) for n, name in enumerate(traced.updates)),
            folded_norms=facts.folded_norms,
        )
        return program, [constants[name] for name in order]

    # ---- structures ----

    def _structures(self, graph: Graph) -> list[GraphStructure]:
        """The graph, lowered for every size in its range."""
        structures = [self._structure(graph, {})]
        lowered = structures[0].lowered
        names = list(lowered.call.trace.symbols)
        ranges = [self._traced.ranges.get(name, (0, None)) for name in names]
        for sizes in sizes_to_try(ranges) if names else []:
            self._check_assertions(names, sizes)
            if not any(one.holds(sizes, one.lowered.values(sizes, ())) for one in structures):
                structures.append(self._structure(graph, dict(zip(names, sizes))))
            if len(structures) > MOST_VARIANTS:
                raise ExportError(
                    f"the model needs another graph for nearly every one of its sizes (more than {MOST_VARIANTS}): "
                    "make the range of its dynamic sizes smaller"
                )
        return structures

    def _structure(self, graph: Graph, sizes: dict[str, int]) -> GraphStructure:
        shown = f" for {', '.join(f'{name} = {size}' for name, size in sizes.items())}" if sizes else ""
        try:
            lowered = GraphLowering(graph, self._device, _find, sizes, self._traced_on).lowered
        except (NotImplementedError, DataDependent, UnknownSize) as error:
            op = error.op if isinstance(error, DataDependent) else None
            ways = ways_out([op] if op is not None else [])
            raise ExportError("\n".join([f"the graph cannot be lowered{shown}: {error}", *ways])) from error
        if lowered.eager:
            raise ExportError(_without_kernel(lowered, shown))
        # PyTorch traces as if no dynamic size were below 2; kernels must be right in the range that was asked for.
        lowered.symbols.ranges.update({n: r for n, r in self._traced.ranges.items() if n in lowered.symbols.ranges})
        if not self._checks:
            return structure_of(lowered, _load_none, FusionLimits())
        from bringup.lowering import install

        return structure_of(lowered, install.active[0].load_all, limits_of(lowered.call.device))

    def _check_assertions(self, names: Sequence[str], sizes: Sequence[int]) -> None:
        known = dict(zip(names, sizes))
        for expression, message in self._assertions:
            if not expression.subs({symbol: known[str(symbol)] for symbol in expression.free_symbols}):
                raise ExportError(f"the model asserts {expression} ({message}), which is not so for {known}")

    # ---- inputs, constants, sizes ----

    def _sizes(self, lowered: LoweredGraph, before: int) -> tuple[SizeSymbol, ...]:
        asked = self._asked_names()
        found = []
        for symbol, example in lowered.call.trace.symbols.items():
            argument, dimension = lowered.symbols.sources[symbol]
            number = argument - before
            name = asked.get((self._inputs[number].name, dimension), symbol)
            name = name if name not in self._names.values() else symbol
            self._names[symbol] = name
            low, high = self._traced.ranges.get(symbol, (0, None))
            found.append(SizeSymbol(name, low, high, number, dimension, example))
        return tuple(found)

    def _asked_names(self) -> dict[tuple[str | None, int | None], str]:
        """(input, dimension) → the name that the user gave to this size."""
        traced = self._traced
        found: dict[tuple[str | None, int | None], str] = {}
        args, kwargs = traced.takes
        for place, dimension, dim in open_dimensions(args, kwargs, traced.parameters, self._dynamic_shapes):
            name = name_of(dim)
            if name is not None:
                found[traced.inputs[place], dimension] = name
        return found

    def _formula(self, number: IntLike) -> Index:
        """A formula, over the names that the user gave to sizes."""
        return self._renamed(index_of(number))

    def _renamed(self, index: Index) -> Index:
        return substitute(index, sizes={old: Size(new) for old, new in self._names.items()})

    def _formulas(self, numbers: Sequence[IntLike]) -> Formulas:
        return tuple(self._formula(number) for number in numbers)

    def _input(self, node: Node, lowered: LoweredGraph) -> InputSpec:
        fake = node.meta["val"]
        if not isinstance(fake, Tensor):
            return InputSpec(node.name, INTEGER, (), ())
        dims = lowered.symbols.dims
        shape, strides = self._formulas(dims(fake.shape)), self._formulas(dims(fake.stride()))
        return InputSpec(node.name, dtype_name(fake.dtype, f"input '{node.name}'"), shape, strides)

    def _constant(self, name: str, value: Tensor) -> ConstantSpec:
        called = self._traced.names.get(name, name)
        dtype = dtype_name(value.dtype, f"'{called}'")
        return ConstantSpec(called, dtype, tuple(value.shape), value.stride(), name in self._traced.updates)

    def _takes(self) -> Any:
        traced = self._traced
        order = {node.name: n for n, node in enumerate(self._inputs)}

        def leaf(place: Any) -> tuple[str, Any]:
            name = traced.inputs[place]
            return ("value", _plain(traced.fixed[place], "an argument")) if name is None else ("input", order[name])

        return _tree(traced.takes, leaf, "the arguments")

    def _gives(self, lowered: LoweredGraph) -> Any:
        def leaf(place: Any) -> tuple[str, Any]:
            result = lowered.results[place]
            if isinstance(result, Held):
                tensors = [n for n, r in enumerate(lowered.results) if isinstance(r, Held)]
                return "result", tensors.index(place)
            if isinstance(result, torch.SymInt):
                return "size", self._formula(lowered.symbols.dim(result))
            return "value", _plain(result, "a result")

        return _tree(self._traced.gives, leaf, "the results")

    # ---- variants ----

    def _variant(self, structure: GraphStructure) -> Variant:
        lowered = structure.lowered
        trace = lowered.call.trace
        launches = [step for step in structure.steps if isinstance(step, Launch)]
        notes = notes_of(self._traced.module.graph, lowered.nodes, structure.origins)
        held = [result for result in lowered.results if isinstance(result, Held)]
        touched = [tensor.memory for launch in launches for tensor in launch.buffers] + [r.memory for r in held]
        used = sorted({number for kind, number in touched if kind == "temporary"})
        numbering = {("temporary", old): ("temporary", new) for new, old in enumerate(used)}
        temporaries = [lowered.call.temporaries[n] for n in used]

        def place(memory: Memory) -> Memory:
            return numbering.get(memory, memory)

        results = [
            ResultSpec(
                place(r.memory),
                dtype_name(r.dtype, "a result"),
                self._formulas(r.shape),
                self._formulas(r.strides),
                self._formula(r.offset),
            )
            for r in held
        ]
        return Variant(
            guards=tuple((relation, self._renamed(index)) for relation, index in trace.guards),
            number_guards=tuple(trace.scalar_guards),
            numbers=tuple(self._formula(self._number(source)) for source in lowered.numbers),
            temporaries=tuple(self._formula(t.numel * t.dtype.size) for t in temporaries),
            calls=tuple(self._call(launch, place, note) for launch, note in zip(launches, notes)),
            results=tuple(results),
            draws=lowered.random_calls,
        )

    @staticmethod
    def _number(source: NumberSource) -> IntLike:
        if source.symbolic is not None:
            raise ExportError(
                f"the model computes with {source.symbolic}, and files hold integer formulas of sizes only: compute it "
                "from tensors, or fix the size"
            )
        if source.formula is None:
            raise ExportError("the model takes a number from a tensor on the CPU, while it runs on a device")
        return source.formula

    def _call(self, launch: Launch, place: Callable[[Memory], Memory], note: str) -> KernelCall:
        kernel = launch.kernel
        assert isinstance(kernel, Kernel), "lowerings of loops make no foreign kernels"
        number, _ = self._kernels.setdefault(kernel_text(kernel), (len(self._kernels), kernel))
        buffers = tuple((place(tensor.memory), self._formula(tensor.offset)) for tensor in launch.buffers)
        params = []
        for param, given in zip(kernel.params, launch.params):
            params.append(_given(given, param.dtype))
        return KernelCall(number, buffers, self._formulas(launch.sizes), tuple(params), note)


def _given(given: Number | str | int, dtype: Any) -> Given:
    if isinstance(given, Number):
        return ("bits", bits_of(given.value, dtype)) if given.slot < 0 else ("number", given.slot)
    if isinstance(given, int):
        return "bits", given & 0xFFFFFFFFFFFFFFFF
    what, _, number = given.partition(":")
    return ("seed" if what == "seed" else "offset"), int(number or 0)


def dtype_name(dtype: torch.dtype, what: str) -> str:
    """A type of tensors as files name it.

    >>> dtype_name(torch.float32, "x")
    'float32'
    """
    if DTYPE_CODES.get(dtype) not in BY_CODE:
        raise ExportError(f"{what} is {dtype}, which is no type of kernels")
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
    from bringup.graph.lowered import op_name

    found = []
    for node in list(graph.nodes):
        if not isinstance(node.target, torch._ops.OpOverload) or op_name(node.target) not in _ASSERTIONS:
            continue
        claim = node.args[0].meta.get("val") if isinstance(node.args[0], Node) else node.args[0]
        if isinstance(claim, torch.SymBool):
            found.append((claim.node.expr, str(node.args[1]) if len(node.args) > 1 else ""))
        graph.erase_node(node)
    return found


def _without_kernel(lowered: LoweredGraph, shown: str) -> str:
    lines = [f"the model has ops without a kernel{shown}, and a file can hold nothing else:"]
    for call in lowered.eager.values():
        lines.append(f"  {call.name}: {call.target}: {call.reason}")
        if call.stack:
            lines.append("    " + call.stack.strip().replace("\n", "\n    "))
    return "\n".join([*lines, *ways_out(call.target for call in lowered.eager.values())])


def constant_bytes(tensor: Tensor) -> memoryview:
    """What a constant's shape and strides span, with zeros where no element lies."""
    if not tensor.numel():
        return memoryview(b"")
    flat = torch.zeros(span(tensor.shape, tensor.stride()), dtype=tensor.dtype)
    flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor)
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]
