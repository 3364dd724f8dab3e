"""Programs about the device around the tensors: random numbers, streams, threads, loaders, ledger, several drivers."""

from __future__ import annotations

import gc
import hashlib
import os
import threading
import time
from typing import Any

import torch

import bringup
from tests.device.device_programs import identical, move, numbers, program, raw, refused


def module_of(device: str) -> Any:
    return torch.get_device_module(torch.device(device).type)


@program
def random_numbers(device: str) -> dict[str, str]:
    """Returns a digest of each: the test compares the drivers with each other."""

    def bits(tensor: torch.Tensor) -> str:
        return hashlib.sha256(bytes(raw(tensor).tolist())).hexdigest()[:16]

    generator = torch.Generator(device=device).manual_seed(5)
    draws = {
        "rand": lambda: torch.rand(37, device=device),
        "randn": lambda: torch.randn(5, 7, device=device),
        "randn float64": lambda: torch.randn(9, device=device, dtype=torch.float64),
        "randn bfloat16": lambda: torch.randn(33, device=device, dtype=torch.bfloat16),
        "randint": lambda: torch.randint(-5, 90, (21,), device=device),
        "randperm": lambda: torch.randperm(50, device=device),
        "bernoulli": lambda: torch.full((40,), 0.3, device=device).bernoulli(),
        "dropout": lambda: torch.nn.functional.dropout(torch.ones(64, device=device)),
        "exponential": lambda: torch.empty(16, device=device).exponential_(),
        "normal_ of a view": lambda: torch.zeros(8, 8, device=device)[::2, 1::2].normal_(2, 3),
        "uniform_ transposed": lambda: torch.zeros(4, 6, device=device).t().uniform_(-1, 1),
        "multinomial": lambda: torch.multinomial(torch.arange(1.0, 9.0, device=device), 5),
        "poisson": lambda: torch.poisson(torch.full((12,), 4.0, device=device)),
        "gamma": lambda: torch._standard_gamma(torch.full((6,), 2.0, device=device)),
        "generator": lambda: torch.rand(10, device=device, generator=generator),
        "complex": lambda: torch.randn(4, device=device, dtype=torch.complex64),
        "rand_like": lambda: torch.rand_like(torch.zeros(3, 4, device=device).t()),
        "geometric": lambda: torch.empty(12, device=device).geometric_(0.4),
        "cauchy": lambda: torch.empty(12, device=device).cauchy_(),
        "init": lambda: torch.nn.init.kaiming_uniform_(torch.empty(3, 5, device=device)),
    }
    torch.manual_seed(123)
    digests = {name: bits(draw()) for name, draw in draws.items()}
    state = torch.get_device_module(torch.device(device).type).get_rng_state(device)
    after = torch.rand(4, device=device)
    torch.get_device_module(torch.device(device).type).set_rng_state(state, device)
    identical(torch.rand(4, device=device), after.cpu(), "the state brings the same numbers back")
    generator.manual_seed(5)
    torch.manual_seed(123)
    again = {name: bits(draw()) for name, draw in draws.items()}
    assert digests == again, {name for name in digests if digests[name] != again[name]}
    assert len(set(digests.values())) == len(digests)
    return digests


@program
def random_numbers_into_views(device: str) -> None:
    """The same numbers as into a tensor of its own, and nothing beside the view changes."""
    for view in (lambda t: t[20:], lambda t: t[:9], lambda t: t[3:30:2], lambda t: t.view(5, 8).t()[1:4]):
        for fill in (
            lambda t: t.uniform_(1, 2),
            lambda t: t.normal_(5),
            lambda t: t.bernoulli_(0.9),
            lambda t: t.random_(1, 9),
        ):
            x = torch.full((40,), -1.0, device=device)
            torch.manual_seed(4)
            fill(view(x))
            torch.manual_seed(4)
            expected = torch.full((40,), -1.0)
            view(expected).copy_(fill(torch.empty(view(expected).shape, device=device)))
            identical(x, expected)


