"""Error inputs of an operator: bad input raises what it raises on the CPU, cold and after a valid call."""

from __future__ import annotations

from typing import Any

import torch

from bringup.kit.op_cases import CaseResult
from bringup.kit.op_errors_warm import error_differences
from bringup.kit.op_forms import SEED
from bringup.kit.op_samples import Call, tensors_in


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
        on_cpu = _raised(op, call.on("cpu"))
        if on_cpu is None:  # PyTorch declares an error that its CPU does not raise
            continue
        _compare_errors(on_cpu, _raised(op, _moved(call, device)), result)
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
        on_device = _raised(op, call)
        if not isinstance(on_device, bad.error_type):
            got = "nothing raised" if on_device is None else f"{type(on_device).__name__}: {on_device}"
            raise WrongError(f"two devices: {got}; {bad.error_type.__name__} declared: {bad.error_regex}")
        result.samples_run += 1


def _raised(op: Any, call: Call) -> Exception | None:
    torch.manual_seed(SEED)
    try:
        value = op.op(*call.args, **call.kwargs)
        for tensor in tensors_in(value):  # an asynchronous device reports when the result is needed
            if not tensor.is_meta:
                tensor.detach().to("cpu", copy=True)
    except Exception as error:
        return error
    return None
