"""Layouts of traced convolutions: channels last where eager mode gives that.

PyTorch's fake kernel knows which layouts its own libraries choose, and makes the results of every other device
contiguous. A compiled model would then turn each image on its way through a convolution: the depthwise layers of a
ConvNeXt, channels last, took 2.1 times as long as in eager mode, and a channels-last model came back contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses import fake_impls
from torch.fx.operator_schemas import normalize_function

_OPS = (
    torch.ops.aten.convolution.default,
    torch.ops.aten._convolution.default,
    torch.ops.aten.convolution_backward.default,
)


def register() -> None:
    """Puts ours before PyTorch's fake kernels of convolutions."""
    for op in _OPS:
        theirs = fake_impls.op_implementations_dict.get(op)
        if theirs is not None and not (isinstance(theirs, partial) and theirs.func is _as_in_eager_mode):
            fake_impls.op_implementations_dict[op] = partial(_as_in_eager_mode, theirs)


def _as_in_eager_mode(theirs: Callable[..., Any], fake_mode: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    """What a fake kernel gives; on our device in the layout of lowering/ops/convolution.py."""
    found = theirs(fake_mode, op, *args, **kwargs)
    given = normalize_function(op, args, kwargs, normalize_to_only_use_kwargs=True)
    assert given is not None
    x, weight = given.kwargs["input"], given.kwargs["weight"]
    if x.device.type != torch._C._get_privateuse1_backend_name() or x.ndim not in (4, 5):
        return found
    format, own = (suggest_memory_format(tensor) for tensor in (x, weight))
    if format == torch.contiguous_format:
        format = own
    with fake_mode:
        if isinstance(found, torch.Tensor):
            return found.contiguous(memory_format=format)
        # A gradient of the weight as the weight lies: what autograd wants of it.
        into_x, into_weight, into_bias = found
        return (
            into_x if into_x is None else into_x.contiguous(memory_format=format),
            into_weight if into_weight is None else into_weight.contiguous(memory_format=own),
            into_bias,
        )
