"""How far a graph is taken: from a look at it to a run on the device.

trace       prints the graph; its ops run one by one
compile     builds and prints the kernels' IR; its ops run one by one
codegen     writes the sources of the kernels; its ops run one by one
run         runs the compiled graph on the device the model is on, or on the target: the default
eager       changes nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from torch.fx import GraphModule

from bringup.compile.kernels import ForeignKernel, Launch
from bringup.compile.rendering import rendered, target_of
from bringup.driver.in_use import driver_of
from bringup.graph.compile.compiled import CompiledGraph
from bringup.graph.compile.templates import SizedGraph
from bringup.graph.notes import comment, notes_of
from bringup.graph.program import KernelCall
from bringup.ir.kernel import Kernel
from bringup.ir.printer import kernel_text

Mode: TypeAlias = Literal["trace", "compile", "codegen", "run", "eager"]
MODES: tuple[str, ...] = get_args(Mode)
#: Names that modes had before.
FORMER = {"simulate": "run"}


def graph_text(module: GraphModule) -> str:
    """The graph as PyTorch prints it."""
    return str(module.print_readable(print_output=False))


def _text(kernel: Kernel | ForeignKernel) -> str:
    return kernel.text if isinstance(kernel, ForeignKernel) else kernel_text(kernel)


def ir_text(calls: Sequence[KernelCall]) -> str:
    """The IR of every kernel, once, in order of first use."""
    return "\n\n".join(dict.fromkeys(_text(call.kernel) for call in calls))


def write_sources(graph: CompiledGraph | SizedGraph, folder: Path, name: str) -> list[Path]:
    """One file for each kernel, numbered in order of first use: ``graph0_03_addmm_gelu.c``. Above it stand the notes of
    all calls that it serves; what is compiled has none, so that these share it."""
    folder.mkdir(parents=True, exist_ok=True)
    target = target_of(driver_of(graph.device.index).driver)
    lowered, variant = graph.structures[0].lowered, graph.structures[0].variant
    assert lowered is not None
    kernels: dict[str, Kernel | ForeignKernel] = {}
    said: dict[str, dict[str, None]] = {}
    for call, note in zip(variant.calls, notes_of(graph.module.graph, lowered.nodes, lowered.fused.origins)):
        if isinstance(call, Launch):
            text = _text(call.kernel)
            kernels.setdefault(text, call.kernel)
            said.setdefault(text, {}).update({f"{comment(note)}\n": None} if note else {})
    written = []
    for number, (text, kernel) in enumerate(kernels.items()):
        source = text if isinstance(kernel, ForeignKernel) else rendered(kernel, target).source.text
        safe = "".join(c if c.isalnum() or c == "_" else "_" for c in kernel.name)[:60]
        path = folder / f"{name}_{number:02}_{safe}.c"
        path.write_text("".join(said[text]) + source, encoding="utf-8")
        written.append(path)
    return written
