"""Training on several ranks against the same steps in one process on the joined batch."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.ranks import Ranks, program

STEPS = 20
ROWS = 4  # of one rank
#: What 20 steps may differ by, relative to the largest weight.
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
    ).to(dtype)


def batch(step: int, size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(ROWS * size, 12, generator=generator, dtype=torch.float64)
    return x.to(dtype), torch.sin(x[:, :4]).to(dtype)


def steps(model: Any, optimizer: Any, inputs: Callable[[int], tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    losses = []
    for step in range(STEPS):
        x, y = inputs(step)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def alone(size: int, dtype: torch.dtype) -> nn.Module:
    """The reference: one process, on the CPU."""
    model = network(dtype)
    steps(model, torch.optim.AdamW(model.parameters(), 1e-2), lambda step: batch(step, size, dtype))
    return model


def mine(ranks: Ranks, dtype: torch.dtype) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    """This rank's rows of each batch."""

    def inputs(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = slice(ROWS * ranks.rank, ROWS * (ranks.rank + 1))
        x, y = batch(step, ranks.size, dtype)
        return x[rows].to(ranks.device), y[rows].to(ranks.device)

    return inputs


def everyones(ranks: Ranks, dtype: torch.dtype) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    def inputs(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = batch(step, ranks.size, dtype)
        return x.to(ranks.device), y.to(ranks.device)

    return inputs


def assert_same(model: nn.Module, reference: nn.Module, dtype: torch.dtype) -> None:
    largest = max(p.abs().max().item() for p in reference.parameters())
    for (name, got), want in zip(model.named_parameters(), reference.parameters(), strict=True):
        value = got.full_tensor() if isinstance(got, DTensor) else got
        off = (value.detach().cpu() - want.detach()).abs().max().item() / largest
        assert off <= BOUNDS[dtype], (name, off)


@program
def data_parallel_equals_one_process(ranks: Ranks) -> None:
    for dtype in BOUNDS:
        # Buckets so small that there are several.
        model = DistributedDataParallel(network(dtype).to(ranks.device), bucket_cap_mb=0.005)
        steps(model, torch.optim.AdamW(model.parameters(), 1e-2), mine(ranks, dtype))
        assert_same(model.module, alone(ranks.size, dtype), dtype)
        data = model._get_ddp_logging_data()
        assert data["backend_name"]
        assert int(data["avg_backward_comm_time"] or 0) >= 0


@program
def data_parallel_of_a_compiled_model(ranks: Ranks) -> None:
    dtype = torch.float64
    model = DistributedDataParallel(network(dtype).to(ranks.device))
    compiled = torch.compile(model, backend="bringup")
    steps(compiled, torch.optim.AdamW(model.parameters(), 1e-2), mine(ranks, dtype))
    assert_same(model.module, alone(ranks.size, dtype), dtype)


@program
def batch_norm_by_the_statistics_of_all_ranks(ranks: Ranks) -> None:
    for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        torch.manual_seed(0)
        reference = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).to(dtype)
        own = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(reference)).to(ranks.device)
        model, inputs = DistributedDataParallel(own), mine(ranks, dtype)
        pairs = [(model, inputs), (reference, lambda step, dtype=dtype: batch(step, ranks.size, dtype))]
        for each, given in pairs:
            steps(each, torch.optim.SGD(each.parameters(), 0.1), given)
        got, want = own.state_dict(), reference.state_dict()
        for name in want:
            torch.testing.assert_close(got[name].cpu(), want[name], rtol=bound, atol=bound)


