"""torch.<name>.random: seeds and states of the devices' generators. None of this opens a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import torch

from bringup import _C
from bringup.torch_device.device_index import Device, device_index


class DefaultGenerators(Sequence[torch.Generator]):
    """The default generator of every device, as ``torch.<name>.default_generators[index]``."""

    def __len__(self) -> int:
        return _C.device_count()

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> list[torch.Generator]: ...
    def __getitem__(self, index: int | slice) -> torch.Generator | list[torch.Generator]:
        if isinstance(index, slice):
            return [_C.default_generator(i) for i in range(len(self))[index]]
        return _C.default_generator(range(len(self))[index])

    def __iter__(self) -> Iterator[torch.Generator]:
        return (_C.default_generator(index) for index in range(len(self)))


default_generators = DefaultGenerators()


def _generator(device: Device = None) -> torch.Generator:
    return _C.default_generator(device_index(device))


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator; without any device it does nothing.

    >>> torch.sim.manual_seed(0)  # doctest: +SKIP
    """
    if _C.device_count() > 0:
        _generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds every device. ``torch.manual_seed`` calls it, in forked DataLoader workers too."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> int:
    """Seeds the current device with a number that differs every time, and returns it."""
    return _generator().seed()


def seed_all() -> int:
    """Seeds every device with one number that differs every time, and returns it."""
    chosen = int(torch.Generator().seed())
    manual_seed_all(chosen)
    return chosen


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator().initial_seed()


def get_rng_state(device: Device = None) -> torch.Tensor:
    """The state of a device's generator, as a CPU tensor of bytes.

    >>> state = torch.sim.get_rng_state()  # doctest: +SKIP
    >>> torch.sim.set_rng_state(state)  # doctest: +SKIP
    """
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Restores what get_rng_state returned."""
    if not isinstance(new_state, torch.Tensor) or new_state.dtype != torch.uint8:
        raise TypeError("a generator's state is a tensor of uint8, as get_rng_state returns it")
    _generator(device).set_state(new_state.cpu())


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restores what get_rng_state_all returned."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
