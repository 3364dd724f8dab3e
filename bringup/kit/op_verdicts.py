"""The verdict on one case: run the operator on the CPU and on the device, and say whether the device is right.

The CPU goes first and twice: a sample on which it raises or disagrees with itself is not the device's business. The
second run watches the CPU's generator: where it moves, the results of many seeds are compared (``op_random``), else the
values. Every sample is run to its own verdict, and every form of it that the CPU has.
"""

from __future__ import annotations

import contextlib
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from bringup.kit.op_cases import Case, CaseResult, Status, op_name
from bringup.kit.op_compare import Mismatch, Tolerance, compare, is_as_exact, to_host, tolerance_override
from bringup.kit.op_errors import NoErrorInputs, WrongError, check_errors
from bringup.kit.op_forms import SEED, Form, Outcome, as_it_is, backward_form, forward_forms, out_forms
from bringup.kit.op_random import RUNS, Draws, check_distinct, check_distribution, check_draws
from bringup.kit.op_samples import WIDE, Call, copy_to, take_samples, tensors_in
from bringup.kit.op_unique import unique_part

#: Results that are uninitialised memory, all or in part; torch 2.13 marks most with ``has_nondeterministic_output``.
UNINITIALISED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
#: Random ops whose elements are drawn independently, so that their distribution can be compared.
INDEPENDENT = ("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "rand", "uniform", "dropout")
#: … but these drop whole channels at once.
WHOLE_CHANNELS = ("dropout2d", "dropout3d", "feature_")
#: Later samples of a random operator get fewer seeds, and so do its in-place and out= forms.
FULL_SAMPLES, FEWER_RUNS, OTHER_FORMS_RUNS = 8, 16, 32
#: What an op raises that does not take the dtype of its arguments.
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError)
MESSAGE_LIMIT = 3000

#: Calls a form: (the form's label, the place, the seed, the call) → what it left behind.
Gather = Callable[[str, str, int, Callable[[], Outcome]], Outcome]


def call_now(label: str, place: str, seed: int, run: Callable[[], Outcome]) -> Outcome:
    """The usual ``Gather``. Another one may remember outcomes, or change them to see whether a verdict notices."""
    del label, place, seed
    return run()


@dataclass(frozen=True)
class Setup:
    """What all cases of a run share."""

    device: str
    samples: int = 8
    gather: Gather = call_now


class CpuFails(Exception):
    """The CPU raises, or does not agree with itself: the sample does not count."""


class NothingToCheck(Exception):
    """PyTorch has no input for this case."""


class DeviceFails(Exception):
    """The device raises or is wrong."""


def run_case(op: Any, case: Case, setup: Setup) -> CaseResult:
    """Run one case to its verdict; what the operator raises ends up in the result, a crash does not.

    >>> run_case(load_op_list()["abs"], Case("abs", "forward", "float32"), Setup("cpu")).status
    <Status.PASS: 'pass'>
    """
    if case.kind == "error":
        return judged(case, lambda result: _check_error(op, setup, result))
    return judged(case, lambda result: _check_samples(op, case, setup, result))


def judged(case: Case, check: Callable[[CaseResult], None]) -> CaseResult:
    """The result of a check, which raises ``CpuFails``, ``NothingToCheck`` or ``DeviceFails``, or fills it in."""
    result = CaseResult(case, Status.PASS)
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(result)
    except CpuFails as error:
        result.status, result.message = Status.CPU_FAILS, str(error)
    except NothingToCheck as error:
        result.status, result.message = Status.SKIP, str(error)
    except DeviceFails as error:
        result.status, result.message = Status.FAIL, str(error)
    except Exception as error:  # error inputs that PyTorch cannot make for the device, most often
        result.status, result.message = Status.FAIL, _unexpected(error)
    result.message = result.message[:MESSAGE_LIMIT]
    result.seconds = time.perf_counter() - begin
    return result


def said(error: BaseException) -> str:
    """An error as Python prints it."""
    return f"{type(error).__name__}: {error}"


def _unexpected(error: BaseException) -> str:
    trace = "".join(traceback.format_tb(error.__traceback__)[-3:])
    return f"while comparing: {said(error)}\n{trace}"


def samples_of(op: Any, case: Case, count: int) -> list[tuple[int, Any]]:
    """The sample inputs of a case with their numbers."""
    try:
        samples = take_samples(op, getattr(torch, case.dtype), count, requires_grad=case.kind == "backward")
    except Exception as error:
        raise CpuFails(f"making sample inputs: {said(error)}") from error
    if not samples:
        raise NothingToCheck("PyTorch has no sample inputs for it")
    return samples


