"""Programs on compiled kernels, op by op, against the CPU: what must work without fallback, forward and backward."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.device.kernel_programs import DEVICE, agree, close, leaf, plain, strict


@strict
def sorting() -> None:
    x = leaf(5, 33)
    for dim, descending in itertools.product((0, 1, -1), (False, True)):
        agree(lambda t, d=dim, r=descending: torch.sort(t, dim=d, descending=r), x)
    whole = torch.randint(0, 4, (7, 40))
    for descending in (False, True):
        agree(lambda t, r=descending: torch.sort(t, stable=True, descending=r), whole)
    nans = plain(3, 9)
    nans[:, 4] = math.nan
    agree(torch.sort, nans)
    agree(torch.argsort, plain(100))
    agree(lambda t: torch.sort(t)[0], plain(3000))


@strict
def topk() -> None:
    for k, largest in ((1, True), (4, False), (33, True)):
        agree(lambda t, k=k, largest=largest: torch.topk(t, k, largest=largest), leaf(5, 33))
    agree(lambda t: torch.topk(t, 3, dim=0), leaf(33, 5))
    agree(lambda t: torch.kthvalue(t, 3), leaf(5, 33))
    agree(lambda t: torch.median(t, 1), leaf(5, 33))


@strict
def scans() -> None:
    for op in (torch.cumsum, torch.cumprod, torch.cummax, torch.cummin, torch.logcumsumexp):
        for dim in (0, 1):
            agree(lambda t, op=op, dim=dim: op(t, dim), leaf(9, 70))
    agree(lambda t: t.cumsum(0), torch.arange(-5, 6))
    nans = plain(8)
    nans[3] = math.nan
    agree(lambda t: torch.cummax(t, 0), nans)


@strict
def index_put_with_duplicates() -> None:
    rows, columns = torch.tensor([0, 2, 0, 0, -1]), torch.tensor([1, 1, 1, 3, 0])

    def accumulate(x: torch.Tensor, values: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return x.index_put((i, j), values, accumulate=True)

    agree(accumulate, leaf(4, 5), leaf(5, seed=2), rows, columns)
    agree(lambda x, v, i: x.index_put((i,), v, accumulate=True), leaf(4, 5), leaf(5, 5, seed=2), rows)
    agree(lambda x, v, i: x.index_put((i,), v), leaf(4, 5), leaf(5, seed=2), torch.tensor([1, 3]))
    agree(lambda x, v, i: x.index_add(0, i, v, alpha=2), leaf(4, 5), leaf(5, 5, seed=2), rows.clamp(0))
    agree(lambda x, i, j: x[i, :, j], leaf(4, 3, 5), rows, columns)


@strict
def scatter_reduce() -> None:
    index = torch.tensor([[0, 1, 0, 2], [2, 2, 2, 2], [1, 0, 1, 1]])
    for reduce, include in itertools.product(("sum", "prod", "mean", "amax", "amin"), (True, False)):

        def scattered(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor, r: str = reduce, s: bool = include) -> Any:
            return x.scatter_reduce(1, i, v, r, include_self=s)

        agree(scattered, leaf(3, 4), index, leaf(3, 4, seed=3))
    agree(lambda x, i, v: x.scatter_add(0, i.clamp(0, 2), v), leaf(3, 4), index, leaf(3, 4, seed=3))
    agree(lambda x, i, v: x.scatter(1, i, v), plain(3, 3), index[:, :1], plain(3, 1))
    agree(lambda x, i: x.gather(1, i), leaf(3, 4), index)


@strict
def embedding() -> None:
    index = torch.tensor([[1, 5, 5, 2], [0, 5, 3, 3]])
    for padding in (None, 5):
        agree(lambda w, i, p=padding: functional.embedding(i, w, padding_idx=p), leaf(7, 6), index)
    agree(lambda w, i: functional.embedding(i, w, scale_grad_by_freq=True), leaf(7, 6), index)
    agree(lambda w, i: functional.embedding(i, w), leaf(7, 6), index.int())


@strict
def masks_and_nonzero() -> None:
    x, mask = leaf(5, 7), plain(5, 7, seed=4) > 0.3
    agree(torch.nonzero, mask)
    agree(lambda m: torch.nonzero(m, as_tuple=True), mask)
    agree(torch.nonzero, torch.zeros(3, 4))
    agree(torch.masked_select, x, mask)
    agree(lambda t, m: t[m], x, mask)
    agree(lambda t, m: t[m[:, 0]], x, mask)
    agree(lambda t, m: t.masked_fill(m, -1.5), x, mask)
    agree(lambda t, m: t.masked_scatter(m, t.flip(0)), x, mask)

    def assign(t: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        t = t.clone()
        t[m] = 0.5
        return t

    agree(assign, x, mask)


@strict
def draws() -> None:
    p = torch.tensor([[0.1, 0.0, 0.6, 0.3]]).to(DEVICE)
    torch.manual_seed(3)
    drawn = torch.multinomial(p.expand(2, 4), 20_000, replacement=True).cpu()
    share = torch.bincount(drawn.flatten(), minlength=4) / drawn.numel()
    assert (share - torch.tensor([0.1, 0.0, 0.6, 0.3])).abs().max() < 0.02, share
    assert sorted(torch.multinomial(p, 3).cpu()[0].tolist()) == [0, 2, 3]
    assert torch.randperm(1000, device=DEVICE).cpu().sort()[0].equal(torch.arange(1000))
    dropped = functional.dropout(torch.ones(10_000, device=DEVICE), 0.25)
    assert set(dropped.unique().tolist()) <= {0.0, 1 / 0.75} or abs(dropped.max().item() - 1 / 0.75) < 1e-6
    assert abs((dropped == 0).float().mean().item() - 0.25) < 0.03


@strict
def attention() -> None:
    q, k, v = (leaf(2, 3, 9, 8, seed=s) for s in range(3))
    attend = functional.scaled_dot_product_attention
    agree(attend, q, k, v)
    agree(lambda *t: attend(*t, is_causal=True), q, k, v)
    agree(lambda a, b, c, m: attend(a, b, c, m), q, k, v, plain(9, 9, seed=9) > -0.5)
    agree(lambda a, b, c, m: attend(a, b, c, m), q, k, v, plain(2, 1, 9, 9, seed=9))
    # Dropout: the identity as values shows which weights were dropped; the gradient drops the same.
    torch.manual_seed(5)
    here = [t.detach().to(DEVICE).requires_grad_() for t in (q, k)]
    eye = torch.eye(9).expand(2, 3, 9, 9).contiguous().to(DEVICE).requires_grad_()
    weights = attend(*here, eye, dropout_p=0.5)
    weights.sum().backward()
    kept = (weights != 0).float().mean().item()
    assert 0.35 < kept < 0.65, kept
    torch.testing.assert_close(eye.grad.cpu()[..., 0], weights.detach().cpu().sum(-2), rtol=1e-4, atol=1e-5)


@strict
def max_pooling() -> None:
    settings: list[dict[str, Any]] = [{}, {"stride": 1, "padding": 1}, {"dilation": 2, "ceil_mode": True}]
    for dims, options in [*itertools.product((1, 2), settings), (3, settings[1])]:
        pool = getattr(functional, f"max_pool{dims}d")

        def pooled(t: torch.Tensor, pool: Any = pool, options: dict[str, Any] = options) -> Any:
            return pool(t, 3, return_indices=True, **options)

        agree(pooled, leaf(2, 3, *[9] * dims))

    def there_and_back(t: torch.Tensor) -> torch.Tensor:
        return functional.max_unpool2d(*functional.max_pool2d(t, 2, return_indices=True), 2)

    agree(there_and_back, leaf(2, 3, 8, 8))
    agree(lambda t: functional.adaptive_max_pool2d(t, 3, return_indices=True), leaf(2, 3, 8, 7))
    agree(lambda t: functional.avg_pool2d(t, 3, 2, 1), leaf(2, 3, 8, 7))


@strict
def transposed_convolution() -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"dilation": 2},
        {"groups": 2},
    ]
    for dims, options in [*itertools.product((1, 2), settings), (3, settings[1])]:
        convolve = getattr(functional, f"conv_transpose{dims}d")
        weight = leaf(4, 6 // options.get("groups", 1), *[3] * dims, seed=1)

        def convolved(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, c: Any = convolve, o: Any = options) -> Any:
            return c(x, w, b, **o)

        agree(convolved, leaf(2, 4, *[5] * dims), weight, leaf(6, seed=2))


@strict
def convolution_of_many_images() -> None:
    """The gradient of the weight is made in parts of the batch, and put together."""
    for batch, groups, last in ((8, 1, False), (16, 2, True), (9, 1, True)):
        form = torch.channels_last if last else torch.contiguous_format
        x = plain(batch, 4, 6, 5).to(memory_format=form).requires_grad_()
        w = plain(6, 4 // groups, 3, 3, seed=1).to(memory_format=form).requires_grad_()
        agree(lambda a, b, g=groups: functional.conv2d(a, b, padding=1, groups=g), x, w, strides=True)


def modules_agree(make: Callable[[], nn.Module], *inputs: torch.Tensor) -> None:
    """The same module on both sides: outputs, gradients, buffers."""
    torch.manual_seed(0)
    here = make()
    there = copy.deepcopy(here).to(DEVICE)
    agree(lambda *t: (here if t[0].device.type == "cpu" else there)(*t), *inputs)
    for (name, a), b in zip(there.named_parameters(), here.parameters()):
        close(a.grad, b.grad, f"gradient of {name}")
    for (name, a), b in zip(there.named_buffers(), here.buffers()):
        close(a, b, name)


@strict
def batch_norm_training() -> None:
    modules_agree(lambda: nn.BatchNorm1d(5), leaf(6, 5))
    modules_agree(lambda: nn.BatchNorm2d(5), leaf(4, 5, 6, 7))
    modules_agree(
        lambda: nn.BatchNorm2d(5, momentum=None),
        plain(4, 5, 6, 7).to(memory_format=torch.channels_last).requires_grad_(),
    )
    modules_agree(lambda: nn.SyncBatchNorm(5).eval(), leaf(4, 5, 6, 7))
    modules_agree(lambda: nn.GroupNorm(2, 4), leaf(3, 4, 5))
    modules_agree(lambda: nn.LayerNorm(5), leaf(3, 4, 5))


@strict
def recurrent_layers() -> None:
    modules_agree(lambda: nn.LSTM(5, 7, 2, bidirectional=True), leaf(6, 3, 5))
    modules_agree(lambda: nn.LSTM(5, 7, proj_size=4), leaf(6, 3, 5))
    modules_agree(lambda: nn.GRU(5, 7), leaf(6, 3, 5))
    modules_agree(lambda: nn.RNN(5, 7), leaf(6, 3, 5))


@strict
def transformer_layers_in_eval() -> None:
    """PyTorch calls one op for a whole layer there."""
    padded = torch.zeros(3, 6, dtype=torch.bool)
    padded[1, 4:] = True
    for first, activation in ((True, "gelu"), (False, "relu")):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=first, activation=activation, batch_first=True).eval()
        there = copy.deepcopy(layer).to(DEVICE)
        x = plain(3, 6, 8)
        mask = nn.Transformer.generate_square_subsequent_mask(6)
        with torch.no_grad():
            for options in ({}, {"src_mask": mask}, {"src_key_padding_mask": padded}):
                moved_options = {name: value.to(DEVICE) for name, value in options.items()}
                seen = ~padded if "src_key_padding_mask" in options else slice(None)
                found, expected = there(x.to(DEVICE), **moved_options), layer(x, **options)
                close(found[seen.to(DEVICE) if isinstance(seen, torch.Tensor) else seen], expected[seen], str(options))
            attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
            for average in (True, False):
                there_too = copy.deepcopy(attention).to(DEVICE)
                found = there_too(*[x.to(DEVICE)] * 3, average_attn_weights=average)
                for a, b in zip(found, attention(x, x, x, average_attn_weights=average)):
                    close(a, b, f"attention, {average}")
            encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
            there = copy.deepcopy(encoder).to(DEVICE)  # type: ignore[assignment]
            found = there(x.to(DEVICE), src_key_padding_mask=padded.to(DEVICE))
            expected = encoder(x, src_key_padding_mask=padded)  # by a nested tensor, with zeros where padding was
            close(found[~padded.to(DEVICE)], expected[~padded], "encoder")


@strict
def upsampling() -> None:
    cases = [
        ("nearest", 1, {}),
        ("nearest", 2, {}),
        ("nearest-exact", 2, {}),
        ("linear", 1, {"align_corners": True}),
        ("bilinear", 2, {}),
        ("bilinear", 2, {"align_corners": True}),
        ("bilinear", 2, {"antialias": True}),
        ("bicubic", 2, {}),
        ("trilinear", 3, {}),
    ]
    for mode, dims, options in cases:

        def up(t: torch.Tensor, m: str = mode, o: dict[str, bool] = options) -> torch.Tensor:
            return functional.interpolate(t, scale_factor=1.7, mode=m, **o)

        agree(up, leaf(2, 3, *[5] * dims))


@strict
def optimizers() -> None:
    """Every form of an optimizer takes the steps that the CPU takes with plain loops."""
    makers: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adamw": lambda p, **form: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1, amsgrad=True, **form),
        "adam": lambda p, **form: torch.optim.Adam(p, lr=1e-2, maximize=True, **form),
        "sgd": lambda p, **form: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1, **form),
    }
    start, steps = [plain(5, 3), plain(4), plain()], 4

    def taken(make: Callable[..., torch.optim.Optimizer], device: str, **form: bool) -> list[torch.Tensor]:
        parameters = [nn.Parameter(t.to(device, copy=True)) for t in start]
        update = make(parameters, **form)
        for step in range(steps):
            for n, parameter in enumerate(parameters):
                parameter.grad = plain(*parameter.shape, seed=10 * step + n).to(device)
            update.step()
        return [p.detach().cpu() for p in parameters]

    for name, make in makers.items():
        expected = taken(make, "cpu", fused=False, foreach=False)
        for form in ({"foreach": True}, {"fused": True}, {"foreach": False, "fused": False}):
            for a, b in zip(taken(make, DEVICE, **form), expected):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=lambda m, n=name, f=form: f"{n} {f}: {m}")
    parameters = [nn.Parameter(t.to(DEVICE)) for t in start]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    norm = nn.utils.clip_grad_norm_(parameters, 1.0)
    torch.testing.assert_close(norm.cpu(), torch.tensor(math.sqrt(20)))
