"""The routes a program can take: each runs several programs as one function and returns what every program left behind.

Several programs in one call share what a call costs: tracing, the compiler's start, the file. Results of one program
say nothing of another; where a call fails as a whole, the worker runs its programs one by one (worker.py).
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import bringup
from tests.fuzz.judge import Ran, left_behind, moved
from tests.fuzz.program import SIZES, Program, namespace

#: What runs op by op and what torch.compile compiles for.
DEVICE = os.environ.get("BRINGUP_TEST_DEVICE") or "sim"
Sizes = Mapping[str, int]
#: For each choice of sizes, what each program left behind.
Found = list[list[Ran]]


@dataclass(frozen=True)
class Route:
    """How to run programs. ``memory``: strides and sharing are the CPU's; ``inputs``: so are inputs afterwards."""

    run: Callable[[Sequence[Program]], Found]
    sizes: tuple[Sizes, ...] = SIZES[:1]
    memory: bool = True
    inputs: bool = True
    #: The route on the CPU without bringup: where that fails or differs too, it is PyTorch that refuses the program.
    alone: Callable[[Sequence[Program]], Found] | None = None
    #: What PyTorch is known to refuse, so that it does not take a whole batch with it.
    without: str = r"(?!)"
    #: Of how many batches one takes this route.
    share: int = 1

    def leaves_out(self, program: Program) -> bool:
        """Whether PyTorch is known to refuse the program on this route."""
        return any(re.search(self.without, line) for line in program.statements)


def together(programs: Sequence[Program], copies: bool = False) -> Callable[..., tuple[Any, ...]]:
    """Returns one function of the inputs of all programs that returns the outputs of all."""
    space = namespace()
    names, calls = [], []
    for program in programs:
        program.function(space, copies)
        given = [f"{one.name}_{program.seed}" for one in program.inputs]
        names += given
        calls.append(f"*program_{program.seed}({', '.join(given)})")
    exec(f"def programs({', '.join(names)}):\n    return ({', '.join(calls)},)", space)
    made: Callable[..., tuple[Any, ...]] = space["programs"]
    return made


def arguments(programs: Sequence[Program], sizes: Sizes, device: str) -> list[torch.Tensor]:
    """Returns fresh inputs of all programs with the strides that they have on the CPU."""
    return [moved(one, device) for program in programs for one in program.arguments(sizes)]


def apart(programs: Sequence[Program], inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> list[Ran]:
    """Returns what each program left behind of a call of all."""
    found, i, o = [], 0, 0
    for program in programs:
        n, m = len(program.inputs), len(program.returned)
        found.append(left_behind(inputs[i : i + n], outputs[o : o + m]))
        i, o = i + n, o + m
    return found


# ---- the routes ----
def eager(programs: Sequence[Program]) -> Found:
    """Op by op on the device, with both choices of sizes: the second is served by what the first one compiled."""
    found: Found = []
    for sizes in SIZES:
        inputs = arguments(programs, sizes, DEVICE)
        found.append(apart(programs, inputs, together(programs)(*inputs)))
    return found


def compiled(programs: Sequence[Program], *, dynamic: bool, backend: Any = "bringup", device: str = DEVICE) -> Found:
    """``torch.compile``; with dynamic sizes the second call has others."""
    torch._dynamo.reset()
    function = torch.compile(together(programs), backend=backend, fullgraph=True, dynamic=dynamic)
    found: Found = []
    for sizes in SIZES if dynamic else SIZES[:1]:
        inputs = arguments(programs, sizes, device)
        with torch.no_grad():
            found.append(apart(programs, inputs, function(*inputs)))
    torch._dynamo.reset()
    return found


def riscv(programs: Sequence[Program]) -> Found:
    """``Backend(target="riscv")``: a bare-metal program in the interpreter; every other one with vectors."""
    vector = 256 if programs[0].seed % 2 else 0
    backend = bringup.Backend(target="riscv", vector=vector)
    return compiled(programs, dynamic=False, backend=backend, device="cpu")


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self._function(*inputs)


def exported_alone(programs: Sequence[Program]) -> Found:
    """``torch.export`` alone, as far as ops without writes: whoever compiles an exported model needs these."""
    inputs = arguments(programs, SIZES[0], "cpu")
    model = torch.export.export(_Module(together(programs, copies=True)), tuple(inputs)).run_decompositions({})
    return [apart(programs, inputs, model.module()(*inputs))]


def exported(programs: Sequence[Program]) -> Found:
    """``bringup.export`` to a file and ``bringup.load`` from it. Exported models do not write to their inputs."""
    inputs = arguments(programs, SIZES[0], "cpu")
    with tempfile.TemporaryDirectory(prefix="bringup-fuzz-") as folder:
        path = Path(folder) / "programs.bup"
        bringup.export(_Module(together(programs, copies=True)), tuple(inputs), out=path)
        model = bringup.load(path)
    return [apart(programs, inputs, model(*inputs))]


def scripted(programs: Sequence[Program], grouped: bool = True) -> Found:
    """``bringup.jit``: traced by TorchScript, and called until the JIT has optimized it."""
    import bringup.jit

    device = "sim" if grouped and programs[0].seed % 2 else "cpu"
    with torch.no_grad():
        bringup.jit.enable(driver="sim") if grouped else bringup.jit.disable()
        function = torch.jit.trace(together(programs), arguments(programs, SIZES[0], device), check_trace=False)
        for _ in range(3):
            inputs = arguments(programs, SIZES[0], device)
            outputs = function(*inputs)
    return [apart(programs, inputs, outputs)]


def compiled_alone(programs: Sequence[Program], *, dynamic: bool = False) -> Found:
    """``torch.compile`` without a compiler."""
    return compiled(programs, dynamic=dynamic, backend="aot_eager", device="cpu")


#: Dynamo breaks the graph where the sizes of an input are changed in place.
_RESHAPED_INPUT = r"^[xp]\d+\.(un)?squeeze_\("
#: TorchScript has no op of a tensor and a Python bool, and stops with an internal error.
_BOOL_OPERAND = r"[-+*/&] (True|False)|True [-+*/]|\(True\)|= True$|alpha=True"

ROUTES: dict[str, Route] = {
    "eager": Route(eager, SIZES),
    "compile": Route(partial(compiled, dynamic=False), alone=compiled_alone, without=_RESHAPED_INPUT),
    "dynamic": Route(
        partial(compiled, dynamic=True),
        SIZES,
        alone=partial(compiled_alone, dynamic=True),
        without=_RESHAPED_INPUT,
        share=2,
    ),
    "export": Route(exported, memory=False, inputs=False, alone=exported_alone),
    "jit": Route(scripted, alone=partial(scripted, grouped=False), without=_BOOL_OPERAND),
    "riscv": Route(riscv, memory=False, alone=compiled_alone, without=_RESHAPED_INPUT, share=10),
}
