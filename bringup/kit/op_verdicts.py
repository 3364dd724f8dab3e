"""The verdict on one case: run the operator on the CPU and on the device, and say whether the device is right.

The CPU goes first and twice: where it raises or disagrees with itself the case is not the device's business. A third
CPU run with another seed tells random operators apart; of those the form, the repeatability and the distribution count.
"""

from __future__ import annotations

import contextlib
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from bringup.kit.op_cases import Case, CaseResult, Status, op_name
from bringup.kit.op_compare import (
    Mismatch,
    Tolerance,
    check_distribution,
    compare,
    is_as_exact,
    tolerance_override,
)
from bringup.kit.op_samples import WIDE, Call, copy_to, take_samples, tensors_in

#: Results that are uninitialised memory, all or in part; torch 2.13 marks most with ``has_nondeterministic_output``.
UNINITIALISED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
#: Random ops whose elements are drawn independently, so that their distribution can be compared.
INDEPENDENT = ("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "rand", "uniform", "dropout")
#: … but these drop whole channels at once.
WHOLE_CHANNELS = ("dropout2d", "dropout3d", "feature_")
#: Runs that are pooled for a distribution.
DISTRIBUTION_RUNS = 16
#: Factorisations with free signs or phases: their OpInfo says what of the result is unique.
NOT_UNIQUE = frozenset(
    {"linalg.eig", "linalg.eigh", "linalg.svd", "linalg.qr", "svd", "qr", "geqrf", "svd_lowrank", "pca_lowrank"}
)
#: Which of equal elements is named is nobody's promise (without ``stable``): name → the argument that is ``dim``.
TIES = {"sort": 1, "argsort": 1, "topk": 2, "kthvalue": 2, "mode": 1}
#: Their gradients go to the elements that were named, also where no index is among the results.
TIED_GRADIENTS = frozenset({*TIES, "msort"})
#: What an op raises that does not take the dtype of its arguments.
REFUSALS = (RuntimeError, TypeError, ValueError, IndexError)
SEED = 1234
MESSAGE_LIMIT = 3000


@dataclass(frozen=True)
class Setup:
    """What all cases of a run share."""

    device: str
    samples: int = 8


class CpuFails(Exception):
    """The CPU raises, or does not agree with itself: the case does not count."""


class NothingToCheck(Exception):
    """PyTorch has no input for this case."""


class DeviceFails(Exception):
    """The device raises or is wrong."""


def run_case(op: Any, case: Case, setup: Setup) -> CaseResult:
    """Run one case to its verdict; what the operator raises ends up in the result, a crash does not.

    >>> run_case(load_op_list()["abs"], Case("abs", "forward", "float32"), Setup("cpu")).status
    <Status.PASS: 'pass'>
    """
    result = CaseResult(case, Status.PASS)
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _CHECKS[case.kind](op, case, setup, result)
    except CpuFails as error:
        result.status, result.message = Status.CPU_FAILS, str(error)
    except NothingToCheck as error:
        result.status, result.message = Status.SKIP, str(error)
    except (DeviceFails, Mismatch) as error:
        result.status, result.message = Status.FAIL, str(error)
    except Exception as error:  # reading a result back, most often
        trace = "".join(traceback.format_tb(error.__traceback__)[-3:])
        result.status, result.message = Status.FAIL, f"while comparing: {_said(error)}\n{trace}"
    result.message = result.message[:MESSAGE_LIMIT]
    result.seconds = time.perf_counter() - begin
    return result


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _samples(op: Any, case: Case, setup: Setup, requires_grad: bool) -> list[tuple[int, Any]]:
    try:
        samples = take_samples(op, getattr(torch, case.dtype), setup.samples, requires_grad)
    except Exception as error:
        raise CpuFails(f"making sample inputs: {_said(error)}") from error
    if not samples:
        raise NothingToCheck("PyTorch has no sample inputs for it")
    return samples


@dataclass
class _Subject:
    """One way of calling an operator on one sample, compared between CPU and device."""

    run: Callable[[str], Any]
    device: str
    override: Tolerance | None
    label: str = ""

    def seeded(self, device: str, seed: int = SEED) -> Any:
        torch.manual_seed(seed)
        with _shifted_seeds(seed - SEED):
            return self.run(device)

    def on_cpu(self, seed: int = SEED) -> Any:
        try:
            return self.seeded("cpu", seed)
        except Exception as error:
            raise CpuFails(self.label + _said(error)) from error

    def on_device(self, seed: int = SEED) -> Any:
        try:
            return self.seeded(self.device, seed)
        except Exception as error:
            raise DeviceFails(self.label + _said(error)) from error

    def agrees(self, expected: Any, actual: Any, device: str, values: bool = True) -> None:
        try:
            compare(expected, actual, device, self.override, values)
        except Mismatch as error:
            if device != "cpu" and values and self.is_as_exact(expected, actual):
                return
            raise Mismatch(f"{self.label}{error}") from None

    def is_as_exact(self, expected: Any, actual: Any) -> bool:
        """The second opinion on a difference: the same call on the CPU in float64."""
        try:
            compare(expected, actual, self.device, self.override, values=False)
            exact = self.seeded(WIDE)
        except (Mismatch, *REFUSALS):  # other shapes or dtypes, or no such op in float64
            return False
        return is_as_exact(expected, actual, exact)

    def cpu_is_random(self, expected: Any) -> bool:
        """Whether another seed gives another result; raises ``CpuFails`` when the same seed does."""
        try:
            self.agrees(expected, self.on_cpu(), "cpu")
        except Mismatch as error:
            raise CpuFails(f"CPU against itself: {error}") from None
        with _DrawsNumbers() as drawn:
            again = self.on_cpu(SEED + 1)
        if drawn.yes:  # a small random result may repeat by chance
            return True
        try:
            self.agrees(expected, again, "cpu")
        except Mismatch:
            return True
        return False

    def check(self, expected: Any, comparable: bool, random: bool) -> Any:
        """Run on the device and compare; a random result must repeat when its seed does."""
        actual = self.on_device()
        self.agrees(expected, actual, self.device, comparable and not random)
        if random and comparable:
            again = self.on_device()
            try:
                compare(copy_to(actual, "cpu"), again, self.device, self.override)
            except Mismatch as error:
                raise Mismatch(f"{self.label}the same seed gives two results: {error}") from None
        return actual


class _DrawsNumbers(TorchDispatchMode):
    """Whether anything inside the block drew random numbers, by PyTorch's own tags of its operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.yes = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.yes = self.yes or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _shifted_seeds(shift: int) -> Iterator[None]:
    """The OpInfos of random operators seed by themselves, always alike: their seeds move along with ours."""
    real = torch.manual_seed
    torch.manual_seed = lambda seed: real(seed + shift)
    try:
        yield
    finally:
        torch.manual_seed = real


def _check_forward(op: Any, case: Case, setup: Setup, result: CaseResult) -> None:
    override = tolerance_override(op, getattr(torch, case.dtype), "forward")
    comparable = op.name not in UNINITIALISED and not getattr(op, "has_nondeterministic_output", False)
    distribution_due = any(word in op.name for word in INDEPENDENT) and not any(
        word in op.name for word in WHOLE_CHANNELS
    )
    for index, sample in _samples(op, case, setup, requires_grad=False):
        result.sample = index
        call = Call.of(op, sample)

        def functional(device: str, call: Call = call) -> Any:
            mine = call.on(device)
            with torch.device(device) if not mine.tensors() else contextlib.nullcontext():  # a factory without device=
                value = op.op(*mine.args, **mine.kwargs)
            return value, (mine.args, mine.kwargs)

        subject = _Subject(functional, setup.device, override)
        expected = subject.on_cpu()
        random = comparable and subject.cpu_is_random(expected)
        try:
            subject.check(expected, comparable, random)
        except Mismatch:
            if op_name(op) in TIES and not call.kwargs.get("stable"):
                unique = _Subject(lambda d, c=call: _selected(op, c, functional(d, c)[0]), setup.device, override)  # type: ignore[misc]
            elif op_name(op) in NOT_UNIQUE:
                unique = _Subject(lambda d, c=call: c.finish(functional(d, c)[0]), setup.device, override)  # type: ignore[misc]
            else:
                raise
            unique.check(unique.on_cpu(), comparable, random)
            if op_name(op) in TIES:
                result.samples_run += 1
                continue  # in-place and out= forms would show the same ties
        if random and distribution_due and any(t.numel() > 6 for t in tensors_in(expected[0])):
            distribution_due = False
            seeds = range(SEED, SEED + DISTRIBUTION_RUNS)
            check_distribution([subject.on_cpu(s)[0] for s in seeds], [subject.on_device(s)[0] for s in seeds])
        _check_inplace(op, call, setup, override, comparable, random)
        if op.supports_out and "out" not in call.kwargs:
            _check_out(op, call, expected[0], setup, override, comparable, random)
        result.samples_run += 1
    result.sample = None


def _selected(op: Any, call: Call, value: Any) -> list[torch.Tensor]:
    """What the indices of a sorting op select, in place of the indices."""
    at = TIES[op_name(op)]
    dim = call.kwargs.get("dim", call.args[at] if len(call.args) > at else -1)
    values = [] if isinstance(value, torch.Tensor) else [value[0]]
    indices = value if isinstance(value, torch.Tensor) else value[1]
    given = call.args[0].detach().to(indices.device)
    if given.dim() == 0:
        return [*values, given.reshape(1)[indices.reshape(-1)]]
    if indices.dim() < given.dim():  # kthvalue without keepdim
        return [*values, given.gather(dim, indices.unsqueeze(dim))]
    return [*values, given.gather(dim, indices)]


def _check_inplace(
    op: Any, call: Call, setup: Setup, override: Tolerance | None, comparable: bool, random: bool
) -> None:
    """``x.op_()`` where the CPU accepts it: the same value, in the tensor it was called on."""
    inplace = op.get_inplace()
    if inplace is None or call.broadcasts_input or not isinstance(call.args[0], torch.Tensor):
        return

    def run(device: str) -> Any:
        mine = call.on(device)
        value = inplace(*mine.args, **mine.kwargs)
        return value, value is mine.args[0], (mine.args, mine.kwargs)

    subject = _Subject(run, setup.device, override, label="in-place: ")
    try:
        expected = subject.on_cpu()
    except CpuFails:
        return
    subject.check(expected, comparable, random)


def _out_forms(result: Any) -> dict[str, Any] | None:
    """Tensors to pass as ``out=``: right-sized, to be grown, with gaps between elements; None where out= cannot be."""
    single = isinstance(result, torch.Tensor)
    tensors = [result] if single else list(result) if isinstance(result, (tuple, list)) else []
    if not tensors or not all(isinstance(t, torch.Tensor) and t.layout == torch.strided for t in tensors):
        return None
    forms = {
        "out=": [torch.ones(t.shape, dtype=t.dtype) for t in tensors],
        "out= (empty, must grow)": [torch.empty(0, dtype=t.dtype) for t in tensors],
        "out= (with gaps)": [torch.ones((*t.shape, 2), dtype=t.dtype)[..., 0] for t in tensors],
    }
    return {name: outs[0] if single else tuple(outs) for name, outs in forms.items()}


def _check_out(
    op: Any, call: Call, value: Any, setup: Setup, override: Tolerance | None, comparable: bool, random: bool
) -> None:
    """``out=`` in three forms, where the CPU accepts it and gets it right: the same value, in the tensor given, strides
    as on the CPU."""
    try:
        forms = _out_forms(value)
    except Exception:  # a dtype that cannot be filled has no out= form to compare
        return
    for name, out in (forms or {}).items():

        def run(device: str, out: Any = out) -> Any:
            mine = call.on(device)
            target = copy_to(out, device)
            returned = op.op(*mine.args, **mine.kwargs, out=target)
            same = [a is b for a, b in zip(tensors_in(returned), tensors_in(target))]
            strides = [list(t.stride()) for t in tensors_in(target)]
            return returned, target, same, strides, (mine.args, mine.kwargs)

        subject = _Subject(run, setup.device, override, label=f"{name}: ")
        try:
            expected = subject.on_cpu()
            if comparable and not random:
                subject.agrees(value, expected[1], "cpu")
        except (CpuFails, Mismatch):  # refused, or not what the CPU itself computes without out=
            continue
        subject.check(expected, comparable, random)


def _check_backward(op: Any, case: Case, setup: Setup, result: CaseResult) -> None:
    """Gradients of every differentiable input, for the same incoming gradient."""
    override = tolerance_override(op, getattr(torch, case.dtype), "backward")
    comparable = op.name not in UNINITIALISED and not getattr(op, "has_nondeterministic_output", False)
    for index, sample in _samples(op, case, setup, requires_grad=True):
        result.sample = index
        call = Call.of(op, sample)
        incoming = IncomingGradients()

        def gradients(device: str, call: Call = call, incoming: IncomingGradients = incoming) -> Any:
            mine = call.on(device)
            leaves = [t for t in mine.tensors() if t.requires_grad]
            value = call.finish(op.gradcheck_wrapper(op.op, *mine.args, **mine.kwargs))
            outputs = [t for t in tensors_in(value) if t.requires_grad]
            if not outputs or not leaves:
                return len(outputs), []
            given = incoming.of(outputs, device)
            return len(outputs), list(torch.autograd.grad(outputs, leaves, given, allow_unused=True))

        subject = _Subject(gradients, setup.device, override)
        expected = subject.on_cpu()
        random = comparable and subject.cpu_is_random(expected)
        try:
            subject.check(expected, comparable, random)
        except Mismatch:
            if op_name(op) not in TIED_GRADIENTS or call.kwargs.get("stable"):
                raise
            # Equal elements have changed places, and their gradients with them.
            ordered = _Subject(lambda d: [g.flatten().sort()[0] for g in gradients(d)[1]], setup.device, override)
            ordered.check(ordered.on_cpu(), comparable, random)
        result.samples_run += 1
    result.sample = None


class IncomingGradients:
    """A gradient for each output of a call: numbers that depend on its shape and dtype alone.

    A second opinion in float64 gets the numbers of the run that it judges, only wider: of its own dtype it would draw
    others, and agree with nobody.
    """

    def __init__(self) -> None:
        self._drawn: list[torch.Tensor] = []

    def of(self, outputs: list[torch.Tensor], device: str) -> list[torch.Tensor]:
        """Them, on the device.

        >>> one = IncomingGradients()
        >>> half = one.of([torch.ones(3, dtype=torch.half)], "cpu")
        >>> torch.equal(half[0].double(), one.of([torch.ones(3, dtype=torch.double)], WIDE)[0])
        True
        """
        if device != WIDE:
            generator = torch.Generator().manual_seed(SEED)
            with _disable_current_modes():  # these numbers are ours, not the operator's
                self._drawn = [torch.randn(t.shape, dtype=t.dtype, generator=generator) for t in outputs]
        given: list[torch.Tensor] = copy_to(self._drawn, device)
        return given


def _check_error(op: Any, case: Case, setup: Setup, result: CaseResult) -> None:
    """Bad input raises what it raises on the CPU; inputs PyTorch makes for the device raise what PyTorch declares."""
    del case
    try:
        bad_inputs = list(op.error_inputs("cpu"))
    except Exception as error:
        raise CpuFails(f"making error inputs: {_said(error)}") from error
    for index, bad in enumerate(bad_inputs):
        result.sample = index
        call = Call.of(op, bad.sample_input)
        on_cpu = _raised(op, call.on("cpu"))
        if on_cpu is None:  # PyTorch declares an error that its CPU does not raise
            continue
        try:
            moved = call.on(setup.device)
        except Exception as error:
            raise DeviceFails(f"copying the inputs to the device: {_said(error)}") from error
        on_device = _raised(op, moved)
        if on_device is None:
            raise DeviceFails(f"nothing raised; the CPU says {_said(on_cpu)}")
        if type(on_device) is not type(on_cpu):
            raise DeviceFails(f"{_said(on_device)}; the CPU says {_said(on_cpu)}")
        if not result.note and str(on_device) != str(on_cpu):
            result.note = f"sample {index}: device says {str(on_device)[:200]!r}, the CPU {str(on_cpu)[:200]!r}"
        result.samples_run += 1
    if torch.device(setup.device).type != "cpu":
        _check_errors_made_for_device(op, setup, result, len(bad_inputs))
    if not result.samples_run:
        raise NothingToCheck("PyTorch declares no error input that the CPU refuses")
    result.sample = None


def _check_errors_made_for_device(op: Any, setup: Setup, result: CaseResult, first: int) -> None:
    """Error inputs that PyTorch makes for this device; operands on two devices come only from here."""
    for index, bad in enumerate(op.error_inputs(setup.device)):
        result.sample = first + index
        call = Call.of(op, bad.sample_input)
        if all(t.device.type in (torch.device(setup.device).type, "meta") for t in call.tensors()):
            continue  # the same input was compared with the CPU before
        on_device = _raised(op, call)
        if not isinstance(on_device, bad.error_type):
            got = "nothing raised" if on_device is None else _said(on_device)
            raise DeviceFails(f"two devices: {got}; {bad.error_type.__name__} declared: {bad.error_regex}")
        result.samples_run += 1


def _raised(op: Any, call: Call) -> Exception | None:
    torch.manual_seed(SEED)
    try:
        value = op.op(*call.args, **call.kwargs)
        for tensor in tensors_in(value):  # an asynchronous device reports when the result is needed
            if not tensor.is_meta:
                tensor.detach().to("cpu", copy=True)
    except Exception as error:
        return error
    return None


_CHECKS: dict[str, Callable[[Any, Case, Setup, CaseResult], None]] = {
    "forward": _check_forward,
    "backward": _check_backward,
    "error": _check_error,
}
