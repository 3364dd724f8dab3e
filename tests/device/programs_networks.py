"""Programs that train: layers, losses, autograd, optimizers, mixed precision."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from tests.device.device_programs import agree, close, numbers, program

F = nn.functional


def train(
    device: str, model: nn.Module, inputs: torch.Tensor, optimizer: Callable[..., torch.optim.Optimizer], steps: int = 1
) -> None:
    """The same steps on CPU and device, from the same weights: losses, gradients, weights and buffers agree."""
    here, there = copy.deepcopy(model), copy.deepcopy(model).to(device)
    results = []
    for network, data in ((here, inputs), (there, inputs.to(device))):
        descent, losses = optimizer(network.parameters()), []
        for _ in range(steps):
            descent.zero_grad()
            output = network(data)
            output = output[0] if isinstance(output, tuple) else output
            loss = (output * torch.linspace(-1, 1, output.shape[-1], device=data.device)).square().mean()
            loss.backward()
            descent.step()
            losses.append(loss.detach())
        gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
        results.append((losses, gradients, dict(network.state_dict())))
    for actual, expected in zip(results[1], results[0]):
        names = expected if isinstance(expected, dict) else range(len(expected))
        for name in names:
            torch.testing.assert_close(
                actual[name].detach().cpu(),
                expected[name].detach(),
                rtol=2e-4,
                atol=2e-5,
                msg=lambda m, n=name: f"{n}: {m}",
            )
            assert actual[name].device == torch.device(device), name


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@program
def convolutions(device: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3, groups=2), nn.GroupNorm(2, 4),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 5),
    )  # fmt: skip
    train(device, model, numbers(4, 3, 8, 8), sgd, steps=2)
    train(device, model, numbers(4, 3, 8, 8).to(memory_format=torch.channels_last), sgd)
    upward = nn.Sequential(nn.ConvTranspose2d(2, 3, 2, stride=2), nn.InstanceNorm2d(3), nn.Upsample(scale_factor=2))
    train(device, upward, numbers(2, 2, 3, 3), sgd)
    train(device, nn.Sequential(nn.Conv1d(2, 3, 2, dilation=2), nn.AdaptiveAvgPool1d(2)), numbers(2, 2, 7), sgd)
    train(device, nn.Sequential(nn.Conv3d(1, 2, 2), nn.MaxPool3d(2)), numbers(1, 1, 4, 4, 4), sgd)


@program
def batch_norm(device: str) -> None:
    """A training step updates the running statistics, which evaluation then uses."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5), nn.BatchNorm1d(5)
    )
    train(device, model, numbers(4, 3, 5, 5), sgd, steps=2)
    train(device, nn.InstanceNorm1d(3, affine=True, track_running_stats=True), numbers(2, 3, 4), sgd)
    model(numbers(4, 3, 5, 5))
    model.eval()
    close(copy.deepcopy(model).to(device)(numbers(2, 3, 5, 5).to(device)), model(numbers(2, 3, 5, 5)), device, False)

    def out(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> tuple[object, ...]:
        made = torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)
        updated = torch.batch_norm_update_stats(x, mean, var, 0.1)
        legit = torch._native_batch_norm_legit(x, None, None, mean, var, True, 0.1, 1e-5)
        return made, updated, legit, mean, var

    agree(device, out, numbers(4, 3, 5), torch.zeros(3), torch.ones(3), exact=False)


@program
def recurrent_networks(device: str) -> None:
    torch.manual_seed(0)
    train(device, nn.LSTM(4, 5, 2, bidirectional=True), numbers(3, 2, 4), sgd)
    train(device, nn.GRU(4, 5, batch_first=True), numbers(2, 3, 4), sgd)
    cell, x = nn.LSTMCell(4, 5), numbers(2, 4)
    close(copy.deepcopy(cell).to(device)(x.to(device)), cell(x), device, False)
    packed = nn.utils.rnn.pack_padded_sequence(numbers(3, 2, 4), torch.tensor([3, 2]))
    recurrent = nn.LSTM(4, 5)
    close(copy.deepcopy(recurrent).to(device)(packed.to(device))[1], recurrent(packed)[1], device, False)


@program
def attention(device: str) -> None:
    torch.manual_seed(0)
    train(device, nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True), numbers(2, 5, 8), sgd)

    def attend(q: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        plain = F.scaled_dot_product_attention(q, q, q)
        causal = F.scaled_dot_product_attention(q, q, q, is_causal=True)
        masked = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        (plain.sum() + (causal * masked).sum()).backward()
        return plain, causal, masked, q.grad

    agree(device, attend, numbers(2, 2, 4, 8).requires_grad_(), torch.ones(4, 4).tril().bool(), exact=False)
    multi = nn.MultiheadAttention(8, 2)
    x = numbers(4, 2, 8)
    close(copy.deepcopy(multi).to(device)(*[x.to(device)] * 3), multi(x, x, x), device, False)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True).eval()
    with torch.no_grad():
        close(copy.deepcopy(encoder).to(device)(numbers(2, 5, 8).to(device)), encoder(numbers(2, 5, 8)), device, False)


@program
def embeddings(device: str) -> None:
    words = torch.tensor([[1, 4, 1], [0, 2, 4]])

    def embed(weight: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor, ...]:
        plain = F.embedding(words, weight, padding_idx=0)
        bags = (
            F.embedding_bag(words, weight, mode="sum"),
            F.embedding_bag(words.view(-1), weight, torch.tensor([0, 2], device=words.device)),
        )
        (plain.square().sum() + bags[0].square().sum() + bags[1].sum()).backward()
        return plain, *bags, weight.grad

    agree(device, embed, numbers(6, 3).requires_grad_(), words, exact=False)


