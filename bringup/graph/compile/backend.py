"""``torch.compile(model, backend="bringup")``: Dynamo's graph, AOTAutograd, one compiled graph each way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.fx import GraphModule

from bringup import _C
from bringup.graph.compile import uncompiled_rnn
from bringup.graph.compile.compiled import CompiledGraph, GraphOptions, NoLowering, OffloadedGraph
from bringup.graph.compile.modes import FORMER, MODES, graph_text, ir_text, write_sources
from bringup.graph.compile.templates import SizedGraph, remember, served_by_template
from bringup.graph.lowered import DataDependent
from bringup.graph.passes import rewrite, rewritten, traced_tensors
from bringup.graph.symbols import UnknownSize
from bringup.lowering.install import compiler_for

if TYPE_CHECKING:
    from bringup.graph.bare_metal.report import Report
    from bringup.graph.compile.bare_metal import BareMetalGraphs

Compiler: TypeAlias = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]
#: Modes of torch.compile that choose nothing here: every graph is a plan that the core replays.
_TORCH_MODES = ("default", "lite", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_OPTIONS = ("mode", "verbose", "output_dir", "target", "device", *(field.name for field in fields(GraphOptions)))


def compile_fx_graph(
    module: GraphModule,
    device: torch.device | str | None = None,
    options: GraphOptions | None = None,
) -> Callable[..., list[Any]]:
    """A graph of functional ATen ops, compiled for the device its tensors are on: ``callable(*arguments) -> list``.

    With ``device`` the tensors may be on the CPU: they are moved there and the results back.
    """
    module = rewritten(module)
    graph = compiled_graph(module, device, options)

    def run(*arguments: Any) -> list[Any]:
        return list(module(*arguments)) if graph is None else graph(arguments)

    run.graph = graph  # type: ignore[attr-defined]
    return run


def compiled_graph(
    module: GraphModule, device: torch.device | str | None = None, options: GraphOptions | None = None
) -> CompiledGraph | SizedGraph | None:
    """The compiled graph of a module; None if it has no tensors on a device to compile for."""
    found = _devices(module)
    ours = {where for where in found if where.type == torch._C._get_privateuse1_backend_name()}
    if len(ours) > 1:
        raise RuntimeError(f"a compiled graph runs on one device, this one has tensors on {sorted(map(str, ours))}")
    if not ours and device is None:
        if found:
            raise RuntimeError(
                f'backend="bringup" got a graph on {", ".join(sorted(map(str, found)))}: move the model to the device, '
                'or name one to run it on: options={"device": …}'
            )
        return None
    target = ours.pop() if ours else torch.device(device)  # type: ignore[arg-type]
    target = torch.device(target.type, target.index or 0)
    _C.ensure_open(target.index)  # the first use registers the kernels; a tensor would be a fake one here
    compiler = compiler_for(target.index)
    if compiler is None:
        raise RuntimeError(
            f"{target} runs no compiled graphs: its driver has no compile, load and launch (see docs/kernels.md)"
        )
    if any(where.type == target.type for where in found):
        served = served_by_template(module, target, options or GraphOptions())
        if served is not None:
            return served
        try:
            graph = CompiledGraph(module, target, compiler, options)
        except (DataDependent, UnknownSize) as reason:
            # Right, only not faster: every op is an ordinary one.
            if options is not None and options.strict:
                raise NoLowering(str(reason)) from reason
            return None
        remember(graph)
        return graph
    return OffloadedGraph(module, target, compiler, options)


def _devices(module: GraphModule) -> set[torch.device]:
    """The devices of the graph's tensors with dimensions, and of those in the graphs inside it."""
    return {x.device for x in traced_tensors(module) if x.ndim or x.device.type != "cpu"}


