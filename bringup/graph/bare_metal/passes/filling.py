"""Memory filled in words of 64 bits, several at a time: the zeros around an image, in scalar code.

A number of 32 bits a step takes three instructions each; four words a step take 0.75.
"""

from __future__ import annotations

from dataclasses import replace

from bringup.graph.bare_metal.static_program import StaticProgram, Step
from bringup.ir.dtypes import int64
from bringup.ir.expr import Const, const
from bringup.ir.index import Int
from bringup.ir.kernel import Axis, Kernel, Store, dense

#: Words that one step of the loop writes.
_WORDS = 4


def fill_in_words(program: StaticProgram) -> StaticProgram:
    """Writes the fills of temporaries in words."""
    return replace(program, steps=tuple(_in_words(step) for step in program.steps))


def _in_words(step: Step) -> Step:
    kernel = step.kernel
    if len(kernel.buffers) != 1 or len(kernel.axes) != 1 or len(kernel.body) != 1:
        return step
    (buffer,), (axis,), (store,), (place,) = kernel.buffers, kernel.axes, kernel.body, step.buffers
    if not isinstance(store, Store) or not isinstance(store.value, Const) or not isinstance(axis.extent, Int):
        return step
    if store.mode != "unique" or store.combine is not None or store.guard is not None:
        return step
    if store.indices != (axis.var,) or buffer.strides != (Int(1),) or place.kind != "temporary" or place.offset:
        return step
    steps, rest = divmod(axis.extent.value * buffer.dtype.size, 8 * _WORDS)
    if rest or not steps:
        return step
    bits, width = store.value.bits, 8 * buffer.dtype.size
    word = sum((bits & (1 << width) - 1) << at for at in range(0, 64, width))
    value = const(word - (1 << 64) if word >> 63 else word, int64)
    words, at = dense(buffer.name, int64, (Int(steps), Int(_WORDS)), "out"), Axis(axis.name, Int(steps))
    body = tuple(Store(words.name, (at.var, Int(n)), value) for n in range(_WORDS))
    return replace(step, kernel=Kernel(kernel.name, buffers=(words,), axes=(at,), body=body))
