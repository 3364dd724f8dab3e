"""Bad numbers after good ones: an op that has served a valid call must still refuse what the CPU refuses.

A device that remembers calls by their shapes and dtypes sees ``huber_loss(x, y, delta=-1)`` as the call with
``delta=1`` that it has just served. So every number of a valid call is replaced by values on both sides of all bounds
that PyTorch has, and the CPU says which of them are errors.

    for difference in warm_differences(op, call, "sim"):
        print(difference)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from bringup.kit.op_samples import Call, take_samples, tensors_in

#: In place of a float: both signs, 0, 1, between, beyond float32, no number.
FLOATS = (-math.inf, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 1e30, math.inf, math.nan)
#: In place of an int, which may also be a size or a dimension.
INTEGERS = (-1, 0, 1, 2, 3)


def varied(call: Call) -> Iterator[tuple[str, Call]]:
    """The calls that differ from a call in one number, each with a name.

    >>> [name for name, _ in varied(Call((torch.ones(1), 2), {}, None, False))]
    ['argument 1 = -1', 'argument 1 = 0', 'argument 1 = 1', 'argument 1 = 3']
    """
    for at, given in enumerate(call.args):
        for value in _others(given):
            yield f"argument {at} = {value}", replace(call, args=(*call.args[:at], value, *call.args[at + 1 :]))
    for name, given in call.kwargs.items():
        for value in _others(given):
            yield f"{name} = {value}", replace(call, kwargs={**call.kwargs, name: value})


def _others(given: Any) -> list[Any]:
    if type(given) not in (float, int):
        return []
    return [value for value in (FLOATS if type(given) is float else INTEGERS) if value != given]


def forms_of(op: Any) -> dict[str, Callable[..., Any]]:
    """The ways to call an op whose checks may differ: as it is, and in place on a copy (gradients read the result)."""
    forms = {"": op.op}
    if inplace := op.get_inplace():
        forms["in place, "] = lambda x, *args, **kwargs: inplace(x.clone(), *args, **kwargs)
    return forms


def raised(form: Callable[..., Any], call: Call, device: str) -> Exception | None:
    """What a call and the gradients of its results raise on a device."""
    mine = call.on(device)
    torch.manual_seed(0)
    try:
        results = list(tensors_in(form(*mine.args, **mine.kwargs)))
        leaves = [tensor for tensor in mine.tensors() if tensor.requires_grad and tensor.is_leaf]
        outputs = [tensor for tensor in results if tensor.requires_grad]
        if leaves and outputs:
            given = [torch.ones_like(tensor) for tensor in outputs]
            results += [g for g in torch.autograd.grad(outputs, leaves, given, allow_unused=True) if g is not None]
        for tensor in results:  # an asynchronous device reports when the result is needed
            if not tensor.is_meta:
                tensor.detach().cpu()
    except Exception as error:
        return error
    return None


def _is_refusal(on_device: Exception | None, on_cpu: Exception | None) -> bool:
    """Whether the device refuses in PyTorch's way; the cold check is the one that compares types and words."""
    return isinstance(on_device, (RuntimeError, IndexError, ValueError, ArithmeticError)) or type(on_device) is type(
        on_cpu
    )


def warm_differences(op: Any, call: Call, device: str) -> Iterator[str]:
    """Numbers that the CPU refuses and the device takes, after the valid call on the device."""
    for form_name, form in forms_of(op).items():
        if raised(form, call, "cpu") is not None:
            continue
        refused = [(name, bad, error) for name, bad in varied(call) if (error := raised(form, bad, "cpu")) is not None]
        if not refused or raised(form, call, device) is not None:
            continue  # the check of valid calls judges the last
        for name, bad, on_cpu in refused:
            if not _is_refusal(on_device := raised(form, bad, device), on_cpu):
                yield f"{op.name}: {form_name}{name}: {on_device!r:.200}; the CPU: {on_cpu!r:.200}"


def error_differences(op: Any, device: str) -> Iterator[str]:
    """Error inputs of an OpInfo that the device takes once a valid call of the same signature has been served."""
    for index, bad in enumerate(op.error_inputs("cpu") if op.error_inputs_func else ()):
        call = Call.of(op, bad.sample_input)
        on_cpu = raised(op.op, call, "cpu")
        good = [other for _, other in varied(call) if on_cpu is not None and raised(op.op, other, "cpu") is None]
        for other in good:
            raised(op.op, other, device)
        if good and not _is_refusal(on_device := raised(op.op, call, device), on_cpu):
            yield f"{op.name}: error input {index}: {on_device!r:.200}; the CPU: {on_cpu!r:.200}"


def sampled_calls(op: Any, count: int) -> Iterator[Call]:
    """Samples of an op in float32, with gradients where it has them, and in int64 where it takes that."""
    grad = torch.float32 in op.supported_backward_dtypes("cpu")
    for dtype in (torch.float32, torch.int64):
        if op.supports_dtype(dtype, "cpu"):
            for _, sample in take_samples(op, dtype, count, requires_grad=grad and dtype.is_floating_point):
                yield Call.of(op, sample)