@program
def non_blocking_copies(device: str) -> None:
    module = module_of(device)
    here = numbers(5000).pin_memory()
    assert here.is_pinned()
    assert not numbers(3).is_pinned()
    there = here.to(device, non_blocking=True)
    back = torch.empty(5000).pin_memory()
    back.copy_(there * 2, non_blocking=True)
    module.synchronize(device)
    assert torch.equal(back, here * 2)
    stream = module.Stream(device)
    with module.stream(stream):
        moved = here.to(device, non_blocking=True).add_(1)
    module.current_stream(device).wait_stream(stream)
    identical(moved, here + 1)
    for _ in range(20):  # pageable memory may change at once
        source = torch.ones(3000)
        target = source.to(device, non_blocking=True)
        source.zero_()
        assert target.cpu().min() == 1


@program
def streams_and_events(device: str) -> None:
    module = module_of(device)
    with module.device(torch.device(device)):
        start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
        start.record()
        x = torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
        end.record()
        end.synchronize()
        assert start.query()
        assert end.query()
        assert start.elapsed_time(end) >= 0
        side = module.Stream()
        with module.stream(side):
            y = x * 2
            y.record_stream(module.current_stream())
        side.synchronize()
        identical(y, torch.full((64, 64), 128.0))
        module.synchronize()


@program
def four_threads(device: str) -> None:
    shared, errors = numbers(16, 16).to(device), []
    expected = (numbers(16, 16) @ numbers(16, 16)).sum()

    def work(number: int) -> None:
        try:
            for step in range(15):
                mine = torch.full((8, 8), float(number), device=device)
                mine.t()[::2].add_(step)
                column = torch.full((8, 8), float(number))
                column.t()[::2].add_(step)
                assert torch.equal(mine.cpu(), column), "another thread wrote here"
                torch.testing.assert_close((shared @ shared).sum().cpu(), expected)
                weight = torch.ones(4, device=device, requires_grad=True)
                (weight * number).sum().backward()
                assert weight.grad.tolist() == [number] * 4
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@program
def neighbours_in_one_storage(device: str) -> None:
    """Threads that change different columns of one matrix do not undo each other's work."""
    matrix, errors = torch.zeros(32, 4, device=device), []

    def work(column: int) -> None:
        try:
            for _ in range(25):
                matrix[:, column].add_(1)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(column,)) for column in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    identical(matrix, torch.full((32, 4), 25.0))


@program
def data_loaders(device: str) -> None:
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.arange(12.0), torch.arange(12))
    torch.ones(1, device=device)  # the device is open when the workers fork
    for workers in (0, 1):
        total = torch.zeros((), device=device)
        for x, y in DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers):
            assert x.is_pinned()
            assert y.is_pinned()
            total += (x.to(device, non_blocking=True) * y.to(device, non_blocking=True)).sum()
        assert total.item() == sum(i * i for i in range(12))


@program
def memory_is_counted_and_limited(device: str) -> None:
    module = module_of(device)
    module.synchronize(device)
    before = module.memory_allocated(device)
    x = torch.ones(1000, 256, device=device)
    assert module.memory_allocated(device) - before >= 1_024_000 // module.get_device_properties(device).partitions
    y = x.sort()[0]
    assert module.max_memory_allocated(device) >= module.memory_allocated(device) > before
    del x, y
    assert module.memory_allocated(device) == before
    with refused(torch.OutOfMemoryError, str(torch.device(device))):
        torch.empty(1 << 40, dtype=torch.uint8, device=device)
    module.empty_cache()
    identical(torch.ones(3, device=device) + 1, torch.full((3,), 2.0), "and the process goes on")


@program
def nothing_leaks(device: str) -> None:
    """Results, growing out=, views, graphs and failed calls all give their memory back."""
    module = module_of(device)

    def work() -> None:
        x = torch.randn(8, 8, device=device, requires_grad=True)
        (x @ x.t()).softmax(-1).sum().backward()
        torch.sort(x.detach(), out=(torch.empty(0, device=device), torch.empty(0, dtype=torch.long, device=device)))
        with refused(RuntimeError, "mat"):
            x @ torch.ones(3, 3, device=device)
        with refused(IndexError, "range"):
            x.detach().index_select(0, torch.tensor([99], device=device))
        x.detach().clone().resize_(100).view(10, 10).t()[::2].nonzero()

    work()
    gc.collect()
    before = module.memory_allocated(device)
    for _ in range(10):
        work()
    gc.collect()
    assert module.memory_allocated(device) == before


