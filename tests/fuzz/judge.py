"""What a program computes on the CPU, and the rule by which another route's results are right.

Three runs on the CPU, statement by statement:

- *native*: the program as it is. Dtypes, shapes, shared memory and inputs afterwards must be the same. Strides are
  the same, or on routes with graphs those of PyTorch's meta kernels, which graphs are traced with; behind attention
  neither strides nor sharing are compared, as each of PyTorch's own attention kernels has other strides.
- *truth*: every float is float64.
- *perturbed*: as truth, but whatever a statement may have rounded is off by up to one unit in the last place of its
  native dtype, and so are the operands of smooth functions: how far the roundings of the program may lead.

**The rule.** Integers and bools equal native's. NaN and infinities are where native's are. A float tensor without any
rounding (native equals truth and has 16 bits behind the point at most, in every statement that led to it) is equal. Any
other is no further from truth than

    8 × the largest error of native or perturbed over the tensor + 8 units in the last place of its largest number.

A statement that loses more than 6 bits is not taken, so that nothing large is ever allowed. Decisions (comparisons,
rounding, sorting, conversion to integers) are made on tensors without rounding only, and a statement is taken only if
the three runs decide alike, so that no last bit decides anything. Where float64 has another infinity or NaN than the
native dtype (gelu of infinity is NaN in the CPU's float32), and where a statement writes to memory that overlaps
itself, PyTorch promises nothing: such statements are not taken.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.fuzz.program import Program, namespace

LARGEST_TENSOR = 2048
LARGEST_VALUE = 1e3
_ERRORS = 8
_ROUNDINGS = 8
#: A statement whose error is larger than this many units in the last place judges nothing any more.
_MOST_LOST = 64
_NOISE = torch.tensor([random.Random(n).uniform(-1, 1) for n in range(2 * LARGEST_TENSOR)], dtype=torch.float64)
_WORD = re.compile(r"\b[xpt]\d+\b")
#: Rounded on the way, whatever the result: a cosine of 1 may be one by luck.
_ROUNDED_INSIDE = re.compile(r"std\(|var\(|norm|softm|logsumexp|logcumsumexp|cosine_similarity|attention")
_INTEGER = re.compile(r"torch\.u?int\d+|long\(\)")


class Unsuitable(Exception):
    """A statement that does not run, or whose result cannot be judged."""


@dataclass
class Runs:
    """The three runs of a program so far, for one choice of sizes."""

    program: Program
    sizes: Mapping[str, int]
    native: dict[str, Any] = field(default_factory=namespace)
    truth: dict[str, Any] = field(default_factory=lambda: namespace(exact=True))
    perturbed: dict[str, Any] = field(default_factory=lambda: namespace(exact=True))
    #: Storages of native tensors that hold no rounding.
    unrounded: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for one in self.program.inputs:
            self.native[one.name] = one.tensor(self.program.seed, self.sizes)
            self.truth[one.name] = one.tensor(self.program.seed, self.sizes, exact=True)
            self.perturbed[one.name] = one.tensor(self.program.seed, self.sizes, exact=True)
            self.unrounded.add(place(self.native[one.name]))
        for line, kind in zip(self.program.statements, self.program.kinds):
            self.add(line, kind)

    def is_unrounded(self, name: str) -> bool:
        return place(self.native[name]) in self.unrounded

    def names(self) -> list[str]:
        """Returns the program's variables and inputs."""
        return [name for name in self.native if _WORD.fullmatch(name)]

    def add(self, line: str, kind: str) -> None:
        """Runs a statement three times; raises Unsuitable where the result cannot be judged."""
        target, _, value = line.partition(" = ")
        new = re.fullmatch(r"t\d+", target) is not None
        used = [name for name in dict.fromkeys(_WORD.findall(value if new else line)) if name in self.native]
        before = {place(self.native[name]) for name in self.names()}
        if not new and not used:
            raise Unsuitable("nothing to write to")
        if not new and overlaps_itself(self.native[used[0]]):
            raise Unsuitable("written-to memory that overlaps itself")
        if _ROUNDED_INSIDE.search(line):
            kind = "smooth"
        code = compile(line, "<statement>", "exec")
        if integer := _INTEGER.search(line):
            self._check_conversion(used, integer[0])
        try:
            exec(code, self.native)
            with_double_default(code, self.truth)
            if kind == "smooth" and new:
                self._perturbed_operands(code, used, target)
            else:
                with_double_default(code, self.perturbed)
        except (RuntimeError, IndexError, ValueError, TypeError, ZeroDivisionError, NotImplementedError) as error:
            raise Unsuitable(str(error)) from None
        if not new:
            target = used[0]
        if not isinstance(self.native.get(target), torch.Tensor):
            raise Unsuitable("not a tensor")
        is_view = new and place(self.native[target]) in before
        if new and not is_view:  # float16 to float32 is a copy, and float64 to float64 none
            self.truth[target], self.perturbed[target] = self.truth[target].clone(), self.perturbed[target].clone()
        self._judge(target, used, kind, is_view)

    def _check_conversion(self, used: Sequence[str], integer: str) -> None:
        """Numbers that an integer does not hold convert to whatever the machine does, on the CPU as well."""
        for name in used:
            one = self.native[name]
            low = 0 if integer == "torch.uint8" else -100
            if one.is_floating_point() and not ((one >= low) & (one <= 100)).all():
                raise Unsuitable("a conversion out of range")

    def _perturbed_operands(self, code: Any, used: Sequence[str], target: str) -> None:
        space = dict(self.perturbed)
        for name in used:
            if self.perturbed[name].is_floating_point():
                space[name] = shaken(self.perturbed[name], epsilon(self.native[name]))
        with_double_default(code, space)
        self.perturbed[target] = space[target]

    def _judge(self, target: str, used: Sequence[str], kind: str, is_view: bool) -> None:
        native, truth, perturbed = self.native[target], self.truth[target], self.perturbed[target]
        wanted = torch.float64 if native.is_floating_point() else native.dtype
        if truth.dtype != wanted or perturbed.dtype != wanted or native.is_complex():
            raise Unsuitable("dtypes")
        if native.numel() > LARGEST_TENSOR or native.dim() > 5:
            raise Unsuitable("too large")
        if not native.is_floating_point():
            if not (torch.equal(native, truth) and torch.equal(native, perturbed)):
                raise Unsuitable("another decision in float64")
            self.unrounded.add(place(native))
            return
        wide = native.double()
        finite = truth.isfinite()
        # float64 is always the same as truth: that it was not rounded is seen by how few bits it has.
        same = (wide.eq(truth) & (truth * 65536).frac().eq(0)) | ~finite
        if not (torch.equal(wide.isfinite(), finite) and torch.equal(perturbed.isfinite(), finite)):
            raise Unsuitable("overflow")
        if not torch.equal(wide[~finite].nan_to_num(7.0), truth[~finite].nan_to_num(7.0)):
            raise Unsuitable("another infinity or NaN in float64")
        if native.numel():
            largest = truth.abs().where(finite, 0.0).max()
            if largest > LARGEST_VALUE:
                raise Unsuitable("large numbers")
            error = torch.maximum((wide - truth).abs(), (perturbed - truth).abs()).where(finite, 0.0).max()
            if error > _MOST_LOST * epsilon(native) * largest:
                raise Unsuitable("most bits are lost")
        if is_view:
            return
        here = place(native)
        # Half types keep so few bits that another order of a sum may round where this one did not.
        any_order = kind not in ("reduction", "product", "index") or epsilon(native) <= 2**-23
        operands = all(self.is_unrounded(name) for name in used)
        if kind != "smooth" and any_order and operands and bool(same.all()):
            self.unrounded.add(here)
            return
        self.unrounded.discard(here)
        if 0 not in strides_of(perturbed):
            with torch.no_grad():
                perturbed.copy_(shaken(perturbed, epsilon(native)))