def _check_samples(op: Any, case: Case, setup: Setup, result: CaseResult) -> None:
    """Each sample to its own verdict; of several that fail the first is reported."""
    failures: list[tuple[int, BaseException]] = []
    cpu_fails: list[tuple[int, CpuFails]] = []
    for position, (index, sample) in enumerate(samples_of(op, case, setup.samples)):
        try:
            check_sample(op, case, Call.of(op, sample), setup, RUNS if position < FULL_SAMPLES else FEWER_RUNS)
        except CpuFails as error:
            cpu_fails.append((index, error))
            continue
        except (DeviceFails, Mismatch) as error:
            failures.append((index, error))
        except Exception as error:  # reading a result back, most often
            failures.append((index, DeviceFails(_unexpected(error))))
        result.ran.append(index)
    result.samples_run = len(result.ran)
    if failures:
        result.status, result.sample = Status.FAIL, failures[0][0]
        result.failed = [index for index, _ in failures]
        differences = [getattr(error, "difference", float("inf")) for _, error in failures]
        result.difference = max(differences) if max(differences) < float("inf") else None
        result.message = str(failures[0][1])
    elif not result.ran:
        result.sample = cpu_fails[0][0]
        raise cpu_fails[0][1]
    if cpu_fails:
        result.note = f"the CPU itself fails on {len(cpu_fails)} samples, {cpu_fails[0][0]} first: {cpu_fails[0][1]}"
        result.note = result.note[:MESSAGE_LIMIT]


def check_sample(op: Any, case: Case, call: Call, setup: Setup, runs: int = RUNS, only: str | None = None) -> None:
    """One sample in every form of its kind, or in the one with that label: raises ``CpuFails``, ``DeviceFails`` or
    ``Mismatch``."""
    subject = _Subject(op, case, call, setup, runs)
    if case.kind == "backward":
        subject.check(backward_form(op, call))
        return
    forms = forward_forms(op, call)
    first = next(forms)
    expected = subject.check(first) if only in (None, first.label) else subject.on_cpu(first)
    for form in forms:
        if only in (None, form.label):
            subject.check(form)
    for form in out_forms(op, call, expected.value if expected else None):
        if only in (None, form.label):
            subject.check(form)


def is_comparable(op: Any) -> bool:
    """Whether an operator's results have values that two runs share."""
    return op.name not in UNINITIALISED and not getattr(op, "has_nondeterministic_output", False)


