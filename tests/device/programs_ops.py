"""Programs about ops: arithmetic, reductions, linear algebra, indexing, sorting, sparse tensors."""

from __future__ import annotations

import torch

from tests.device.device_programs import agree, both_refuse, identical, numbers, program


@program
def broadcasting_and_promotion(device: str) -> None:
    a, b, c = numbers(3, 1, 4), numbers(5, 1, seed=1), numbers(1, dtype=torch.int64)
    agree(device, lambda a, b, c: (a + b, a * c, b - 2, 3 / (a + 1), a + 1j, (a > b) | (a < c), a // 2, b % 3), a, b, c)
    agree(
        device, lambda a: (a + torch.tensor(2.0), torch.tensor(3) * a, a.half() + torch.tensor(1.0)), a
    )  # CPU numbers
    agree(device, lambda c: (c + 1.5, c / 2, c**2, c.float() ** 0.5, c & 3), c)
    agree(device, lambda a: torch.where(a > 1, a, 0.0), a)
    agree(device, lambda a, b: torch.maximum(a, b), a, b)
    both_refuse(device, lambda a, b: a + b, a, numbers(7))
    agree(device, lambda a: torch.result_type(a, 1) == torch.float32, a)


@program
def pointwise(device: str) -> None:
    for name in "exp log sqrt sin tanh sigmoid erf abs neg round floor reciprocal lgamma isnan sign expm1".split():
        function = getattr(torch, name)
        agree(device, lambda x, f=function: f(x), numbers(5, 7), exact=False, what=name)
        agree(device, lambda x, f=function: f(x.t()[::2]), numbers(5, 7), exact=False, what=f"{name} of a view")
    nn = torch.nn.functional
    for function in (nn.gelu, nn.silu, nn.softplus, nn.hardswish, nn.leaky_relu, nn.elu, nn.mish):
        agree(device, lambda x, f=function: f(x - 2), numbers(4, 9), exact=False)
    agree(device, lambda x: x.to(torch.bfloat16).exp().float(), numbers(33), exact=False)


@program
def reductions(device: str) -> None:
    x = numbers(4, 5, 6)
    for name in "sum mean prod amax amin var std logsumexp argmax argmin all any".split():
        function = getattr(torch, name)
        agree(device, lambda x, f=function: f(x, 1), x, exact=False, what=name)
        agree(device, lambda x, f=function: f(x.transpose(0, 2)[1:], 0, keepdim=True), x, exact=False, what=name)
    agree(device, lambda x: (x.sum(), x.mean(), x.max(), x.min(), x.std(), x.norm(), x.median()), x, exact=False)
    agree(device, lambda x: (x.sum((0, 2)), x.max(1), x.cummax(2), x.cumprod(0), x.softmax(-1)), x, exact=False)
    agree(
        device, lambda x: (x.sum(dtype=torch.float64), x.bool().sum(), x.int().sum(1), x.half().sum(2)), x, exact=False
    )
    agree(device, lambda x: (torch.aminmax(x), x.mode(1), x.quantile(0.3), x.count_nonzero(1)), x, exact=False)


@program
def matrix_products(device: str) -> None:
    a, b, batch = numbers(4, 5), numbers(5, 3, seed=1), numbers(2, 3, 4)
    agree(
        device,
        lambda a, b: (a @ b, a.t().mm(a), b.t() @ a.t(), a @ b[:, 0], torch.outer(a[0], b[0])),
        a,
        b,
        exact=False,
    )
    agree(
        device,
        lambda a, b, c: (torch.addmm(c, a, b), torch.addmv(c[:, 0], a, b[:, 0])),
        a,
        b,
        numbers(4, 3),
        exact=False,
    )
    agree(device, lambda x: (x @ x.mT, torch.bmm(x, x.mT), torch.einsum("bij,bkj->bik", x, x)), batch, exact=False)
    agree(device, lambda a, b: a.double() @ b.double(), a, b, exact=False)
    agree(device, lambda a, b: (a.int() @ b.int(), a.bfloat16() @ b.bfloat16()), a, b, exact=False)
    square = numbers(4, 4) + 4 * torch.eye(4)
    agree(device, lambda m: (m.inverse(), torch.linalg.det(m), torch.linalg.solve(m, m[0])), square, exact=False)
    agree(device, lambda m: (torch.linalg.svdvals(m), torch.linalg.cholesky(m @ m.mT), m.trace()), square, exact=False)
    agree(device, lambda x: (torch.fft.rfft(x), torch.fft.ifft2(x)), numbers(4, 8), exact=False)
    both_refuse(device, lambda a, b: a @ b, a, numbers(4, 3))


@program
def indexing(device: str) -> None:
    x, rows = numbers(5, 6), torch.tensor([3, 0, 3])
    agree(device, lambda x, i: (x[i], x[:, i], x[i, i], x[[1, 2]], x[x > 2], x[..., None, 2], x[-1]), x, rows)
    agree(device, lambda x, i: x[i.cpu()], x, rows)  # indices may stay on the CPU
    agree(device, lambda x, i: (x.index_select(0, i), x.take(i), x.gather(0, i[None].expand(2, 3))), x, rows)

    def accumulate(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.index_put_((i, i), torch.ones(3, device=x.device), accumulate=True)
        y = x.t()[1:]
        y.index_put_((i.clamp(max=2),), torch.full((5,), 2.0, device=x.device), accumulate=True)
        y[i.clamp(max=2), 0] = 7
        return x, y, x.index_put((i,), x[:3], accumulate=True)

    agree(device, accumulate, x, rows)
    agree(device, lambda x, i: x.scatter_add(0, i[None], x[:1, :3]), x, rows)
    agree(device, lambda x, i: x.scatter_reduce(0, i[None], x[:1, :3], "amax"), x, rows)
    agree(device, lambda x, i: x.index_copy_(0, i[:2], x[:2].clone()), x, rows)
    both_refuse(device, lambda x, i: x[i + 100], x, rows)
    agree(device, lambda x, i: torch.nn.functional.one_hot(i, 5), x, rows)
    agree(
        device,
        lambda x, i: (x.roll(2, 1), x.flip(0), x.rot90(), x.repeat(2, 1), x.tile(2), i.repeat_interleave(2)),
        x,
        rows,
    )
    agree(device, lambda x, i: torch.masked_select(x, x > 1), x, rows)
    agree(device, lambda x, i: x.masked_scatter(x > 2, torch.arange(30.0, device=x.device)), x, rows)


@program
def sorting_and_searching(device: str) -> None:
    x = torch.randperm(60, generator=torch.Generator().manual_seed(1)).float().view(6, 10)
    agree(device, lambda x: (x.sort(), x.sort(0, descending=True), x.argsort(1), x.t().sort(stable=True)), x)
    agree(device, lambda x: (x.topk(3), x.topk(2, 0, largest=False), x.kthvalue(4), x.msort()), x)
    repeated = (x / 7).floor()
    agree(device, lambda x: x.unique(return_inverse=True, return_counts=True), repeated)
    agree(device, lambda x: (x.unique(dim=1), x[0].unique_consecutive()), repeated)
    agree(device, lambda x: (x.nonzero(), torch.where(x > 3), x.argwhere()), repeated)
    agree(device, lambda x: (torch.bincount(x.long().view(-1)), torch.histc(x, 5)), repeated)
    agree(device, lambda x: torch.searchsorted(x.view(-1).sort()[0], torch.tensor([3.0, 40.0], device=x.device)), x)
    agree(device, lambda x: torch.bucketize(x, torch.tensor([10.0, 20.0], device=x.device)), x)
    agree(device, lambda x: (torch.isin(x, x[0]), torch.combinations(x[0, :4])), x)


@program
def joining_and_splitting(device: str) -> None:
    a, b = numbers(3, 4), numbers(3, 4, seed=1)
    agree(device, lambda a, b: (torch.cat([a, b.t().t()]), torch.stack([a, b], 1), torch.hstack([a, b])), a, b)
    agree(device, lambda a, b: (a.split(2), a.chunk(3, 1), torch.tensor_split(a, 2), a.unbind(1)), a, b)
    agree(device, lambda a, b: torch.cat([a, b.long()]), a, b)
    agree(device, lambda a, b: (torch.block_diag(a, b), torch.nn.functional.pad(a, (1, 2)), a.unfold(1, 2, 1)), a, b)
    agree(device, lambda a, b: torch.nn.functional.pad(a[None], (1, 1), mode="reflect"), a, b)


@program
def foreach_ops(device: str) -> None:
    lists = [numbers(3, 2), numbers(4, seed=1), numbers(2, 2, 2, seed=2).transpose(0, 2)]

    def run(tensors: list[torch.Tensor]) -> list[object]:
        made = [torch._foreach_add(tensors, 1.5), torch._foreach_mul(tensors, tensors), torch._foreach_norm(tensors)]
        torch._foreach_mul_(tensors, 2)
        torch._foreach_addcdiv_(tensors, made[0], made[0], 0.5)
        torch._foreach_lerp_(tensors, made[1], 0.25)
        torch._foreach_zero_(made[0][:1])
        torch._foreach_copy_(made[1], tensors)
        return [*made, tensors, torch._foreach_sqrt(tensors)]

    agree(device, run, lists, exact=False)
    agree(device, lambda ts: torch.nn.utils.clip_grads_with_norm_(ts, 1.0, torch.nn.utils.get_total_norm(ts)), lists)


@program
def foreach_ops_on_views_of_one_tensor(device: str) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        torch._foreach_add_([x[0], x[2, 1:3], x[:, 3]], 1.0)
        torch._foreach_add_([x, x.view(4, 4)], 2.0)
        return x

    agree(device, run, numbers(4, 4))


@program
def deterministic_mode(device: str) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3, device=device).isnan().all()
        assert torch.empty(3, dtype=torch.int16, device=device).resize_(9)[5].item() == torch.iinfo(torch.int16).max
        rows = torch.tensor([0, 2, 0])
        agree(device, lambda x, i: x.index_put_((i,), x[:3].clone(), accumulate=True), numbers(4, 4), rows)
        agree(device, lambda x, i: x.index_add(0, i, x[:3]), numbers(4, 4), rows)
        agree(device, lambda x, i: x.cumsum(0), numbers(4, 4), rows)
    finally:
        torch.use_deterministic_algorithms(False)


@program
def sparse_tensors(device: str) -> None:
    dense = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
    sparse = dense.to_sparse().to(device)
    assert sparse.is_sparse
    assert sparse.device == torch.device(device)
    identical(sparse.to_dense(), dense, "there")
    identical(sparse.cpu().to_dense(), dense, "there and back")
    identical(dense.to(device).to_sparse().values(), torch.tensor([2.0, 3.0, 4.0]), "made there")
    identical((sparse + sparse).to_dense(), dense * 2, "sum")
    indices, values = torch.tensor([[0, 0, 1], [1, 1, 0]], device=device), torch.tensor([1.0, 2.0, 3.0], device=device)
    doubled = torch.sparse_coo_tensor(indices, values, (2, 3))
    identical(doubled.coalesce().values(), torch.tensor([3.0, 3.0]), "coalesced")
    torch.testing.assert_close(torch.sparse.mm(sparse, dense.t().to(device)).cpu(), dense @ dense.t())
    weight = torch.nn.Embedding(5, 2, sparse=True).to(device)
    weight(torch.tensor([1, 3, 1], device=device)).sum().backward()
    assert weight.weight.grad.is_sparse
    assert weight.weight.grad.to_dense().cpu().tolist() == [[0, 0], [2, 2], [0, 0], [1, 1], [0, 0]]


@program
def complex_numbers(device: str) -> None:
    z = numbers(3, 4, dtype=torch.complex64)
    agree(device, lambda z: (z * z, z.abs(), z.angle(), z.real + z.imag, z @ z.mT, z.exp(), z.sum(0)), z, exact=False)
    agree(device, lambda z: (torch.view_as_real(z)[..., 1], torch.polar(z.abs(), z.angle()), z == z), z, exact=False)
    agree(device, lambda z: (z.to(torch.complex128) / 3, z.mean(), z.prod(1)), z, exact=False)
    agree(device, lambda z: z.real.mul_(2) + z.real, z)
