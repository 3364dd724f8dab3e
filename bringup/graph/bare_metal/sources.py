"""The C files of a model: header, kernels with the function that runs them, and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bringup.graph.bare_metal.kernels import Kernels, heading
from bringup.graph.bare_metal.static_program import Place, StaticProgram, StaticTensor, Step, identifier, is_row_major
from bringup.graph.memory_plan import ALIGNMENT, Life, MemoryPlan, plan_memory
from bringup.graph.notes import comment
from bringup.ir.dtypes import DType
from bringup.targets.c.value import storage_of

_C_TYPES = {"f32": "float", "f64": "double"}
_C_TYPES |= {f"{sign}{bits}": f"{'u' * (sign == 'u')}int{bits}_t" for sign in "iu" for bits in (8, 16, 32, 64)}


@dataclass(frozen=True)
class Model:
    """A program with its kernels, its name in C, and where its temporaries lie."""

    name: str
    program: StaticProgram
    kernels: Kernels
    plan: MemoryPlan

    @property
    def upper(self) -> str:
        """The name in macros."""
        return self.name.upper()


#: Files that every program has beside those of its model: a model of that name gets another.
_TAKEN = frozenset("main memory harness crt0 link square_root gemm stdint bringup".split())


def model_name(text: str) -> str:
    """A name that C and the file system accept and nothing else in a program has.

    >>> model_name("My Net"), model_name("memory"), model_name("int")
    ('my_net', 'memory_model', 'int_model')
    """
    name = identifier(text).lower().rstrip("_")
    return f"{name}_model" if name in _TAKEN or identifier(name) != name else name


def planned(name: str, program: StaticProgram, kernels: Kernels) -> Model:
    """Plans the memory of a program."""
    lives = []
    for number in range(len(program.temporaries)):
        used = [at for at, step in enumerate(program.steps) if step.touches(("temporary", number))]
        lives.append(Life(used[0], used[-1]) if used else Life(0, -1))
    sizes = [size if life.last >= 0 else 0 for size, life in zip(program.temporaries, lives)]
    return Model(name, program, kernels, plan_memory(sizes, lives))


def c_type(dtype: DType) -> str:
    """The type of a tensor's elements in C; halves are their bits.

    >>> from bringup.ir.dtypes import boolean, float16, float32
    >>> c_type(float32), c_type(float16), c_type(boolean)
    ('float', 'uint16_t', 'uint8_t')
    """
    return _C_TYPES[storage_of(dtype)]


def header(model: Model) -> str:
    """The interface: sizes, the tensors of a call, and the two functions."""
    name, upper, program = model.name, model.upper, model.program
    fields = []
    for kind, tensors in (("in", program.inputs), ("out", program.outputs)):
        for tensor, field in zip(tensors, field_names(tensors, kind)):
            const = "const " if kind == "in" else ""
            shape = " × ".join(map(str, tensor.shape)) or "one number"
            fields.append(
                f"  {const}{c_type(tensor.dtype)} *{field}; /* {tensor.dtype.name}, {shape}{order(tensor)} */"
            )
    sizes = [
        f"#define {upper}_{field.upper()}_ELEMENTS {tensor.elements}"
        for kind, tensors in (("in", program.inputs), ("out", program.outputs))
        for tensor, field in zip(tensors, field_names(tensors, kind))
    ]
    return f"""#ifndef {upper}_H
#define {upper}_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {{
#endif

/* Scratch memory of one call. Calls at the same time need one each; nothing else is shared. */
#define {upper}_ARENA_BYTES {max(model.plan.arena, 1)}
#define {upper}_ARENA_ALIGN {ALIGNMENT}
#define {upper}_WEIGHTS_BYTES {len(model.kernels.weights.data)}
#define {upper}_STEPS {len(program.steps)}
{chr(10).join(sizes)}

typedef struct {{
{chr(10).join(fields)}
  /* Called before each step if it is not 0. */
  void (*on_step)(void *context, int step, const char *name);
  void *context;
}} {name}_io;

/* 0, or 1 + the step that met an index outside of its range. */
int {name}_run(const {name}_io *io, void *arena);
/* 0 if the weights are as they were exported. */
int {name}_check(void);

#ifdef __cplusplus
}}
#endif
#endif
"""


def order(tensor: StaticTensor) -> str:
    """The memory order of a tensor, in words: how many elements a step of each index is.

    >>> from bringup.ir.dtypes import float32
    >>> order(StaticTensor("x", float32, (2, 3), (3, 1))), order(StaticTensor("x", float32, (2, 3), (1, 2)))
    (', row-major', ', strides 1 × 2')
    """
    if not tensor.shape:
        return ""
    return (
        ", row-major"
        if is_row_major(tensor.shape, tensor.strides)
        else f", strides {' × '.join(map(str, tensor.strides))}"
    )


def field_names(tensors: Sequence[object], kind: str) -> list[str]:
    """The names of tensors in C: numbered, so that nothing of the model reaches C.

    >>> field_names([1, 2], "in")
    ['in0', 'in1']
    """
    return [f"{kind}{number}" for number in range(len(tensors))]


def run_source(model: Model, notes: bool = True) -> str:
    """The kernels, and the function that calls them in order; ``notes``: each says which lines of the model it is."""
    name, steps = model.name, model.program.steps
    kernels = model.kernels.source
    for step in steps if notes else ():
        kernels = kernels.replace(f"{heading(step)}\n", f"{comment(step.note or step.name)}\n", 1)
    calls = [_call(model, number, step) for number, step in enumerate(steps)]
    uses_arena = any(place.kind == "temporary" for step in steps for place in step.buffers)
    note = "" if uses_arena else "  (void)arena;\n"
    sum_, sums = checksum(model.kernels.weights.data)
    norms = model.program.folded_norms
    folded = f" Batch norms that are part of weights: {norms}." if norms else ""
    return f"""/* {name}: {len(steps)} kernels, made by bringup from a PyTorch model.{folded} */
