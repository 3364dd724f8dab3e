"""Error inputs of an operator: bad input raises what it raises on the CPU, cold and after a valid call.

A device that remembers calls by their shapes and dtypes sees ``huber_loss(x, y, delta=-1)`` as the call with
``delta=1`` that it has just served. So every number of a bad call is replaced by values on both sides of all bounds
that PyTorch has, the CPU says which of them are valid, and once these are served the bad call must still be refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from bringup.kit.op_cases import CaseResult
from bringup.kit.op_forms import SEED
from bringup.kit.op_samples import Call, tensors_in

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


class NoErrorInputs(Exception):
    """PyTorch cannot make the error inputs."""


class WrongError(Exception):
    """The device raises nothing, or something else than the CPU."""


def check_errors(op: Any, device: str, result: CaseResult) -> None:
    """Compare every error input of ``op`` with the CPU; raises ``WrongError`` at the first that differs.

    Inputs that PyTorch makes for the device (operands on two devices) must raise what PyTorch declares.
    """
    try:
        bad_inputs = list(op.error_inputs("cpu"))
    except Exception as error:
        raise NoErrorInputs(f"making error inputs: {type(error).__name__}: {error}") from error
    for index, bad in enumerate(bad_inputs):
        result.sample = index
        call = Call.of(op, bad.sample_input)
        on_cpu = raised(op.op, call.on("cpu"), backward=False)
        if on_cpu is None:  # PyTorch declares an error that its CPU does not raise
            continue
        _compare_errors(on_cpu, raised(op.op, _moved(call, device), backward=False), result)
        result.samples_run += 1
    for difference in error_differences(op, device):
        raise WrongError(f"after a valid call: {difference}")
    if torch.device(device).type != "cpu":
        _check_errors_made_for_device(op, device, result, len(bad_inputs))


def _moved(call: Call, device: str) -> Call:
    try:
        return call.on(device)
    except Exception as error:
        raise WrongError(f"copying the inputs to the device: {type(error).__name__}: {error}") from error


def _compare_errors(on_cpu: Exception, on_device: Exception | None, result: CaseResult) -> None:
    cpu_says = f"the CPU says {type(on_cpu).__name__}: {on_cpu}"
    if on_device is None:
        raise WrongError(f"nothing raised; {cpu_says}")
    if type(on_device) is not type(on_cpu):
        raise WrongError(f"{type(on_device).__name__}: {on_device}; {cpu_says}")
    if not result.note and str(on_device) != str(on_cpu):
        result.note = f"sample {result.sample}: device says {str(on_device)[:200]!r}, the CPU {str(on_cpu)[:200]!r}"


def _check_errors_made_for_device(op: Any, device: str, result: CaseResult, first: int) -> None:
    """Error inputs that PyTorch makes for this device; operands on two devices come only from here."""
    for index, bad in enumerate(op.error_inputs(device)):
        result.sample = first + index
        call = Call.of(op, bad.sample_input)
        if all(t.device.type in (torch.device(device).type, "meta") for t in call.tensors()):
            continue  # the same input was compared with the CPU before
        on_device = raised(op.op, call, backward=False)
        if not isinstance(on_device, bad.error_type):
            got = "nothing raised" if on_device is None else f"{type(on_device).__name__}: {on_device}"
            raise WrongError(f"two devices: {got}; {bad.error_type.__name__} declared: {bad.error_regex}")
        result.samples_run += 1


def raised(form: Callable[..., Any], call: Call, backward: bool = True) -> Exception | None:
    """What a call, and the gradients of its results, raise where its tensors are."""
    torch.manual_seed(SEED)
    try:
        results = list(tensors_in(form(*call.args, **call.kwargs)))
        leaves = [tensor for tensor in call.tensors() if tensor.requires_grad and tensor.is_leaf]
        outputs = [tensor for tensor in results if tensor.requires_grad]
        if backward and leaves and outputs:
            given = [torch.ones_like(tensor) for tensor in outputs]
            results += [g for g in torch.autograd.grad(outputs, leaves, given, allow_unused=True) if g is not None]
        for tensor in results:  # an asynchronous device reports when the result is needed
            if not tensor.is_meta:
                tensor.detach().to("cpu", copy=True)
    except Exception as error:
        return error
    return None


def is_refusal(on_device: Exception | None, on_cpu: Exception | None) -> bool:
    """Whether the device refuses in PyTorch's way; the cold check is the one that compares types and words."""
    return isinstance(on_device, (RuntimeError, IndexError, ValueError, ArithmeticError)) or type(on_device) is type(
        on_cpu
    )


def error_differences(op: Any, device: str) -> Iterator[str]:
    """Error inputs of an OpInfo that the device takes once a valid call of the same signature has been served."""
    for index, bad in enumerate(op.error_inputs("cpu") if op.error_inputs_func else ()):
        call = Call.of(op, bad.sample_input)
        on_cpu = raised(op.op, call.on("cpu"))
        good = [other for _, other in varied(call) if on_cpu is not None and raised(op.op, other.on("cpu")) is None]
        for other in good:
            raised(op.op, other.on(device))
        if good and not is_refusal(on_device := raised(op.op, call.on(device)), on_cpu):
            yield f"{op.name}: error input {index}: {on_device!r:.200}; the CPU: {on_cpu!r:.200}"
