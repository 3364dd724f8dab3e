"""Records the arguments of every ATen overload that op_db's samples reach on the CPU.

    python -m tests.overloads.capture FILE [PATTERN …]

The samples run forward, backward and in forward mode. A few calls of each overload are kept, at most one per signature
(dtypes, dimensions, plain arguments), so that 700 operators leave some thousand calls.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.autograd.forward_ad as forward_mode
from torch.utils._python_dispatch import TorchDispatchMode

from bringup.kit.op_cases import load_op_list, select_ops
from bringup.kit.op_samples import copy_to, take_samples, tensors_in
from tests.overloads.calls import OverloadCall, name_of

#: Samples taken of each dtype, where the op has it.
SAMPLES = {"float32": 4, "int64": 1, "bool": 1, "complex64": 1}
#: Calls kept of an overload, for each dtype of its first tensor.
KEPT = 4
LARGEST = 1 << 16


class Recorder(TorchDispatchMode):
    """Keeps calls by overload."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[str, list[OverloadCall]] = defaultdict(list)
        self._seen: set[Any] = set()
        self._kept: dict[Any, int] = defaultdict(int)

    def __torch_dispatch__(self, func: Any, classes: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "aten":
            self._record(func, args, kwargs)
        return func(*args, **kwargs)

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = list(tensors_in((args, kwargs)))
        # A zero tensor holds no memory that could be copied: forward mode makes them.
        if any(
            t.numel() > LARGEST or t.is_meta or t.is_nested or t.is_quantized or t._is_zerotensor() for t in tensors
        ):
            return
        group = (name_of(func), tensors[0].dtype if tensors else None)
        signature = (name_of(func), _signature((args, kwargs)))
        if signature in self._seen or self._kept[group] >= KEPT:
            return
        self._seen.add(signature)
        self._kept[group] += 1
        with torch.no_grad():
            call = OverloadCall.of(func, *copy_to((tuple(args), kwargs), "cpu"))
        for tensor in tensors_in(call.arguments):
            tensor.requires_grad_(False)
        self.calls[name_of(func)].append(call)


def _signature(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.dim(), value.numel() == 0, value.layout, value.is_contiguous())
    if isinstance(value, dict):
        return tuple((key, _signature(part)) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(_signature(part) for part in value[:4]))
    return value if isinstance(value, (bool, str, int, torch.dtype)) else type(value).__name__


def capture(patterns: Sequence[str] | None = None) -> dict[str, list[OverloadCall]]:
    """Runs the samples of the ops that match and returns the calls they reached, by overload."""
    ops = load_op_list()
    recorder = Recorder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in select_ops(ops, patterns):
            for dtype, count in SAMPLES.items():
                if getattr(torch, dtype) in ops[name].dtypes:
                    _run_samples(ops[name], getattr(torch, dtype), count, recorder)
    return dict(recorder.calls)


def _run_samples(op: Any, dtype: torch.dtype, count: int, recorder: Recorder) -> None:
    differentiable = op.supports_autograd and dtype == torch.float32
    samples: list[Any] = []
    with contextlib.suppress(Exception):  # what op_db cannot make, or the CPU refuses, is nobody's argument
        samples = take_samples(op, dtype, count, differentiable)
    for _, sample in samples:
        torch.manual_seed(0)
        with contextlib.suppress(Exception), recorder:
            value = op.op(sample.input, *sample.args, **sample.kwargs)
            outputs = [t for t in tensors_in(value) if t.requires_grad]
            leaves = [t for t in tensors_in((sample.input, sample.args, sample.kwargs)) if t.requires_grad]
            if outputs and leaves:
                torch.autograd.grad(outputs, leaves, [torch.ones_like(t) for t in outputs], allow_unused=True)
        if differentiable and op.supports_forward_ad:
            with contextlib.suppress(Exception), forward_mode.dual_level():
                dual = _dual((sample.input, sample.args, sample.kwargs))
                with recorder:
                    op.op(dual[0], *dual[1], **dual[2])


def _dual(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        plain = value.detach()
        return forward_mode.make_dual(plain, torch.ones_like(plain)) if value.requires_grad else value
    if isinstance(value, dict):
        return {key: _dual(part) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(_dual(part) for part in value)
    return value


def write(calls: dict[str, list[OverloadCall]], file: Path) -> None:
    """Writes calls, pickled one by one; those that do not come back (an argument is a storage or code) are left out."""
    pickled: dict[str, list[bytes]] = {name: [] for name in calls}
    for name, found in calls.items():
        for call in found:
            with contextlib.suppress(TypeError, AttributeError, RuntimeError, pickle.PicklingError):
                text = pickle.dumps(call)
                pickle.loads(text)
                pickled[name].append(text)
    file.write_bytes(pickle.dumps(pickled))


def read(file: Path) -> dict[str, list[OverloadCall]]:
    """Returns what ``write`` wrote."""
    return {name: [pickle.loads(call) for call in found] for name, found in pickle.loads(file.read_bytes()).items()}


def main(file: str, *patterns: str) -> None:
    calls = capture(patterns or None)
    write(calls, Path(file))
    print(f"{sum(map(len, calls.values()))} calls of {len(calls)} overloads")


if __name__ == "__main__":
    main(*sys.argv[1:])
