"""From a model to an ELF file: the sources, the cross compiler, and whether the result fits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from bringup.compile.kernel_cache import entry_key, generation, kept
from bringup.graph.bare_metal import sources
from bringup.graph.bare_metal.choosing import VECTOR_BYTES, chosen_forms
from bringup.graph.bare_metal.kernels import render_steps
from bringup.graph.bare_metal.options import BareMetal, parse_bytes
from bringup.graph.bare_metal.passes import arranged
from bringup.graph.bare_metal.sources import Model
from bringup.graph.bare_metal.static_program import StaticProgram
from bringup.riscv import runtime
from bringup.riscv.elf import Program
from bringup.riscv.gemm import GEMM_DRIVER_C
from bringup.riscv.machine import MachineSpec
from bringup.riscv.toolchain import Toolchain, ToolchainMissing, build, find_toolchain
from bringup.targets.registry import parse_target
from bringup.targets.riscv.engine import ENGINE_HEADER

if TYPE_CHECKING:
    from bringup.targets.riscv.target import RiscvTarget


class DoesNotFit(ValueError):
    """A program that needs more memory than it was given; the message says what needs how much."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of a program by what they are for; ``code`` is None until it is compiled."""

    code: int | None
    weights: int
    arena: int
    tensors: int
    stack: int

    @property
    def flash(self) -> int:
        """What lies in flash, as far as it is known."""
        return (self.code or 0) + self.weights

    @property
    def ram(self) -> int:
        """What lies in RAM."""
        return self.arena + self.tensors + self.stack

    def words(self) -> str:
        """A line for reports."""
        flash = f"weights {self.weights:,} + the code = flash"
        if self.code is not None:
            flash = f"code {self.code:,} + weights {self.weights:,} = flash {self.flash:,}"
        ram = f"arena {self.arena:,} + tensors {self.tensors:,} + stack {self.stack:,} (chosen by stack=) = RAM"
        return f"{flash}; {ram} {self.ram:,} bytes"


def model_of(program: StaticProgram, options: BareMetal) -> Model:
    """The model with its kernels rendered for a core."""
    vectors = options.chosen_isa.endswith("v")
    # gcc 12 makes scalar code of fixed-size vectors, nine times as long as that of plain loops.
    in_c = vectors and options.toolchain != "gcc"
    engine = options.gemm_base if options.accelerator else 0
    words = f"vector={VECTOR_BYTES[0] if in_c else 0} isa={options.chosen_isa} assembly={int(vectors)} engine={engine}"
    target = cast("RiscvTarget", parse_target(f"riscv; {words}"))
    arrangement = arranged(program, vectors, bool(engine))
    name = sources.model_name(options.name)
    forms = chosen_forms(arrangement, target, options.toolchain)
    return sources.planned(name, arrangement, render_steps(arrangement, target, f"{name}_", forms))


def model_files(model: Model, notes: bool = True) -> dict[str, str | bytes]:
    """Header, kernels, weights; ``notes``: with what people want to know of each kernel."""
    files: dict[str, str | bytes] = {
        f"{model.name}.h": sources.header(model),
        f"{model.name}.c": sources.run_source(model, notes),
        f"{model.name}_weights.c": sources.weights_source(model),
        f"{model.name}_weights.bin": model.kernels.weights.data,
    }
    if model.kernels.assembly:
        files[f"{model.name}_vector.S"] = sources.assembly_source(model)
    if ENGINE_HEADER in model.kernels.source:
        files[ENGINE_HEADER] = GEMM_DRIVER_C
    return files


def harness_elf(model: Model, spec: MachineSpec, options: BareMetal) -> bytes:
    """The program for emulators, from the cache if it was built before."""
    toolchain = find_toolchain(options.toolchain or None)
    files = {
        **model_files(model, notes=False),
        "harness.c": sources.harness_source(model),
        **runtime.sources(spec, options.stack_bytes),
    }
    return kept(_key(files, options.chosen_isa, toolchain), lambda: _built(files, options.chosen_isa, toolchain))


def _built(files: Mapping[str, str | bytes], isa: str, toolchain: Toolchain) -> bytes:
    return build(files, isa, runtime.LINK, toolchain, ["-g", "-ffunction-sections"])


def _key(files: Mapping[str, str | bytes], isa: str, toolchain: Toolchain) -> str:
    digest = hashlib.sha256()
    for name, text in files.items():
        data = text.encode() if isinstance(text, str) else text
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return entry_key("riscv program", generation(), isa, toolchain.identity, digest.hexdigest())


def code_bytes(files: Mapping[str, str | bytes], spec: MachineSpec, options: BareMetal) -> int | None:
    """Bytes of all functions of a program; None without a compiler."""
    try:
        toolchain = find_toolchain(options.toolchain or None)
    except ToolchainMissing:
        return None
    everything = {**files, **runtime.sources(spec, options.stack_bytes)}
    key = _key(everything, options.chosen_isa, toolchain)
    program = Program(kept(key, lambda: _built(everything, options.chosen_isa, toolchain)))
    return sum(symbol.size for symbol in program.symbols if symbol.is_function)


def needed_bytes(model: Model) -> int:
    """What the program needs in RAM when everything lies there, as in emulators; roughly, from above."""
    tensors = sum(tensor.nbytes for tensor in (*model.program.inputs, *model.program.outputs))
    code = len(model.kernels.source) // 2 + len(model.kernels.assembly)
    return len(model.kernels.weights.data) + model.plan.arena + tensors + code + (1 << 20)


def check_fits(sizes: Sizes, options: BareMetal) -> None:
    """Raises DoesNotFit if the user's limits are exceeded."""
    for what, limit, used in (
        ("RAM", parse_bytes(options.ram), sizes.ram),
        ("flash", parse_bytes(options.flash), sizes.flash),
    ):
        if limit and used > limit:
            text = f"the program needs {used:,} bytes of {what}, and there are {limit:,}: {sizes.words()}"
            if what == "RAM" and used - sizes.stack + _SMALL_STACK <= limit:
                text += "; a smaller stack would do, such as stack='4K': reports say how much of it a run uses"
            raise DoesNotFit(text)


#: A stack that most models need less than.
_SMALL_STACK = 4 << 10


def sizes_of(model: Model, code: int | None, stack: int) -> Sizes:
    """The sizes of a model whose code has some bytes."""
    tensors = sum(tensor.nbytes for tensor in (*model.program.inputs, *model.program.outputs))
    return Sizes(code, len(model.kernels.weights.data), model.plan.arena, tensors, stack)
