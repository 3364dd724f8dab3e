"""The backend by itself: where it is found, its options, what it refuses and in which words."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.graph.comparing import Compile, Net, same


# ---- the backend itself ----
def test_it_is_listed() -> None:
    assert "bringup" in torch._dynamo.list_backends()


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adam"])
def test_an_optimizer_step(name: str, compiled: Compile, device: str) -> None:
    """torch.compile(optimizer.step): the parameters that eager has."""
    made = {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, capturable=True),
        "Adam": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False, capturable=True),
    }[name]
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator).to(device) for shape in ((6, 4), (6,), (3, 6), ())]
    slopes = [torch.randn(4, *x.shape, generator=generator).to(device) for x in start]
    sides = []
    for wrap in (compiled, lambda function: function):
        parameters = [torch.nn.Parameter(x.clone()) for x in start]
        update = made(parameters)
        step = wrap(lambda update=update: update.step())
        for n in range(4):
            for parameter, slope in zip(parameters, slopes):
                parameter.grad = slope[n].clone()
            step()
        sides.append([parameter.detach() for parameter in parameters])
    same(*sides)
    assert not torch.equal(sides[0][0], start[0])


def test_a_whole_training_step(compiled: Compile, device: str) -> None:
    """Forward, backward and the optimizer in eager order around a compiled model: the loss falls as in eager."""
    torch.manual_seed(0)
    model = Net().to(device)
    twin = copy.deepcopy(model)
    x = torch.randn(16, 12).to(device)
    target = torch.randint(3, (16,)).to(device)
    losses = []
    for network, own in ((compiled(model), model), (twin, twin)):
        update = torch.optim.SGD(own.parameters(), lr=0.5)
        found = []
        for _ in range(5):
            update.zero_grad()
            loss = F.nll_loss(network(x).log(), target)
            loss.backward()
            update.step()
            found.append(loss.item())
        losses.append(found)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] < losses[0][0]


def test_reduce_overhead(compiled: Compile, numbers: Any) -> None:
    """A mode of torch.compile; results are the same, whichever call they are of."""

    def work(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).softmax(-1) + x

    run = compiled(work, mode="reduce-overhead")
    for seed in range(4):
        x = numbers(9, 9, seed=seed, grad=True)
        y = run(x)
        same(y.detach(), work(x).detach())
        y.sum().backward()
        assert x.grad is not None


def test_an_op_without_a_kernel_runs_as_in_eager(compiled: Compile, numbers: Any) -> None:
    def decomposed(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(x @ x.mT).sum() * x.sin()

    x = numbers(4, 4)
    torch.testing.assert_close(compiled(decomposed)(x), decomposed(x), rtol=1e-5, atol=1e-5)


def test_strict_names_op_node_and_line(numbers: Any) -> None:
    def decomposed(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return torch.linalg.svdvals(y)  # the line that the message shows

    run = torch.compile(decomposed, backend="bringup", options={"strict": True})
    with pytest.raises(Exception, match="linalg_svd") as caught:
        run(numbers(4, 4))
    said = str(caught.value)
    assert "_linalg_svd" in said, "the name of the node"
    assert "torch.linalg.svdvals(y)" in said, "the line of the program"
    assert "test_backend.py" in said
    run = torch.compile(lambda x: x.sin() @ x, backend="bringup", options={"strict": True})
    same(run(numbers(4, 4)), numbers(4, 4).sin() @ numbers(4, 4))


def test_an_unknown_option_is_an_error(numbers: Any) -> None:
    run = torch.compile(lambda x: x + 1, backend="bringup", options={"strickt": True})
    with pytest.raises(Exception, match="strickt") as caught:
        run(numbers(3))
    assert "strict" in str(caught.value).replace("strickt", ""), "the message lists the options there are"


@pytest.mark.parametrize(
    ("driver", "name"), [("sim", "sim"), ("examples/drivers/dictmem.py", "dictmem")], ids=["library mode", "dictmem"]
)
def test_a_driver_without_a_compiler(driver: str, name: str, run_python: Any) -> None:
    """The error says which device it is and which of the driver's functions are missing."""
    code = f"""
    import torch
    x = torch.ones(3, device={name!r})
    try:
        torch.compile(lambda x: x.sin() + 1, backend="bringup")(x)
    except Exception as error:
        print(error)
    else:
        print("no error")
    """
    said = run_python(code, env={"BRINGUP_DRIVERS": driver, "BRINGUP_SIM": "mode=library"}).stdout
    assert name in said
    for missing in ("compile", "launch"):
        assert missing in said, said


@pytest.mark.parametrize(
    "source",
    [
        lambda x: x.sum(0, keepdim=True),
        lambda x: x.relu().sum(0, keepdim=True) * 2,
        lambda x: x.sum(0, keepdim=True).expand(4),
    ],
    ids=["sum", "formula", "repeated"],
)
def test_an_index_out_of_range_of_one_element(compiled: Compile, numbers: Any, device: str, source: Any) -> None:
    """Fusion saw that the position does not matter, and left the check of it out."""
    run = compiled(lambda x, i: source(x)[i] + 1)
    x = numbers(6)
    same(run(x, torch.tensor([0, 0], device=device)), source(x)[torch.tensor([0, 0], device=device)] + 1)
    with pytest.raises(IndexError, match="index 5 is out of range"):
        run(x, torch.tensor([0, 5], device=device)).cpu()


def test_an_index_out_of_range(compiled: Compile, numbers: Any, device: str) -> None:
    """Bad data in a compiled graph is a Python error, and the device goes on."""
    run = compiled(lambda x, i: x[i] * 2)
    x = numbers(4)
    with pytest.raises((IndexError, RuntimeError)):
        run(x, torch.tensor([0, 9], device=device)).cpu()
    same(run(x, torch.tensor([0, 3], device=device)), x[torch.tensor([0, 3], device=device)] * 2)
