"""Runs a lowering without a device: its kernels, verified, by the NumPy interpreter, against PyTorch on the CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bringup.ir.arguments import bind_sizes
from bringup.ir.index import evaluate_sizes
from bringup.ir.interpret import run
from bringup.ir.simplify import simplify
from bringup.ir.verify import verify
from bringup.lowering import ops
from bringup.lowering.call import Call, Number, Tensor
from bringup.lowering.registry import LOWERINGS, Defined
from bringup.lowering.resolve import lower
from bringup.lowering.scalar_types import BY_CODE
from bringup.lowering.symbolic import hint_of

ops.load()

_CODES = {getattr(torch, dtype.name): code for code, dtype in BY_CODE.items()} | {torch.complex64: 9}


def find(overload: str) -> Any:
    """The OpOverload of "aten::add.Tensor"."""
    space, _, name = overload.partition("::")
    base, _, variant = name.partition(".")
    return getattr(getattr(getattr(torch.ops, space), base), variant or "default")


class _Described:
    """A call as the core would describe it."""

    def __init__(self, op: Any, arguments: Sequence[Any]) -> None:
        self.tensors: list[torch.Tensor] = []
        self.scalars: list[Any] = []
        schema = [a for a in op._schema.arguments if not a.is_out]
        filled = list(arguments) + [a.default_value for a in schema[len(arguments) :]]
        self.filled = filled
        self.arguments = [self._describe(value, str(a.type)) for value, a in zip(filled, schema)]

    def _describe(self, value: Any, kind: str) -> Any:
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            flags = 2 * value.is_contiguous()
            return ("t", len(self.tensors) - 1, _CODES[value.dtype], tuple(value.shape), value.stride(), flags)
        if isinstance(value, (list, tuple)) and "Tensor" in kind:
            return [self._describe(part, kind) for part in value]
        if "Tensor" in kind and isinstance(value, (bool, int, float)):  # PyTorch wraps a Python number
            self.scalars.append(value)
            code = _CODES[torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None).dtype]
            return ("n", len(self.scalars) - 1, code, value, 1)
        if ("number" in kind or "float" in kind or "Scalar" in kind) and isinstance(value, (bool, int, float, complex)):
            self.scalars.append(value)
            return ("s", len(self.scalars) - 1, None, float(value) if "float" in kind else value, 0)
        if isinstance(value, torch.dtype):
            return _CODES[value]
        return value


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_on_meta(part) for part in value)
    return value


def _flat(results: Any) -> list[Any]:
    if results is None or isinstance(results, torch.Tensor):
        return [results]  # None: an output that stays undefined
    return [t for part in results for t in _flat(part)]


def call_op(op: Any, arguments: Sequence[Any]) -> Any:
    """Calls an OpOverload with all arguments in schema order."""
    schema = op._schema.arguments
    given = list(zip(schema, arguments))
    return op(
        *(value for a, value in given if not a.kwarg_only), **{a.name: value for a, value in given if a.kwarg_only}
    )


def interpret(
    overload: str, *arguments: Any, outputs: Sequence[torch.Tensor] | None = None, seed: int = 0
) -> list[torch.Tensor]:
    """The outputs of an op by its lowering; ``outputs`` gives shapes and dtypes where PyTorch has no meta kernel."""
    op = find(overload)
    described = _Described(op, arguments)
    metas = _flat(call_op(op, [_on_meta(value) for value in described.filled])) if outputs is None else outputs
    outs: list[Any] = [None if m is None else torch.empty_strided(m.shape, m.stride(), dtype=m.dtype) for m in metas]
    for out in (o for o in outs if o is not None):  # what a kernel forgets to write shows up
        out.fill_(math.nan if out.is_floating_point() else 1)
    news = [None if o is None else ("new", _CODES[o.dtype], tuple(o.shape), o.stride()) for o in outs]
    call = lower(overload, LOWERINGS.get(overload) or Defined("graph lowering")[overload], described.arguments, news)
    _execute(call, described, outs, seed)
    return outs


def _execute(call: Call, described: _Described, outs: list[torch.Tensor], seed: int) -> None:
    temporaries = [
        torch.full([hint_of(n) for n in t.shape], 1, dtype=getattr(torch, t.dtype.name)) for t in call.temporaries
    ]
    memory = {"tensor": described.tensors, "output": outs, "temporary": temporaries}
    for launch in call.launches:
        verify(launch.kernel)
        kernel = simplify(launch.kernel)
        sizes = {size.name: hint_of(number) for size, number in zip(launch.kernel.sizes, launch.sizes)}
        arrays = {}
        for buffer, tensor in zip(launch.kernel.buffers, launch.buffers):
            where, slot = tensor.memory
            arrays[buffer.name] = _array(memory[where][slot], tensor, [evaluate_sizes(e, sizes) for e in buffer.shape])
        params = {}
        for param, given in zip(launch.kernel.params, launch.params):
            if isinstance(given, Number):
                value = described.scalars[given.slot]
                params[param.name] = value if param.dtype.is_float else int(value)
            elif isinstance(given, int):
                params[param.name] = given
            else:
                params[param.name] = seed if given == "seed" else 0
        run(kernel, arrays, bind_sizes(kernel, arrays, sizes), params)


def _array(base: torch.Tensor, tensor: Tensor, shape: list[int]) -> np.ndarray[Any, Any]:
    storage = torch.tensor([], dtype=torch.uint8).set_(base.untyped_storage()).numpy()
    dtype = tensor.dtype.storage
    offset = (base.storage_offset() + hint_of(tensor.offset)) * dtype.itemsize
    strides = [hint_of(stride) * dtype.itemsize for stride in tensor.strides]
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.ndarray(tuple(shape), dtype, storage.data, offset, tuple(strides))


def check(overload: str, *arguments: Any, factor: float = 4.0, outputs: Sequence[torch.Tensor] | None = None) -> None:
    """The lowering agrees with the CPU: integers exactly; floats within ``factor`` × the CPU's own error (at least
    2 units in the last place of the result's scale), both measured against float64."""
    op = find(overload)
    filled = _Described(op, arguments).filled
    expected = _flat(call_op(op, filled))
    exact = _flat(call_op(op, [_doubled(value) for value in filled]))
    found = interpret(overload, *arguments, outputs=outputs)
    assert len(found) == len(expected)
    for got, cpu, wide in zip(found, expected, exact):
        if got is None and cpu is None:
            continue
        assert (got.dtype, got.shape) == (cpu.dtype, cpu.shape)
        if outputs is None:
            assert got.stride() == cpu.stride() or 0 in got.shape or 1 in got.shape, (got.stride(), cpu.stride())
        if not got.is_floating_point():
            assert torch.equal(got, cpu), f"{overload}: {got} is not {cpu}"
            continue
        assert_close_to_exact(overload, got, cpu, wide, factor, _rounding_scale(filled, got))


