"""Builds a library of loops over every math function, in vector and in scalar form, and calls them on NumPy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bringup.targets.c.math_library import functions, typedefs
from bringup.targets.c.math_template import SCALARS, function_name
from bringup.targets.c.target import CTarget
from bringup.targets.toolchain import compile_c

NUMPY = {"f32": np.float32, "f64": np.float64, "f16": np.uint16, "bf16": np.uint16}
NUMPY |= {f"{sign}{bits}": np.dtype(f"{sign}{bits // 8}").type for sign in "iu" for bits in (8, 16, 32, 64)}
#: One entry: op, type, types of the arguments, type of the result, in short names (halves as u16).
Entry = tuple[str, str, tuple[str, ...], str]


def _loop(entry: Entry, lanes: int) -> str:
    op, dtype, sources, result = entry
    suffix = f"x{lanes}" if lanes > 1 else ""
    types = [f"{t}{suffix}" if lanes > 1 else SCALARS[t] for t in (*sources, result)]
    unaligned = "__attribute__((aligned(1), may_alias))"
    names = [f"const void *x{i}" for i in range(len(sources))]
    lines = [f"  typedef {t} {unaligned} t{i};" for i, t in enumerate(types)]
    loads = ", ".join(f"*(const t{i} *)((const char *)x{i} + k * sizeof(t{i}))" for i in range(len(sources)))
    call = f"{function_name(op, dtype, lanes)}({loads})"
    at = len(sources)
    lines.append(f"  for (int64_t k = 0; k < n; k++) *(t{at} *)((char *)y + k * sizeof(t{at})) = {call};")
    form = "vector" if lanes > 1 else "scalar"
    return f"void {form}_{op}_{dtype}({', '.join(names)}, void *y, int64_t n) {{\n" + "\n".join(lines) + "\n}\n"


class Loops:
    """The functions of some entries, compiled for a target with a lane count."""

    def __init__(self, entries: Sequence[Entry], target: CTarget, lanes: int, folder: Path, flags: Sequence[str] = ()):
        self.entries = {(op, dtype): (sources, result) for op, dtype, sources, result in entries}
        self.lanes = lanes
        needs = {(op, dtype, count) for op, dtype, _, _ in entries for count in (1, lanes)}
        loops = "".join(_loop(entry, count) for entry in entries for count in (1, lanes))
        text = functions(needs, target) + loops
        path = folder / f"math_{target.isa}_{lanes}.so"
        path.write_bytes(compile_c("#include <stdint.h>\n" + typedefs(text) + text, target, ["-O1", *flags]))
        self.library = ctypes.CDLL(str(path))

    def __call__(self, form: str, op: str, dtype: str, *arrays: np.ndarray) -> np.ndarray:
        sources, result = self.entries[op, dtype]
        count, step = len(arrays[0]), self.lanes if form == "vector" else 1
        padded = [
            np.concatenate([a, np.ones(-count % step, a.dtype)]).astype(NUMPY[t], copy=False)
            for a, t in zip(arrays, sources)
        ]
        out = np.empty(len(padded[0]), NUMPY[result])
        run = getattr(self.library, f"{form}_{op}_{dtype}")
        run(*(ctypes.c_void_p(a.ctypes.data) for a in (*padded, out)), ctypes.c_int64(len(out) // step))
        return out[:count]


def same_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where two arrays have the same bits; NaNs are all the same."""
    equal = a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")
    return equal | ((a != a) & (b != b))
