"""Types, shapes and strides of results, and what is refused, on compiled kernels: as on the CPU."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bringup.kit.op_compare import is_as_exact
from tests.device.device_programs import both_refuse
from tests.device.kernel_programs import DEVICE, agree, close, lenient, moved, plain, same_message, strict


def form(results: Any) -> list[tuple[Any, ...]]:
    return [(t.dtype, tuple(t.shape), t.stride()) for t in results]


@strict
def statistics_of_batch_norm() -> None:
    """Halves: the CPU rounds between the steps, so ours must be as close to the float64 result as its own are."""
    layouts = {
        "contiguous": plain(4, 3, 5, 6),
        "channels last": plain(4, 3, 5, 6).to(memory_format=torch.channels_last),
        "channels last with gaps": plain(4, 3, 5, 12).to(memory_format=torch.channels_last)[..., ::2],
        "permuted": plain(5, 3, 4, 6).permute(2, 1, 0, 3),
        "no space": plain(7, 3),
    }
    halves = (torch.float16, torch.bfloat16)
    types = [(t, t) for t in (torch.float32, torch.float64, *halves)]
    types += [(half, torch.float32) for half in halves] + [(half, None) for half in halves]
    for (dtype, of_parameters), (name, values), training in product(types, layouts.items(), (True, False)):
        if of_parameters is None and not training:
            continue
        given = [None if of_parameters is None else plain(3, seed=s).abs().to(of_parameters) for s in range(4)]
        x = torch.empty_strided(values.shape, values.stride(), dtype=dtype).copy_(values)
        wide = [None if t is None else t.double() for t in (x, *given)]
        sides = []
        for inputs in ((x, *given), moved((x, *given), DEVICE), wide):
            inputs = [None if t is None else t.clone() for t in inputs]
            results = torch.native_batch_norm(*inputs, training, 0.3, 1e-3)
            sides.append([*results, *(t for t in inputs if t is not None)])  # also the running statistics
        expected, found, exact = sides
        what = f"{dtype}, {of_parameters}, {name}, {'training' if training else 'evaluation'}"
        assert form(found) == form(expected), (what, form(found), form(expected))
        if dtype in halves:
            assert is_as_exact(expected, found, exact), what
        else:
            for ours, theirs in zip(found, expected):
                close(ours, theirs, what)


@strict
def batch_norm_of_halves_trains() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        results = []
        for device in ("cpu", DEVICE):
            layer = nn.BatchNorm2d(3).to(device, dtype)
            x = plain(4, 3, 5, 6).to(device, dtype).requires_grad_()
            y = layer(x)
            y.backward(plain(4, 3, 5, 6, seed=1).to(device, dtype))
            layer.eval()
            results.append([layer(x).detach(), x.grad, layer.weight.grad, layer.bias.grad, *layer.buffers()])
        for expected, found in zip(*results):
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found.cpu().float(), expected.float(), rtol=0.05, atol=0.05)


@strict
def batch_norm_refuses() -> None:
    x, three = plain(4, 3), plain(3).abs()
    same_message(lambda t: torch.native_batch_norm(t[:0], None, None, None, None, True, 0.1, 1e-5), x)
    for call in (
        lambda t, p: torch.native_batch_norm(p, None, None, None, None, True, 0.1, 1e-5),
        lambda t, p: torch.native_batch_norm(t.half(), p.half(), None, p, p, True, 0.1, 1e-5),
        lambda t, p: torch.native_batch_norm(t, p.half(), None, None, None, True, 0.1, 1e-5),
        lambda t, p: torch.native_batch_norm(t.long(), None, None, None, None, True, 0.1, 1e-5),
    ):
        both_refuse(DEVICE, call, x, three)


@strict
def unpooling_keeps_the_format() -> None:
    x = plain(2, 3, 4, 6)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        pooled, places = functional.max_pool2d(x.contiguous(memory_format=memory_format), 2, return_indices=True)
        agree(lambda t, i: functional.max_unpool2d(t, i, 2), pooled, places, strides=True)


@strict
def elements_of_tensors_that_are_not_contiguous_are_taken() -> None:
    x, index = plain(4, 1, 3, 2), torch.tensor([[0, 5, -1], [11, -12, 7]])
    views = (lambda t: t.permute(3, 1, 0, 2), lambda t: t[::2], lambda t: t[..., 0], lambda t: t.expand(4, 5, 3, 2))
    for view in views:
        agree(lambda t, i, view=view: torch.take(view(t), i), x, index)


@strict
def what_overlaps_is_refused_by_index_ops() -> None:
    x, index, mask = plain(8, 4), torch.zeros(8, 4, dtype=torch.long), torch.ones(8, 4, dtype=torch.bool)
    calls = [
        lambda t, i, m: torch.cat([t[:4], t[2:6]], out=t),
        lambda t, i, m: torch.stack([t[:4], t[2:6]], out=t.view(2, 4, 4)),
        lambda t, i, m: torch.take(t, i, out=t),
        lambda t, i, m: torch.gather(t[1:], 0, i[1:], out=t[:7]),
        lambda t, i, m: torch.gather(i, 0, i, out=i),
        lambda t, i, m: torch.index_select(t, 0, i[:, 0], out=t),
        lambda t, i, m: t.index_put_((i[:, 0],), t),
        lambda t, i, m: t.put_(i, t),
        lambda t, i, m: i.index_fill_(0, i[0], 1),
        lambda t, i, m: t.index_add_(0, i[:, 0].clone(), t),
        lambda t, i, m: t.scatter_(0, i, t),
        lambda t, i, m: torch.masked_select(t, m, out=t.view(-1)),
        lambda t, i, m: torch.masked_select(t, m, out=t[0, :1].expand(32)),
    ]
    for call in calls:
        for _ in range(2):  # a new signature, and a known one
            same_message(call, x, index, mask)
    agree(lambda t, i: torch.take(t, i, out=torch.empty(0, device=t.device)), x, index)
    agree(lambda t, i: torch.scatter(t, 0, i, t.clone(), out=t), x, index)  # what is read first may be written


@strict
def refused_without_a_meta_kernel_in_cpp() -> None:
    x, words = plain(3, 4), torch.tensor([0, 1])
    same_message(lambda t, i: functional.embedding(i, t[0]), x, words)
    same_message(lambda t: torch.bucketize(t, t), x)
    same_message(lambda t: torch.bucketize(1.5, t), x)
    same_message(lambda t: torch.multinomial(t.abs(), 0), x)
    same_message(lambda t: torch.multinomial(t[None].abs(), 1), x)
    for call in (
        lambda t, i: functional.embedding(t, t),
        lambda t, i: functional.embedding(i.short(), t),
        lambda t, i: t.masked_scatter(t, t),
        lambda t, i: torch.multinomial(t.abs(), 1, out=torch.empty(0, device=t.device)),
        lambda t, i: torch.native_layer_norm(t, [4], None, None, 1e-5)[0].long().multinomial(1),
    ):
        both_refuse(DEVICE, call, x, words)
    agree(lambda t, i: functional.embedding(i, t), x, words)
    agree(lambda t: torch.bucketize(t, t[0].sort().values, out_int32=True), x)
    agree(lambda t: torch.bucketize(0.5, t[0].sort().values), x)


@strict
def values_put_by_index() -> None:
    x, index = plain(3, 4), torch.tensor([0, 1])
    same_message(lambda t, i: t.index_put_((i,), t[0, :2].clone()), x, index)
    same_message(lambda t, i: t.index_put_((i,), t.clone()[None]), x, index)
    both_refuse(DEVICE, lambda t, i: t.index_put_((i,), t.double()[0]), x, index)
    for value in (torch.tensor(2.5), 3.5):  # a number of the CPU stays there
        for accumulate in (False, True):
            number = torch.as_tensor(value)
            agree(lambda t, i, n=number, a=accumulate: t.clone().index_put_((i,), n, a), x, index)
    agree(lambda t, i: torch.ops.aten.index_put(t, [None, i], t[:, :1]), x, index)


@strict
def indices_of_another_kind() -> None:
    """PyTorch's meta kernels let these pass."""
    x, index = plain(3, 4), torch.tensor([0, 1])
    same_message(lambda t, i: t.index_fill_(0, i.float(), 1.0), x, index)
    same_message(lambda t, i: t.index_fill_(0, i[None], 1.0), x, index)
    same_message(lambda t, i: t.index_select(0, i.float()), x, index)
    same_message(lambda t: t.renorm(2, 5, 1.0), x)
    for call in (
        lambda t, i: t.put_(i, t.clone()),
        lambda t, i: t.put_(i, i.clone()),
        lambda t, i: t.put_(i.int(), t[0, :2].clone()),
    ):
        both_refuse(DEVICE, call, x, index)
    agree(lambda t, i: t.index_select(0, i.int()), x, index)
    agree(lambda t, i: t.put_(i, t[0, 1:3].clone()), x, index)


@strict
def extrema_of_nothing() -> None:
    for dtype in (torch.float32, torch.int64):
        same_message(lambda t: t.max(), torch.zeros(0, dtype=dtype))
        same_message(lambda t: t.min(), torch.zeros(2, 0, dtype=dtype))
        same_message(lambda t: t.amax(), torch.zeros(0, dtype=dtype))
        agree(lambda t: t.amax(0), torch.zeros(3, 0, dtype=dtype))


@strict
def integers_through_dropouts_gradient() -> None:
    mask = torch.tensor([True, False, True])
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float16):
        gradient = torch.tensor([1, 1, 0]).to(dtype)
        agree(lambda g, m: torch.ops.aten.native_dropout_backward(g, m, 1.5), gradient, mask)


@lenient
def composites_of_complex_numbers() -> None:
    x = plain(3, 3, dtype=torch.complex64)
    agree(lambda t: t.clone().conj_physical_(), x)
    agree(lambda t: torch.conj_physical(t, out=torch.empty_like(t)), x)
    agree(lambda t: torch.mv(t, t[0]), x)
