"""Compiled kernels on NumPy arrays, as the interpreter runs them: for tests, and to look at what a kernel does.

(double,) = compile_kernels([kernel], host_target())
double.run({"x": x, "y": y}, sizes)
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bringup.ir.arguments import bind_sizes
from bringup.ir.dtypes import Array, float64
from bringup.ir.expr import Number, const
from bringup.ir.index import Index, evaluate_sizes
from bringup.ir.interpret import run
from bringup.ir.kernel import Kernel
from bringup.targets.c.contract import contraction
from bringup.targets.c.render import general
from bringup.targets.c.target import CTarget
from bringup.targets.c.unit import Part, unit
from bringup.targets.toolchain import compile_c
from tests.loops.bits import ulp_distance

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


@dataclass(frozen=True)
class Compiled:
    """A kernel's function in a loaded library."""

    kernel: Kernel
    units: Index
    function: Callable[..., None]
    library: ctypes.CDLL

    def run(
        self,
        arrays: Mapping[str, Array],
        sizes: Mapping[str, int] | None = None,
        params: Mapping[str, Number] | None = None,
        ranges: Iterable[tuple[int, int]] | None = None,
    ) -> None:
        """Runs all work units, or ranges of them in the order given; a reported index is an IndexError."""
        known = bind_sizes(self.kernel, arrays, sizes)
        words = launch_words(self.kernel, arrays, known, params or {})
        report = (ctypes.c_int64 * 3)()
        for begin, end in [(0, self.count(known))] if ranges is None else ranges:
            self.function(words, begin, end, report)
        if report[0]:
            text = f"index {report[1]} is out of bounds for a dimension of {report[2]}"
            raise IndexError(f"{self.kernel.name}: {text}")

    def count(self, sizes: Mapping[str, int]) -> int:
        """The number of work units."""
        return evaluate_sizes(self.units, sizes)


def launch_words(
    kernel: Kernel, arrays: Mapping[str, Array], sizes: Mapping[str, int], params: Mapping[str, Number]
) -> ctypes.Array[ctypes.c_uint64]:
    """The arguments of a launch, 8 bytes each: addresses, sizes, scalars.

    >>> list(launch_words(Kernel("nothing"), {}, {}, {}))
    []
    """
    words = [arrays[buffer.name].__array_interface__["data"][0] for buffer in kernel.buffers]
    words += [sizes[size.name] for size in kernel.sizes]
    for param in kernel.params:
        value = const(params[param.name], param.dtype).value
        if param.dtype is float64:
            words.append(int(np.float64(value).view(np.uint64)))
        elif param.dtype.is_float:
            words.append(int(np.float32(value).view(np.uint32)))
        else:
            words.append(int(value))
    return (ctypes.c_uint64 * len(words))(*(word & (1 << 64) - 1 for word in words))


def compile_kernels(kernels: Sequence[Kernel], target: CTarget, extra_flags: Sequence[str] = ()) -> list[Compiled]:
    """Compiles kernels into one library: much quicker than one library each."""
    parts = [general(replace(kernel, name=f"{kernel.name}_{at}"), target) for at, kernel in enumerate(kernels)]
    return compile_parts(kernels, parts, target, extra_flags)


def compile_parts(
    kernels: Sequence[Kernel], parts: Sequence[Part], target: CTarget, extra_flags: Sequence[str]
) -> list[Compiled]:
    library = load_library(compile_c(unit(parts, target), target, extra_flags))
    return [
        Compiled(kernel, part.units, _ENTRY((part.entry, library)), library) for kernel, part in zip(kernels, parts)
    ]


def compile_packed(kernel: Kernel, target: CTarget, extra_flags: Sequence[str] = ()) -> Compiled | None:
    """Compiles a kernel by the emitter for contractions; None if it is not of that shape."""
    part = contraction(kernel, target)
    return None if part is None else compile_parts([kernel], [part], target, extra_flags)[0]


def load_library(binary: bytes) -> ctypes.CDLL:
    """A shared object, loaded."""
    with tempfile.NamedTemporaryFile(suffix=".so", delete=False) as file:
        file.write(binary)
    try:
        return ctypes.CDLL(file.name)
    finally:
        os.unlink(file.name)


def _error(action: Callable[[], None]) -> str:
    try:
        action()
    except IndexError as error:
        return str(error)
    return ""


def disagreement(
    compiled: Compiled,
    want: Mapping[str, Array],
    got: Mapping[str, Array],
    sizes: Mapping[str, int],
    params: Mapping[str, Number],
    ulp: int = 0,
    ranges: Iterable[tuple[int, int]] | None = None,
) -> str:
    """Runs interpreter and compiled code on their own copies of the arguments; says how they differ, or nothing."""
    interpreted = _error(lambda: run(compiled.kernel, want, sizes, params))
    called = _error(lambda: compiled.run(got, sizes, params, ranges))
    if bool(interpreted) != bool(called):
        return f"the interpreter raises {interpreted or 'nothing'}, the compiled kernel {called or 'nothing'}"
    if interpreted:
        return ""
    for buffer in compiled.kernel.buffers:
        distance = ulp_distance(got[buffer.name], want[buffer.name], buffer.dtype)
        if np.any(distance > ulp):
            at = tuple(int(place) for place in np.argwhere(distance > ulp)[0])
            pair = f"{got[buffer.name][at]}, not {want[buffer.name][at]}"
            return f"{buffer.name}{list(at)} is {pair}: {distance[at]:.0f} ulp apart, {ulp} allowed"
    return ""
