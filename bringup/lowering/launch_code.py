"""Python source that fills in a launch: its sizes, its numbers and where its memory is, as the core takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch  # noqa: F401  _C needs its libraries

from bringup import _C
from bringup.compile.kernels import ForeignKernel, Launch
from bringup.compile.loader import Compiled
from bringup.ir.dtypes import DType
from bringup.ir.index import Index
from bringup.lowering.scalar_types import CODE_OF

#: Kinds of a launch's arguments.
SOURCE: dict[str, int] = {name: code for code, name in enumerate(_C.SOURCES)}
IMMEDIATE: int = SOURCE["immediate"]
SCALAR: int = SOURCE["number"]
SEED: int = SOURCE["seed"]
OFFSET: int = SOURCE["offset"]
POINTWISE, RANDOM, REFUSED, APART = _C.PLAN_FLAGS
#: Relations of guards.
RELATION: dict[str, int] = {name: code for code, name in enumerate(_C.RELATIONS)}


def immediate(code: str) -> str:
    """Returns the source of an argument whose bits are known when the plan is made.

    >>> immediate("v[0]") == f"({IMMEDIATE}, v[0], 0)"
    True
    """
    return f"({IMMEDIATE}, {code}, 0)"


def scalar(slot: int, dtype: DType, wraps: bool = False) -> str:
    """Returns the source of an argument that each call brings as a number; ``wraps``: as an operand, so 300 is 44."""
    return f"({SCALAR}, {slot}, {CODE_OF[dtype] + _C.WRAP * wraps})"


def launch_code(
    launch: Launch[Any, Any, Any],
    loaded: Compiled,
    addresses: Sequence[str],
    sizes: Sequence[str],
    numbers: Sequence[str],
    code: Callable[[Index], str],
    space: dict[str, Any],
) -> str:
    """Returns the source of a FilledLaunch from that of its parts; what it calls is put in ``space``."""
    kernel = launch.kernel
    if isinstance(kernel, ForeignKernel):
        measured = ", ".join(map(code, (kernel.units, kernel.flops, kernel.bytes)))
    else:
        name = f"measure{len(space)}"
        space[name] = loaded.measure
        measured = f"*{name}({', '.join(sizes)})"
    arguments = ", ".join([*addresses, *map(immediate, sizes), *numbers])
    return f"FilledLaunch({loaded.handle}, {measured}, [{arguments}])"