def _rounding_scale(arguments: Sequence[Any], result: torch.Tensor) -> float:
    """How large the partial results of a reduction are: the CPU's error on one sum can be 0 by luck."""
    tensors = [t for t in arguments if isinstance(t, torch.Tensor) and t.is_floating_point() and t.numel()]
    ratio = max((t.numel() for t in tensors), default=0) / max(result.numel(), 1)
    if result.dtype is torch.float64:  # there is nothing more exact to compare with
        ratio = max(ratio, 2)
    finite = [t[t.isfinite()].abs().max().item() for t in tensors if bool(t.isfinite().any())]
    return math.sqrt(ratio) * max(finite, default=0.0) if ratio > 1 else 0.0


def assert_close_to_exact(
    name: str, got: torch.Tensor, cpu: torch.Tensor, wide: torch.Tensor, factor: float, scale: float = 0.0
) -> None:
    """Elementwise: |got - exact| ≤ factor × max |cpu - exact| + 2 ulp (of the result, and of the partial results'
    scale); NaN and inf in the same places."""
    g, c, w = got.double(), cpu.double(), wide.double()
    assert torch.equal(g.isnan(), c.isnan()), f"{name}: NaN in other places:\n{got}\n{cpu}"
    same = (g == c) | (g.isnan() & c.isnan())
    finite = g.isfinite() & c.isfinite() & w.isfinite()
    assert bool((same | finite).all()), f"{name}: infinities differ:\n{got}\n{cpu}"
    if not bool(finite.any()):
        return
    own = (c - w)[finite].abs().max()
    eps = torch.finfo(got.dtype).eps
    bound = factor * own + 2 * eps * (w.abs() + scale)
    wrong = finite & ~same & ((g - w).abs() > bound)
    if bool(wrong.any()):
        at = wrong.nonzero()[0].tolist()
        place = tuple(at)
        raise AssertionError(f"{name} at {at}: {got[place]}, CPU {cpu[place]}, exact {wide[place]}, CPU's error {own}")


def _doubled(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    if isinstance(value, (list, tuple)):
        return type(value)(_doubled(part) for part in value)
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value
