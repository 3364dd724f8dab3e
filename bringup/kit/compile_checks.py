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
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from bringup.kit.gaps import GAPS_FOLDER, Gap, load_gaps
from bringup.kit.op_cases import Case, CaseResult, Status
from bringup.kit.op_checks import OpReport, command, run_op_checks
from bringup.kit.op_compare import Mismatch, Tolerance, compare, is_as_exact, tolerance_override
from bringup.kit.op_forms import SEED, IncomingGradients
from bringup.kit.op_samples import WIDE, Call, take_samples, tensors_in
from bringup.kit.op_verdicts import MESSAGE_LIMIT, REFUSALS, UNINITIALISED, Setup

KINDS = ("forward", "backward")
#: Who judges a case: the workers find it by this name.
VERDICTS = "bringup.kit.compile_checks:run_compiled_case"
BACKEND = "bringup"
#: PyTorch's own backend on the same trace: what that gets wrong is not the fault of ours.
CONTROL = "aot_eager"

#: Eager against eager proves nothing: such a case is listed and does not pass.
NO_GRAPH = "Dynamo captured no graph: nothing was compiled"

Backend = str | Callable[..., Any]


class _Outside(Exception):
    """The case does not count: eager raises or disagrees with itself, or PyTorch's own backend goes wrong too."""


class _Wrong(Exception):
    """The compiled operator raises or gives something else."""


def run_compiled_case(op: Any, case: Case, setup: Setup, backend: Backend = BACKEND) -> CaseResult:
    """One operator in one kind and dtype, compiled, against eager on the same device.

    >>> run_compiled_case(load_op_list()["abs"], Case("abs", "forward", "float32"), Setup("cpu"), "eager").status
    <Status.PASS: 'pass'>
    """
    result = CaseResult(case, Status.PASS)
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings(), _seeded_once():
            warnings.simplefilter("ignore")
            _check(op, case, setup, backend, result)
    except _Outside as error:
        result.status, result.message = Status.CPU_FAILS, str(error)
    except _Wrong as error:
        result.status, result.message = Status.FAIL, str(error)
    result.message = result.message[:MESSAGE_LIMIT]
    result.seconds = time.perf_counter() - begin
    return result


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
    dtype = getattr(torch, case.dtype)
    override = tolerance_override(op, dtype, case.kind)
    values = op.name not in UNINITIALISED and not getattr(op, "has_nondeterministic_output", False)
    try:
        samples = take_samples(op, dtype, setup.samples, requires_grad=case.kind == "backward")
    except Exception as error:
        raise _Outside(f"making sample inputs: {_said(error)}") from error
    if not samples:
        result.status, result.message = Status.SKIP, "PyTorch has no sample inputs for it"
        return
    for index, sample in samples:
        graphs = 0
        result.sample = index
        call = Call.of(op, sample)
        forms = [("", _gradients(op, call))] if case.kind == "backward" else _forward_forms(op, call)
        for label, form in forms:
            comparison = _Comparison(form, setup.device, override, values, optional=bool(label))
            try:
                graphs += comparison.judge(backend)
            except (_Wrong, _Outside) as error:
                raise type(error)(f"{label}{error}") from error
        result.samples_run += bool(graphs)
    if not result.samples_run:
        result.status, result.message = Status.SKIP, NO_GRAPH
    result.sample = None


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


#: A way of calling an operator: (device, what is put around the call) → results.
Form = Callable[[str, Callable[[Any], Any]], Any]


def _forward_forms(op: Any, call: Call) -> list[tuple[str, Form]]:
    """The operator itself, and ``x.op_()`` where there is one."""

    def functional(device: str, compiler: Callable[[Any], Any]) -> Any:
        mine = call.on(device)
        # A factory without device= makes its tensor on the default one.
        with torch.device(device) if not mine.tensors() else contextlib.nullcontext():
            value = compiler(lambda args, kwargs: op.op(*args, **kwargs))(mine.args, mine.kwargs)
        return value, (mine.args, mine.kwargs)

    inplace = op.get_inplace()
    if inplace is None or call.broadcasts_input or not isinstance(call.args[0], torch.Tensor):
        return [("", functional)]

    def in_place(device: str, compiler: Callable[[Any], Any]) -> Any:
        mine = call.on(device)
        value = compiler(lambda args, kwargs: inplace(*args, **kwargs))(mine.args, mine.kwargs)
        return value, value is mine.args[0], (mine.args, mine.kwargs)

    return [("", functional), ("in-place: ", in_place)]


def _gradients(op: Any, call: Call) -> Form:
    """Gradients of every differentiable input, for the same incoming gradient."""
    incoming = IncomingGradients()

    def gradients(device: str, compiler: Callable[[Any], Any]) -> Any:
        mine = call.on(device)
        leaves = [tensor for tensor in mine.tensors() if tensor.requires_grad]
        run = compiler(lambda args, kwargs: op.gradcheck_wrapper(op.op, *args, **kwargs))
        value = call.finish(run(mine.args, mine.kwargs))
        outputs = [tensor for tensor in tensors_in(value) if tensor.requires_grad]
        if not outputs or not leaves:
            return len(outputs), []
        given = incoming.of(outputs, device)
        return len(outputs), list(torch.autograd.grad(outputs, leaves, given, allow_unused=True))

    return gradients


class _Comparison:
    """One form of one sample: eager twice, compiled once, and the control where these differ."""

    def __init__(self, form: Form, device: str, override: Tolerance | None, values: bool, optional: bool) -> None:
        self.form = form
        self.device = torch.device("cpu" if device == WIDE else device).type
        self.place = device
        self.override, self.values = override, values
        #: A form that eager refuses is none (``x.op_()`` of integers).
        self.optional = optional

    def judge(self, backend: Backend) -> int:
        """How many graphs were captured; raises where the compiled form is not eager's."""
        try:
            expected = self._run(None)
            again = self._run(None)
        except Exception as error:
            if self.optional:
                return 0
            raise _Outside(f"eager: {_said(error)}") from error
        if found := self._difference(expected, again):
            raise _Outside(f"eager against itself: {found}")
        wrong = self._against(expected, backend)
        graphs = int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        if wrong and self._against(expected, CONTROL):
            raise _Outside(f"PyTorch's {CONTROL} is wrong as well: {wrong}")
        if wrong:
            raise _Wrong(wrong)
        return graphs

    def _against(self, expected: Any, backend: Backend) -> str:
        try:
            actual = self._run(backend)
            return self._difference(expected, actual)
        except Exception as error:
            return _said(error)

    def _run(self, backend: Backend | None, place: str | None = None) -> Any:
        torch._dynamo.reset()  # after eight shapes of one function Dynamo would give up and run it in eager
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(SEED)

        def compiler(function: Any) -> Any:
            return function if backend is None else torch.compile(function, backend=backend, dynamic=False)

        return self.form(place or self.place, compiler)

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
