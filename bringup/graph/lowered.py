"""A traced graph, node by node, to steps: launches of kernels, and ordinary ops where there is no kernel.

The whole graph is one Call of the kernel compiler. Every result gets memory of its own; views are other strides over
the same memory and cost nothing. The traced (fake) tensors say what shapes and strides everything has.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, Node

from bringup.graph.fusion.steps import Fused, Opaque, Step
from bringup.graph.generic import GENERIC, is_open, lowered_for_all_sizes
from bringup.graph.program import EagerCall, Memory
from bringup.graph.symbols import SYMBOLIC, Symbols, UnknownSize, evaluated
from bringup.ir.dtypes import NoSuchNumber, uint8
from bringup.ir.verify_error import VerifyError
from bringup.lowering.call import Call, NoKernel, Number, Tensor, number_of
from bringup.lowering.registry import Lowering
from bringup.lowering.resolve import run_lowering
from bringup.lowering.scalar_types import BY_CODE, OTHERS
from bringup.lowering.symbolic import IntLike, Trace

#: PyTorch's numbers of its scalar types, as lowerings get them for dtype arguments.
DTYPE_CODES = {
    getattr(torch, name): code
    for code, name in {**{code: dtype.name for code, dtype in BY_CODE.items()}, **OTHERS}.items()
}
_MEMORY_FORMAT_CODES = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}

#: overload → (definition, how many arguments it takes), or None.
FindLowering = Callable[[str], "tuple[Lowering, int] | None"]


@dataclass(frozen=True, eq=False)
class Held:
    """A tensor of the graph: which memory, and how it lies there. Kernels see it as ``tensor``, if they can.

    Two of them are equal if they are the same object: comparing sizes would leave guards behind.
    """

    memory: Memory
    dtype: torch.dtype
    shape: tuple[IntLike, ...]
    strides: tuple[IntLike, ...]
    offset: IntLike
    on_device: bool
    tensor: Tensor | None


@dataclass
class LoweredGraph:
    """The steps of a graph for sizes that answer the trace's guards; ``results`` are what the graph returns."""

    call: Call
    symbols: Symbols
    device: torch.device
    steps: list[Step] = field(default_factory=list)
    #: Name of the node that each step comes from.
    nodes: list[str] = field(default_factory=list)
    eager: dict[str, EagerCall] = field(default_factory=dict)
    #: Numbers that are not constants: a formula of sizes, PyTorch's expression of them, or a 0-dim tensor on the CPU.
    numbers: list[IntLike | torch.SymFloat | torch.SymBool | Held] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    #: Memories that ordinary ops make or read: they are tensors of their own.
    external: set[Memory] = field(default_factory=set)
    #: Inputs that the graph writes to.
    written: set[Memory] = field(default_factory=set)
    random_calls: int = 0
    #: get_attr targets that were tensors, as further inputs: (attribute, memory)
    constants: list[str] = field(default_factory=list)
    inputs: int = 0
    #: What fusion made of the steps, as soon as there is a variant of it.
    fused: Fused = field(init=False)

    @property
    def kept(self) -> set[Memory]:
        """Memories whose contents matter after the last step."""
        held = {result.memory for result in self.results if isinstance(result, Held)}
        return held | self.written | self.external

    def ordinary_ops(self) -> list[str]:
        """The nodes that are not kernels, with the reason and the line of the model: for errors."""
        lines = []
        for call in self.eager.values():
            lines.append(f"  {call.name}: {call.target}: {call.reason}")
            if call.stack:
                lines.append("    " + call.stack.strip().replace("\n", "\n    "))
        return lines


def op_name(target: Any) -> str:
    """The overload as lowerings are registered.

    >>> op_name(torch.ops.aten.add.Tensor), op_name(torch.ops.aten.exp.default)
    ('aten::add.Tensor', 'aten::exp')
    """
    schema = target._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