@program
def modes_of_a_program(device: str) -> None:
    """The default device, inference mode, higher derivatives, nested tensors."""
    torch.set_default_device(device)
    try:
        assert torch.ones(2).device == torch.nn.Linear(2, 2).weight.device == torch.device(device)
        assert torch.randperm(5).device == torch.device(device)
    finally:
        torch.set_default_device(None)
    with torch.inference_mode():
        x = torch.ones(3, device=device) + 1
        x.add_(1)[0] = 9
    assert x.is_inference()
    identical(x, torch.tensor([9.0, 3.0, 3.0]))
    hessian = torch.autograd.functional.hessian(lambda v: (v**3).sum(), torch.ones(3, device=device))
    identical(hessian, 6 * torch.eye(3))
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged, device=device)
    assert (ragged + 1).sum().item() == 10


@program
def moving_between_devices(device: str) -> None:
    kind, count = torch.device(device).type, module_of(device).device_count()
    x, moved = numbers(4, 6), []
    for index in range(count):
        other = f"{kind}:{index}"
        there = x.to(device)
        moved.append(there.to(other))
        identical(moved[-1], x, other)
        identical(there.t()[::2].to(other), x.t()[::2], f"a view to {other}")
        identical(there.to(other, torch.float64), x.double(), f"converted to {other}")
        target = torch.zeros(6, 4, device=other).t()
        identical(target.copy_(there), x, f"into a transposed tensor of {other}")
        identical(there.copy_(moved[-1] + 1), x + 1, f"back from {other}")
        assert moved[-1].device == torch.device(other)
        if torch.device(other) != torch.device(device):
            for mix in (lambda a, b: a + b, torch.mm, lambda a, b: torch.cat([a, b]), lambda a, b: a.add_(b)):
                with refused(RuntimeError, str(torch.device(device)), other):
                    mix(x.to(device)[:, :4], moved[-1][:, :4])
    for mix in (lambda a, b: a + b, torch.mm, lambda a, b: torch.where(a > 0, a, b)):
        with refused(RuntimeError, "cpu", str(torch.device(device))):
            mix(x.to(device)[:, :4], x[:, :4])


