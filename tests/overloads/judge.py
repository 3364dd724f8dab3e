"""The verdict on one overload: each of its calls on the CPU and on the device.

A finding is one call that went another way than on the CPU:

differs    values, dtype, shape, strides, device or aliasing
internal   an error that speaks of PyTorch's or bringup's inside, not of the arguments
refuses    the device raises where the CPU computes
accepts    the device computes where the CPU raises
raises     both raise, classes that are not alike
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from bringup.kit.op_cases import Case, CaseResult, Status
from bringup.kit.op_compare import Mismatch, compare, is_as_exact
from bringup.kit.op_samples import WIDE, tensors_in
from bringup.kit.op_verdicts import SEED, Setup
from tests.overloads.calls import OverloadCall, out_arguments, overload_named
from tests.overloads.siblings import input_forms, out_forms, spread
from tests.overloads.subjects import Subject
from tests.overloads.synthesis import synthesised

#: Words of errors that no argument of a user should lead to.
INSIDE = (
    "INTERNAL ASSERT",
    "DispatchStub",
    "missing kernel",
    "please report a bug",
    "has no attribute",
    "unexpected keyword argument",
    "positional argument",
    "is not JSON",
    "Could not run 'aten::",
    "meta kernel",
)
#: The CPU says so of a dtype, a layout or an out= in an input's memory that it does not take; a device may.
NOT_ON_CPU = (
    "must be contiguous",
    "is_contiguous(memory_format) to be true",
    "refer to a single memory location",
    "not implemented for",
    "not supported",
    "unsupported dtype",
    "Unsupported dtype",
)
#: Results that PyTorch puts on the CPU for every device.
ON_CPU = ("_shape_as_tensor", "_to_cpu", "choose_qparams_optimized", "_test_ambiguous_defaults")
#: Results that are memory as it was found.
UNINITIALISED = (
    "_make_dep_token",
    "empty",
    "new_empty",
    "resize",
    "_efficientzerotensor",
    "_resize_output",
    "_sparse_compressed_tensor_with_dims",
)
#: Which of equal elements their indices name is nobody's promise.
TIED = ("kthvalue", "median", "nanmedian", "mode", "sort", "topk")
MESSAGE = 400


def run_overload(subject: Subject, case: Case, setup: Setup) -> CaseResult:
    """Runs every call of an overload; the findings are JSON in the result's message."""
    begin = time.perf_counter()
    result = CaseResult(case, Status.PASS)
    findings: list[dict[str, str]] = []
    counted = {"compared": 0, "refused alike": 0, "refused by one": 0, "cpu disagrees": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for call in calls_of(subject, setup.samples):
                outcome = judge_call(call, setup.device)
                if isinstance(outcome, str):
                    counted[outcome] += 1
                else:
                    findings.append({"call": str(call), **outcome})
        except (LookupError, NotImplementedError) as reason:
            result.note = str(reason)
    result.samples_run = counted["compared"]
    if findings:
        result.status, result.message = Status.FAIL, json.dumps(findings)
    elif not counted["compared"]:
        result.status = Status.SKIP
        said = ", ".join(f"{count} {how}" for how, count in counted.items() if count)
        result.note = result.note or f"no call could be compared: {said or 'none could be made'}"
    result.seconds = time.perf_counter() - begin
    return result


def calls_of(subject: Subject, count: int) -> Iterator[OverloadCall]:
    """Yields the calls of an overload: recorded ones or a sibling's, in every form; else calls made from its schema."""
    _step("cpu", subject.name)
    overload = overload_named(subject.name)
    base = spread(subject.recorded, count) + spread(subject.borrowed, count)
    outs = out_arguments(overload)
    if not base:
        base = synthesised(subject.name, count)
    for call in base:
        if not outs or call.drawn:
            yield from input_forms(call)
        elif call.form == "recorded":
            yield call
    if not outs:
        return
    for call in base:
        arguments = {k: v for k, v in call.arguments.items() if k not in outs}
        made = _outs(replace(call, arguments=arguments), subject, outs)
        if made is not None:
            yield from out_forms(replace(call, arguments=arguments), made)


def _outs(call: OverloadCall, subject: Subject, outs: list[str]) -> dict[str, Any] | None:
    """Returns out= tensors by name, as the functional form returns them; None where it does not."""
    for functional in subject.functional:
        names = {a.name for a in overload_named(functional)._schema.arguments}
        if not call.arguments.keys() <= names:
            continue
        try:
            torch.manual_seed(SEED)
            value, _ = replace(call, overload=functional).run("cpu")
        except Exception:  # the CPU refuses these arguments: no form of this call
            return None
        if len(outs) == 1:
            return {outs[0]: value} if list(tensors_in(value)) else None
        if isinstance(value, (tuple, list)) and len(value) == len(outs):
            return dict(zip(outs, value))
    return None


def _step(where: str, what: object) -> None:
    """Leaves a line that says what runs, for the case that it is the last one."""
    print(f"{where}: {what}", file=sys.stderr, flush=True)


def _run(call: OverloadCall, device: str) -> Any:
    torch.manual_seed(SEED)
    value, arguments = call.run(device)
    tensors = list(tensors_in(value))
    inputs = list(tensors_in(arguments))
    if device not in ("cpu", WIDE):
        for tensor in (*tensors, *inputs):  # an asynchronous device reports when the result is needed
            if tensor.layout == torch.strided and not tensor.is_meta and tensor.numel():
                tensor.detach().reshape(-1)[:1].cpu()
    return value, (arguments, {}), _layout(tensors, inputs)


def _layout(tensors: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[str]:
    """Returns strides of each result where they matter, and which argument's memory it shares."""
    said = []
    for tensor in tensors:
        if tensor.layout != torch.strided:
            said.append("")
            continue
        strides = [s if n > 1 else 0 for n, s in zip(tensor.shape, tensor.stride())] if tensor.numel() > 1 else []
        same = [
            n for n, other in enumerate(inputs)
            if other.layout == torch.strided and tensor.untyped_storage()._cdata == other.untyped_storage()._cdata
        ]  # fmt: skip
        said.append(f"strides {strides}, memory of argument {same}, offset {tensor.storage_offset()}")
    return said


def judge_call(call: OverloadCall, device: str) -> dict[str, str] | str:
    """Returns a finding, or how the call is counted."""
    _step("cpu", call)
    overload = overload_named(call.overload)
    name = call.overload.removeprefix("aten::")
    expected: Any = None
    refusal: Exception | None = None
    try:
        expected = _run(call, "cpu")
    except Exception as error:
        refusal = error
    _step("device", call)
    try:
        actual = _run(call, device)
    except Exception as error:
        return _judge_error(call, refusal, error)
    if refusal is not None:
        if any(words in str(refusal) for words in NOT_ON_CPU) or call.in_half or call.drawn:
            return "refused by one"
        return {"kind": "accepts", "message": f"the CPU says {_said(refusal)}"}
    random = torch.Tag.nondeterministic_seeded in overload.tags
    values = not random and not name.startswith(UNINITIALISED)
    try:
        if values:
            compare(expected, _run(call, "cpu"), "cpu")
        truth = call.truth if call.like is None else _results_of(call.like)
        if values and truth is not None:
            # Not all that its kernels take do they get right: an out= that aliases an input, indices with gaps.
            compare(truth, list(tensors_in(expected[0])), "cpu")
    except Mismatch:
        return "cpu disagrees"
    if not _returns_outs(call, expected):  # _add_relu with an out= of another dtype returns a new tensor
        return "cpu disagrees"
    if name.startswith("_to_cpu"):  # what is there already is not copied
        expected = (*expected[:2], _layout(list(tensors_in(expected[0])), []))
    if expected[2] != actual[2]:
        if not _keeps_outs(call, actual):
            return {"kind": "differs", "message": f"{expected[2]} expected, got {actual[2]}"[:MESSAGE]}
        expected, actual = (tree_map_only(torch.Tensor, torch.Tensor.contiguous, ran) for ran in (expected, actual))
    try:
        if name.startswith(ON_CPU):
            compare(expected[0], actual[0], "cpu", None, values)
        else:
            compare(expected[:2], actual[:2], device, None, values)
    except Mismatch as error:
        same = name.split(".")[0] in TIED and _selects_the_same(call, expected, actual)
        if not values or not (same or _is_as_exact(call, expected, actual, device)):
            return {"kind": "differs", "message": str(error)[:MESSAGE]}
    return "compared"


def _results_of(call: OverloadCall) -> list[torch.Tensor] | None:
    """Returns what the CPU gives; None where it refuses (an expanded tensor in place)."""
    try:
        return list(tensors_in(_run(call, "cpu")[0]))
    except RuntimeError:
        return None


def _returns_outs(call: OverloadCall, ran: Any) -> bool:
    """Whether a call with out= returned that memory, where it returned tensors at all."""
    returned = {tensor.untyped_storage()._cdata for tensor in tensors_in(ran[0]) if tensor.layout == torch.strided}
    outs = tensors_in({name: ran[1][0].get(name) for name in out_arguments(overload_named(call.overload))})
    return not returned or all(out.untyped_storage()._cdata in returned for out in outs if out.layout == torch.strided)


def _keeps_outs(call: OverloadCall, actual: Any) -> bool:
    """Whether every out= has the strides it was given with: some CPU kernels lay out anew what has the right size."""
    outs = out_arguments(overload_named(call.overload))
    given = list(tensors_in({name: call.arguments.get(name) for name in outs}))
    now = list(tensors_in({name: actual[1][0].get(name) for name in outs}))
    return bool(given) and all((a.shape, a.stride()) == (b.shape, b.stride()) for a, b in zip(given, now))


def _selects_the_same(call: OverloadCall, expected: Any, actual: Any) -> bool:
    """Whether values agree, and indices name elements with these values."""
    given, dim = call.arguments["self"], call.arguments.get("dim", -1)
    found = []
    for values, indices in (expected[0], actual[0]):
        values, indices = values.cpu(), indices.cpu()
        at = indices if indices.dim() == given.dim() else indices.unsqueeze(dim)
        found.append([values, given.gather(dim, at)])
    try:
        compare(found[0], found[1], "cpu")
    except Mismatch:
        return False
    return True


def _is_as_exact(call: OverloadCall, expected: Any, actual: Any, device: str) -> bool:
    try:
        compare(expected[:2], actual[:2], device, None, values=False)
        return is_as_exact(expected[:2], actual[:2], _run(call, WIDE)[:2])
    except Exception:  # other shapes, or the CPU has no such call in float64
        return False


def _judge_error(call: OverloadCall, refusal: Exception | None, error: Exception) -> dict[str, str] | str:
    said = _said(error)
    if any(words in said for words in INSIDE) and not (refusal and any(words in str(refusal) for words in INSIDE)):
        return {"kind": "internal", "message": said}
    if call.drawn:  # that the CPU takes it does not make it valid: many private ops check nothing
        return "refused by one"
    if refusal is None:
        return {"kind": "refuses", "message": said}
    if type(error) is not type(refusal):
        return {"kind": "raises", "message": f"{said}; the CPU says {_said(refusal)}"}
    return "refused alike"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MESSAGE]
