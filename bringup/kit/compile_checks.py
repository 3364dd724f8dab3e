"""``bringup check --level compile``: ``torch.compile`` of every operator PyTorch has samples for, against eager.

Both sides run on the device with the same seed, so that random numbers count too; whether eager itself is right is the
business of ``--level ops``. A ``forward`` case compiles the operator and its in-place form, a ``backward`` case the
operator with gradients. Where PyTorch's own ``aot_eager`` goes wrong too, the case is not ours (``cpu_fails``).

report = run_compile_checks("sim", kinds=("forward", "backward"), ops=["nn.functional.*"])
print(report.summary())
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from bringup.kit.gaps import GAPS_FOLDER, Gap, load_gaps
from bringup.kit.op_cases import Case, CaseResult
from bringup.kit.op_checks import OpReport, command, run_op_checks
from bringup.kit.op_compare import Mismatch, Tolerance, compare, is_as_exact, tolerance_override
from bringup.kit.op_forms import SEED, Form, as_it_is, backward_form, forward_forms
from bringup.kit.op_samples import WIDE, Call, tensors_in
from bringup.kit.op_verdicts import (
    REFUSALS,
    CpuFails,
    DeviceFails,
    NothingToCheck,
    Setup,
    is_comparable,
    judged,
    said,
    samples_of,
)

KINDS = ("forward", "backward")
#: Who judges a case: the workers find it by this name.
VERDICTS = "bringup.kit.compile_checks:run_compiled_case"
BACKEND = "bringup"
#: PyTorch's own backend on the same trace: what that gets wrong is not the fault of ours.
CONTROL = "aot_eager"

#: Eager against eager proves nothing: such a case is listed and does not pass.
NO_GRAPH = "Dynamo captured no graph: nothing was compiled"

Backend = str | Callable[..., Any]


def run_compiled_case(op: Any, case: Case, setup: Setup, backend: Backend = BACKEND) -> CaseResult:
    """One operator in one kind and dtype, compiled, against eager on the same device.

    >>> run_compiled_case(load_op_list()["abs"], Case("abs", "forward", "float32"), Setup("cpu"), "eager").status
    <Status.PASS: 'pass'>
    """
    with _seeded_once():
        return judged(case, lambda result: _check(op, case, setup, backend, result))


@contextlib.contextmanager
def _seeded_once() -> Iterator[None]:
    """The OpInfos of random operators seed inside the call, which cannot be traced; here every run is seeded before."""
    op_infos: Any = importlib.import_module("torch.testing._internal.common_methods_invocations")
    original = op_infos.wrapper_set_seed
    op_infos.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    try:
        yield
    finally:
        op_infos.wrapper_set_seed = original


def _check(op: Any, case: Case, setup: Setup, backend: Backend, result: CaseResult) -> None:
    override = tolerance_override(op, getattr(torch, case.dtype), case.kind)
    for index, sample in samples_of(op, case, setup.samples):
        graphs = 0
        result.sample = index
        call = Call.of(op, sample)
        for form in [backward_form(op, call)] if case.kind == "backward" else forward_forms(op, call):
            try:
                graphs += _Comparison(form, setup.device, override, is_comparable(op)).judge(backend)
            except (DeviceFails, CpuFails) as error:
                raise type(error)(f"{form.label}{error}") from error
        result.samples_run += bool(graphs)
    if not result.samples_run:
        raise NothingToCheck(NO_GRAPH)
    result.sample = None


class _Comparison:
    """One form of one sample: eager twice, compiled once, and the control where these differ."""

    def __init__(self, form: Form, device: str, override: Tolerance | None, values: bool) -> None:
        self.form, self.place, self.override, self.values = form, device, override, values
        self.device = torch.device(device).type

    def judge(self, backend: Backend) -> int:
        """How many graphs were captured; raises where the compiled form is not eager's."""
        try:
            expected, again = self._run(None), self._run(None)
        except Exception as error:
            if self.form.optional:  # a form that eager refuses (``x.op_()`` of integers) has nothing to compare
                return 0
            raise CpuFails(f"eager: {said(error)}") from error
        if found := self._difference(expected, again):
            raise CpuFails(f"eager against itself: {found}")
        wrong = self._against(expected, backend)
        graphs = int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        if wrong and self._against(expected, CONTROL):
            raise CpuFails(f"PyTorch's {CONTROL} is wrong as well: {wrong}")
        if wrong:
            raise DeviceFails(wrong)
        return graphs

    def _against(self, expected: Any, backend: Backend) -> str:
        try:
            return self._difference(expected, self._run(backend))
        except Exception as error:
            return said(error)

    def _run(self, backend: Backend | None, place: str | None = None) -> Any:
        torch._dynamo.reset()  # after eight shapes of one function Dynamo would give up and run it in eager
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(SEED)
        wrap = as_it_is if backend is None else partial(torch.compile, backend=backend, dynamic=False)
        outcome = self.form.run(place or self.place, wrap)
        return outcome.value, outcome.facts, outcome.arguments

    def _difference(self, expected: Any, actual: Any) -> str:
        """What differs, in words; a device that is closer to float64 than eager is right."""
        for index, (one, other) in enumerate(zip(tensors_in(expected), tensors_in(actual))):
            if one.device != other.device:
                return f"tensor {index}: is on {other.device}, expected on {one.device}"
        try:
            compare(expected, actual, self.device, self.override, self.values)
        except Mismatch as error:
            return "" if self.values and self._is_as_exact(expected, actual) else str(error)
        return ""

    def _is_as_exact(self, expected: Any, actual: Any) -> bool:
        try:
            compare(expected, actual, self.device, self.override, values=False)
            exact = self._run(None, WIDE)
        except (Mismatch, *REFUSALS):  # other shapes or dtypes, or no such op in float64
            return False
        return is_as_exact(expected, actual, exact, self.override)


# ---- runs ----
def compile_gaps(device: str) -> list[Gap]:
    """What bringup declares for a device: ``gaps/sim.compile.toml``; none where there is no file."""
    path = GAPS_FOLDER / f"{device.partition(':')[0]}.compile.toml"
    return load_gaps(path) if path.exists() else []


def run_compile_checks(
    device: str = "sim",
    kinds: Sequence[str] = ("forward",),
    *,
    samples: int = 2,
    timeout: float = 120.0,
    gaps: str | Path | Sequence[Gap] | None = None,
    **others: Any,
) -> OpReport:
    """``run_op_checks``, which has the other arguments, with compiled operators.

    The device must be able to compile (sim: ``mode=kernels``).
    """
    if wrong := [kind for kind in kinds if kind not in KINDS]:
        raise ValueError(f"unknown kind {wrong[0]!r}; compiled operators have {', '.join(KINDS)}")
    declared = compile_gaps(device) if gaps is None else gaps
    return run_op_checks(device, kinds, samples=samples, timeout=timeout, gaps=declared, verdicts=VERDICTS, **others)


main_compile = partial(command, run_compile_checks)