class _Subject:
    """One sample of an operator, whose forms are compared between CPU and device."""

    def __init__(self, op: Any, case: Case, call: Call, setup: Setup, runs: int) -> None:
        self.call, self.setup, self.runs = call, setup, runs
        self.override: Tolerance | None = tolerance_override(op, getattr(torch, case.dtype), case.kind)
        self.comparable = is_comparable(op)
        self.independent = any(word in op.name for word in INDEPENDENT) and not any(
            word in op.name for word in WHOLE_CHANNELS
        )
        self.unique = unique_part(op_name(op), case.kind, call)

    def check(self, form: Form) -> Outcome | None:
        """Raise unless the device does in this form what the CPU does; gives the CPU's outcome, None if it has none."""
        try:
            expected = self.on_cpu(form)
            drew = False
            if self.comparable:
                drew = self._agrees_with_itself(form, expected)
        except CpuFails:
            if form.optional:
                return None
            raise
        actual = self._on_device(form)
        try:
            if drew:
                self._check_random(form, expected, actual)
            else:
                self._check_values(form, expected, actual)
        except Mismatch as error:
            raise Mismatch(f"{form.label}{error}", error.difference) from None
        return expected

    # ---- calls ----
    def on_cpu(self, form: Form, seed: int = SEED, watched: bool = False) -> Outcome:
        """What the form does there; ``watched`` also says whether it drew random numbers."""

        def run() -> Outcome:
            with Draws() if watched else contextlib.nullcontext() as draws:
                outcome = _seeded(form, "cpu", seed)
            return replace(outcome, drew=draws is not None and draws.yes)

        try:
            return self.setup.gather(form.label, "watched" if watched else "cpu", seed, run)
        except Exception as error:
            raise CpuFails(form.label + said(error)) from error

    def _on_device(self, form: Form, seed: int = SEED) -> Outcome:
        device = self.setup.device
        try:
            return self.setup.gather(form.label, device, seed, lambda: _seeded(form, device, seed))
        except Exception as error:
            raise DeviceFails(form.label + said(error)) from error

    # ---- comparisons ----
    def _agrees_with_itself(self, form: Form, expected: Outcome) -> bool:
        """Whether the CPU drew random numbers; raises ``CpuFails`` where two runs of one seed differ."""
        again = self.on_cpu(form, watched=True)
        try:
            compare(expected.value, again.value, "cpu", self.override)
            compare(expected.arguments, again.arguments, None, self.override)
            if form.means is not None and not again.drew:  # out= that the CPU itself gets wrong
                compare(_plain(form.means), _plain(expected.value), "cpu", self.override)
        except Mismatch as error:
            raise CpuFails(f"{form.label}CPU against itself: {error}") from None
        return again.drew

    def _check_values(self, form: Form, expected: Outcome, actual: Outcome) -> None:
        compare(expected.facts, actual.facts, None, where="facts")
        compare(expected.value, actual.value, self.setup.device, values=False)
        try:
            compare(expected.value, actual.value, self.setup.device, self.override, self.comparable)
            self._check_arguments(expected, actual)
        except Mismatch:
            if self.unique is not None:
                self._check_unique(expected, actual)
                self._check_arguments(expected, actual)
            elif not self._is_as_exact(form, expected, actual):
                raise

    def _check_arguments(self, expected: Outcome, actual: Outcome) -> None:
        """They may be on the CPU by intent, and some are filled by the call."""
        compare(expected.arguments, actual.arguments, None, self.override, self.comparable, where="arguments")

    def _check_unique(self, expected: Outcome, actual: Outcome) -> None:
        assert self.unique is not None
        ours, theirs = (self.unique(self.call, outcome.value) for outcome in (actual, expected))
        compare(theirs, ours, "cpu", self.override, where="what is unique of the result")

    def _is_as_exact(self, form: Form, expected: Outcome, actual: Outcome) -> bool:
        """The second opinion on a difference: the same call on the CPU in float64. The plain CPU gets none."""
        if self.setup.device == "cpu":
            return False
        try:
            exact = self.setup.gather(form.label, WIDE, SEED, lambda: _seeded(form, WIDE, SEED))
        except REFUSALS:  # no such op in float64
            return False
        theirs, ours, truth = ((outcome.value, outcome.arguments) for outcome in (expected, actual, exact))
        return is_as_exact(theirs, ours, truth, self.override)

    def _check_random(self, form: Form, expected: Outcome, actual: Outcome) -> None:
        """The form of the result, that one seed gives one result, and what the results of many seeds have in common."""
        device = self.setup.device
        compare(expected.facts, actual.facts, None, where="facts")
        compare(expected.value, actual.value, device, values=False)
        again = self._on_device(form)
        try:
            compare(copy_to(actual.value, "cpu"), again.value, device)
        except Mismatch as error:
            raise Mismatch(f"the same seed gives two results: {error}") from None
        runs = min(self.runs, OTHER_FORMS_RUNS) if form.label else self.runs
        seeds = range(SEED + 1, SEED + runs)
        cpu = [expected, *(self.on_cpu(form, seed) for seed in seeds)]
        theirs: list[Any] = [outcome.value for outcome in cpu]
        ours: list[Any] = [actual.value, *(self._on_device(form, seed).value for seed in seeds)]
        if not _differ(cpu[0].arguments, cpu[1].arguments):  # else the op fills them with random numbers
            self._check_arguments(expected, actual)
        if self.unique is not None:
            check_distinct(theirs, ours)
            theirs, ours = ([self.unique(self.call, value) for value in side] for side in (theirs, ours))
        check_draws(theirs, ours, self.override)
        if self.independent:
            check_distribution(theirs, ours)


def _differ(one: Any, other: Any) -> bool:
    try:
        compare(one, other, None)
    except Mismatch:
        return True
    return False


def _plain(value: Any) -> list[torch.Tensor]:
    """Tensors on the host, in the usual memory order."""
    return [to_host(t).contiguous() for t in tensors_in(value)]


def _seeded(form: Form, place: str, seed: int) -> Outcome:
    torch.manual_seed(seed)
    with _shifted_seeds(seed - SEED):
        return form.run(place, as_it_is)


@contextlib.contextmanager
def _shifted_seeds(shift: int) -> Iterator[None]:
    """The OpInfos of random operators seed by themselves, always alike: their seeds move along with ours."""
    real = torch.manual_seed
    torch.manual_seed = lambda seed: real(seed + shift)
    try:
        yield
    finally:
        torch.manual_seed = real


def _check_error(op: Any, setup: Setup, result: CaseResult) -> None:
    try:
        check_errors(op, setup.device, result)
    except NoErrorInputs as error:
        raise CpuFails(str(error)) from error
    except WrongError as error:
        result.failed = [] if result.sample is None else [result.sample]
        raise DeviceFails(str(error)) from error
    if not result.samples_run:
        raise NothingToCheck("PyTorch declares no error input that the CPU refuses")
    result.sample = None