@program
def losses(device: str) -> None:
    x, labels = numbers(4, 5), torch.tensor([0, 2, 4, 1])
    functions = {
        "cross_entropy": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
        "nll_loss": lambda x, y: F.nll_loss(x.log_softmax(1), y),
        "mse_loss": lambda x, y: F.mse_loss(x[:, 0], y.float()),
        "bce": lambda x, y: F.binary_cross_entropy_with_logits(x[:, 1], (y > 1).float()),
        "smooth_l1": lambda x, y: F.smooth_l1_loss(x[:, 0], y.float()),
        "kl_div": lambda x, y: F.kl_div(x.log_softmax(1), x.softmax(1).detach().flip(0), reduction="batchmean"),
        "multi_margin": lambda x, y: F.multi_margin_loss(x, y),
        "cosine": lambda x, y: F.cosine_embedding_loss(x, x.flip(1), (y > 1).float() * 2 - 1),
        "ctc": lambda x, y: F.ctc_loss(x.log_softmax(1)[:, None], y[None, 1:3], (4,), (2,)),
        "huber": lambda x, y: F.huber_loss(x[:, 0], y.float()),
    }
    for name, function in functions.items():

        def run(x: torch.Tensor, y: torch.Tensor, function=function) -> tuple[torch.Tensor, torch.Tensor]:
            loss = function(x, y)
            loss.backward()
            return loss, x.grad

        agree(device, run, x.clone().requires_grad_(), labels, exact=False, what=name)


@program
def autograd(device: str) -> None:
    def twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        first.sum().backward()
        return first, x.grad

    agree(device, twice, numbers(4).requires_grad_(), exact=False)

    def through_views(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[1:3].mul_(2)
        y.t()[0].add_(y[0, 0].detach().clone())  # what it adds must not be what it writes
        torch.cat([y[::2], y.t()[:1, :4].expand(2, 4)]).square().sum().backward()
        return x.grad

    agree(device, through_views, numbers(4, 4).requires_grad_(), exact=False)

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            (x,) = ctx.saved_tensors
            return gradient * 3 * x**2

    def custom(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        seen: list[torch.Tensor] = []
        x.register_hook(lambda gradient: seen.append(gradient.clone()))
        Cube.apply(x).sum().backward()
        return x.grad, seen

    agree(device, custom, numbers(4).requires_grad_(), exact=False)

    def accumulated_and_checkpointed(x: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        for _ in range(2):
            checkpoint(lambda t: (t.sin() * t).sum(), x, use_reentrant=False).backward()
        return x.grad

    agree(device, accumulated_and_checkpointed, numbers(5).requires_grad_(), exact=False)
    agree(device, lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),)), numbers(4), exact=False)
    agree(device, lambda x: torch.func.vmap(torch.func.grad(lambda r: r.square().sum()))(x), numbers(3, 4), exact=False)
    x = numbers(2, 3).double().to(device).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: (x.exp() @ x.t()).tanh(), x)


@program
def optimizers(device: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)), numbers(5, 4)
    for way in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        train(
            device, model, x, lambda p, way=way: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, **way), steps=2
        )
        train(device, model, x, lambda p, way=way: torch.optim.AdamW(p, lr=0.01, **way), steps=2)
    train(device, model, x, lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True), steps=2)
    train(device, model, x, lambda p: torch.optim.RMSprop(p, lr=0.01), steps=2)
    train(device, model, x, lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, capturable=False), steps=2)

    there = copy.deepcopy(model).to(device)
    adam = torch.optim.AdamW(there.parameters(), fused=True)
    there(x.to(device)).sum().backward()
    adam.step()
    again = torch.optim.AdamW(there.parameters(), fused=True)
    again.load_state_dict(adam.state_dict())
    state = again.state[there[0].weight]
    assert state["exp_avg"].device == torch.device(device)
    total = nn.utils.clip_grad_norm_(there.parameters(), 0.5)
    assert total.device == torch.device(device)
    assert bool(torch.isfinite(total))


@program
def mixed_precision(device: str) -> None:
    torch.manual_seed(0)
    kind = torch.device(device).type
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    x, y = numbers(6, 8), torch.tensor([0, 1, 2, 3, 0, 1])
    for dtype in (torch.bfloat16, torch.float16):
        here, there = copy.deepcopy(model), copy.deepcopy(model).to(device)
        scaler = torch.amp.GradScaler(kind, init_scale=256.0)
        descent = torch.optim.SGD(there.parameters(), lr=0.1)
        before = [parameter.detach().cpu().clone() for parameter in there.parameters()]
        with torch.autocast(kind, dtype=dtype):
            hidden = there[0](x.to(device))
            output = there(x.to(device))
            loss = F.cross_entropy(output, y.to(device))
        assert (hidden.dtype, output.dtype, loss.dtype) == (dtype, dtype, torch.float32)
        scaler.scale(loss).backward()
        scaler.unscale_(descent)
        scaler.step(descent)
        scaler.update()
        expected = F.cross_entropy(here(x), y)
        expected.backward()
        assert abs(loss.item() - expected.item()) < 2e-2
        for parameter, reference, old in zip(there.parameters(), here.parameters(), before):
            torch.testing.assert_close(parameter.grad.cpu(), reference.grad, rtol=0.1, atol=0.02)
            assert not torch.equal(parameter.detach().cpu(), old), "the step changed the weights"
        descent.zero_grad()
        scaler.scale(there(x.to(device)).sum() * float("inf")).backward()
        scaler.step(descent)
        scaler.update()
        assert scaler.get_scale() == 128.0, "infinite gradients halve the scale"
