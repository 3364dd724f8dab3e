"""Collects what became of a compiled graph that has run: which node became what, by the names of the model."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from bringup.compile.rendering import rendered, target_of
from bringup.driver.in_use import driver_of
from bringup.graph.compile.compiled import CompiledGraph
from bringup.graph.fusion.steps import Decision, Memory, Opaque, Step
from bringup.graph.lowered import CONSTANTS, Held, op_name
from bringup.ir.kernel import Kernel
from bringup.ir.printer import kernel_text
from bringup.kit.graph_explain import GraphStory, KernelStory, NodeStory, Reason, StepStory, TensorStory
from bringup.kit.terminal import readable_bytes
from bringup.lowering.call import LoweredLaunch
from bringup.lowering.symbolic import hint_of


@dataclass(frozen=True)
class InputName:
    """What an argument of the graph is called in the model, and its kind as TensorStory has it."""

    name: str
    kind: str


@dataclass(frozen=True)
class InputNames:
    """The names of a graph's arguments; ``sources`` are Dynamo's, by their number in its graph."""

    sources: Sequence[str]
    backward: bool = False

    def by_index(self, index: int | None) -> InputName | None:
        """The argument of Dynamo's graph."""
        if index is None or index >= len(self.sources):
            return None
        source = self.sources[index]
        weight = "_parameters[" in source or "_buffers[" in source
        return InputName(model_path(source), "parameter" if weight else "input")

    def of(self, node: Node) -> InputName:
        """What a placeholder is to the model's author."""
        description = node.meta.get("desc")
        known = self.by_index(getattr(description, "idx", None))
        if known is not None:
            return known
        if is_tangent(node):
            return InputName(f"gradient of result {node.name.rpartition('_')[2]}", "gradient")
        return InputName(node.name, "saved" if self.backward else "input")


def is_tangent(node: Node) -> bool:
    """True for the gradient that comes into a backward graph: AOTAutograd names them so."""
    return node.op == "placeholder" and node.name.startswith("tangents_")


def explained(graph: CompiledGraph, title: str, named: InputNames, seconds: Sequence[float | None] = ()) -> GraphStory:
    """Describes a graph that has run; ``seconds`` is the time of each step."""
    return _Collection(graph, named, seconds).story(title)