def cut_in_two(joint: GraphModule, *arguments: Any, **named: Any) -> tuple[GraphModule, GraphModule]:
    """Forward and backward of a joint graph, by what is cheapest to keep between them."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    rewrite(joint.graph, "joint")
    return min_cut_rematerialization_partition(joint, *arguments, **named)


class Backend:
    """A backend for ``torch.compile`` with choices of its own, which also remembers the graphs that it compiled.

    backend = bringup.Backend(mode="codegen", verbose=True, output_dir="out")
    torch.compile(model, backend=backend)(x)
    print(backend.report())
    """

    def __init__(
        self,
        mode: str = "run",
        verbose: bool = False,
        output_dir: str | Path | None = None,
        target: str | None = None,
        device: str | torch.device | None = None,
        **options: Any,
    ) -> None:
        mode = FORMER.get(mode, mode)
        if mode not in MODES:
            raise ValueError(f"there is no mode {mode!r}: choose one of {', '.join(MODES)}")
        uncompiled_rnn.watch()  # once more: torch._dynamo.reset() forgets it
        self._bare_metal: BareMetalGraphs | None = None
        if target == "riscv":
            from bringup.graph.compile.bare_metal import BareMetalGraphs

            self._bare_metal, options = BareMetalGraphs(mode, verbose, output_dir, options), {}
        elif target not in (None, "host"):
            raise ValueError(
                f"there is no target {target!r} for torch.compile: there are host (the device's own driver) and riscv"
            )
        unknown = sorted(set(options) - {field.name for field in fields(GraphOptions)})
        if unknown:
            raise ValueError(f"unknown option {unknown[0]!r}: there are {', '.join(_OPTIONS)}")
        if mode == "codegen" and output_dir is None:
            raise ValueError('mode="codegen" writes sources: say where with output_dir')
        self.mode, self.verbose = mode, verbose
        self.output_dir = None if output_dir is None else Path(output_dir)
        self.device = None if device is None else torch.device(device)
        self.options = GraphOptions(**options)
        #: The compiled graphs so far, forward and backward.
        self.graphs: list[CompiledGraph | SizedGraph] = []
        self._numbers = itertools.count()

    def __call__(self, module: GraphModule, example_inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        """Compiles what Dynamo found: called by it."""
        if self.mode == "eager":
            return module.forward
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch import config

        from bringup.graph.decompositions import decompositions

        if getattr(config, "force_autograd_cache", False):  # as aot_compile does: it stores what inductor made
            raise RuntimeError("aot_compile cannot store graphs of bringup: bringup.export writes a model to a file")
        compile_graph: Compiler = self._compile
        inference: Compiler = self._compile
        if self._bare_metal is not None:
            compile_graph, inference = self._bare_metal.compilers(module)
        return aot_autograd(
            fw_compiler=compile_graph,
            bw_compiler=compile_graph,
            inference_compiler=inference,
            decompositions=decompositions(),
            partition_fn=cut_in_two,
            keep_inference_input_mutations=self._bare_metal is None,
        )(module, example_inputs)

    def _compile(self, module: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        from torch._functorch._aot_autograd.utils import make_boxed_func

        name = f"graph{next(self._numbers)}"
        if self.mode == "trace":
            print(graph_text(module))
            return make_boxed_func(module.forward)
        run = compile_fx_graph(module, self.device, self.options)
        graph = run.graph  # type: ignore[attr-defined]
        if graph is None:
            return make_boxed_func(module.forward)
        self.graphs.append(graph)
        calls = graph.structures[0].variant.kernel_calls
        if self.verbose:
            print(graph_text(module))
        if self.verbose or self.mode == "compile":
            print(ir_text(calls))
        if self.output_dir is not None:
            written = write_sources(graph, self.output_dir, name)
            if self.verbose:
                print("\n".join(map(str, written)))
        return make_boxed_func(run if self.mode == "run" else module.forward)

    def report(self) -> str:
        """The graphs so far: nodes, kernels, memory, and ops that are not kernels."""
        if self._bare_metal is not None:
            return self._bare_metal.report()
        from bringup.graph.compile.report import report_text

        return report_text(self.graphs)

    def reports(self) -> list[Report]:
        """Target riscv: the reports of the graphs that have run, which save themselves as text, JSON or a page."""
        if self._bare_metal is None:
            raise ValueError('reports with numbers of each layer are of target="riscv"; report() describes this one')
        return self._bare_metal.reports()


def bringup_backend(module: GraphModule, example_inputs: Sequence[Any], **settings: Any) -> Callable[..., Any]:
    """The backend by its name, with ``mode`` and ``options`` of torch.compile."""
    chosen = dict(settings.get("options") or {})
    mode = settings.get("mode")
    if mode in MODES or mode in FORMER:
        chosen["mode"] = mode
    elif mode not in (None, *_TORCH_MODES):
        raise ValueError(f"there is no mode {mode!r}: choose one of {', '.join((*MODES, *_TORCH_MODES))}")
    return Backend(**chosen)(module, example_inputs)
