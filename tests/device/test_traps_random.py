"""Trap 17: random numbers depend on seed, offset and element number, never on layout, threads or device index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

Draw = Callable[..., torch.Tensor]

#: With a generator= argument: (device, generator) → tensor
DRAWS: dict[str, Draw] = {
    "randn": lambda device, **g: torch.randn(100, device=device, **g),
    "rand": lambda device, **g: torch.rand(100, device=device, **g),
    "rand float64": lambda device, **g: torch.rand(100, device=device, dtype=torch.float64, **g),
    "randn float16": lambda device, **g: torch.randn(100, device=device, dtype=torch.float16, **g),
    "randn complex": lambda device, **g: torch.randn(100, device=device, dtype=torch.complex64, **g),
    "randint": lambda device, **g: torch.randint(1000, (100,), device=device, **g),
    "randint wide": lambda device, **g: torch.randint(1 << 40, (100,), device=device, **g),
    "randperm": lambda device, **g: torch.randperm(100, device=device, **g),
    "normal": lambda device, **g: torch.normal(torch.zeros(100, device=device), torch.ones(100, device=device), **g),
    "normal_": lambda device, **g: torch.empty(100, device=device).normal_(2, 3, **g),
    "uniform_": lambda device, **g: torch.empty(100, device=device).uniform_(-1, 1, **g),
    "random_": lambda device, **g: torch.empty(100, device=device, dtype=torch.int32).random_(**g),
    "random_ range": lambda device, **g: torch.empty(100, device=device).random_(5, 90, **g),
    "exponential_": lambda device, **g: torch.empty(100, device=device).exponential_(2.0, **g),
    "cauchy_": lambda device, **g: torch.empty(100, device=device).cauchy_(**g),
    "log_normal_": lambda device, **g: torch.empty(100, device=device).log_normal_(**g),
    "geometric_": lambda device, **g: torch.empty(100, device=device).geometric_(0.3, **g),
    "bernoulli": lambda device, **g: torch.bernoulli(torch.full((100,), 0.4, device=device), **g),
    "bernoulli_": lambda device, **g: torch.empty(100, device=device).bernoulli_(0.4, **g),
    "multinomial": lambda device, **g: torch.multinomial(torch.ones(50, device=device), 20, **g),
    "poisson": lambda device, **g: torch.poisson(torch.full((100,), 4.0, device=device), **g),
    "binomial": lambda device, **g: torch.binomial(
        torch.full((100,), 9.0, device=device), torch.full((100,), 0.3, device=device), **g
    ),
    "gamma": lambda device, **g: torch._standard_gamma(torch.full((100,), 2.0, device=device), **g),
    "dirichlet": lambda device, **g: torch._sample_dirichlet(torch.full((20, 5), 2.0, device=device), **g),
    "trunc_normal_": lambda device, **g: torch.nn.init.trunc_normal_(torch.empty(100, device=device), **g),
}

#: From the default generator only
SEEDED: dict[str, Draw] = {
    "dropout": lambda device: functional.dropout(torch.ones(100, device=device)),
    "alpha_dropout": lambda device: functional.alpha_dropout(torch.ones(100, device=device), training=True),
    "feature_dropout": lambda device: functional.dropout2d(torch.ones(4, 25, 1, 1, device=device)),
    "rrelu": lambda device: functional.rrelu(-torch.ones(100, device=device), training=True),
    "gumbel_softmax": lambda device: functional.gumbel_softmax(torch.zeros(10, 10, device=device)),
    "randn_like": lambda device: torch.randn_like(torch.empty(100, device=device)),
    "rand_like": lambda device: torch.rand_like(torch.empty(100, device=device)),
    "randint_like": lambda device: torch.randint_like(torch.empty(100, device=device), 50),
    "xavier": lambda device: torch.nn.init.xavier_uniform_(torch.empty(10, 10, device=device)),
    "Gamma": lambda device: torch.distributions.Gamma(torch.full((50,), 2.0, device=device), 1.0).sample(),
    "Beta": lambda device: torch.distributions.Beta(torch.full((50,), 2.0, device=device), 1.0).sample(),
    "StudentT": lambda device: torch.distributions.StudentT(torch.full((50,), 4.0, device=device)).sample(),
    "Categorical": lambda device: torch.distributions.Categorical(torch.ones(50, 5, device=device)).sample(),
    "rand complex fft": lambda device: torch.fft.fft(torch.rand(16, device=device)).abs(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_trap_17_generator_argument(name: str, device: str) -> None:
    def draw(seed: int) -> torch.Tensor:
        return DRAWS[name](device, generator=torch.Generator(device).manual_seed(seed)).cpu()

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))
    generator = torch.Generator(device).manual_seed(3)
    first, second = (DRAWS[name](device, generator=generator).cpu() for _ in range(2))
    assert torch.equal(first, draw(3))
    assert not torch.equal(first, second), "the generator did not advance"


@pytest.mark.parametrize("name", [*DRAWS, *SEEDED])
def test_trap_17_the_seed_decides(name: str, device: str) -> None:
    draw = {**DRAWS, **SEEDED}[name]
    results = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        results.append(draw(device).cpu())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("name", [*DRAWS, *SEEDED])
def test_trap_17_the_cpu_generator_is_left_alone(name: str, device: str) -> None:
    before = torch.get_rng_state()
    {**DRAWS, **SEEDED}[name](device)
    assert torch.equal(torch.get_rng_state(), before)


LAYOUTS: dict[str, Callable[[str], torch.Tensor]] = {
    "channels_last": lambda device: torch.empty(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last),
    "every other element": lambda device: torch.empty(2, 3, 4, 10, device=device)[..., ::2],
    "transposed": lambda device: torch.empty(5, 4, 3, 2, device=device).permute(3, 2, 1, 0),
    "offset": lambda device: torch.empty(121, device=device)[1:].view(2, 3, 4, 5),
}
FILLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal_": lambda x: x.normal_(),
    "uniform_": lambda x: x.uniform_(),
    "exponential_": lambda x: x.exponential_(),
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "random_": lambda x: x.random_(0, 1000),
    "geometric_": lambda x: x.geometric_(0.2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fill", FILLS)
def test_trap_17_the_layout_does_not_matter(layout: str, fill: str, device: str) -> None:
    torch.manual_seed(0)
    expected = FILLS[fill](torch.empty(2, 3, 4, 5, device=device)).cpu()
    torch.manual_seed(0)
    assert torch.equal(FILLS[fill](LAYOUTS[layout](device)).cpu(), expected)


def test_trap_17_threads_and_length_do_not_matter(device: str) -> None:
    """The first elements of a long draw are those of a short one, on one thread or two."""
    threads = torch.get_num_threads()
    results = []
    try:
        for count, length in ((1, 100_000), (2, 100_000), (2, 1000)):
            torch.set_num_threads(count)
            torch.manual_seed(5)
            results.append(torch.randn(length, device=device).cpu()[:1000])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_trap_17_every_device_draws_the_same_numbers(device: str) -> None:
    module = getattr(torch, device)
    if module.device_count() < 2:
        pytest.skip("one device only")
    torch.manual_seed(1)
    assert torch.equal(torch.randn(100, device=f"{device}:0").cpu(), torch.randn(100, device=f"{device}:1").cpu())


def test_trap_17_the_numbers_have_the_right_distribution(device: str) -> None:
    """Mean and variance within six standard errors, neighbours uncorrelated."""
    n = 200_000
    torch.manual_seed(0)
    normal, uniform = torch.randn(n, device=device).cpu().double(), torch.rand(n, device=device).cpu().double()
    exponential = torch.empty(n, device=device).exponential_(0.5).cpu().double()
    limit = 6 / n**0.5
    assert abs(normal.mean()) < limit
    assert abs(normal.var() - 1) < 2**0.5 * limit
    assert abs((normal[1:] * normal[:-1]).mean()) < limit
    assert abs(uniform.mean() - 0.5) < limit * 12**-0.5
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(exponential.mean() - 2) < 2 * limit
    assert normal.unique().numel() > 0.98 * n


def test_trap_17_state_can_be_saved_and_forked(device: str) -> None:
    module: Any = getattr(torch, device)
    module.manual_seed(11)
    assert module.initial_seed() == 11
    torch.randn(7, device=device)
    state = module.get_rng_state()
    expected = torch.randn(10, device=device).cpu()
    with torch.random.fork_rng(devices=[0], device_type=device):
        torch.randn(10, device=device)
    module.set_rng_state(state)
    assert torch.equal(torch.randn(10, device=device).cpu(), expected)
    module.set_rng_state(state)
    with torch.random.fork_rng(devices=[0], device_type=device):
        torch.randn(1000, device=device)
    assert torch.equal(torch.randn(10, device=device).cpu(), expected)
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        module.set_rng_state(torch.zeros(3, dtype=torch.uint8))


def test_trap_17_a_generator_of_another_device_is_refused(device: str) -> None:
    with pytest.raises(RuntimeError, match=r"[Gg]enerator") as error:
        torch.randn(3, device=device, generator=torch.Generator())
    assert device in str(error.value)
    with pytest.raises(RuntimeError, match=r"[Gg]enerator"):
        torch.randn(3, generator=torch.Generator(device))