@program
def no_sync_accumulates_on_each_rank(ranks: Ranks) -> None:
    dtype = torch.float64
    model = DistributedDataParallel(network(dtype).to(ranks.device))
    reference = network(dtype)
    inputs = mine(ranks, dtype)
    with model.no_sync():
        x, y = inputs(0)
        nn.functional.mse_loss(model(x), y).backward()
    x, y = inputs(1)
    nn.functional.mse_loss(model(x), y).backward()
    for step in (0, 1):
        x, y = batch(step, ranks.size, dtype)
        nn.functional.mse_loss(reference(x), y).backward()
    for got, want in zip(model.module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(got.grad.cpu(), want.grad, rtol=1e-10, atol=1e-12)


@program
def a_communication_hook_in_half_precision(ranks: Ranks) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = DistributedDataParallel(network(torch.float32).to(ranks.device))
    model.register_comm_hook(None, fp16_compress_hook)
    losses = steps(model, torch.optim.AdamW(model.parameters(), 1e-2), mine(ranks, torch.float32))
    assert losses[-1] < losses[0]


@program
def uneven_inputs_with_join(ranks: Ranks) -> None:
    from torch.distributed.algorithms.join import Join

    model = DistributedDataParallel(network().to(ranks.device))
    inputs = mine(ranks, torch.float64)
    done = 0
    with Join([model]):
        for step in range(3 + ranks.rank):
            x, y = inputs(step)
            nn.functional.mse_loss(model(x), y).backward()
            done += 1
    assert done == 3 + ranks.rank
    weights = [None] * ranks.size
    dist.all_gather_object(weights, model.module[0].weight.detach().cpu())
    assert all(torch.equal(weights[0], other) for other in weights)


@program
def sharded_data_parallel_equals_one_process(ranks: Ranks) -> None:
    for dtype in BOUNDS:
        model = network(dtype).to(ranks.device)
        for layer in (model[0], model[3]):
            fully_shard(layer)
        fully_shard(model)
        assert isinstance(model, FSDPModule)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        assert model[0].weight.to_local().numel() <= 12 * 32 // ranks.size + 12
        steps(model, optimizer, mine(ranks, dtype))
        assert_same(model, alone(ranks.size, dtype), dtype)


@program
def sharded_data_parallel_in_mixed_precision(ranks: Ranks) -> None:
    model = network(torch.float32).to(ranks.device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mp_policy=policy)
    losses = steps(model, torch.optim.AdamW(model.parameters(), 1e-2), mine(ranks, torch.float32))
    assert model[0].weight.dtype == torch.float32
    assert losses[-1] < losses[0]


@program
def sharded_and_compiled(ranks: Ranks) -> None:
    dtype = torch.float64
    model = network(dtype).to(ranks.device)
    fully_shard(model)
    compiled = torch.compile(model, backend="bringup")
    steps(compiled, torch.optim.AdamW(model.parameters(), 1e-2), mine(ranks, dtype))
    assert_same(model, alone(ranks.size, dtype), dtype)


def tensor_parallel(ranks: Ranks, dtype: torch.dtype) -> nn.Module:
    mesh = init_device_mesh(ranks.device, (ranks.size,))
    plan = {"0": ColwiseParallel(output_layouts=Replicate()), "3": ColwiseParallel(), "5": RowwiseParallel()}
    return parallelize_module(network(dtype).to(ranks.device), mesh, plan)


@program
def tensor_parallel_equals_one_process(ranks: Ranks) -> None:
    for dtype in BOUNDS:
        model = tensor_parallel(ranks, dtype)
        steps(model, torch.optim.AdamW(model.parameters(), 1e-2, foreach=False), everyones(ranks, dtype))
        assert_same(model, alone(ranks.size, dtype), dtype)


@program
def tensor_parallel_and_compiled(ranks: Ranks) -> None:
    dtype = torch.float64
    model = tensor_parallel(ranks, dtype)
    compiled = torch.compile(model, backend="bringup")
    steps(compiled, torch.optim.AdamW(model.parameters(), 1e-2, foreach=False), everyones(ranks, dtype))
    assert_same(model, alone(ranks.size, dtype), dtype)


@program
def distributed_tensors(ranks: Ranks) -> None:
    mesh = init_device_mesh(ranks.device, (ranks.size,))
    torch.manual_seed(0)
    a, b = torch.randn(7, 9), torch.randn(9, 5)  # sizes that no rank count divides
    x = distribute_tensor(a.to(ranks.device), mesh, [Shard(0)])
    y = distribute_tensor(b.to(ranks.device), mesh, [Replicate()])
    torch.testing.assert_close((x @ y).full_tensor().cpu(), a @ b)
    z = x.redistribute(mesh, [Shard(1)])
    assert z.to_local().shape[0] == 7
    torch.testing.assert_close(z.full_tensor().cpu(), a)
    torch.testing.assert_close(x.sum(0).full_tensor().cpu(), a.sum(0))


@program
def a_mesh_of_two_dimensions(ranks: Ranks) -> None:
    if ranks.size < 4:
        return
    mesh = init_device_mesh(ranks.device, (2, ranks.size // 2), mesh_dim_names=("replicate", "shard"))
    dtype = torch.float64
    model = network(dtype).to(ranks.device)
    fully_shard(model, mesh=mesh)
    steps(model, torch.optim.AdamW(model.parameters(), 1e-2), mine(ranks, dtype))
    assert_same(model, alone(ranks.size, dtype), dtype)


@program
def a_pipeline(ranks: Ranks) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    for schedule_type in (ScheduleGPipe, Schedule1F1B):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(ranks.size)]
        whole = nn.Sequential(*copy.deepcopy(layers))
        device = torch.device(ranks.device, torch.accelerator.current_device_index())
        stage = PipelineStage(layers[ranks.rank].to(device), ranks.rank, ranks.size, device)
        schedule = schedule_type(stage, 4, loss_fn=nn.functional.mse_loss)
        x, y = torch.randn(16, 8), torch.randn(16, 8)
        losses: list[torch.Tensor] = []
        if ranks.rank == 0:
            schedule.step(x.to(device))
        elif ranks.rank == ranks.size - 1:
            schedule.step(target=y.to(device), losses=losses)
        else:
            schedule.step()
        for part, target in zip(x.chunk(4), y.chunk(4), strict=True):
            (nn.functional.mse_loss(whole(part), target) / 4).backward()
        for got, want in zip(layers[ranks.rank].parameters(), whole[ranks.rank].parameters(), strict=True):
            torch.testing.assert_close(got.grad.cpu(), want.grad, rtol=1e-4, atol=1e-6)


@program
def a_checkpoint_of_all_ranks_loads_on_half_of_them(ranks: Ranks) -> None:
    folder = [tempfile.mkdtemp()] if ranks.rank == 0 else [None]
    dist.broadcast_object_list(folder, 0, device=torch.device("cpu"))
    dtype = torch.float64
    model = network(dtype).to(ranks.device)
    fully_shard(model)
    steps(model, torch.optim.AdamW(model.parameters(), 1e-2), mine(ranks, dtype))
    dcp.save(get_model_state_dict(model), checkpoint_id=folder[0])
    half = list(range(max(1, ranks.size // 2)))
    group = dist.new_group(half)
    if ranks.rank in half:
        mesh = init_device_mesh(ranks.device, (len(half),)) if len(half) == ranks.size else None
        other = network(dtype).to(ranks.device)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        if mesh is None:
            from torch.distributed.device_mesh import DeviceMesh

            mesh = DeviceMesh.from_group(group, ranks.device)
        fully_shard(other, mesh=mesh)
        state = get_model_state_dict(other)
        dcp.load(state, checkpoint_id=folder[0], process_group=group)
        set_model_state_dict(other, state)
        assert_same(other, alone(ranks.size, dtype), dtype)
    dist.barrier()


@program
def a_sampler_gives_each_rank_its_own_rows(ranks: Ranks) -> None:
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    data = TensorDataset(torch.arange(10 * ranks.size))
    sampler = DistributedSampler(data, shuffle=True, seed=3)
    seen = torch.cat([rows for (rows,) in DataLoader(data, batch_size=5, sampler=sampler)]).to(ranks.device)
    everything = torch.empty(10 * ranks.size, dtype=torch.int64, device=ranks.device)
    dist.all_gather_into_tensor(everything, seen)
    assert torch.equal(everything.sort().values.cpu(), torch.arange(10 * ranks.size))
