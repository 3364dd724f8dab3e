"""What a training step takes on many devices: a model of collectives and of what they overlap with.

The compute of one device is measured (scale_measure.py), the network is said by its links. Nothing here knows torch.

>>> link = Link.parse("25GB/s,2us")
>>> round(collective_seconds("all_reduce", 1e9, 4, Network("ring", link)), 4)
0.06
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Collective: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter"]
Topology: TypeAlias = Literal["ring", "tree", "fat-tree"]
Strategy: TypeAlias = Literal["ddp", "fsdp", "tp"]
TOPOLOGIES: tuple[Topology, ...] = ("ring", "tree", "fat-tree")
STRATEGIES: tuple[Strategy, ...] = ("ddp", "fsdp", "tp")

#: What PyTorch's DistributedDataParallel sends at once: a small first bucket, so that sending starts early.
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


@dataclass(frozen=True)
class Link:
    """One device's link into the network, in one direction."""

    bytes_per_second: float
    seconds: float
    """The latency of one message."""

    @classmethod
    def parse(cls, text: str) -> Link:
        """Returns the link of a text such as ``25GB/s,2us``; raises ValueError for what is none.

        >>> Link.parse("400Gb/s, 1.5us")
        Link(bytes_per_second=50000000000.0, seconds=1.5e-06)
        """
        found = re.fullmatch(r"([\d.]+)\s*([kKmMgGtT]?)(B|b)/s\s*,\s*([\d.]+)\s*(s|ms|us|µs|ns)", text.strip())
        try:
            if found is None:
                raise ValueError
            rate = float(found[1]) * _UNITS[found[2].lower()] / (8 if found[3] == "b" else 1)
            latency = float(found[4]) * _TIMES[found[5]]
        except ValueError:
            raise ValueError(f"{text!r} is not a link: write its bandwidth and latency, such as 25GB/s,2us") from None
        if rate <= 0:
            raise ValueError(f"{text!r}: a link without bandwidth carries nothing")
        return cls(rate, latency)


@dataclass(frozen=True)
class Network:
    """Devices that are linked in some way.

    ``ring``: each to two neighbours; the algorithm passes pieces round. ``tree``: a binary tree, sums go up and results
    come down in a pipeline. ``fat-tree``: every pair at full bandwidth; halving and doubling.
    """

    topology: Topology
    link: Link


def collective_seconds(kind: Collective, nbytes: float, devices: int, network: Network) -> float:
    """Returns how long a collective takes whose whole tensor has ``nbytes``.

    An all_reduce of a ring sends 2 (n-1)/n of the tensor over each link in 2 (n-1) messages, which is the least that
    any network can; halving and doubling sends as much in 2 log2 n messages. In a tree a link carries the tensor once
    up and once down.
    """
    if devices == 1 or nbytes == 0:
        return 0.0
    link, part, depth = network.link, (devices - 1) / devices, math.ceil(math.log2(devices))
    if network.topology == "ring":
        once = part * nbytes / link.bytes_per_second + (devices - 1) * link.seconds
    elif network.topology == "fat-tree":
        once = part * nbytes / link.bytes_per_second + depth * link.seconds
    else:
        once = nbytes / link.bytes_per_second + (depth if kind == "all_reduce" else 2 * depth) * link.seconds
    return 2 * once if kind == "all_reduce" else once


@dataclass(frozen=True)
class Unit:
    """Layers that FSDP shards and gathers together."""

    name: str
    parameter_bytes: int
    forward_seconds: float
    backward_seconds: float


@dataclass(frozen=True)
class Pair:
    """Layers that tensor parallelism splits: by outputs, then by inputs, with one sum behind the second."""

    name: str
    parameter_bytes: int
    forward_seconds: float
    backward_seconds: float
    input_bytes: int
    output_bytes: int


@dataclass(frozen=True)
class Profile:
    """A training step of one device, as it was measured."""

    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float
    #: In the order in which gradients are ready: (bytes, seconds after the start of backward).
    gradients: tuple[tuple[int, float], ...]
    units: tuple[Unit, ...]
    pairs: tuple[Pair, ...]
    parameter_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    """The peak of memory beside parameters, gradients and the optimizer's state."""

    @property
    def seconds(self) -> float:
        """The step without any communication."""
        return self.forward_seconds + self.backward_seconds + self.optimizer_seconds

    @property
    def gradient_bytes(self) -> int:
        """Of all gradients."""
        return sum(nbytes for nbytes, _ in self.gradients)


@dataclass(frozen=True)
class Prediction:
    """A step on many devices."""

    strategy: Strategy
    devices: int
    seconds: float
    communication_seconds: float
    """Of all collectives, hidden or not."""
    memory_bytes: float
    """The peak of each device."""
    efficiency: float
    """The useful part of the devices' time: 1 is a step without communication, as many times faster as there are
    devices (tp), or with as many times more samples (ddp, fsdp)."""

    @property
    def exposed_seconds(self) -> float:
        """What the step waits for the network."""
        return self.seconds * (1 - self.efficiency)


#: (kind, bytes of the whole tensor) → seconds.
Cost: TypeAlias = Callable[[Collective, float], float]


def predict(profile: Profile, strategy: Strategy, devices: int, cost: Cost, overlap: float = 1.0) -> Prediction:
    """Returns a step under a strategy; ``overlap`` is the part of communication that compute can hide.

    0 is for machines whose processors carry the messages too: there a step takes compute and communication together.
    """
    hidden, serial, total, memory, compute = {"ddp": _ddp, "fsdp": _fsdp, "tp": _tp}[strategy](profile, devices, cost)
    seconds = overlap * hidden + (1 - overlap) * serial
    useful = profile.seconds / devices if strategy == "tp" else compute
    return Prediction(strategy, devices, seconds, total, memory, min(1.0, useful / seconds) if seconds else 1.0)


_Step: TypeAlias = tuple[float, float, float, float, float]


def _ddp(profile: Profile, devices: int, cost: Cost) -> _Step:
    sent = 0.0
    free_at = 0.0  # of the network, after the start of backward
    for nbytes, ready in buckets(profile.gradients):
        taken = cost("all_reduce", nbytes)
        free_at = max(free_at, ready) + taken
        sent += taken
    hidden = profile.forward_seconds + max(profile.backward_seconds, free_at) + profile.optimizer_seconds
    # The buckets hold the gradients once more.
    copies = profile.gradient_bytes if devices > 1 else 0
    memory = profile.parameter_bytes + profile.gradient_bytes + copies + profile.optimizer_bytes
    return hidden, profile.seconds + sent, sent, memory + profile.activation_bytes, profile.seconds


def buckets(gradients: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Returns the buckets of gradients in the order in which they are ready: (bytes, when the last one is).

    >>> buckets([(1 << 20, 0.1), (20 << 20, 0.2), (5 << 20, 0.3), (1 << 20, 0.4)])
    [(1048576, 0.1), (26214400, 0.3), (1048576, 0.4)]
    """
    found: list[tuple[int, float]] = []
    limit, held, ready = FIRST_BUCKET, 0, 0.0
    for nbytes, at in gradients:
        held, ready = held + nbytes, at
        if held >= limit:
            found.append((held, ready))
            limit, held = BUCKET, 0
    return [*found, (held, ready)] if held else found


def _fsdp(profile: Profile, devices: int, cost: Cost) -> _Step:
    gather = [cost("all_gather", unit.parameter_bytes) for unit in profile.units]
    scatter = [cost("reduce_scatter", unit.parameter_bytes) for unit in profile.units]
    network = compute = 0.0
    for unit, taken in zip(profile.units, gather):  # the next unit is gathered while this one computes
        network += taken
        compute = max(compute, network) + unit.forward_seconds
    # Back, from the last unit: its own parameters first, then those before it while it computes.
    network = gathered = max(network, compute) + (gather[-1] if gather else 0.0)
    for at in range(len(profile.units) - 1, -1, -1):
        compute = max(compute, gathered) + profile.units[at].backward_seconds
        if at:
            network = gathered = network + gather[at - 1]
        network = max(network, compute) + scatter[at]
    rest = profile.seconds - sum(unit.forward_seconds + unit.backward_seconds for unit in profile.units)
    optimizer = profile.optimizer_seconds / devices
    hidden = max(compute, network) + rest - profile.optimizer_seconds + optimizer
    sent = 2 * sum(gather) + sum(scatter)
    alone = profile.seconds - profile.optimizer_seconds + optimizer
    largest = sorted((unit.parameter_bytes for unit in profile.units), reverse=True)
    whole = (2 * largest[0] + sum(largest[1:2])) if devices > 1 and largest else 0  # with its gradients; the next one
    state = (profile.parameter_bytes + profile.gradient_bytes + profile.optimizer_bytes) / devices
    return hidden, alone + sent, sent, state + whole + profile.activation_bytes, alone


def _tp(profile: Profile, devices: int, cost: Cost) -> _Step:
    split = sum(pair.forward_seconds + pair.backward_seconds for pair in profile.pairs)
    held = sum(pair.parameter_bytes for pair in profile.pairs)
    sent = sum(cost("all_reduce", pair.output_bytes) + cost("all_reduce", pair.input_bytes) for pair in profile.pairs)
    kept = 1 - held / profile.parameter_bytes * (1 - 1 / devices) if profile.parameter_bytes else 1.0
    compute = profile.forward_seconds + profile.backward_seconds - split * (1 - 1 / devices)
    compute += profile.optimizer_seconds * kept
    state = (profile.parameter_bytes + profile.gradient_bytes + profile.optimizer_bytes) * kept
    # A sum is needed by the very next layer: nothing hides it.
    return compute + sent, compute + sent, sent, state + profile.activation_bytes, compute


@dataclass(frozen=True)
class Fit:
    """Measured collectives as latency and bandwidth, for a prediction of the machine they were measured on."""

    points: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """By kind: (bytes, seconds), by size."""

    def __call__(self, kind: Collective, nbytes: float) -> float:
        """Returns the seconds of a collective: between two measured sizes by a line, beyond them in proportion.

        >>> Fit({"all_reduce": [(0.0, 1.0), (10.0, 2.0)]})("all_reduce", 20)
        3.0
        """
        if nbytes == 0:
            return 0.0
        points = self.points[kind]
        if len(points) == 1:
            return points[0][1]
        above = next((at for at, (size, _) in enumerate(points) if size >= nbytes and at), len(points) - 1)
        (low, early), (high, late) = points[above - 1], points[above]
        return max(early + (late - early) * (nbytes - low) / (high - low), 0.0)
