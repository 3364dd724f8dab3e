"""Mutation-tests the op check: makes the device's results wrong, one mistake at a time, and asks for the verdict.

CPU and device compute each sample once; every mutation is judged on what they gave.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from bringup.kit.op_cases import Case, op_name, supported_dtypes
from bringup.kit.op_compare import as_reals, to_host, tolerance, tolerance_override
from bringup.kit.op_forms import SEED, Outcome
from bringup.kit.op_random import MOST_NEW
from bringup.kit.op_samples import Call, tensors_in
from bringup.kit.op_verdicts import UNINITIALISED, CpuFails, NothingToCheck, Setup, check_sample, samples_of
from tests.mutation.mutations import CONSTANT, MUTATIONS, VALUES, NotApplicable, parts, plain_mutation, with_part

#: Dtypes in the order in which an operator is tried.
PREFERRED = ("float32", "int64", "bool", "float64", "complex64", "float16")
UNINITIALISED_MEMORY = "uninitialised memory: nothing but its form can be compared"
RANDOM = "a random number: changed a little, or to another sign where both occur, it is another random number"
RARE = "a random number that is nearly always the same: 64 seeds cannot tell it from a constant, other samples can"
TOLERATED = "within the tolerance that PyTorch's own tests grant the op"


@dataclass
class Tally:
    """What became of the mutations of one case."""

    caught: Counter[str] = field(default_factory=Counter)
    #: (mutation, reason) → how often; no reason is a hole in the check.
    missed: Counter[tuple[str, str]] = field(default_factory=Counter)
    holes: list[str] = field(default_factory=list)
    #: Why there was nothing to mutate.
    none: str = ""


class _Memory:
    """A ``Gather`` that calls each form once per place and seed, and changes what the device gave."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.outcomes: dict[tuple[str, str, int], Outcome | Exception] = {}
        self.label = ""
        self.change: Callable[[Outcome, Outcome], Outcome] | None = None

    def __call__(self, label: str, place: str, seed: int, run: Callable[[], Outcome]) -> Outcome:
        outcome = self._of(label, place, seed, run)
        if self.change is None or place != self.device or label != self.label:
            return outcome
        return self.change(outcome, self._of(label, place, SEED, run))

    def _of(self, label: str, place: str, seed: int, run: Callable[[], Outcome]) -> Outcome:
        key = (label, place, seed)
        if key not in self.outcomes:
            try:
                self.outcomes[key] = run()
            except Exception as error:  # an optional form that the CPU refuses: refused again each time
                self.outcomes[key] = error
        found = self.outcomes[key]
        if isinstance(found, Exception):
            raise found
        return found

    def device_outcomes(self) -> dict[str, Outcome]:
        """The outcomes of the first seed on the device, by form."""
        found = {label: o for (label, place, seed), o in self.outcomes.items() if (place, seed) == (self.device, SEED)}
        return {label: outcome for label, outcome in found.items() if isinstance(outcome, Outcome)}

    def others(self, label: str) -> int:
        """How many seeds give another result than most do; 0 is a constant."""
        found = [o for (of, place, _), o in self.outcomes.items() if (of, place) == (label, self.device)]
        rows = [[as_reals(to_host(t)) for t in tensors_in(o.value)] for o in found if isinstance(o, Outcome)]
        seen = Counter(b"".join(t.numpy().tobytes() for t in row) for row in rows)
        return len(rows) - max(seen.values(), default=0)

    def drew(self, label: str) -> bool:
        watched = self.outcomes.get((label, "watched", SEED))
        return isinstance(watched, Outcome) and watched.drew


def cases_of(op: Any, kinds: tuple[str, ...] = ("forward", "backward")) -> Iterator[Case]:
    """One case per kind, in float32 or else in the first dtype that the operator has."""
    for kind in kinds:
        supported = supported_dtypes(op, kind)
        wanted = [d for d in PREFERRED if d in supported] or supported
        if wanted:
            yield Case(op_name(op), kind, wanted[0])


def mutate_case(op: Any, case: Case, device: str, samples: int) -> Tally:
    """Every mutation of every form of some samples of one case."""
    tally = Tally()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            chosen = samples_of(op, case, samples)
        except (CpuFails, NothingToCheck) as error:
            tally.none = str(error)
            return tally
        for index, sample in chosen:
            _mutate_sample(op, case, Call.of(op, sample), device, f"{case} sample {index}", tally)
    if not tally.caught and not tally.missed and not tally.none:
        tally.none = "empty results only"
    return tally


def _mutate_sample(op: Any, case: Case, call: Call, device: str, where: str, tally: Tally) -> None:
    memory = _Memory(device)
    setup = Setup(device, gather=memory)
    problem = _verdict(op, case, call, setup)
    if problem is not None:
        tally.none = f"fails unchanged: {type(problem).__name__}: {problem}".partition("\n")[0]
        return
    for label, outcome in memory.device_outcomes().items():
        memory.label = label
        found = parts(outcome.value)
        for at in sorted({0, len(found) - 1}) if found else ():
            for name in (*MUTATIONS, *CONSTANT):
                try:
                    memory.change, small = _change(name, found[at], at, memory, label, op, case)
                except NotApplicable:
                    continue
                if _verdict(op, case, call, setup) is not None:
                    tally.caught[name] += 1
                    continue
                rare = name == CONSTANT[0] and memory.others(label) < MOST_NEW
                reason = RARE if rare else _reason(op, name, memory.drew(label), small)
                tally.missed[name, reason] += 1
                if not reason:
                    tally.holes.append(f"{where} {label}part {at}: {name}")


def _verdict(op: Any, case: Case, call: Call, setup: Setup) -> Exception | None:
    """What the check raises for this sample. All but ``CpuFails`` is a failure of the device."""
    memory: Any = setup.gather
    only = None if memory.change is None else memory.label
    try:
        check_sample(op, case, call, setup, only=only)
    except CpuFails as error:
        return error if memory.change is None else None
    except Exception as error:
        return error
    return None


def _change(
    name: str, part: Any, at: int, memory: _Memory, label: str, op: Any, case: Case
) -> tuple[Callable[[Outcome, Outcome], Outcome], bool]:
    """The change of an outcome (given the first seed's), and whether it is within the tolerance of the op."""
    drew = memory.drew(label)
    if name in CONSTANT:
        if not drew:
            raise NotApplicable("not random")
        if name == CONSTANT[0]:
            if not memory.others(label):
                raise NotApplicable("all seeds give one result by themselves")
            return lambda outcome, first: first, False
        if not isinstance(part, torch.Tensor) or part.layout != torch.strided or part.numel() < 2:
            raise NotApplicable("one element")
        if bool((part == part.flatten()[0]).all()):
            raise NotApplicable("all elements are equal already")

        def fill(outcome: Outcome, first: Outcome) -> Outcome:
            tensor = parts(outcome.value)[at]
            same = torch.empty_like(tensor).copy_(tensor.detach().flatten()[0].expand(tensor.shape))
            return replace(outcome, value=with_part(outcome.value, at, same))

        return fill, False
    if not isinstance(part, torch.Tensor):
        if name != "first value":
            raise NotApplicable("not a tensor")
        plain = plain_mutation(part)
        return lambda outcome, first: replace(outcome, value=with_part(outcome.value, at, plain)), False
    mutation = MUTATIONS[name]
    changed = mutation(part)
    small = name in VALUES and _is_small(part, changed, op, case)
    if name in VALUES and not drew and torch.equal(as_reals(to_host(changed)), as_reals(to_host(part))):
        raise NotApplicable("the change is below the dtype's precision")

    def change(outcome: Outcome, first: Outcome) -> Outcome:
        tensor = parts(outcome.value)[at]
        try:
            wrong = changed if tensor is part else mutation(tensor)
        except NotApplicable:
            wrong = tensor
        return replace(outcome, value=with_part(outcome.value, at, wrong))

    return change, small


def _is_small(right: torch.Tensor, wrong: torch.Tensor, op: Any, case: Case) -> bool:
    override = tolerance_override(op, getattr(torch, case.dtype), case.kind)
    rtol, atol = tolerance(right.dtype, override)
    ours, theirs = as_reals(to_host(wrong)), as_reals(to_host(right))
    return bool(torch.isclose(ours, theirs, rtol=rtol, atol=atol, equal_nan=True).all())


def _reason(op: Any, name: str, drew: bool, small: bool) -> str:
    if name in VALUES and op.name in UNINITIALISED:
        return UNINITIALISED_MEMORY
    if name in VALUES and small:
        return TOLERATED
    if name in VALUES and drew:
        return RANDOM
    return ""