#include "{name}.h"
{kernels}
extern const unsigned char {name}_weights[];

int {name}_run(const {name}_io *io, void *arena) {{
{note}  int64_t report[3]; /* set together they cost vectors, and two instructions more */
  report[0] = 0;
{"".join(calls)}  return 0;
}}

/* The sum of all words, and the sum of these sums: four instructions a word. */
int {name}_check(void) {{
  const uint32_t *word = (const uint32_t *)(const void *){name}_weights;
  uint32_t sum = 0, sums = 0;
  for (uint32_t at = 0; at < {model.upper}_WEIGHTS_BYTES / 4; at++) sums += sum += word[at];
  return sum != {sum_:#x}u || sums != {sums:#x}u;
}}
"""


def checksum(data: bytes) -> tuple[int, int]:
    """The sum of the 32-bit words of some bytes and the sum of its steps, both modulo 2^32.

    >>> checksum(bytes([1, 0, 0, 0, 2, 0, 0, 0]))
    (3, 4)
    """
    sums = np.cumsum(np.frombuffer(data, dtype="<u4"), dtype=np.uint32)
    return (int(sums[-1]) if len(sums) else 0), int(np.sum(sums, dtype=np.uint32))


def assembly_source(model: Model) -> str:
    """The vector kernels; none of them knows how long a vector is."""
    about = f"# Vector kernels of {model.name}: RVV 1.0, any vector length from 128 bits on."
    return f"{about}\n  .text\n{model.kernels.assembly}"


def _call(model: Model, number: int, step: Step) -> str:
    offsets = model.kernels.weights.offsets[number]
    pointers = []
    for buffer, place, offset in zip(step.kernel.buffers, step.buffers, offsets):
        storage = storage_of(buffer.dtype)
        const = "const " if buffer.role == "in" else ""
        pointers.append(f"({const}{storage}_m *){_address(model, place, buffer.dtype, offset)}")
    arguments = ", ".join([*pointers, "report"])
    after = (
        f"  if (report[0]) return {number + 1};\n" if "report," in model.kernels.rendered[number].part.function else ""
    )
    return f"""  if (io->on_step) io->on_step(io->context, {number}, "{step.name}");
  {step.name}({arguments});
{after}"""


def _address(model: Model, place: Place, dtype: DType, weights: int) -> str:
    if place.kind == "constant":
        return f"({model.name}_weights + {weights})"
    if place.kind == "temporary":
        return f"((unsigned char *)arena + {model.plan.offsets[place.number] + place.offset * dtype.size})"
    field = f"io->{'in' if place.kind == 'input' else 'out'}{place.number}"
    return f"({field} + {place.offset})" if place.offset else field


def weights_source(model: Model) -> str:
    """The weights as they are, from the file beside it; the section may be chosen to lie in flash."""
    name, upper = model.name, model.upper
    return f"""/* The weights of {name}, read where they lie. */
#ifndef {upper}_WEIGHTS_SECTION
#define {upper}_WEIGHTS_SECTION ".rodata.{name}_weights"
#endif
__asm__(".section " {upper}_WEIGHTS_SECTION ", \\"a\\"\\n"
        ".balign {ALIGNMENT}\\n"
        ".globl {name}_weights\\n"
        ".type {name}_weights, @object\\n"
        "{name}_weights:\\n"
        ".incbin \\"{name}_weights.bin\\"\\n"
        ".size {name}_weights, . - {name}_weights\\n"
        ".previous\\n");
typedef int {name}_weights_are_above; /* a file of C holds at least one declaration */
"""


def harness_source(model: Model) -> str:
    """A main for emulators: waits, runs the model on memory that the host fills and reads, and waits again."""
    name, upper, program = model.name, model.upper, model.program
    arrays, fields = [], []
    for kind, tensors in (("in", program.inputs), ("out", program.outputs)):
        for tensor, field in zip(tensors, field_names(tensors, kind)):
            size = max(tensor.elements, 1)
            arrays.append(f"{c_type(tensor.dtype)} bringup_{field}[{size}] __attribute__((aligned({ALIGNMENT})));")
            fields.append(f".{field} = bringup_{field}")
    return f"""#include "{name}.h"
{chr(10).join(arrays)}
unsigned char bringup_arena[{upper}_ARENA_BYTES] __attribute__((aligned({upper}_ARENA_ALIGN)));
int64_t bringup_result;
uint64_t bringup_stack; /* where the stack of a run begins */
uint64_t bringup_instructions;

static inline uint64_t instructions(void) {{
#if __riscv_xlen == 64
  uint64_t count;
  __asm__ volatile("csrr %0, minstret" : "=r"(count));
  return count;
#else
  uint32_t low, high, again;
  do {{
    __asm__ volatile("csrr %0, minstreth\\ncsrr %1, minstret\\ncsrr %2, minstreth"
                     : "=r"(high), "=r"(low), "=r"(again));
  }} while (high != again);
  return (uint64_t)high << 32 | low;
#endif
}}

int main(void) {{
  const {name}_io io = {{{", ".join([*fields, ".on_step = 0"])}}};
  uintptr_t stack;
  __asm__ volatile("mv %0, sp" : "=r"(stack));
  bringup_stack = stack;
  bringup_result = {name}_check() ? -1 : 0;
  for (;;) {{
    __asm__ volatile("wfi" ::: "memory");
    const uint64_t before = instructions();
    bringup_result = {name}_run(&io, bringup_arena);
    bringup_instructions = instructions() - before;
  }}
}}
"""
