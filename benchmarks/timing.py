"""How we measure: two statements in short alternating bursts, judged by the ratio inside each round.

The two sides of a comparison run within a millisecond of each other, so a slow phase of the machine (another process, a
clock change) hits both. A round is a few bursts of each side in alternating order; the minimum of a side's bursts is
its time in that round, because noise only adds. The ratio is the median over rounds of (device minimum / CPU minimum).

A crowded machine still fools this: with load 5.7 on two cores, seven rounds gave 0.42 for a matrix product whose true
ratio is 1.00. So the CPU side runs twice in every round. `control` is CPU against CPU and should be 1; `uncertainty` is
the half width of the median's 95 % interval, relative. A row that fails either is noisy, and gets no verdict.

    pair = compare(Side("x.add(y)", cpu_names), Side("x.add(y)", device_names, synchronize))
    print(pair.cpu, pair.device, pair.ratio)
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

BURST_SECONDS = 300e-6  # long enough that one clock read and one synchronize (under 1 µs each) do not count
#: A burst has several calls before it waits, as a loop that trains or serves has: work of the host that the device's
#: own work hides does not count. It has fewer if it would take longer than LONG_BURST_SECONDS.
BURST_CALLS, LONG_BURST_SECONDS = 8, 0.1
BURSTS_PER_ROUND = 4
TRUSTED = 0.05  # how far the control may be from 1, and how wide the uncertainty may be


def _nothing() -> None:
    """The CPU has nothing to wait for."""


@dataclass(frozen=True)
class Side:
    """A statement, the names it uses, and how to wait until its work is done."""

    statement: str
    names: Mapping[str, Any]
    synchronize: Callable[[], None] = _nothing

    def burst(self) -> Callable[[int], float]:
        """A function that runs the statement n times, waits once, and returns seconds per call.

        One call before the clock starts brings the side's own data back into the caches. Without it a side whose data
        the other one shares (the CPU side runs twice) starts warm more often: an MLP of 7 MB of weights seemed 6 %
        slower compiled than eager.

        The statement is compiled into the loop, its names as locals: a lambda would add the same 50 ns to both sides
        and so flatter the ratio of the cheapest ops.
        """
        source = (
            f"def burst(count, {''.join(f'{name}={name}, ' for name in self.names)}synchronize=synchronize, now=now):\n"
            f"    {self.statement}\n"
            "    synchronize()\n"
            "    start = now()\n"
            "    for _ in range(count):\n"
            f"        {self.statement}\n"
            "    synchronize()\n"
            "    return (now() - start) / count\n"
        )
        space: dict[str, Any] = {**self.names, "synchronize": self.synchronize, "now": perf_counter}
        exec(source, space)
        return space["burst"]


@dataclass(frozen=True)
class Pair:
    """Seconds per call on each side, the paired ratio, and how far to believe it."""

    cpu: float
    device: float
    ratio: float
    control: float = 1.0
    uncertainty: float = 0.0

    @property
    def noisy(self) -> bool:
        return abs(self.control - 1) > TRUSTED or self.uncertainty > TRUSTED


def compare(cpu: Side, device: Side, rounds: int = 60, longest: float = LONG_BURST_SECONDS) -> Pair:
    """Interleaved measurement of two sides in bursts of up to ``longest`` seconds; see the top of this file."""
    return compare_all(cpu, [device], rounds, longest)[0]


def compare_all(
    cpu: Side, devices: Sequence[Side], rounds: int = 60, longest: float = LONG_BURST_SECONDS
) -> list[Pair]:
    """The same of several sides at once, each against the first one, which alone runs twice."""
    sides = (cpu.burst(), *(device.burst() for device in devices), cpu.burst())
    counts = tuple(_calls_per_burst(side, longest) for side in sides)
    minima: tuple[list[float], ...] = tuple([] for _ in sides)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for index in range(rounds):
            best = [float("inf")] * len(sides)
            for burst in range(BURSTS_PER_ROUND):
                for step in range(len(sides)):  # every side gets every place in the order equally often
                    which = (step + index + burst) % len(sides)
                    best[which] = min(best[which], sides[which](counts[which]))
            for which, seconds in enumerate(best):
                minima[which].append(seconds)
    finally:
        if collecting:
            gc.enable()
    first, *others, again = minima
    control = statistics.median(two / one for one, two in zip(first, again, strict=True))
    return [_pair(first, other, control) for other in others]


def _pair(first: Sequence[float], other: Sequence[float], control: float) -> Pair:
    """What the seconds of each round say of two sides."""
    ratios = [theirs / ours for ours, theirs in zip(first, other, strict=True)]
    ratio = statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4)
    return Pair(
        cpu=statistics.median(first),
        device=statistics.median(other),
        ratio=ratio,
        control=control,
        uncertainty=1.57 * (high - low) / len(ratios) ** 0.5 / ratio,  # the notch of a box plot
    )


def calls_of_burst(seconds: float, longest: float = LONG_BURST_SECONDS) -> int:
    """How many calls a burst has at least, if one takes so many seconds."""
    return max(1, min(BURST_CALLS, int(longest / seconds)))


def _calls_per_burst(side: Callable[[int], float], longest: float) -> int:
    side(2)  # first calls compile, allocate and fill caches
    count = 1
    while count < 4096 and (seconds := side(count) * count) < BURST_SECONDS:
        count *= 2
    return max(count, calls_of_burst(seconds / count, longest))


def compare_imports(statement: str, without: Mapping[str, str], rounds: int = 10) -> Pair:
    """CPU seconds (user + system) of `python -c statement`, with extra environment `without` (cpu) and plain (device).

    Fresh processes, alternating, best of `rounds` each; `ratio` is best against best.
    """
    environments = ({**os.environ, **without}, {k: v for k, v in os.environ.items() if k not in without})
    best = [float("inf"), float("inf")]
    for index in range(rounds):
        for which in (0, 1) if index % 2 else (1, 0):
            best[which] = min(best[which], _child_cpu_seconds(statement, environments[which]))
    return Pair(best[0], best[1], best[1] / best[0])


def _child_cpu_seconds(statement: str, environment: Mapping[str, str]) -> float:
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", statement], environment)
    _, status, usage = os.wait4(child, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"`{sys.executable} -c {statement!r}` ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime
