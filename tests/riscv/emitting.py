"""Kernels through the RISC-V emitters: many of them in one program, run on guests, against the NumPy interpreter.

Every buffer lies in one block of memory with NaN around it, and the whole block is compared: what a kernel reads or
writes beyond its buffers shows up.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from bringup.graph.bare_metal.kernels import Kernels, render_steps
from bringup.graph.bare_metal.static_program import Constant, Place, StaticProgram, Step
from bringup.ir.dtypes import Array, DType, boolean, float32, to_storage
from bringup.ir.expr import Unary
from bringup.ir.index import Int, evaluate_sizes
from bringup.ir.interpret import run
from bringup.ir.kernel import Buffer, Kernel, Role
from bringup.ir.ops import UNARY
from bringup.ir.parser import parse
from bringup.ir.printer import kernel_text
from bringup.ir.simplify import simplify
from bringup.ir.verify import verify
from bringup.ir.walk import all_values
from bringup.riscv import MachineSpec, machine_class, open_machine, runtime, toolchain
from bringup.targets.c.value import storage_of
from bringup.targets.riscv.target import RiscvTarget
from tests.loops.bits import ulp_distance

VLENS = (128, 256, 512, 1024)
FAMILIES = ("zig", "gcc")
MACHINES = ("interpreter", "qemu")
_GAP = 64
_RAM = 16 << 20
_SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, -1e-45, 3e38, 1e-20]


@dataclass
class Trial:
    """A kernel of known sizes, what lies in its buffers' memory before the run, and where in it they begin."""

    kernel: Kernel
    memory: dict[str, Array]
    offsets: dict[str, int] = field(default_factory=dict)
    constants: frozenset[str] = frozenset()
    ulp: int = 0

    def views(self, memory: Mapping[str, Array]) -> dict[str, Array]:
        """Memory as the arrays that the interpreter takes."""
        return {b.name: view(b, memory[b.name][self.offsets.get(b.name, 0) :]) for b in self.kernel.buffers}

    @functools.cached_property
    def expected(self) -> dict[str, Array] | None:
        """The memory after the interpreter ran the kernel; None if it met an index out of range."""
        memory = {name: array.copy() for name, array in self.memory.items()}
        try:
            run(self.kernel, self.views(memory))
        except IndexError:
            return None
        return memory


def view(buffer: Buffer, memory: Array) -> Array:
    """Flat memory in the shape of a buffer; an error if it is too small."""
    shape = [evaluate_sizes(extent, {}) for extent in buffer.shape]
    strides = [evaluate_sizes(stride, {}) * memory.itemsize for stride in buffer.strides]
    seen: Array = np.ndarray(shape, memory.dtype, memory.data if memory.size else None, 0, strides)
    return seen


class TrialMaker:
    """Buffers with odd layouts and odd values, and the trial of the kernel that uses them."""

    def __init__(self, rng: random.Random, special: float = 0.0, constant: float = 0.0) -> None:
        self.rng, self.special, self.constant = rng, special, constant
        self.buffers: list[Buffer] = []
        self.memory: dict[str, Array] = {}
        self.offsets: dict[str, int] = {}
        self.constants: set[str] = set()

    def buffer(
        self,
        name: str,
        shape: Sequence[int],
        role: Role = "in",
        dtype: DType = float32,
        dense: bool = False,
        values: Array | None = None,
    ) -> Buffer:
        """A buffer; unless dense, its dimensions may be permuted, spread, and behind the start of its memory."""
        strides, reach = [0] * len(shape), 1
        order = list(range(len(shape)))
        if not dense and self.rng.random() < 0.4:
            self.rng.shuffle(order)
        for at in reversed(order):
            spread = 1 if dense else self.rng.choice([1, 1, 1, 1, 2, 3])
            strides[at] = reach * spread
            reach = strides[at] * shape[at]
        offset = 0 if dense else self.rng.choice([0, 0, 1, 7])
        made = Buffer(name, dtype, tuple(map(Int, shape)), tuple(map(Int, strides)), role)
        if values is None:
            values = numbers(self.rng, reach + offset, dtype, self.special)
        self.buffers.append(made)
        self.memory[name], self.offsets[name] = values, offset
        if role == "in" and self.rng.random() < self.constant:
            self.constants.add(name)
        return made

    def trial(self, kernel: Kernel) -> Trial:
        """The trial of a kernel, which the verifier must accept."""
        kernel = simplify(kernel)
        verify(kernel)
        kept = [b.name for b in kernel.buffers]
        memory = {name: self.memory[name] for name in kept}
        return Trial(kernel, memory, self.offsets, frozenset(self.constants & set(kept)))


