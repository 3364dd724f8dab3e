"""Which form a kernel gets where vectors may be slower than none: all forms run in our interpreter, and it is counted.

What compilers make of a kernel depends on its layout, its sizes and themselves: of fixed vectors, a softmax over rows
of 10 wants 64 bytes and one over 64 wants 128, and a merge sort wants none. Counts are exact, so a program with vectors
needs no more instructions than without. They are taken with vectors of 128 bits, the shortest there are, so that a
program is the same for every length. Without a compiler each kernel gets its first form.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bringup.compile.kernel_cache import entry_key, generation, kept
from bringup.graph.bare_metal.passes.in_order import with_few
from bringup.graph.bare_metal.passes.joining import reach
from bringup.graph.bare_metal.static_program import StaticProgram, Step
from bringup.ir.dtypes import to_storage
from bringup.ir.kernel import Buffer, Kernel
from bringup.ir.printer import kernel_text
from bringup.riscv import runtime
from bringup.riscv.elf import Program
from bringup.riscv.machine import GuestError, Machine, MachineSpec, machine_class, open_machine
from bringup.riscv.toolchain import BuildError, Toolchain, ToolchainMissing, build, find_toolchain
from bringup.targets.c.unit import unit

if TYPE_CHECKING:
    from bringup.targets.riscv.rendered import Rendered
    from bringup.targets.riscv.target import RiscvTarget

#: Bytes of the fixed vectors that forms in C have; the first is the one without a choice.
VECTOR_BYTES = (64, 128)
#: The most instructions that a form may take to be counted: a second of the interpreter's.
_MOST = 100_000_000
_ALIGNMENT = 64
#: What a call costs besides the kernel, at most.
_CALL = 200


@dataclass(frozen=True)
class Form:
    """One way to write a kernel: perhaps rewritten, for a target, by an emitter for its shape or as plain loops."""

    kernel: Kernel
    target: RiscvTarget
    plain: bool = False

    def rendered(self, name: str, constants: frozenset[str], prefix: str) -> Rendered:
        """The function, of some name."""
        write = self.target.loops if self.plain else self.target.function
        return write(self.kernel, name, constants, prefix)


def constants_of(step: Step) -> frozenset[str]:
    """The buffers of a step that are constants."""
    return frozenset(buffer.name for buffer, at in zip(step.kernel.buffers, step.buffers) if at.kind == "constant")


def first_forms(program: StaticProgram, target: RiscvTarget) -> list[Form]:
    """The form of each step without a choice."""
    return [Form(step.kernel, target) for step in program.steps]


def chosen_forms(program: StaticProgram, target: RiscvTarget, family: str) -> list[Form]:
    """The form of each step that takes the fewest instructions; ``family``: of compilers, "" for the first there is."""
    first = first_forms(program, target)
    if not target.assembly or machine_class().absent_reason() is not None:
        return first
    try:
        toolchain = find_toolchain(family or None)
    except ToolchainMissing:
        return first
    trials: dict[tuple[str, frozenset[str]], _Trial] = {}
    asked = []
    for number, (step, form) in enumerate(zip(program.steps, first)):
        key = kernel_text(step.kernel), constants_of(step)
        if key not in trials:
            forms = _forms(step, form, toolchain)
            trials[key] = _Trial(f"k{number}", step.kernel, constants_of(step), forms)
        asked.append(trials[key])
    open_trials = [trial for trial in trials.values() if len(trial.forms) > 1]
    if not open_trials:
        return first
    try:
        best = dict(zip(map(id, open_trials), _best(open_trials, target, toolchain)))
    except BuildError:  # the program itself will meet the same error, and say so
        return first
    return [trial.forms[best.get(id(trial), 0)] for trial in asked]


@dataclass(frozen=True)
class _Trial:
    """A kernel, its constants, and its forms."""

    name: str
    kernel: Kernel
    constants: frozenset[str]
    forms: tuple[Form, ...]

    def rendered(self) -> list[Rendered]:
        """Every form, each under a name of its own."""
        return [form.rendered(f"{self.name}_{n}", self.constants, "t_") for n, form in enumerate(self.forms)]


def _forms(step: Step, first: Form, toolchain: Toolchain) -> tuple[Form, ...]:
    made = first.rendered(step.name, constants_of(step), "")
    if made.surely_best:
        return (first,)
    plain = replace(first.target, assembly=False)
    forms = [first]
    if toolchain.vectors:
        wide = [Form(step.kernel, replace(plain, vector_bytes=count), True) for count in VECTOR_BYTES]
        # The first form may be the first of these.
        forms += wide[1:] if made.how == "loops in vectors" else wide
    forms.append(Form(with_few(step.kernel), replace(plain, vector_bytes=0)))
    return tuple(forms)


def _best(trials: Sequence[_Trial], target: RiscvTarget, toolchain: Toolchain) -> list[int]:
    """Which form of each trial took the fewest instructions, from the cache if that was counted before."""
    rendered = [trial.rendered() for trial in trials]
    files, places = _sources(trials, rendered, target)
    size = max(end for row in places for _, end in row) if any(places) else 0
    spec = MachineSpec(target.isa, vlen=128, ram_bytes=max(64 << 20, -(-2 * size // (1 << 20)) << 20))
    files |= runtime.sources(spec)
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()

    def count() -> bytes:
        elf = build(files, target.isa, runtime.LINK, toolchain, ["-ffunction-sections"])
        return json.dumps(_counted(elf, spec, trials, places)).encode()

    found: list[int] = json.loads(kept(entry_key("riscv forms", generation(), toolchain.identity, digest), count))
    return found


def _sources(
    trials: Sequence[_Trial], rendered: Sequence[Sequence[Rendered]], target: RiscvTarget
) -> tuple[dict[str, str | bytes], list[list[tuple[int, int]]]]:
    """A program that runs the form that its host asks for, and where each buffer of each trial lies."""
    places: list[list[tuple[int, int]]] = []
    cases: list[str] = []
    for trial, forms in zip(trials, rendered):
        row: list[tuple[int, int]] = []
        at = 0
        for buffer in trial.kernel.buffers:
            elements = max([reach(buffer), *(len(one.packed.get(buffer.name, ())) for one in forms)])
            row.append((at, at + elements * buffer.dtype.size))
            at = -(-row[-1][1] // _ALIGNMENT) * _ALIGNMENT
        places.append(row)
        pointers = [f"(void *)(m + {start})" for start, _ in row]
        for form in forms:
            arguments = ", ".join([*pointers, "report"])
            cases.append(f"    case {len(cases)}: {form.part.entry}({arguments}); break;\n")
    size = max((row[-1][1] for row in places if row), default=0)
    text = unit([one.part for forms in rendered for one in forms], replace(target, vector_bytes=max(VECTOR_BYTES)))
    main = f"""{text}