class GraphLowering:
    """One pass over a graph; ``lowered`` is the result. ``hints`` replaces the sizes that the graph was traced with."""

    def __init__(
        self,
        graph: Graph,
        device: torch.device,
        find: FindLowering,
        hints: Mapping[str, Any] | None = None,
        traced_on: str | None = None,
    ) -> None:
        self._find = find
        self._traced_on = traced_on or device.type
        self._hints = hints or {}
        self._values: dict[Node, Any] = {}
        trace = Trace(generic=True)
        call = Call("graph", trace, device=device.index or 0)
        self.lowered = LoweredGraph(call, Symbols(trace, hints), device)
        for node in graph.nodes:
            getattr(self, "_" + node.op)(node)

    # ---- arguments and results of the graph ----

    def _placeholder(self, node: Node) -> None:
        lowered, number = self.lowered, self.lowered.inputs
        lowered.inputs += 1
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            lowered.symbols.declare(value, number, None)
        elif isinstance(value, SYMBOLIC):
            raise UnknownSize(f"{node.name}: an argument of the graph that is a {type(value).__name__}")
        elif isinstance(value, torch.Tensor):
            for d, size in enumerate(value.shape):
                lowered.symbols.declare(size, number, d)
            self._values[node] = self._hold(value, ("tensor", number), base_offset=value.storage_offset())
            return
        self._values[node] = value

    def _get_attr(self, node: Node) -> None:
        value: Any = node.graph.owning_module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            self._values[node] = value
            return
        # Constants come after the arguments, in a range of their own.
        memory = ("tensor", CONSTANTS + len(self.lowered.constants))
        self.lowered.constants.append(str(node.target))
        shown = node.meta.get("val", value)
        self._values[node] = self._hold(shown, memory, base_offset=shown.storage_offset())

    def _output(self, node: Node) -> None:
        for item in node.args[0] if isinstance(node.args[0], (tuple, list)) else [node.args[0]]:  # type: ignore[union-attr]
            self.lowered.results.append(self._value(item))

    def _hold(self, fake: torch.Tensor, memory: Memory, base_offset: Any, base: Held | None = None) -> Held:
        """A traced tensor over some memory, which starts at ``base_offset`` of the traced storage."""
        dim = self.lowered.symbols.dim
        shape = tuple(dim(size) for size in fake.shape)
        strides = tuple(dim(stride) for stride in fake.stride())
        offset = dim(fake.storage_offset() - base_offset) + (0 if base is None else base.offset)
        on_device = fake.device.type == self._traced_on
        code = DTYPE_CODES.get(fake.dtype)
        tensor = None
        if on_device and code in BY_CODE and fake.layout is torch.strided and not (fake.is_conj() or fake.is_neg()):
            contiguous = bool(fake.is_contiguous())  # of hints: sizes of 1 and 0 are always known
            tensor = Tensor(memory, BY_CODE[code], shape, strides, contiguous=contiguous, offset=offset)
        return Held(memory, fake.dtype, shape, strides, offset, on_device, tensor)

    def _new(self, fake: torch.Tensor) -> Held:
        """Memory for a result."""
        call = self.lowered.call
        memory = ("temporary", len(call.temporaries))
        held = self._hold(fake, memory, base_offset=fake.storage_offset())
        reach = 1 + sum((size - 1) * stride for size, stride in zip(held.shape, held.strides))
        elements = 0 if any(isinstance(n, int) and n == 0 for n in held.shape) else reach
        nbytes = elements * fake.dtype.itemsize
        call.temporaries.append(Tensor(("temporary", memory[1]), uint8, (nbytes,), (1,), contiguous=True))
        return held

    # ---- nodes ----

    def _value(self, item: Any) -> Any:
        if isinstance(item, Node):
            return self._values[item]
        if isinstance(item, (list, tuple)):
            return type(item)(self._value(part) for part in item)
        if isinstance(item, torch.device) and item.type == self._traced_on:
            return self.lowered.device
        return item

    def _call_function(self, node: Node) -> None:
        result = node.meta.get("val")
        if node.target is operator.getitem:
            self._values[node] = self._value(node.args[0])[node.args[1]]  # type: ignore[index]
        elif isinstance(result, (*SYMBOLIC, int, float, bool)):
            if isinstance(result, SYMBOLIC):
                evaluated(result, self.lowered.call.trace.symbols)  # UnknownSize here and not in a run
            self._values[node] = result
        elif not isinstance(node.target, torch._ops.OpOverload):
            held = node.args[1] if str(node.target) == "with_effects" else None  # an op that is kept in order
            text = f"{held}: its effect is" if held is not None else f"{node.name} ({node.target}): what it does is"
            raise DataDependent(f"{text} not known ahead", held)
        else:
            self._values[node] = self._op(node, node.target, result)

    def _op(self, node: Node, target: Any, result: Any) -> Any:
        view = self._as_view(node, target, result)
        if view is not None:
            return view
        found = self._find(op_name(target))
        if torch.Tag.dynamic_output_shape in target.tags and (found is None or _masks(node)):
            raise DataDependent(f"{node.name} ({target}): how much it gives depends on the data", target)
        if found is None:
            return self._eager(node, target, result, "it has no lowering")
        try:
            return self._lower(node, target, found, result)
        except _Refused as refusal:
            return self._eager(node, target, result, str(refusal))

    def _as_view(self, node: Node, target: Any, result: Any) -> Any:
        """A result that lies in the memory of an argument, as the traced tensors say; None if it does not."""
        if target._schema.is_mutable or target.namespace != "aten":
            return None
        fakes = result if isinstance(result, (list, tuple)) else [result]
        views = []
        for fake in fakes:
            base = self._viewed(node, fake) if isinstance(fake, torch.Tensor) else None
            if base is None:
                return None
            held, shown = base
            views.append(self._hold(fake, held.memory, shown.storage_offset(), held))
        return views if isinstance(result, (list, tuple)) else views[0]

    def _viewed(self, node: Node, fake: torch.Tensor) -> tuple[Held, torch.Tensor] | None:
        """The argument that a traced tensor is a view of. Two arguments of a graph may share memory in the trace, and
        not later: so only the node's own arguments count."""
        for argument in node.all_input_nodes:
            held, shown = self._values.get(argument), argument.meta.get("val")
            if not isinstance(held, Held) or not isinstance(shown, torch.Tensor):
                continue
            same = shown.untyped_storage()._cdata == fake.untyped_storage()._cdata
            alike = (shown.dtype, shown.layout, shown.is_conj(), shown.is_neg()) == (
                fake.dtype,
                torch.strided,
                fake.is_conj(),
                fake.is_neg(),
            )
            if same and alike:
                return held, shown
        return None

    # ---- kernels ----

    def _arguments(self, node: Node, target: Any) -> list[Any]:
        """One value for each argument of the schema."""
        arguments = []
        for n, argument in enumerate(target._schema.arguments):
            if n < len(node.args):
                given: Any = node.args[n]
            else:
                given = node.kwargs.get(argument.name, argument.default_value)
            arguments.append(self._value(given))
        return arguments

    def _lower(self, node: Node, target: Any, found: tuple[Lowering, int], result: Any) -> Any:
        definition, count = found
        schema, arguments = target._schema, self._arguments(node, target)
        lowered, call = self.lowered, self.lowered.call
        before = len(call.temporaries), len(lowered.numbers)
        try:
            values = [
                self._for_lowering(value, str(argument.type), call.trace)
                for value, argument in zip(arguments, schema.arguments)
            ]
            held, outs = self._results(schema, arguments, result)
            part = Call(op_name(target), call.trace, tuple(outs), [], call.temporaries, device=call.device)
            tensors = [*outs, *_kernel_tensors(values)]
            if part.op in GENERIC and not any(is_open(tensor) for tensor in tensors):
                lowered_for_all_sizes(part, values[:count], partial(run_lowering, definition))
            else:
                run_lowering(definition, part, values[:count])
        except (NoKernel, NoSuchNumber, VerifyError, UnknownSize, IndexError) as reason:
            # As in KernelCompiler.resolve: what else an IndexError or a broken rule could mean is a reason to stop.
            if isinstance(reason, VerifyError) and reason.rule != "type":
                raise
            del call.temporaries[before[0] :], lowered.numbers[before[1] :]
            raise _Refused(str(reason)) from reason
        if part.random:
            self._number_draws(part)
        for launch in part.launches:
            lowered.steps.append(launch)
            lowered.nodes.append(node.name)
        return held

    def _number_draws(self, part: Call) -> None:
        """Several ops of a graph draw random numbers: which one's seed and offset is meant."""
        number = self.lowered.random_calls
        self.lowered.random_calls += 1
        for n, launch in enumerate(part.launches):
            params = tuple(f"{given}:{number}" if isinstance(given, str) else given for given in launch.params)
            part.launches[n] = replace(launch, params=params)

    def _results(self, schema: Any, arguments: Sequence[Any], result: Any) -> tuple[Any, list[Tensor]]:
        """What the node gives, and the same as outputs of the lowering."""
        if schema.is_mutable:
            written = [
                held
                for argument, value in zip(schema.arguments, arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
                for held in (value if isinstance(value, (list, tuple)) else [value])
            ]
            for held in written:
                if not isinstance(held, Held) or held.tensor is None:
                    raise NoKernel("it writes to something that is not a kernel's tensor")
                if held.memory[0] == "tensor":
                    self.lowered.written.add(held.memory)
            outs = [held.tensor for held in written]
            return (written[0] if len(schema.returns) == 1 and not _is_list(schema) else written), outs
        if not schema.returns:  # it has an effect only
            return None, []
        fakes = list(result) if isinstance(result, (list, tuple)) else [result]
        held_results: list[Any] = []
        outs = []
        for n, fake in enumerate(fakes):
            if isinstance(fake, torch.Tensor):
                held = self._new(fake)
                if held.tensor is None:
                    raise NoKernel(f"{fake.dtype} on {fake.device} is not a tensor of kernels")
                held_results.append(held)
                outs.append(held.tensor)
            else:  # undefined, or a number: empty, so that places keep their numbers
                held_results.append(fake)
                outs.append(Tensor(("output", n), uint8, (0,), (1,), contiguous=True))
        return (held_results if isinstance(result, (list, tuple)) else held_results[0]), outs

    def _for_lowering(self, value: Any, kind: str, trace: Trace) -> Any:
        if isinstance(value, Held):
            if value.tensor is not None:
                return value.tensor
            if not value.on_device and not value.shape:
                return self._host_number(value, trace)
            raise NoKernel(f"{value.dtype} is not a kernel type" if value.on_device else "a tensor on another device")
        if isinstance(value, (list, tuple)):
            return [self._for_lowering(part, kind, trace) for part in value]
        wrapped = kind.startswith(("Tensor", "Optional[Tensor", "List[Tensor"))
        is_number = wrapped or kind.startswith(
            ("number", "Scalar", "float", "Optional[float", "Optional[number", "List[number")
        )
        if isinstance(value, SYMBOLIC):
            return self._size_number(value, wrapped, trace) if is_number else self.lowered.symbols.dim(value)
        if is_number and isinstance(value, (bool, int, float)):
            return number_of(value, wrapped, trace)
        if isinstance(value, complex):
            raise NoKernel("complex numbers are not a type of kernels")
        if isinstance(value, torch.dtype):
            return DTYPE_CODES.get(value, -1)
        if isinstance(value, torch.memory_format):
            return _MEMORY_FORMAT_CODES[value]
        if isinstance(value, torch.layout):
            return 0
        return value

    def _size_number(self, value: Any, wrapped: bool, trace: Trace) -> Number:
        """A number that sizes decide."""
        numbers, hint = self.lowered.numbers, evaluated(value, trace.symbols)
        if not value.node.expr.free_symbols:
            return number_of(hint, wrapped, trace)
        numbers.append(self.lowered.symbols.dim(value) if isinstance(value, torch.SymInt) else value)
        return number_of(hint, wrapped, trace, len(numbers) - 1)

    def _host_number(self, held: Held, trace: Trace) -> Number:
        code = DTYPE_CODES.get(held.dtype)
        if code not in BY_CODE:
            raise NoKernel(f"{held.dtype} is not a kernel type")
        if held.memory[0] != "tensor":
            raise NoKernel("a tensor on the CPU that the graph itself makes")
        numbers = self.lowered.numbers
        slot = next((slot for slot, number in enumerate(numbers) if number is held), len(numbers))
        if slot == len(numbers):
            numbers.append(held)
        return Number(slot, self._hint(held), BY_CODE[code], False, trace)

    def _hint(self, held: Held) -> bool | int | float:
        """What a number is in the call that is being lowered: known when it is lowered again; at first an odd one."""
        unknown = True if held.dtype is torch.bool else 2.5 if held.dtype.is_floating_point else 3
        hint: bool | int | float = self._hints.get(f"argument {held.memory[1]}", unknown)
        return hint

    # ---- ordinary ops ----

    def _eager(self, node: Node, target: Any, result: Any, reason: str) -> Any:
        lowered = self.lowered
        args, kwargs = self._value(node.args), {name: self._value(value) for name, value in node.kwargs.items()}
        read = _tensors((args, list(kwargs.values())))
        fakes = list(result) if isinstance(result, (list, tuple)) else [result]
        written: list[Memory] = []
        if target._schema.is_mutable:
            values = self._arguments(node, target)
            for argument, value in zip(target._schema.arguments, values):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    written += [held.memory for held in _tensors(value)]
            lowered.written.update(memory for memory in written if memory[0] == "tensor")
        held: list[Any] = []
        for fake in fakes:
            if isinstance(fake, torch.Tensor):
                mine = next((h for h in read if h.memory in written), None)
                held.append(self._new(fake) if mine is None else mine)
            else:
                held.append(fake)
        made = [h.memory for h in held if isinstance(h, Held)]
        lowered.external.update(h.memory for h in read if h.memory[0] == "temporary")
        lowered.external.update(memory for memory in made if memory[0] == "temporary")
        results = tuple(h if isinstance(h, Held) else None for h in held)
        stack = node.meta.get("stack_trace") or ""
        lowered.eager[node.name] = EagerCall(
            node.name, target, args, kwargs, results, reason, stack, lowered.random_calls
        )
        step = Opaque(frozenset(h.memory for h in read), frozenset([*made, *written]), node.name)
        lowered.steps.append(step)
        lowered.nodes.append(node.name)
        return held if isinstance(result, (list, tuple)) else held[0]


#: Constants of a graph are inputs with numbers from here on.
CONSTANTS = 1 << 20


class DataDependent(Exception):
    """The graph holds an op whose result has as many elements as the data say: it cannot be planned ahead."""

    def __init__(self, reason: str, op: Any = None) -> None:
        super().__init__(reason)
        self.op = op


class _Refused(Exception):
    """This call of an op has no kernel."""


def _kernel_tensors(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    return [tensor for part in values for tensor in _kernel_tensors(part)] if isinstance(values, list) else []


def _masks(node: Node) -> bool:
    """True if an op picks by truth values."""
    values = [argument.meta.get("val") for argument in node.all_input_nodes[1:]]
    return any(isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8) for value in values)


def _is_list(schema: Any) -> bool:
    return str(schema.returns[0].type).startswith("List")


def _tensors(tree: Any) -> list[Held]:
    if isinstance(tree, Held):
        return [tree]
    if isinstance(tree, (list, tuple)):
        return [held for part in tree for held in _tensors(part)]
    if isinstance(tree, dict):
        return _tensors(list(tree.values()))
    return []
