"""Arguments for one overload from the recorded calls of its siblings, and the forms each call is tried in.

Siblings share the op (functional, in-place, out=, a view and its copy). A call in another form is the same call with
other memory under it: out= tensors that fit, must grow, have gaps, are transposed or alias an input; inputs whose
memory is transposed; half types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from bringup.kit.op_samples import tensors_in
from bringup.kit.op_table import base_of
from tests.overloads.calls import OverloadCall, out_arguments, overload_named


def family_of(overload: str) -> str:
    """Returns the op an overload belongs to; a copy of a view belongs to the view.

    >>> family_of("aten::expand_copy.out"), family_of("aten::add_.Tensor")
    ('aten::expand', 'aten::add')
    """
    return base_of(overload).removesuffix("_copy").removesuffix("_functional")


def borrowed(overload: str, recorded: Mapping[str, Sequence[OverloadCall]]) -> list[OverloadCall]:
    """Returns calls of an overload with the arguments of its siblings: every required argument is among them."""
    wanted = overload_named(overload)._schema.arguments
    outs = set(out_arguments(overload_named(overload)))
    required = {a.name for a in wanted if a.name not in outs and not a.has_default_value()}
    possible = {a.name: str(a.type) for a in wanted if a.name not in outs}
    found = []
    for sibling, calls in recorded.items():
        types = {a.name: str(a.type) for a in overload_named(sibling)._schema.arguments}
        if any(types[name] != kind for name, kind in possible.items() if name in types):
            continue
        left_out = set(out_arguments(overload_named(sibling)))
        for call in calls:
            given = {k: v for k, v in call.arguments.items() if k in possible and k not in left_out}
            if required <= given.keys():
                found.append(OverloadCall(overload, given, f"as {sibling}"))
    return found


def spread(calls: Sequence[OverloadCall], count: int) -> list[OverloadCall]:
    """Returns ``count`` calls, from all dtypes in turn."""
    by_dtype: dict[Any, list[OverloadCall]] = {}
    for call in calls:
        first = next(tensors_in(call.arguments), None)
        by_dtype.setdefault(first.dtype if first is not None else None, []).append(call)
    chosen: list[OverloadCall] = []
    while len(chosen) < count and any(by_dtype.values()):
        chosen += [group.pop(0) for group in by_dtype.values() if group]
    return chosen[:count]


def _rebuilt(value: Any, change: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_rebuilt(part, change) for part in value)
    return value


def _changed(call: OverloadCall, form: str, change: Any) -> OverloadCall | None:
    """Returns the call with every tensor changed; None where nothing changes."""
    made: dict[int, torch.Tensor] = {}

    def once(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = change(tensor)
        return made[id(tensor)]

    arguments = {name: _rebuilt(value, once) for name, value in call.arguments.items()}
    if all(a is b for a, b in zip(tensors_in(arguments), tensors_in(call.arguments))):
        return None
    return replace(call, arguments=arguments, form=f"{call.form}, {form}")


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.dim() < 2 or tensor.is_conj() or tensor.is_neg():
        return tensor
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def _halved(dtype: torch.dtype, mixed: bool) -> Any:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype != torch.float32 or (mixed and tensor.dim() < 2):
            return tensor
        return tensor.to(dtype)

    return change


def input_forms(call: OverloadCall) -> Iterator[OverloadCall]:
    """Yields the call, and the call with transposed memory and in half types."""
    yield call
    transposed = _changed(call, "transposed memory", _transposed)
    forms = [transposed and replace(transposed, like=call)]
    if any(t.dtype == torch.float32 for t in tensors_in(call.arguments)):
        forms += [
            _changed(call, "bfloat16", _halved(torch.bfloat16, mixed=False)),
            _changed(call, "float16 with float32 vectors", _halved(torch.float16, mixed=True)),
        ]
    yield from (form for form in forms if form is not None)


def out_forms(call: OverloadCall, outs: Mapping[str, Any]) -> Iterator[OverloadCall]:
    """Yields the call with ``outs`` (name → what the functional form returned) as every kind of out= tensor."""

    def given(form: str, make: Any) -> OverloadCall:
        arguments = {**call.arguments, **{name: _rebuilt(value, make) for name, value in outs.items()}}
        return replace(call, arguments=arguments, form=f"{call.form}, {form}", truth=list(tensors_in(dict(outs))))

    tensors = list(tensors_in(dict(outs)))
    if any(t.layout != torch.strided for t in tensors):
        yield given("out= of the right size", torch.clone)
        return
    yield given("out= of the right size", lambda t: torch.ones(t.shape, dtype=t.dtype))
    yield given("out= that must grow", lambda t: torch.empty(0, dtype=t.dtype))
    yield given("out= with gaps", lambda t: torch.ones((*t.shape, 2), dtype=t.dtype)[..., 0])
    if any(t.dim() > 1 for t in tensors):
        yield given("transposed out=", lambda t: _transposed(torch.ones(t.shape, dtype=t.dtype)))
    inputs = list(tensors_in(call.arguments))
    for tensor in inputs:
        if len(tensors) == 1 and (tensor.dtype, tensor.shape) == (tensors[0].dtype, tensors[0].shape):
            yield given("out= is an input", lambda _, same=tensor: same)
            break
    # The memory of an input under another shape: what is written early must not be read late.
    for tensor in inputs:
        size = tensors[0].numel() if len(tensors) == 1 else 0
        if size and tensor.dtype == tensors[0].dtype and tensor.is_contiguous() and 1 < size <= tensor.numel():
            if tensor.shape != tensors[0].shape:
                yield given(
                    "out= in an input's memory",
                    lambda t, same=tensor: same.view(-1)[: t.numel()].view(t.shape),
                )
            break
