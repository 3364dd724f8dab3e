"""Compiles and runs a model, and keeps its graphs, the names of their arguments, and the arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from bringup.graph.compile.backend import Backend
from bringup.graph.compile.compiled import CompiledGraph
from bringup.kit.graph_explain import GraphStory
from bringup.kit.graph_explain_collect import InputNames, explained, is_tangent
from bringup.kit.graph_explain_model import Model, NoModel
from bringup.kit.graph_explain_times import step_seconds
from bringup.lowering.resolve import KernelCompiler

#: Called with a line about what is being done.
Say = Callable[[str], None]


@dataclass
class _Watched:
    title: str
    graph: CompiledGraph
    names: InputNames
    arguments: Sequence[Any] = ()


class _Watching(Backend):
    """The backend, which also keeps the arguments that each graph is called with."""

    def __init__(self, say: Say) -> None:
        super().__init__()
        self.watched: list[_Watched] = []
        self._say = say
        self._sources: list[str] = []

    def __call__(self, module: GraphModule, example_inputs: Sequence[Any], **settings: Any) -> Callable[..., Any]:
        inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        self._sources = [_source_of(node) for node in inputs]
        return super().__call__(module, example_inputs, **settings)

    def _compile(self, module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        backward = any(map(is_tangent, module.graph.nodes))
        way = "backward" if backward else "forward"
        earlier = sum(one.names.backward == backward for one in self.watched)
        title = way if not earlier else f"{way} {earlier + 1}"
        self._say(f"compiling {title}: {len(module.graph.nodes)} nodes")
        before = len(self.graphs)
        run = super()._compile(module, example_inputs)
        if len(self.graphs) == before:  # nothing of it is on the device
            return run
        graph = self.graphs[-1]
        names = InputNames(self._sources, backward)
        if not isinstance(graph, CompiledGraph):  # an earlier one serves it, with arguments in its own order
            self.watched.append(_Watched(title, graph.template, names))
            return run
        watched = _Watched(title, graph, names)
        self.watched.append(watched)

        def noted(arguments: list[Any]) -> Any:
            watched.arguments = list(arguments)  # boxed: the callee empties the list
            return run(arguments)

        noted._boxed_call = True  # type: ignore[attr-defined]
        return noted


def _source_of(node: Node) -> str:
    argument = node.meta.get("grapharg")
    source = getattr(argument, "source", None)
    name = getattr(source, "name", node.name)
    return str(name() if callable(name) else name)


def explain_model(model: Model, train: bool, say: Say) -> list[GraphStory]:
    """The graphs of a model in the order they were compiled, after a run on the device."""
    watching = _Watching(say)
    function = torch.compile(model.function, backend=watching, dynamic=False)
    with _kernels_counted(say):
        try:
            _run(model, function, train)
        except NoModel:
            raise
        except Exception as error:
            # What Dynamo says of a wrong model is about Dynamo: the model alone says what is wrong.
            _run(model, model.function, train)
            raise getattr(error, "inner_exception", error) from error
    stories = []
    for one in watching.watched:
        if not one.graph.bindings:
            raise NoModel(f"{one.title} was compiled and never run")
        say(f"timing {one.title}: {len(one.graph.structures[0].variant.calls)} steps")
        seconds = step_seconds(one.graph, one.arguments) if one.arguments else []
        stories.append(explained(one.graph, one.title, one.names, seconds))
    return stories


def _run(model: Model, function: Callable[..., Any], train: bool) -> None:
    """A step forward; to train, also backward from the sum of the results."""
    if not train:
        with torch.no_grad():
            function(*model.args, **model.kwargs)
        return
    weights = list(model.function.parameters()) if isinstance(model.function, torch.nn.Module) else []
    tensors = [one for one in tree_leaves((model.args, model.kwargs)) if isinstance(one, torch.Tensor)]
    if not any(weight.requires_grad for weight in weights):
        for tensor in tensors:
            tensor.requires_grad_(tensor.is_floating_point() and tensor.is_leaf)
    results = [one for one in tree_leaves(function(*model.args, **model.kwargs)) if isinstance(one, torch.Tensor)]
    losses = [one.sum() for one in results if one.requires_grad]
    if not losses:
        raise NoModel(f"{model.name} gives nothing that has a gradient: --train has nothing to do")
    torch.stack(losses).sum().backward()


@contextmanager
def _kernels_counted(say: Say) -> Iterator[None]:
    """Reports every kernel on its way to the device."""
    load_all = KernelCompiler.load_all
    count = 0

    def counted(compiler: KernelCompiler, device: int, kernels: Sequence[Any]) -> Any:
        nonlocal count
        for kernel in kernels:
            if kernel is not None:
                count += 1
                say(f"kernel {count}: {kernel.name}")
        return load_all(compiler, device, kernels)

    KernelCompiler.load_all = counted  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        KernelCompiler.load_all = load_all  # type: ignore[method-assign]