def text_trial(text: str, constants: str = "") -> Trial:
    """The trial of a kernel's text, some of whose buffers are constants; special numbers are among the values."""
    kernel = parse(text)
    verify(kernel)
    rng = random.Random(text)
    memory = {}
    for buffer in kernel.buffers:
        reach = [(evaluate_sizes(n, {}) - 1) * evaluate_sizes(s, {}) for n, s in zip(buffer.shape, buffer.strides)]
        memory[buffer.name] = numbers(rng, 1 + sum(reach), buffer.dtype, 0.05)
    return Trial(simplify(kernel), memory, constants=frozenset(constants.split()))


def numbers(rng: random.Random, count: int, dtype: DType, special: float) -> Array:
    """Random values in storage form; some of them are zeros of either sign, infinities, NaN or tiny."""
    generator = np.random.default_rng(rng.getrandbits(32))
    if dtype is boolean:
        return generator.integers(0, 2, count).astype(np.bool_)
    if dtype.is_integer:
        return generator.integers(max(dtype.low, -100), min(dtype.high, 100), count).astype(dtype.storage)
    values = generator.standard_normal(count).astype(np.float32)
    chosen = generator.choice(np.array(_SPECIAL, np.float32), count)
    with np.errstate(over="ignore"):
        return to_storage(np.where(generator.random(count) < special, chosen, values).astype(dtype.compute), dtype)


# a program of several steps


@dataclass
class Run:
    """What the interpreter made of a StaticProgram: its outputs (flat), and each step as a trial of its own."""

    outputs: list[Array]
    trials: list[Trial]


def run_program(program: StaticProgram, inputs: Sequence[Array]) -> Run:
    """Runs the steps by the NumPy interpreter; memory that nobody wrote is NaN."""
    memories: dict[tuple[str, int], Array] = {}
    for number, (tensor, array) in enumerate(zip(program.inputs, inputs)):
        assert array.dtype == tensor.dtype.storage
        assert array.size == tensor.elements
        memories["input", number] = array.reshape(-1).view(np.uint8)
    for number, constant in enumerate(program.constants):
        memories["constant", number] = constant.array.view(np.uint8)
    for number, size in enumerate(program.temporaries):
        memories["temporary", number] = np.full(size, 0xFF, np.uint8)
    for number, tensor in enumerate(program.outputs):
        memories["output", number] = np.full(tensor.nbytes, 0xFF, np.uint8)
    trials = []
    for step in program.steps:
        verify(step.kernel)
        before: dict[str, Array] = {}
        views: dict[str, Array] = {}
        for buffer, place in zip(step.kernel.buffers, step.buffers):
            memory = memories[place.memory][place.offset * buffer.dtype.size :].view(buffer.dtype.storage)
            before[buffer.name] = memory.copy()
            views[buffer.name] = view(buffer, memory)
        fixed = [b.name for b, place in zip(step.kernel.buffers, step.buffers) if place.kind == "constant"]
        trials.append(Trial(step.kernel, before, constants=frozenset(fixed), ulp=_permitted(step.kernel)))
        run(step.kernel, views)
    outputs = [memories["output", n].view(t.dtype.storage) for n, t in enumerate(program.outputs)]
    return Run(outputs, trials)


def _permitted(kernel: Kernel) -> int:
    """How far results may be apart: functions such as exp have an error, which may grow in what follows."""
    used = [part.op for part in all_values(kernel.body) if isinstance(part, Unary)]
    return 8 * max((UNARY[op].ulp for op in used), default=0)


# many kernels as one program


@dataclass(frozen=True)
class Program:
    """The kernels of trials as C and assembly, and where each trial's memory lies in the block."""

    trials: Sequence[Trial]
    kernels: Kernels
    places: tuple[dict[str, int], ...]
    data: bytes

    def sources(self) -> dict[str, str | bytes]:
        """The files of a program that calls each kernel once."""
        files: dict[str, str | bytes] = {
            "kernels.c": self.kernels.source + self._main(),
            "data.S": _DATA,
            "data.bin": self.data,
            "weights.bin": self.kernels.weights.data + b"\0",
        }
        return files | ({"vectors.S": self.kernels.assembly} if self.kernels.assembly else {})

    def _main(self) -> str:
        lines = ["extern unsigned char trial_data[], trial_weights[];", "int main(void);", "int main(void) {"]
        for at, trial in enumerate(self.trials):
            words = []
            for buffer, weights in zip(trial.kernel.buffers, self.kernels.weights.offsets[at]):
                memory = f"trial_weights + {weights}" if weights >= 0 else f"trial_data + {self._start(at, buffer)}"
                words.append(f"({storage_of(buffer.dtype)}_m *)({memory})")
            lines.append(f"  trial{at}({', '.join([*words, f'(int64_t *)trial_data + {3 * at}'])});")
        return "\n".join([*lines, "  return 0;", "}", ""])

    def _start(self, at: int, buffer: Buffer) -> int:
        return self.places[at][buffer.name] + self.trials[at].offsets.get(buffer.name, 0) * buffer.dtype.size

    def check(self, data: bytes, where: str) -> None:
        """Compares memory after the run with that of the interpreter."""
        reports = np.frombuffer(data, np.int64, 3 * len(self.trials)).reshape(-1, 3)
        last = reports.nbytes
        for at, (trial, places) in enumerate(zip(self.trials, self.places)):
            expected = trial.expected
            assert reports[at].any() == (expected is None), f"{where}: {self._words(at)}: reported {reports[at]}"
            for buffer in trial.kernel.buffers:
                if buffer.name not in places:
                    continue
                start, want = places[buffer.name], (expected or trial.memory)[buffer.name]
                assert data[last:start] == self.data[last:start], (
                    f"{where}: {self._words(at)}: wrote before {buffer.name}"
                )
                got = np.frombuffer(data, want.dtype, want.size, start)
                last = start + want.nbytes
                if expected is None:
                    continue
                distance = ulp_distance(got, want, buffer.dtype)
                wrong = np.flatnonzero(distance > trial.ulp)
                if wrong.size:
                    one = int(wrong[0])
                    raise AssertionError(
                        f"{where}: {self._words(at)}: memory of {buffer.name} at {one}: {got[one]!r}, not "
                        f"{want[one]!r}; {wrong.size} of {want.size} differ"
                    )
        assert data[last:] == self.data[last:], f"{where}: wrote behind all buffers"

    def _words(self, at: int) -> str:
        trial, rendered = self.trials[at], self.kernels.rendered[at]
        constants = ", ".join(sorted(trial.constants)) or "none"
        return (
            f"trial {at} ({rendered.how}; constants: {constants}; offsets {trial.offsets})\n{kernel_text(trial.kernel)}"
        )


