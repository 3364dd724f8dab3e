"""PyTorch models on bare-metal RISC-V: ``bringup.export(…, target="riscv")`` and ``Backend(target="riscv")``."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule

from bringup.graph.bare_metal.build import model_of
from bringup.graph.bare_metal.guest import Call, RunningModel
from bringup.graph.bare_metal.options import BareMetal, bare_metal
from bringup.graph.bare_metal.project import write_project
from bringup.graph.bare_metal.sources import Model
from bringup.graph.bare_metal.static_program import StaticProgram, static_program
from bringup.graph.export.decompositions import batch_norm_in_evaluation
from bringup.graph.export.export import ProgramMaking, constant_bytes
from bringup.graph.export.targets import export_target, tracing_device
from bringup.graph.export.trace import TracedModel
from bringup.graph.host_contents import Contents
from bringup.graph.program import GraphProgram
from bringup.ir.index import evaluate_sizes

TARGET = "riscv"


@export_target(TARGET, folds_batch_norms=True, products_of_attention=True)
def write_riscv(
    program: GraphProgram,
    constants: Sequence[memoryview],
    out: Path,
    *,
    examples: Sequence[torch.Tensor] = (),
    **options: Any,
) -> None:
    """A project that builds with make: sources, weights, linker script, main with the example call."""
    chosen = bare_metal(options)
    model = model_of(static_program(program, constants), chosen)
    write_project(model, chosen, out, [array_of(tensor) for tensor in examples])


def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor's numbers as NumPy holds them; bfloat16 as its bits."""
    host = tensor.detach().cpu()
    if host.dtype is torch.bfloat16:
        host = host.view(torch.uint16)
    elif host.dtype is torch.bool:
        host = host.view(torch.uint8)
    return host.numpy()


@dataclass(frozen=True)
class _Made:
    """A result that is a tensor, as eager PyTorch would have made it."""

    dtype: torch.dtype
    strides: tuple[int, ...]

    def tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """The numbers of an output, with the strides of the result; a result with gaps is dense."""
        numbers = torch.from_numpy(np.array(array, order="C")).reshape(array.shape).view(self.dtype)
        for dimension, stride in enumerate(self.strides):
            if stride == 0:  # expanded: PyTorch writes to no element twice
                numbers = numbers.narrow(dimension, 0, min(1, numbers.shape[dimension]))
        made = torch.empty_strided(numbers.shape, self.strides, dtype=self.dtype)
        made = made.copy_(numbers) if torch.ops.aten.is_non_overlapping_and_dense(made) else numbers
        return made.expand(array.shape)


@dataclass
class _Built:
    guest: RunningModel
    weights: list[Contents]
    results: list[Any]