@program
def whole_modules(device: str) -> None:
    """What a program does around its tensors: module moves, hooks, state dicts."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    model.to(device)
    assert model[1].num_batches_tracked.device == torch.device(device)
    seen: list[torch.device] = []
    model.register_forward_hook(lambda *args: seen.append(args[2].device))
    model(numbers(4, 3).to(device)).sum().backward()
    assert seen == [torch.device(device)]
    assert model[0].weight.grad.device == torch.device(device)
    there = move(dict(model.state_dict()), "cpu")
    model.cpu().load_state_dict(there)
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    model.half().to(device).float()
    assert model(numbers(4, 3).to(device)).dtype == torch.float32


@program
def moved_parameters_stay_the_same_objects(device: str) -> None:
    """Weights that two layers share stay shared, and an optimizer made before the move still moves them."""
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    second.weight = first.weight
    model, weight = torch.nn.Sequential(first, second), first.weight
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    model.to(device)
    assert first.weight is second.weight, "two layers shared their weights before the move, not after it"
    assert first.weight is weight
    assert weight.device == torch.device(device)
    before = weight.detach().clone()
    model(numbers(4, 3).to(device)).sum().backward()
    descent.step()
    assert not torch.equal(before, first.weight.detach()), "the optimizer still holds the parameters of the CPU"
    model.cpu()
    assert first.weight is weight is second.weight
    assert weight.device == weight.grad.device == torch.device("cpu")


# ---- the ledger, where ops fall back ----
@program(needs="fallbacks")
def fallbacks_are_counted(device: str) -> dict[str, int]:
    bringup.reset_fallbacks()
    x = numbers(6, 6).to(device)
    for _ in range(3):
        x.sort()
    x.mul_(2)
    table = bringup.fallbacks()
    sort = next(row for row in table if row.op.startswith("aten::sort"))
    assert (sort.calls, sort.device) == (3, str(torch.device(device))), sort
    assert sort.ms > 0, sort
    assert "fallbacks_are_counted" in sort.stack, sort.stack
    assert "aten::sort" in str(table)
    for op in ("aten::copy_", "aten::empty.memory_format", "aten::view"):
        assert all(row.op != op for row in table), f"{op} is not a fallback"
    return {"sort": sort.bytes, "mul_": next(row for row in table if row.op.startswith("aten::mul")).bytes}


@program(needs="fallbacks")
def fallbacks_can_be_refused(device: str) -> None:
    x = numbers(4).to(device)
    with bringup.fallback_policy("error"):
        for use, op in ((torch.sort, "aten::sort"), (lambda t: t.mul_(2), "aten::mul"), (torch.exp, "aten::exp")):
            with refused(NotImplementedError, op, str(torch.device(device))):
                use(x)
        identical(x.clone(), numbers(4), "copies are not fallbacks")
        identical(x.view(2, 2).t(), numbers(4).view(2, 2).t(), "views are not fallbacks")
        assert x[1].item() == numbers(4)[1].item()
    with bringup.fallback_policy(ops={"aten::sort": "error"}):
        identical(x.exp(), numbers(4).exp())
    identical(x.sort()[0], numbers(4).sort()[0])


# ---- sim and another driver in one process ----
@program(needs="several")
def several_drivers_share_one_type(device: str) -> None:
    assert [(d.name, d.first, d.count) for d in bringup.active_drivers()] == [("sim", 0, 2), ("dictmem", 2, 2)]
    assert bringup.device("sim") == torch.device("accel:0")
    assert bringup.device("sim", 1) == torch.device("accel:1")
    assert bringup.device("dictmem") == torch.device("accel:2") == torch.device(device)
    assert bringup.device("dictmem", index=1) == torch.device("accel:3")
    assert torch.accel.device_count() == torch.accelerator.device_count() == 4
    assert torch.accelerator.current_accelerator().type == "accel"
    assert "Dictionary" in torch.accel.get_device_name(2)
    assert "sim" in torch.accel.get_device_name(0)
    for wrong, index in (("riscv", 0), ("dictmem", 2), ("sim", -1)):
        with refused(ValueError, wrong):
            bringup.device(wrong, index)
    with refused(ValueError, "accel:4", "accel:3"):
        torch.empty(1, device="accel:4")


@program(needs="several")
def only_one_of_them_falls_back(device: str) -> None:
    bringup.reset_fallbacks()
    for index in range(4):
        numbers(5).to(f"accel:{index}").sort()
    assert {row.device for row in bringup.fallbacks() if "sort" in row.op} <= {"accel:2", "accel:3"}
    assert sum(row.calls for row in bringup.fallbacks() if "sort" in row.op) == 2
    with bringup.fallback_policy("error"):
        numbers(5).to("accel:1").sort()


@program(needs="several")
def training_over_two_drivers(device: str) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)]
    x = numbers(5, 4)
    expected = layers[1](layers[0](x).relu()).square().mean()
    expected.backward()
    gradients = [layer.weight.grad.clone() for layer in layers]
    for layer in layers:
        layer.zero_grad()
    layers[0].to("accel:0"), layers[1].to("accel:3")
    loss = layers[1](layers[0](x.to("accel:0")).relu().to("accel:3")).square().mean()
    loss.backward()
    torch.testing.assert_close(loss.cpu(), expected.detach())
    for layer, gradient in zip(layers, gradients):
        torch.testing.assert_close(layer.weight.grad.cpu(), gradient)


# ---- the machine that sim describes ----
@program(needs="trap")
def no_program_touched_device_memory(device: str) -> None:
    """Comes last: with trap=1 a host access by a device address would have been noted."""
    import ctypes

    time.sleep(0)  # a pending interrupt arrives here
    library = ctypes.CDLL(str(bringup.active_drivers()[0].driver.library_path))
    library.sim_trap_count.restype = ctypes.c_uint64
    assert library.sim_trap_count() == 0


# ---- the harness: these two must be noticed ----
@program(needs="broken")
def a_program_that_fails(device: str) -> None:
    identical(torch.ones(2, device=device) + 1, torch.ones(2), "two is not one")


@program(needs="broken")
def a_program_that_kills_the_process(device: str) -> None:
    torch.ones(2, device=device)
    os._exit(7)