_DATA = """  .data
  .balign 64
  .globl trial_data
trial_data:
  .incbin "data.bin"
  .globl trial_weights
  .balign 64
trial_weights:
  .incbin "weights.bin"
"""


def program_of(trials: Sequence[Trial], target: RiscvTarget, vectors: bool) -> Program:
    """Renders trials as one program."""
    places: list[dict[str, int]] = []
    block = bytearray(b"\0" * 24 * len(trials) + b"\xff" * _GAP)  # each trial's report, then the buffers
    constants: list[Constant] = []
    steps: list[Step] = []
    for at, trial in enumerate(trials):
        own: dict[str, int] = {}
        used = []
        for buffer in trial.kernel.buffers:
            array, offset = trial.memory[buffer.name], trial.offsets.get(buffer.name, 0)
            if buffer.name in trial.constants:
                used.append(Place("constant", len(constants), offset))
                constants.append(Constant(buffer.name, array))
                continue
            block += b"\xff" * (-len(block) % 16)
            own[buffer.name] = len(block)
            block += array.tobytes() + b"\xff" * _GAP
            used.append(Place("temporary", 0, offset))
        places.append(own)
        steps.append(Step(trial.kernel, tuple(used), name=f"trial{at}"))
    program = StaticProgram((), (), tuple(constants), (len(block),), tuple(steps))
    return Program(trials, render_steps(program, replace(target, assembly=vectors)), tuple(places), bytes(block))


def target_of(isa: str, tools: toolchain.Toolchain, vector_bytes: int = 64) -> RiscvTarget:
    """What the emitters are told of an instruction set."""
    vectors = "v" in MachineSpec(isa, vlen=128 if isa.endswith("v") else 0).extensions and tools.vectors
    return RiscvTarget(vector_bytes=vector_bytes if vectors else 0, fma=isa != "rv32imc", isa=isa)


def tools_of(family: str) -> toolchain.Toolchain:
    """A compiler of a family; skips where it is not installed."""
    try:
        return toolchain.find_toolchain(family)
    except toolchain.ToolchainMissing as error:
        pytest.skip(str(error))


def run_trials(
    trials: Sequence[Trial],
    isa: str,
    family: str,
    flags: Sequence[str] = (),
    machines: Sequence[str] = MACHINES,
    vector_bytes: int = 64,
) -> Program:
    """Builds the trials into one program and compares its results on the machines that are here, in every length of
    vectors."""
    tools = tools_of(family)
    program = program_of(trials, target_of(isa, tools, vector_bytes), isa.endswith("v"))
    spec = MachineSpec(isa, vlen=VLENS[0] if isa.endswith("v") else 0, ram_bytes=_RAM)
    files = program.sources() | runtime.sources(spec)
    elf = toolchain.build(files, isa, runtime.LINK, tools, ["-g", *flags])
    for vlen in VLENS if spec.vlen else (0,):
        for name in (name for name in machines if machine_class(name).absent_reason() is None):
            _run(program, elf, MachineSpec(isa, vlen=vlen, ram_bytes=_RAM), name)
    return program


def _run(program: Program, elf: bytes, spec: MachineSpec, name: str) -> None:
    with open_machine(name, elf, spec) as machine:
        assert machine.run().code == 0
        data = machine.read(machine.program.symbol("trial_data").address, len(program.data))
    program.check(data, f"{name}, {spec.isa}, VLEN {spec.vlen}")