class RiscvGraph:
    """A graph of Dynamo, run in an emulator. Weights are part of the program: when they change it is built anew."""

    def __init__(self, module: GraphModule, static: Mapping[int, str], options: BareMetal) -> None:
        self.module, self.static, self.options = module, static, options
        self._built: dict[Any, _Built] = {}
        self._lock = threading.Lock()
        #: The last call, and the largest difference of its results from eager ones.
        self.last: Call | None = None
        self.error: float | None = None

    @property
    def guests(self) -> list[RunningModel]:
        """The machines, one for each combination of sizes."""
        return [one.guest for one in self._built.values()]

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Runs the graph."""
        with self._lock:  # a program that other weights replace is not taken from under a call
            built = self._for(arguments)
            inputs = [arguments[n] for n in range(len(arguments)) if n not in self.static]
            call = built.guest([array_of(one) for one in inputs if isinstance(one, torch.Tensor)])
        outputs = iter(call.outputs)
        results = [one.tensor(next(outputs)) if isinstance(one, _Made) else one for one in built.results]
        self.last = call
        with torch.no_grad():
            self.error = _difference(results, self.module(*arguments))  # a hundredth of the emulator's time
        return results

    def built(self, arguments: Sequence[Any]) -> Model:
        """The model for the sizes of some arguments, without a machine."""
        program, _ = program_from_graph(self.module, arguments, self.static, self.options.fold_batch_norm)
        return model_of(program, self.options)

    def _for(self, arguments: Sequence[Any]) -> _Built:
        key = tuple(
            (tuple(one.shape), one.stride(), one.dtype) if isinstance(one, torch.Tensor) else one for one in arguments
        )
        weights = [arguments[n] for n in sorted(self.static)]
        found = self._built.get(key)
        if found is None or not all(map(Contents.same_as, found.weights, weights)):
            if found is not None:
                found.guest.close()
            program, results = program_from_graph(self.module, arguments, self.static, self.options.fold_batch_norm)
            guest = RunningModel(model_of(program, self.options), self.options)
            found = self._built[key] = _Built(guest, list(map(Contents, weights)), results)
        return found


def _difference(results: Sequence[torch.Tensor], eager: Sequence[Any]) -> float:
    """The largest absolute difference; where both are the same infinity or NaN there is none."""
    most = 0.0
    for ours, theirs in zip(results, eager):
        if isinstance(theirs, torch.Tensor) and theirs.numel():
            a, b = ours.double(), theirs.detach().double()
            same = (a == b) | (a.isnan() & b.isnan())
            most = max(most, float(torch.where(same, 0.0, (a - b).abs()).max()))
    return most


def program_from_graph(
    module: GraphModule, arguments: Sequence[Any], static: Mapping[int, str], fold_batch_norm: bool = True
) -> tuple[StaticProgram, list[Any]]:
    """A graph of functional ops for the sizes of some arguments, and its results:
    tensors to be made, or what is not a tensor as it is.

    ``static`` names the arguments that become constants.
    """
    from torch.fx import Interpreter
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.traceback import preserve_node_meta

    given = [one.detach() if isinstance(one, torch.Tensor) else one for one in arguments]
    with torch.no_grad(), preserve_node_meta():  # the interpreter hands each node's source line on
        # as for export, so that what depends on weights only is computed now
        apart = {torch.ops.aten._native_batch_norm_legit_no_training.default: batch_norm_in_evaluation}
        run = Interpreter(module).run
        traced = make_fx(run, apart, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)
    graph = traced.graph
    graph.eliminate_dead_code()
    places = [node for node in graph.nodes if node.op == "placeholder"]
    constants = [(places[n], static[n], given[n]) for n in sorted(static)]
    for number, node in enumerate([node for node in graph.nodes if node.op == "get_attr"]):
        constants.append(_as_placeholder(graph, node, f"constant{number}", getattr(traced, str(node.target))))
    for node, _, _ in reversed(constants):  # a program has its constants first
        next(iter(graph.nodes)).prepend(node)
    for node, value in zip(places, given):
        if not isinstance(value, torch.Tensor):  # a size: it is written in wherever it was used
            graph.erase_node(node)
    output = next(node for node in graph.nodes if node.op == "output")
    gives = output.args[0]
    results = [one for one in gives if isinstance(one, torch.fx.Node)]  # type: ignore[union-attr]
    output.args = (results,)
    traced.recompile()
    values = {node.name: value for node, _, value in constants}
    names = {node.name: name for node, name, _ in constants}
    making = ProgramMaking(
        TracedModel(traced, values, names), tracing_device(), TARGET, traced_on="cpu", fold_batch_norm=fold_batch_norm
    )
    program, tensors = making.program()
    made = (
        _Made(getattr(torch, result.dtype), tuple(evaluate_sizes(stride, {}) for stride in result.strides))
        for result in program.variants[0].results
    )
    described = [next(made) if isinstance(one, torch.fx.Node) else one for one in gives]  # type: ignore[union-attr]
    return static_program(program, [constant_bytes(tensor) for tensor in tensors]), described


def _as_placeholder(
    graph: torch.fx.Graph, node: torch.fx.Node, name: str, value: torch.Tensor
) -> tuple[torch.fx.Node, str, torch.Tensor]:
    with graph.inserting_before(next(iter(graph.nodes))):
        new = graph.placeholder(name)
    new.meta["val"] = node.meta.get("val", value)
    node.replace_all_uses_with(new)
    graph.erase_node(node)
    return new, name, value
