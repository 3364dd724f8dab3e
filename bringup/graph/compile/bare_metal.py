"""``Backend(target="riscv")``: Dynamo's graphs as bare-metal programs, in the five modes of every backend."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from bringup.graph.bare_metal.options import bare_metal
from bringup.graph.bare_metal.project import write_project
from bringup.graph.bare_metal.report import Report, report_of
from bringup.graph.compile.modes import graph_text
from bringup.graph.effects import token_count, with_assertions
from bringup.graph.export.bare_metal import RiscvGraph, array_of
from bringup.ir.printer import kernel_text

Compiler = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]


class BareMetalGraphs:
    """The graphs that one backend compiled."""

    def __init__(self, mode: str, verbose: bool, output_dir: str | Path | None, options: dict[str, Any]) -> None:
        self._mode, self._verbose = mode, verbose
        self._output = None if output_dir is None else Path(output_dir)
        self._options = bare_metal(options)
        self._numbers = itertools.count()
        self.graphs: list[RiscvGraph] = []

    def compilers(self, module: GraphModule) -> tuple[Compiler, Compiler]:
        """What AOTAutograd calls for graphs of training, and for those of inference, where weights are constants."""
        return partial(self._compile, {}), partial(self._compile, weights_of(module))

    def _compile(self, static: Mapping[int, str], module: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        from torch._functorch._aot_autograd.utils import make_boxed_func

        if self._mode == "trace" or self._verbose:
            print(graph_text(module))
        if self._mode == "trace" or not _computes(module):
            return make_boxed_func(module.forward)
        tokens = token_count(module)
        static = {number + tokens: name for number, name in static.items()}
        graph = RiscvGraph(with_assertions(module), static, self._options)
        self.graphs.append(graph)
        number = next(self._numbers)

        def run(*arguments: Any) -> Any:
            """The first call knows sizes and weights: only then is there a program."""
            first = not run.called  # type: ignore[attr-defined]
            run.called = True  # type: ignore[attr-defined]
            if first:
                self._show(graph, number, arguments)
            return graph(arguments) if self._mode == "run" else list(module(*arguments))

        run.called = False  # type: ignore[attr-defined]
        return make_boxed_func(run)

    def _show(self, graph: RiscvGraph, number: int, arguments: Sequence[Any]) -> None:
        if self._mode != "compile" and not self._verbose and self._output is None:
            return
        model = graph.built(arguments)
        if self._mode == "compile" or self._verbose:
            print("\n\n".join(kernel_text(step.kernel) for step in model.program.steps))
        if self._output is not None:
            folder = self._output if number == 0 else self._output / f"graph{number}"
            given = [one for n, one in enumerate(arguments) if n not in graph.static]
            examples = [array_of(one) for one in given if isinstance(one, torch.Tensor)]
            write_project(model, self._options, folder, examples)

    def report(self) -> str:
        """What the programs needed, layer by layer."""
        return "\n\n".join(report.text() for report in self.reports()) or "no graph has run yet"

    def reports(self) -> list[Report]:
        """The same as data, one for each graph that has run."""
        ran = [graph for graph in self.graphs if graph.guests and graph.last is not None]
        return [report_of(graph.guests[-1], graph.last, graph.error) for graph in ran if graph.last is not None]


def _computes(module: GraphModule) -> bool:
    return any(node.op == "call_function" for node in module.graph.nodes)


def weights_of(module: GraphModule) -> dict[int, str]:
    """Which arguments of Dynamo's graph are parameters and buffers, and what the model calls them.

    They come first in AOTAutograd's graph in the same order.
    """
    found = {}
    for number, node in enumerate(n for n in module.graph.nodes if n.op == "placeholder"):
        example = node.meta.get("example_value", node.meta.get("val"))
        if isinstance(example, torch.nn.Parameter) or _of_model(node.name):
            found[number] = layer_name(node.name)
    return found


def _of_model(name: str) -> bool:
    return re.search(r"_(parameters|buffers)_", name) is not None


def layer_name(placeholder: str) -> str:
    """What Dynamo made of ``model.fc.weight``, as the model says it, as far as that is known.

    >>> layer_name("l_self_modules_block_modules_fc_parameters_weight_")
    'block.fc.weight'
    """
    words = re.sub(r"^l_[a-z]*_+(?=modules_|parameters_|buffers_)", "", placeholder.strip("_"))
    parts = re.split(r"(?:^|_+)(?:modules|parameters|buffers)_+", words)
    return ".".join(part for part in parts if part) or placeholder