def with_double_default(code: Any, space: dict[str, Any]) -> None:
    """Runs code where a float without a dtype is float64."""
    torch.set_default_dtype(torch.float64)
    try:
        exec(code, space)
    finally:
        torch.set_default_dtype(torch.float32)


def place(tensor: torch.Tensor) -> int:
    """Returns what tells memory apart: tensors that share it have the same."""
    return tensor.untyped_storage()._cdata


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Returns whether two elements lie in one place."""
    places = torch.zeros(1, dtype=torch.int64)
    for size, stride in zip(tensor.shape, tensor.stride()):
        places = (places[:, None] + torch.arange(size) * stride).flatten()
    return len(places.unique()) < len(places)


def epsilon(tensor: torch.Tensor) -> float:
    """Returns the distance of 1 from the next number of the tensor's dtype; 0 for integers."""
    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0


def shaken(tensor: torch.Tensor, amount: float) -> torch.Tensor:
    """Returns the numbers, each off by up to the relative amount."""
    noise = _NOISE[: tensor.numel()].reshape(tensor.shape)
    return tensor * (1 + amount * noise)


# ---- comparing ----
@dataclass(frozen=True)
class Ran:
    """What a run left behind: outputs and inputs, on the CPU; strides; who shares memory with whom."""

    outputs: list[torch.Tensor]
    inputs: list[torch.Tensor]
    strides: list[tuple[int, ...]]
    shared: list[int | None]