@dataclass
class _Collection:
    graph: CompiledGraph
    named: InputNames
    seconds: Sequence[float | None]
    tensors: dict[Memory, TensorStory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.binding = next(reversed(self.graph.bindings.values()))
        self.structure = self.binding.structure
        assert self.structure.lowered is not None
        self.lowered = self.structure.lowered
        self.fused = self.lowered.fused
        self.nodes: dict[str, Node] = {node.name: node for node in self.graph.module.graph.nodes}
        self.inputs = [node for node in self.nodes.values() if node.op == "placeholder"]
        #: Steps that each node's launches are part of now.
        self.home: dict[str, list[int]] = {}
        for number, origins in enumerate(self.fused.origins):
            for origin in origins:
                steps = self.home.setdefault(self.lowered.nodes[origin], [])
                if number not in steps:
                    steps.append(number)

    def story(self, title: str) -> GraphStory:
        self._collect_tensors()
        steps, kernels = self._steps()
        fused, refused = self._reasons()
        memory = self.binding.memory
        nodes = [self._node(node) for node in self.nodes.values() if node.op != "output"]
        return GraphStory(
            title,
            str(self.graph.device),
            nodes,
            steps,
            kernels,
            fused,
            refused,
            self.tensors,
            memory.arena,
            memory.bound,
            memory.total,
        )

    # ---- nodes ----

    def _node(self, node: Node) -> NodeStory:
        steps = tuple(self.home.get(node.name, ()))
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        module = model_path(str(stack[-1][0])) if stack else ""
        name, op = node.name, _op_text(node)
        if node.op == "placeholder":
            given = self.named.of(node)
            name, op = given.name, given.kind
        value, fate = value_text(node.meta.get("val")), self._fate(node, steps)
        return NodeStory(name, op, value, fate, steps, module, tuple(self._read_by(node)))

    def _read_by(self, node: Node) -> list[str]:
        """Who computes what a node reads: views are looked through."""
        found: dict[str, None] = {}
        for given in node.all_input_nodes:
            computed = given.name in self.home or given.op in ("placeholder", "get_attr")
            found.update(dict.fromkeys([given.name] if computed else self._read_by(given)))
        return list(found)

    def _fate(self, node: Node, steps: tuple[int, ...]) -> str:
        if node.op in ("placeholder", "get_attr"):
            return "input"
        if node.name in self.lowered.eager:
            return "op"
        if steps:
            return "kernel"
        if node.target is operator.getitem:
            return "part of a result"
        if not isinstance(node.meta.get("val"), (torch.Tensor, list, tuple)):
            return "a number of the sizes"
        return "not needed" if node.name in self.lowered.nodes else "view"

    # ---- tensors ----

    def _collect_tensors(self) -> None:
        lives: dict[Memory, tuple[int, int]] = {}
        for number, step in enumerate(self.fused.steps):
            for memory in [*reads_of(step), *writes_of(step)]:
                lives[memory] = (lives.get(memory, (number, number))[0], number)
        offsets = dict(zip(sorted(self.structure.lives), self.binding.memory.offsets))
        leaving = self._leaving()
        for memory in {**lives, **leaving}:
            name, value, nbytes, kind = self._identity(memory)
            offset = None
            if memory[0] == "temporary":
                offset = offsets.get(memory[1])
                kind = "arena" if offset is not None else "result" if memory in leaving else "own"
            first, last = lives.get(memory, (0, 0))
            leaves = tuple(leaving.get(memory, ()))
            self.tensors[memory] = TensorStory(name, value, nbytes, kind, offset, first, last, leaves)

    def _leaving(self) -> dict[Memory, list[str]]:
        """What each allocation is outside of the graph."""
        output = next(node for node in reversed(list(self.nodes.values())) if node.op == "output")
        descriptions = output.meta.get("desc") or []
        found: dict[Memory, list[str]] = {}
        for number, result in enumerate(self.lowered.results):
            if isinstance(result, Held):
                words = _result_text(descriptions[number] if number < len(descriptions) else None, self._input_by_index)
                found.setdefault(result.memory, []).append(words)
        for memory in sorted(self.lowered.written):
            found.setdefault(memory, []).append("written in place")
        return found

    def _input_by_index(self, index: int) -> str:
        known = self.named.by_index(index)
        return f"argument {index}" if known is None else known.name

    def _identity(self, memory: Memory) -> tuple[str, str, int, str]:
        """(name, dtype and shape, bytes, kind) of an allocation."""
        kind, number = memory
        if kind == "tensor" and number < CONSTANTS:
            node = self.inputs[number]
            given = self.named.of(node)
            value = node.meta.get("val")
            return given.name, value_text(value), _nbytes(value), given.kind
        if kind == "tensor":
            name = self.lowered.constants[number - CONSTANTS]
            value = operator.attrgetter(name)(self.graph.module)
            return name, value_text(value), _nbytes(value), "constant"
        nbytes = self.binding.filled.nbytes[number]
        maker = next(
            (self.lowered.nodes[n] for n, step in enumerate(self.lowered.steps) if memory in writes_of(step)), ""
        )
        return (*self._result_of(maker, memory, nbytes), nbytes, "")

    def _result_of(self, maker: str, memory: Memory, nbytes: int) -> tuple[str, str]:
        """Which of a node's results a temporary is; a kernel's own scratch memory is not a result."""
        if maker not in self.nodes:
            return f"temporary {memory[1]}", readable_bytes(nbytes)
        value = self.nodes[maker].meta.get("val")
        if isinstance(value, torch.Tensor):
            shown = self.lowered.call.temporaries[memory[1]]
            if _nbytes(value) == nbytes and shown.dtype.name == "uint8":
                return maker, value_text(value)
        made = sorted(
            {m for n, s in enumerate(self.lowered.steps) if self.lowered.nodes[n] == maker for m in writes_of(s)}
        )
        results = [v for v in value if isinstance(v, torch.Tensor)] if isinstance(value, (list, tuple)) else []
        # Results get their memory in order, and before any memory of the op's own.
        first = min((m[1] for m in made if m[0] == "temporary"), default=memory[1])
        place = memory[1] - first
        if place < len(results) and _nbytes(results[place]) == nbytes:
            return f"{maker}[{place}]", value_text(results[place])
        return f"{maker} (scratch)", readable_bytes(nbytes)

    # ---- steps and kernels ----

    def _steps(self) -> tuple[list[StepStory], list[KernelStory]]:
        target = target_of(driver_of(self.graph.device.index).driver)
        known: dict[str, tuple[int, Any]] = {}
        launched: dict[int, list[int]] = {}
        steps: list[StepStory] = []
        kernels: list[tuple[str, str, str]] = []
        for number, step in enumerate(self.fused.steps):
            nodes = tuple(dict.fromkeys(self.lowered.nodes[origin] for origin in self.fused.origins[number]))
            reads, writes = tuple(dict.fromkeys(reads_of(step))), tuple(dict.fromkeys(writes_of(step)))
            seconds = self.seconds[number] if number < len(self.seconds) else None
            if isinstance(step, Opaque):
                call = self.lowered.eager[step.label]
                name = op_name(call.target).removeprefix("aten::")
                steps.append(StepStory(number, name, nodes, reads, writes, None, call.reason, seconds=seconds))
                continue
            kernel = step.kernel
            text = kernel_text(kernel) if isinstance(kernel, Kernel) else kernel.text
            if text not in known:
                made = rendered(kernel, target) if isinstance(kernel, Kernel) else None
                known[text] = (len(known), made)
                ir, source = ("", text) if made is None else (kernel_text(made.kernel), made.source.text)
                kernels.append((kernel.name, ir, source))
            which, made = known[text]
            launched.setdefault(which, []).append(number)
            flops, read, written = self._cost(step, number, made)
            steps.append(StepStory(number, kernel.name, nodes, reads, writes, which, "", flops, read, written, seconds))
        return steps, [KernelStory(n, kernels[n][0], tuple(launched[n]), *kernels[n][1:]) for n in range(len(kernels))]

    def _cost(self, step: LoweredLaunch, number: int, made: Any) -> tuple[int, int, int]:
        """(flops, bytes read, bytes written); a vendor's function says only how many bytes in all."""
        if made is None:
            filled = self.binding.filled.launches[number]
            assert filled is not None
            return int(filled.flops), int(filled.bytes), 0
        sizes = {size.name: hint_of(given) for size, given in zip(step.kernel.sizes, step.sizes)}
        numbers = made.cost.evaluate(sizes)
        return numbers.flops, numbers.read, numbers.written

    # ---- fusion ----

    def _reasons(self) -> tuple[list[Reason], list[Reason]]:
        fused: dict[tuple[str, str], dict[tuple[str, str], None]] = {}
        refused: dict[tuple[str, str], dict[tuple[str, str], None]] = {}
        writers = {m: self.lowered.nodes[n] for n, step in enumerate(self.lowered.steps) for m in writes_of(step)}
        for decision in self.fused.decisions:
            pair = self._pair(decision, writers)
            together = set(self.home.get(pair[0], ())) & set(self.home.get(pair[1], ()))
            if decision.fused or pair[0] == pair[1] or not together:  # else it was refused once, and done another way
                table = fused if decision.fused else refused
                table.setdefault((self._in_names(decision.reason), decision.rule.value), {})[pair] = None
        return tuple(  # type: ignore[return-value]
            sorted(
                (Reason(text, rule, tuple(pairs)) for (text, rule), pairs in table.items()),
                key=lambda reason: -len(reason.pairs),
            )
            for table in (fused, refused)
        )

    def _in_names(self, reason: str) -> str:
        """A reason with the names of tensors in place of their numbers."""

        def name(found: re.Match[str]) -> str:
            known = self.tensors.get((found[1], int(found[2])))
            return found[0] if known is None else known.name

        return re.sub(r"\b(temporary|tensor) (\d+)\b", name, reason)

    def _pair(self, decision: Decision, writers: Mapping[Memory, str]) -> tuple[str, str]:
        """The nodes that a decision is about: who makes the memory, and who was being placed."""
        first, second = (self.lowered.nodes[number] for number in decision.steps)
        if decision.memory is not None and decision.memory in writers:
            maker = writers[decision.memory]
            first = maker if maker != second else first
        return first, second


def reads_of(step: Step) -> list[Memory]:
    """The allocations a step reads."""
    return sorted(step.reads) if isinstance(step, Opaque) else _with_role(step, "in")


def writes_of(step: Step) -> list[Memory]:
    """The allocations a step writes."""
    return sorted(step.writes) if isinstance(step, Opaque) else _with_role(step, "out")


def _with_role(step: LoweredLaunch, role: str) -> list[Memory]:
    if not isinstance(step.kernel, Kernel):  # a vendor's function does not say
        return [tensor.memory for tensor in step.buffers]
    return [t.memory for buffer, t in zip(step.kernel.buffers, step.buffers) if buffer.role in (role, "inout")]


def model_path(source: str) -> str:
    """Dynamo's name of a place, as the model's author would write it.

    >>> model_path("L['self']._modules['layers']._modules['0']._parameters['weight']")
    'layers.0.weight'
    >>> model_path("L['self'].a.enter"), model_path("L['x']"), model_path("L['self']")
    ('a.enter', 'x', 'self')
    """
    text = source
    for word in ("_modules", "_parameters", "_buffers"):
        text = text.replace(f".{word}[", "[")
    text = text.replace("']", "").replace("['", ".").replace('"]', "").replace('["', ".")
    for prefix in ("L.self.", "L.fn.", "L.", "G."):
        if text.startswith(prefix):
            return text.removeprefix(prefix)
    return text


def _result_text(description: Any, input_name: Callable[[int], str]) -> str:
    kind = type(description).__name__
    if kind.startswith("SavedForBackwards"):
        return "saved for backward"
    of = getattr(getattr(description, "grad_of", None), "idx", None)
    return "result" if of is None else f"gradient of {input_name(of)}"


def _op_text(node: Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        return op_name(node.target).removeprefix("aten::")
    return getattr(node.target, "__name__", str(node.target)) if node.op == "call_function" else node.op


def _nbytes(value: Any) -> int:
    if not isinstance(value, torch.Tensor):
        return 0
    sizes = [int(size) for size in value.shape]
    if 0 in sizes:
        return 0
    reach = 1 + sum((size - 1) * int(stride) for size, stride in zip(sizes, value.stride()))
    return reach * value.dtype.itemsize


def value_text(value: Any) -> str:
    """The value of a node by type and shape.

    >>> value_text(torch.zeros(2, 3)), value_text((torch.zeros(2), torch.zeros(2), None)), value_text(3)
    ('float32[2, 3]', 'float32[2] ×2', 'int')
    """
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (list, tuple)):
        counted = Counter(value_text(part) for part in value if part is not None)
        return ", ".join(text if count == 1 else f"{text} ×{count}" for text, count in counted.items())
    return type(value).__name__
