"""Random operators: which calls draw numbers, and whether the device's draws are like the CPU's.

A device has its own generator, so values cannot be compared; what all seeds have in common can. Seeds are fixed: a
check that passes once passes always.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bringup.kit.op_compare import Mismatch, Tolerance, as_reals, to_host, tolerance
from bringup.kit.op_samples import tensors_in

#: Seeds that are pooled: enough for dropout of 4 in 5 to show each of its two values at each place (0.8 ** 64 = 6e-7).
RUNS = 64
#: Standard errors between two means: a false alarm in 1e10, for thousands of elements in thousands of cases.
MOST_ERRORS = 8.0
#: How often a place of few values may show one that the CPU never shows there.
MOST_NEW = 12
#: Different numbers in one result from which on their count is compared: elements must not repeat each other.
LEAST_DISTINCT = 1.9
#: Two spreads of one distribution over 64 seeds are within this factor, however the elements hang together.
MOST_SPREAD = 4.0


#: What the CPU's numbers lack that the device's must then lack too.
_SIGNS: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("negative", torch.neg),
    ("positive", torch.Tensor.clone),
)
#: Draws of a sign that the CPU's do not have. Ten are chance once in a thousand where both draw alike.
MOST_OF_NEW_SIGN = 9


class Draws(TorchDispatchMode):
    """Whether anything inside the block moved a generator of the CPU; the tags of operators say only that it could."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.yes = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = kwargs.get("generator")
        generators = [torch.default_generator, *([given] if isinstance(given, torch.Generator) else [])]
        before = [generator.get_state() for generator in generators]
        value = func(*args, **kwargs)
        self.yes = self.yes or any(not torch.equal(g.get_state(), state) for g, state in zip(generators, before))
        return value


def check_draws(expected: Sequence[Any], actual: Sequence[Any], override: Tolerance | None = None) -> None:
    """Raise ``Mismatch`` unless the device's results of several seeds could be the CPU's of several seeds.

    Compared are how many results differ, and for each element its mean, its spread, its few values where it has only
    few (dropout: zero or the scaled input), signs, and whether it is a whole number. Shapes are equal already.
    """
    check_distinct(expected, actual)
    for index, (theirs, ours) in enumerate(zip(_by_tensor(expected), _by_tensor(actual))):
        if theirs[0].numel() == 0 or theirs[0].dtype == torch.bool:
            theirs, ours = [t.to(torch.uint8) for t in theirs], [t.to(torch.uint8) for t in ours]
        rtol, atol = tolerance(theirs[0].dtype, override)
        if theirs[0].is_floating_point() or theirs[0].is_complex():  # no second opinion here: all that may be rounding
            rtol = max(rtol, torch.finfo(theirs[0].dtype).eps ** 0.5)
        cpu, device = (torch.stack([as_reals(t) for t in tensors]) for tensors in (theirs, ours))
        if cpu.shape[1] and len(cpu) > 1:
            _check_elements(cpu, device, rtol, atol, f"random result {index}")


def _by_tensor(results: Sequence[Any]) -> list[list[torch.Tensor]]:
    """For each tensor of a result, its values over all seeds, on the host."""
    rows = [[to_host(t) for t in tensors_in(result) if t.layout == torch.strided] for result in results]
    return [list(column) for column in zip(*rows)]


def check_distinct(expected: Sequence[Any], actual: Sequence[Any]) -> None:
    """Raise ``Mismatch`` if the device ignores its seed and the CPU does not."""

    def most_often(results: Sequence[Any]) -> int:
        seen: dict[bytes, int] = {}
        for result in results:
            rows = [as_reals(to_host(t)) for t in tensors_in(result) if t.layout == torch.strided]
            key = torch.cat(rows).numpy().tobytes() if rows else b""
            seen[key] = seen.get(key, 0) + 1
        return max(seen.values())

    others = len(expected) - most_often(expected)
    if others >= MOST_NEW and most_often(actual) == len(actual):
        raise Mismatch(f"{len(actual)} seeds give one and the same result; the CPU gives another in {others} of them")


def _check_elements(cpu: torch.Tensor, device: torch.Tensor, rtol: float, atol: float, where: str) -> None:
    """``cpu`` and ``device`` are seeds × elements."""
    runs = len(cpu)
    if not torch.equal(cpu.isfinite().all(0), device.isfinite().all(0)):
        raise Mismatch(f"{where}: not finite in other places than on the CPU")
    finite = cpu.isfinite().all(0)
    cpu, device = cpu[:, finite], device[:, finite]
    if not cpu.shape[1]:
        return
    mean, our_mean = cpu.mean(0), device.mean(0)
    spread, our_spread = cpu.var(0), device.var(0)
    slack = atol + rtol * cpu.abs().amax(0)
    off = (mean - our_mean).abs() > slack + MOST_ERRORS * ((spread + our_spread) / runs).sqrt()
    if bool(off.any()):
        at = int(off.nonzero()[0])
        raise Mismatch(
            f"{where}: element {at} is {float(our_mean[at]):.6g} on average of {runs} seeds, "
            f"{float(mean[at]):.6g} on the CPU; standard deviations {float(our_spread[at]) ** 0.5:.3g} and "
            f"{float(spread[at]) ** 0.5:.3g}"
        )
    theirs, ours = (float(_distinct(draws.T).double().mean()) for draws in (cpu, device))
    if theirs > LEAST_DISTINCT and ours < theirs * 0.6:
        raise Mismatch(f"{where}: {ours:.1f} different numbers in a result on average, {theirs:.1f} on the CPU")
    varied = int((cpu != cpu[:, :1]).any(1).sum())
    if varied > MOST_NEW and bool((device == device[:, :1]).all()):
        raise Mismatch(f"{where}: all elements are equal for all {runs} seeds; on the CPU they differ for {varied}")
    _check_spread(cpu, device, slack, where)
    _check_few_values(cpu, device, rtol, atol, where)
    if cpu.numel() >= 20:
        _check_kinds(cpu, device, where)