unsigned char trial_memory[{size + _ALIGNMENT}] __attribute__((aligned({_ALIGNMENT})));
unsigned char *volatile trial_start = trial_memory;
volatile int64_t trial_form;

int main(void) {{
  for (;;) {{
    __asm__ volatile("wfi" ::: "memory");
    int64_t report[3] = {{0, 0, 0}};
    unsigned char *m = trial_start;
    switch (trial_form) {{
{"".join(cases)}    }}
  }}
}}
"""
    files: dict[str, str | bytes] = {"forms.c": main}
    assembly = "".join(one.assembly for forms in rendered for one in forms)
    if assembly:
        files["forms_vector.S"] = f"  .text\n{assembly}"
    return files, places


def _counted(
    elf: bytes, spec: MachineSpec, trials: Sequence[_Trial], places: Sequence[Sequence[tuple[int, int]]]
) -> list[int]:
    """For each trial the number of the form with the fewest instructions, the first of equals."""
    symbols = {symbol.name: symbol.address for symbol in Program(elf).symbols}
    best, at = [], 0
    machine = _waiting(elf, spec)
    try:
        for trial, row in zip(trials, places):
            least, winner = _MOST, 0
            for number in range(len(trial.forms)):
                _fill(machine, symbols["trial_memory"], trial.kernel.buffers, row)
                machine.write(symbols["trial_form"], (at + number).to_bytes(8, "little"))
                machine.reset_counts()
                try:
                    machine.run(instructions=least + _CALL)
                except GuestError:  # more than the best so far
                    machine.close()
                    machine = _waiting(elf, spec)
                    continue
                if machine.counts.instructions < least:
                    least, winner = machine.counts.instructions, number
            best.append(winner)
            at += len(trial.forms)
    finally:
        machine.close()
    return best


def _waiting(elf: bytes, spec: MachineSpec) -> Machine:
    machine = open_machine(None, elf, spec)
    machine.run()
    return machine


def _fill(machine: Machine, memory: int, buffers: Sequence[Buffer], row: Sequence[tuple[int, int]]) -> None:
    """Floats get numbers around 0, the same each time; whatever may be an index or a condition is 0."""
    for buffer, (start, end) in zip(buffers, row):
        numbers = np.zeros((end - start) // buffer.dtype.size)
        if buffer.dtype.is_float:
            numbers = np.random.default_rng(0).standard_normal(len(numbers))
        machine.write(memory + start, to_storage(numbers, buffer.dtype).tobytes())