def left_behind(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Ran:
    """Returns what a call with these inputs left behind."""
    held = [*inputs, *outputs]
    places = [place(one) if one.numel() else None for one in held]
    return Ran(
        outputs=[one.detach().to("cpu", copy=True) for one in outputs],
        inputs=[one.detach().to("cpu", copy=True) for one in inputs],
        strides=[strides_of(one) for one in outputs],
        shared=[None if where is None else places.index(where) for where in places],
    )


def strides_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Returns the strides that mean something: of dimensions with more than one element, in a tensor that has any."""
    if not tensor.numel():
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride()) if size > 1)


@dataclass(frozen=True)
class Expected:
    """What the three runs say of a program's outputs and inputs."""

    program: Program
    sizes: Mapping[str, int]
    native: Ran
    truth: Ran
    allowed: list[float]

    def difference(self, found: Ran, *, memory: bool, inputs: bool, traced: bool) -> str:
        """Says what is wrong with a route's results; empty: nothing. ``memory``: strides and sharing count."""
        names = [f"output {n} ({one})" for n, one in enumerate(self.program.returned)]
        if len(found.outputs) != len(names):
            return f"{len(found.outputs)} outputs instead of {len(names)}"
        allowed = self.allowed
        for n, name in enumerate(names):
            if said := _wrong(found.outputs[n], self.native.outputs[n], self.truth.outputs[n], allowed[n]):
                return f"{name}: {said}"
        if memory and not any("attention" in line for line in self.program.statements):
            for n, name in enumerate(names):
                if found.strides[n] != self.native.strides[n] and not (
                    traced and found.strides[n] == self._traced_strides(n)
                ):
                    return f"{name}: strides {found.strides[n]}, on the CPU {self.native.strides[n]}"
            if found.shared != self.native.shared:
                return f"memory shared by inputs and outputs: {found.shared}, on the CPU {self.native.shared}"
        if inputs:
            for n, one in enumerate(self.program.inputs):
                limit = allowed[len(names) + n]
                if said := _wrong(found.inputs[n], self.native.inputs[n], self.truth.inputs[n], limit):
                    return f"input {one.name} afterwards: {said}"
        return ""

    def _traced_strides(self, n: int) -> tuple[int, ...] | None:
        """Returns the strides that PyTorch's meta kernels give an output, if it has meta kernels for the program."""
        inputs = [moved(one, "meta") for one in self.program.arguments(self.sizes)]
        try:
            return strides_of(self.program.function()(*inputs)[n])
        except (RuntimeError, NotImplementedError):  # what reads values has none
            return None


def moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Returns a copy on the device with the same strides, and zeros in between."""
    if device == "cpu":
        return tensor
    base = tensor if tensor._base is None else tensor._base
    there = torch.empty(base.untyped_storage().nbytes() // base.element_size(), dtype=base.dtype, device=device)
    flat = torch.empty(0, dtype=base.dtype).set_(base.untyped_storage(), 0, there.shape, (1,))  # type: ignore[call-overload]
    return there.copy_(flat).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _wrong(found: torch.Tensor, native: torch.Tensor, truth: torch.Tensor, allowed: float) -> str:
    if found.dtype != native.dtype or found.shape != native.shape:
        return f"{found.dtype} {tuple(found.shape)}, on the CPU {native.dtype} {tuple(native.shape)}"
    if not native.numel():
        return ""
    if not native.is_floating_point():
        return "" if torch.equal(found, native) else f"{_said(found)}, on the CPU {_said(native)}"
    finite = native.isfinite()
    if (
        not torch.equal(found[~finite].nan_to_num(7.0), native[~finite].nan_to_num(7.0))
        or not found[finite].isfinite().all()
    ):
        return f"{_said(found)}, on the CPU {_said(native)}"
    error = float((found[finite].double() - truth[finite]).abs().max()) if finite.any() else 0.0
    if error <= allowed:
        return ""
    return f"off by {error:.3g}, allowed {allowed:.3g}: {_said(found)}, on the CPU {_said(native)}"


def _said(tensor: torch.Tensor) -> str:
    return " ".join(str(tensor.tolist()).split())[:300]


def expected(program: Program, sizes: Mapping[str, int], runs: Runs | None = None) -> Expected:
    """Returns what the program computes on the CPU; raises Unsuitable for an output that cannot be judged."""
    runs = runs or Runs(program, sizes)
    found = {}
    for name in ("native", "truth", "perturbed"):
        space = getattr(runs, name)
        outputs = [eval(one, space) for one in program.returned]
        found[name] = left_behind([space[one.name] for one in program.inputs], outputs)
        if name == "native":
            held = [*outputs, *(space[one.name] for one in program.inputs)]
            unrounded = [place(one) in runs.unrounded for one in held]
    native, truth, perturbed = (found[name] for name in ("native", "truth", "perturbed"))
    allowed = []
    spans = zip(
        [*native.outputs, *native.inputs], [*truth.outputs, *truth.inputs], [*perturbed.outputs, *perturbed.inputs]
    )
    for (a, b, c), exact in zip(spans, unrounded):
        finite = b.isfinite()
        if exact or not a.is_floating_point() or not finite.any():
            allowed.append(0.0)
            continue
        right = b[finite]
        worst = max(float((a[finite].double() - right).abs().max()), float((c[finite] - right).abs().max()))
        allowed.append(_ERRORS * worst + _ROUNDINGS * epsilon(a) * float(right.abs().max()))
    return Expected(program, sizes, native, truth, allowed)