def _check_kinds(cpu: torch.Tensor, device: torch.Tensor, where: str) -> None:
    """Signs and fractions that no draw of the CPU has. A tail that ends near zero may cross it a few times on one side
    and not on the other: a new sign counts if it is frequent, or far out."""
    for kind, towards in _SIGNS:
        beyond = towards(device)
        if bool((towards(cpu) <= 0).all()) and bool((beyond > 0).any()):
            frequent = int((beyond > 0).sum()) > MOST_OF_NEW_SIGN
            if frequent or float(beyond.max()) > float(cpu.abs().median()):
                raise Mismatch(f"{where}: has {kind} numbers, which the CPU never draws")
    if torch.equal(cpu, cpu.round()) and not torch.equal(device, device.round()):
        raise Mismatch(f"{where}: has fractional numbers, which the CPU never draws")


def _check_spread(cpu: torch.Tensor, device: torch.Tensor, slack: torch.Tensor, where: str) -> None:
    """Standard deviations without the outermost sixteenths: these exist for every distribution (Cauchy's has none)."""
    runs = len(cpu)
    if runs < 16:
        return
    continuous = _distinct(cpu) > runs // 2
    if bool((_distinct(device)[continuous] <= runs // 8).any()):
        raise Mismatch(f"{where}: an element hardly changes over {runs} seeds, on the CPU it always does")
    ordered = torch.cat([cpu, device]).sort(0).values
    low, high = ordered[runs // 8], ordered[-1 - runs // 8]
    theirs, ours = (draws.clamp(low, high).std(0) for draws in (cpu, device))
    wide = continuous & (theirs > slack)
    if bool(wide.any()):
        ratio = float((ours[wide] / theirs[wide]).median())
        if not 1 / MOST_SPREAD < ratio < MOST_SPREAD:
            raise Mismatch(f"{where}: spreads {ratio:.3g} times as wide as on the CPU")


def _distinct(draws: torch.Tensor) -> torch.Tensor:
    """How many different values each column has."""
    return 1 + (draws.sort(0).values.diff(dim=0) > 0).sum(0)


def _check_few_values(cpu: torch.Tensor, device: torch.Tensor, rtol: float, atol: float, where: str) -> None:
    """Places that have a few values on the CPU must have them on the device: zero or twice the input, one of a window.

    A value that the CPU never shows may be rare; one that is frequent is wrong.
    """
    few = _distinct(cpu) <= 8
    if len(cpu) <= MOST_NEW or not bool(few.any()):
        return
    cpu, device = cpu[:, few], device[:, few]
    slack = atol + rtol * cpu.abs()
    new = torch.stack([((row - cpu).abs() > slack).all(0) for row in device]).sum(0)
    if bool((new > MOST_NEW).any()):
        at = int(new.argmax())
        raise Mismatch(
            f"{where}: of a place with few values, {int(new[at])} of {len(device)} seeds give one that the CPU never "
            f"has there: {device[:, at].unique().tolist()[:4]}; the CPU has {cpu[:, at].unique().tolist()[:4]}"
        )


def check_distribution(expected: Sequence[Any], actual: Sequence[Any]) -> None:
    """Raise ``Mismatch`` if pooled random numbers of the device do not look like the CPU's: for elements that are drawn
    independently.

    Two-sample Kolmogorov-Smirnov with a false alarm in a million; below a hundred numbers it says nothing.
    """
    pools = []
    for results in (expected, actual):
        numbers = [as_reals(to_host(t)) for t in tensors_in(list(results)) if not t.is_sparse]
        pools.append(torch.cat(numbers).sort().values if numbers else torch.empty(0, dtype=torch.float64))
    ours, theirs = pools[1], pools[0]
    if min(len(ours), len(theirs)) < 100:
        return
    points = torch.cat([ours, theirs])
    steps = [torch.searchsorted(pool, points, right=True).double() / len(pool) for pool in (ours, theirs)]
    distance = float((steps[0] - steps[1]).abs().max())
    limit = 2.69 * (1 / len(ours) + 1 / len(theirs)) ** 0.5
    if distance > limit:
        raise Mismatch(
            f"random numbers are distributed differently: Kolmogorov-Smirnov distance {distance:.3f} > {limit:.3f}, "
            f"{len(ours)} numbers; mean {float(ours.mean()):.4g} on the device, {float(theirs.mean()):.4g} on the CPU"
        )
