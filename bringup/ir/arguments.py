"""What a launch gives a kernel, checked: sizes found from arrays, and scalar arguments in their types."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bringup.ir.dtypes import Array
from bringup.ir.expr import Number, const
from bringup.ir.index import Size, evaluate_sizes
from bringup.ir.kernel import Kernel


class InterpretError(ValueError):
    """Arguments that do not fit the kernel, or an access outside its buffer (which the verifier excludes)."""


def bind_sizes(kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[str, int] | None = None) -> dict[str, int]:
    """The sizes of a launch: those given, and those that shapes and strides of the arrays show; checks all shapes.

    >>> from bringup.ir.dtypes import float32
    >>> from bringup.ir.kernel import dense
    >>> bind_sizes(Kernel("k", buffers=(dense("x", float32, (Size("n"),), "in"),)), {"x": np.zeros(3, np.float32)})
    {'n': 3}
    """
    known = dict(sizes or {})
    for buffer in kernel.buffers:
        array = buffers[buffer.name]
        if array.dtype != buffer.dtype.storage or array.ndim != len(buffer.shape):
            raise InterpretError(
                f"{kernel.name}: {buffer.name} is {array.dtype} with {array.ndim} dimensions, "
                f"the kernel wants {buffer.dtype.storage} with {len(buffer.shape)}"
            )
        for index, extent in zip(buffer.shape, array.shape):
            if isinstance(index, Size):
                known.setdefault(index.name, extent)
        for index, stride in zip(buffer.strides, array.strides):
            if isinstance(index, Size):
                known.setdefault(index.name, stride // array.itemsize)
    missing = [size.name for size in kernel.sizes if size.name not in known]
    if missing:
        raise InterpretError(f"{kernel.name}: {', '.join(missing)}: a size that no shape shows must be given")
    for buffer in kernel.buffers:
        shape = tuple(evaluate_sizes(index, known) for index in buffer.shape)
        if shape != buffers[buffer.name].shape:
            raise InterpretError(f"{kernel.name}: {buffer.name} has shape {buffers[buffer.name].shape}, wanted {shape}")
    for declared in kernel.sizes:
        value = known[declared.name]
        if (declared.low is not None and value < declared.low) or (declared.high is not None and value > declared.high):
            raise InterpretError(f"{kernel.name}: size {declared.name} = {value} is outside its declared range")
    return known


def param_values(kernel: Kernel, params: Mapping[str, Number] | None) -> dict[str, Array]:
    """The scalar arguments in their declared types."""
    given = params or {}
    missing = [p.name for p in kernel.params if p.name not in given]
    if missing:
        raise InterpretError(f"{kernel.name}: no value for {', '.join(missing)}")
    with np.errstate(all="ignore"):
        return {p.name: np.asarray(const(given[p.name], p.dtype).value, p.dtype.compute) for p in kernel.params}
