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

from bringup.compile.kernels import ForeignKernel
from bringup.compile.rendering import rendered, target_of
from bringup.driver import Driver
from bringup.graph.fusion.steps import Step
from bringup.graph.notes import comment
from bringup.ir.kernel import Kernel
from bringup.ir.printer import kernel_text
from bringup.lowering.call import Launch

Mode: TypeAlias = Literal["trace", "compile", "codegen", "run", "eager"]
MODES: tuple[str, ...] = get_args(Mode)
#: Names that modes had before.
FORMER = {"simulate": "run"}


def graph_text(module: GraphModule) -> str:
    """The graph as PyTorch prints it."""
    return str(module.print_readable(print_output=False))


def _text(kernel: Kernel | ForeignKernel) -> str:
    return kernel.text if isinstance(kernel, ForeignKernel) else kernel_text(kernel)


def kernels_of(steps: Sequence[Step]) -> list[Kernel | ForeignKernel]:
    """Every kernel once, in order of first use."""
    found: dict[str, Kernel | ForeignKernel] = {}
    for step in steps:
        if isinstance(step, Launch):
            found.setdefault(_text(step.kernel), step.kernel)
    return list(found.values())


def ir_text(steps: Sequence[Step]) -> str:
    """The kernels' IR, and who launches what."""
    return "\n\n".join(map(_text, kernels_of(steps)))


def write_sources(
    steps: Sequence[Step], driver: Driver, folder: Path, graph: str, notes: Sequence[str] = ()
) -> list[Path]:
    """One file for each kernel, numbered in order of first use: ``graph0_03_addmm_gelu.c``. Above it stand the notes of
    all steps that it serves; what is compiled has none, so that these share it."""
    folder.mkdir(parents=True, exist_ok=True)
    said: dict[str, dict[str, None]] = {}
    for step, note in zip(steps, notes):
        if isinstance(step, Launch) and note:
            said.setdefault(_text(step.kernel), {})[f"{comment(note)}\n"] = None
    written = []
    for number, kernel in enumerate(kernels_of(steps)):
        text = kernel.text if isinstance(kernel, ForeignKernel) else rendered(kernel, target_of(driver)).source.text
        safe = "".join(c if c.isalnum() or c == "_" else "_" for c in kernel.name)[:60]
        path = folder / f"{graph}_{number:02}_{safe}.c"
        path.write_text("".join(said.get(_text(kernel), ())) + text)
        written.append(path)
    return written
