"""The ways of calling an operator on one sample: the function, ``x.op_()``, ``out=`` in three forms, its gradients.

Each is called as it is, or compiled: ``wrap`` is what makes another function of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from bringup.kit.op_samples import WIDE, Call, copy_to, tensors_in

SEED = 1234
#: Makes of ``function(args, kwargs)`` what is called in its place.
Wrap = Callable[[Any], Any]


def as_it_is(function: Any) -> Any:
    """The usual ``Wrap``."""
    return function


@dataclass(frozen=True)
class Outcome:
    """What one call left behind: its result, its arguments afterwards, plain facts, and whether it drew numbers."""

    value: Any
    arguments: Any = ()
    facts: Any = ()
    drew: bool = False


@dataclass(frozen=True)
class Form:
    """One way of calling an operator. ``optional``: where the CPU refuses it, there is nothing to check."""

    run: Callable[[str, Wrap], Outcome]
    label: str = ""
    optional: bool = False
    #: Where this is not what the CPU gives, the CPU is wrong in this form.
    means: Any = None


def forward_forms(op: Any, call: Call) -> Iterator[Form]:
    """The function, and ``x.op_()`` where there is one: the same value, in the tensor it was called on."""

    def functional(place: str, wrap: Wrap) -> Outcome:
        mine = call.on(place)
        factory = torch.device("cpu" if place == WIDE else place)  # one without device= makes its tensor there
        with factory if not mine.tensors() else contextlib.nullcontext():
            value = wrap(lambda args, kwargs: op.op(*args, **kwargs))(mine.args, mine.kwargs)
        return Outcome(value, (mine.args, mine.kwargs))

    yield Form(functional)
    inplace = op.get_inplace()
    if inplace is None or call.broadcasts_input or not isinstance(call.args[0], torch.Tensor):
        return

    def in_place(place: str, wrap: Wrap) -> Outcome:
        mine = call.on(place)
        value = wrap(lambda args, kwargs: inplace(*args, **kwargs))(mine.args, mine.kwargs)
        return Outcome(value, (mine.args, mine.kwargs), value is mine.args[0])

    yield Form(in_place, "in-place: ", optional=True)


def out_forms(op: Any, call: Call, value: Any) -> Iterator[Form]:
    """``out=`` in three forms: the same value, in the tensor given, strides as on the CPU. ``value`` is the CPU's."""
    if not op.supports_out or "out" in call.kwargs:
        return
    for name, out in (_out_tensors(value) or {}).items():

        def run(place: str, wrap: Wrap, out: Any = out) -> Outcome:
            mine = call.on(place)
            target = copy_to(out, place)
            returned = wrap(lambda args, kwargs: op.op(*args, **kwargs))(mine.args, {**mine.kwargs, "out": target})
            same = [a is b for a, b in zip(tensors_in(returned), tensors_in(target))]
            strides = [list(t.stride()) for t in tensors_in(target)]
            return Outcome(target, (mine.args, mine.kwargs), (same, strides))

        yield Form(run, f"{name}: ", optional=True, means=value)


def _out_tensors(result: Any) -> dict[str, Any] | None:
    """Tensors to pass as ``out=``: right-sized, to be grown, with gaps between elements; None where out= cannot be."""
    single = isinstance(result, torch.Tensor)
    tensors = [result] if single else list(result) if isinstance(result, (tuple, list)) else []
    if not tensors or not all(isinstance(t, torch.Tensor) and t.layout == torch.strided for t in tensors):
        return None
    try:
        forms = {
            "out=": [torch.ones(t.shape, dtype=t.dtype) for t in tensors],
            "out= (empty, must grow)": [torch.empty(0, dtype=t.dtype) for t in tensors],
            "out= (with gaps)": [torch.ones((*t.shape, 2), dtype=t.dtype)[..., 0] for t in tensors],
        }
    except (RuntimeError, NotImplementedError):  # a dtype that cannot be filled has no out= form to compare
        return None
    return {name: outs[0] if single else tuple(outs) for name, outs in forms.items()}


def backward_form(op: Any, call: Call) -> Form:
    """Gradients of every differentiable input, for the same incoming gradient."""
    incoming = IncomingGradients()

    def gradients(place: str, wrap: Wrap) -> Outcome:
        mine = call.on(place)
        leaves = [t for t in mine.tensors() if t.requires_grad]
        run = wrap(lambda args, kwargs: op.gradcheck_wrapper(op.op, *args, **kwargs))
        value = call.finish(run(mine.args, mine.kwargs))
        outputs = [t for t in tensors_in(value) if t.requires_grad]
        if not outputs or not leaves:
            return Outcome((len(outputs), []))
        given = incoming.of(outputs, place)
        return Outcome((len(outputs), list(torch.autograd.grad(outputs, leaves, given, allow_unused=True))))

    return Form(gradients)


class IncomingGradients:
    """A gradient for each output of a call: numbers that depend on its shape and dtype alone.

    A second opinion in float64 gets the numbers of the run that it judges, only wider: of its own dtype it would draw
    others, and could agree with no run.
    """

    def __init__(self) -> None:
        self._drawn: list[torch.Tensor] = []

    def of(self, outputs: list[torch.Tensor], device: str) -> list[torch.Tensor]:
        """Them, on the device.

        >>> one = IncomingGradients()
        >>> half = one.of([torch.ones(3, dtype=torch.half)], "cpu")
        >>> torch.equal(half[0].double(), one.of([torch.ones(3, dtype=torch.double)], WIDE)[0])
        True
        """
        if device != WIDE:
            generator = torch.Generator().manual_seed(SEED)
            with _disable_current_modes():  # these numbers are ours, not the operator's
                self._drawn = [torch.randn(t.shape, dtype=t.dtype, generator=generator) for t in outputs]
        given: list[torch.Tensor] = copy_to(self._drawn, device)
        return given
