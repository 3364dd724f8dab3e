"""Random programs over tensors, as Python source: made so that they run, compared compiled with eager, made small.

A program is a list of statements over inputs ``x0, x1, …`` and variables ``t0, t1, …``. Each statement was tried on the
CPU when it was added, so shapes fit and values stay moderate. What jumps (rounding, comparisons, integer division) is
applied to inputs only: there both sides see the same bits, so that one last bit decides nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

#: Names for dtypes in programs; the exact run has float64 for every float.
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
LARGEST_TENSOR = 4096
LARGEST_VALUE = 1e3

UNARY = """
    {a}.tanh() {a}.sigmoid() {a}.relu() {a}.neg() {a}.abs() {a}.sin() {a}.cos() {a}.erf() {a}.square() {a}.exp()
    {a}.abs().sqrt() {a}.abs().log1p() F.gelu({a}) F.silu({a}) F.softplus({a}) F.leaky_relu({a}) F.hardtanh({a})
    {a}.clamp(-1.5,1.5) {a}.rsqrt() {a}.reciprocal() {a}.clamp(min=0.25).log() {a}.expm1() {a}.clone() {a}*0.5 {a}+2
    3-{a} {a}/1.5 1/({a}.abs()+1) {a}**2 {a}.nan_to_num() torch.zeros_like({a}) torch.full_like({a},0.5)
""".split()
BINARY = """
    {a}+{b} {a}-{b} {a}*{b} {a}/({b}.abs()+1) torch.maximum({a},{b}) torch.minimum({a},{b}) torch.lerp({a},{b},0.25)
    {a}.add({b},alpha=2) torch.addcmul({a},{a},{b},value=0.5) torch.hypot({a},{b}) torch.atan2({a},{b}.abs()+1)
    torch.logaddexp({a},{b})
""".split()
REDUCTION = """
    {a}.sum({d}) {a}.mean({d}) {a}.amax({d}) {a}.amin({d}) {a}.sum({d},keepdim=True) {a}.mean({d},keepdim=True)
    {a}.sum() {a}.mean() {a}.var({d}) {a}.softmax({d}) {a}.log_softmax({d}) {a}.logsumexp({d}) {a}.cumsum({d})
    F.layer_norm({a},{a}.shape[-1:]) {a}.norm(dim={d}) {a}.std({d},keepdim=True) F.normalize({a},dim={d})
""".split()
VIEW = """
    {a}.t() {a}.transpose(0,-1) {a}.reshape(-1) {a}.unsqueeze({d}) {a}.squeeze() {a}[1:] {a}[...,::2] {a}[0] {a}[...,-1]
    {a}.unsqueeze(0).expand(3,*{a}.shape) {a}.flatten() {a}.chunk(2,{d})[0] {a}.split(2,{d})[-1] {a}.movedim(0,-1)
    {a}.diagonal() {a}.mT {a}.narrow({d},0,1) {a}.view(-1,1) {a}.unbind({d})[0] {a}.unflatten(0,(2,-1))
""".split()
PRODUCT = """
    {a}@{b} {a}@{b}.mT {a}.mT@{b} torch.addmm({b}.sum(),{a},{b}.t()) F.linear({a},{b})
    torch.einsum('...i,...j->...ij',{a},{b}) torch.outer({a}.flatten()[:6],{b}.flatten()[:5])
    {a}.unsqueeze(-2)@{b}.unsqueeze(-1) torch.einsum('ij,kj->ik',{a},{b})
""".split()
JOIN = """
    torch.cat([{a},{b}],{d}) torch.stack([{a},{b}],{d}) torch.cat([{a},{b},{a}]) F.pad({a},(1,2)) {a}.roll(1,{d})
    {a}.flip({d}) {a}.repeat(2,*[1]*({a}.dim()-1)) {a}.tril() {a}.contiguous() torch.hstack([{a},{b}])
""".split()
CHOICE = """
    torch.where({x}>0,{a},{b}) torch.where({x}<0.5,{a},0.0) {a}.masked_fill({x}>0,-1.0) {a}*({x}>0)
    torch.where({m},{a},{b}) {a}.masked_fill({m},2.0)
""".split()
INDEX = """
    {a}[{i}] {a}.index_select({d},{i}) {a}[...,{i}] {a}.index_add(0,{i},{a}[{i}]) {a}.index_put(({i},),{a}[0])
    F.embedding({i},{a}) {a}.index_fill(0,{i},0.5) torch.take({a},{i}) {a}.scatter_add(0,{i},{a}[{i}])
""".split()
CAST = """
    {a}.to(f16) {a}.to(bf16) {a}.to(f32) {a}.to(f64) {a}.float() {a}+{i}.sum() {i}.to(f32) {i}*2+1 {i}.float().mean()
    {m}.to(f32) {m}&~{m} {i}//2 {i}%3 {i}.bitwise_and(3) ({x}>0).sum() {x}.argmax() {x}.round() {x}.floor()
""".split()
IN_PLACE = """
    {t}.add_({b}) {t}.mul_(0.5) {t}[0].mul_(2) {t}[...,0]=0.25 {t}.clamp_(-1,1) {t}[1:].add_(1.0) {t}.t().sub_(0.5)
    {t}.copy_({b}) {t}.zero_() {t}.relu_() {t}.masked_fill_({m},0.5) {t}[{i}]=0.5 {t}.fill_(0.5)
""".split()
#: How often each kind is taken.
KINDS: tuple[tuple[list[str], int], ...] = (
    (UNARY, 5), (BINARY, 5), (REDUCTION, 4), (VIEW, 4), (PRODUCT, 2), (JOIN, 2), (CHOICE, 2), (INDEX, 2), (CAST, 2),
    (IN_PLACE, 3),
)  # fmt: skip
FLOAT_SHAPES: tuple[tuple[int, ...], ...] = (
    (4, 6), (6,), (4, 1), (1, 6), (), (3, 4, 6), (0, 6), (4, 0), (1,), (5, 5), (2, 3, 4), (33, 17), (7, 130),
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """Statements over inputs; ``returned`` are the names of the outputs."""

    seed: int
    shapes: tuple[tuple[int, ...], ...]
    statements: tuple[str, ...]
    returned: tuple[str, ...]
    gradients: bool

    @property
    def arguments(self) -> list[str]:
        return [*(f"x{n}" for n in range(len(self.shapes))), "i", "m"]

    def source(self) -> str:
        """A function ``program`` that can be pasted into a file."""
        lines = [f"def program({', '.join(self.arguments)}):", *(f"    {line}" for line in self.statements)]
        return "\n".join([*lines, f"    return {', '.join(self.returned)},"])

    def function(self, dtypes: dict[str, torch.dtype]) -> Callable[..., tuple[Any, ...]]:
        space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, **dtypes}
        exec(self.source(), space)
        made: Callable[..., tuple[Any, ...]] = space["program"]
        return made

    def inputs(self, device: str, exact: bool = False) -> list[torch.Tensor]:
        """Floats of several shapes (one in half precision), four positions, and a mask."""
        generator = torch.Generator().manual_seed(self.seed)
        floats = [torch.randn(shape, generator=generator) for shape in self.shapes]
        floats[-1] = floats[-1].bfloat16().float() if exact else floats[-1].bfloat16()
        positions = torch.randint(2, (4,), generator=generator)
        mask = torch.rand(6, generator=generator) > 0.5
        moved = [x.double() if exact else x for x in floats]
        return [
            *(x.to(device).requires_grad_(self.gradients) for x in moved), positions.to(device), mask.to(device),
        ]  # fmt: skip


# ---- making ----
def make(seed: int, length: int = 12) -> Program:
    """The program of a seed: always the same."""
    choose = random.Random(seed)
    shapes = (*choose.sample(FLOAT_SHAPES, 3), (4, 6))
    program = Program(seed, shapes, (), (), gradients=seed % 2 == 1)
    floats = [f"x{n}" for n in range(len(shapes))]
    for _ in range(40 * length):
        named = program.returned
        # A chain is more likely than a bush: what was made last is taken most often.
        pool = [*floats, *named, *named[-3:], *named[-2:]]
        kind = choose.choices([words for words, _ in KINDS], [weight for _, weight in KINDS])[0]
        words = choose.choice(kind).format(
            a=choose.choice(pool),
            b=choose.choice(pool),
            d=choose.choice((0, -1, 1)),
            x=choose.choice(floats),
            # Autograd forbids to change a leaf that wants a gradient.
            t=choose.choice(list(named) if program.gradients and named else pool),
            i="i",
            m="m",
        )
        name = f"t{len(named)}"
        if kind is IN_PLACE:
            longer = replace(program, statements=(*program.statements, words))
        else:
            longer = replace(program, statements=(*program.statements, f"{name} = {words}"), returned=(*named, name))
        if _is_moderate(longer):
            program = longer
        if len(program.statements) == length:
            break
    return replace(program, returned=_outputs(program, choose))


def _is_moderate(program: Program) -> bool:
    """Whether it runs, and all numbers in it are finite and neither many nor large."""
    if not program.returned:
        return False
    try:
        tensors = run(program, "cpu").tensors.values()
    except (RuntimeError, IndexError, ValueError):
        return False
    return all(
        value.numel() <= LARGEST_TENSOR
        and bool(value.isfinite().all())
        and (not value.numel() or value.double().abs().max().item() <= LARGEST_VALUE)
        for value in tensors
    )


def _outputs(program: Program, choose: random.Random) -> tuple[str, ...]:
    """The last variables, some others, and now and then an input, a view of one, one thing twice, or two views."""
    named = list(program.returned)
    chosen = [*choose.sample(named[:-2], min(2, len(named[:-2]))), *named[-2:]]
    extra = choose.choice(
        (["x0"], ["x3[1:]"], chosen[-1:], [f"{chosen[-1]}[None]", f"{chosen[-1]}[..., None]"], [], [])
    )
    return (*chosen, *extra)


# ---- comparing ----
@dataclass(frozen=True)
class Ran:
    """What a run left behind: outputs, gradients, inputs afterwards, and who shares memory with whom."""

    tensors: dict[str, torch.Tensor]
    layout: dict[str, Any]


def run(program: Program, device: str, compiler: Callable[[Any], Any] | None = None, exact: bool = False) -> Ran:
    """One run; ``exact``: on the CPU, every float in float64."""
    function = program.function(dict.fromkeys(DTYPES, torch.float64) if exact else DTYPES)
    inputs = program.inputs(device, exact)
    outputs = (compiler(function) if compiler else function)(*inputs)
    tensors = {f"output {n} ({name})": value for n, (name, value) in enumerate(zip(program.returned, outputs))}
    if program.gradients:
        reached = [x for x in outputs if x.requires_grad and x.is_floating_point()]
        if reached:
            total = sum((x * x.detach().cos()).sum(dtype=torch.float64 if exact else torch.float32) for x in reached)
            total.backward()  # type: ignore[union-attr]
        tensors |= {f"gradient of x{n}": x.grad for n, x in enumerate(inputs) if x.grad is not None}
    tensors |= {f"input {name} afterwards": value for name, value in zip(program.arguments, inputs)}
    held = [*inputs, *outputs]
    layout = {
        name: (value.dtype, tuple(value.shape), value.stride() if value.numel() > 1 else None, value.requires_grad)
        for name, value in tensors.items()
    }
    layout["memory shared"] = [_shares(one, held[:n]) for n, one in enumerate(held)]
    return Ran({name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}, layout)


def _shares(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> int | None:
    """The first of the others that has the same memory."""
    if not tensor.numel():
        return None
    place = tensor.untyped_storage().data_ptr()
    return next((n for n, other in enumerate(others) if other.untyped_storage().data_ptr() == place), None)


def difference(program: Program, device: str, compiler: Callable[[Any], Any]) -> str:
    """What is wrong with the compiled program; empty: nothing.

    Equal bits are right. Otherwise the error against float64 may be twice that of eager, or a few roundings.
    """
    eager = run(program, device)
    try:
        found = run(program, device, compiler)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for name, layout in eager.layout.items():
        if found.layout.get(name) != layout:
            return f"{name}: {layout} in eager, compiled {found.layout.get(name)}"
    exact: Ran | None = None
    for name, expected in eager.tensors.items():
        actual = found.tensors[name]
        if torch.equal(actual.nan_to_num(0.125), expected.nan_to_num(0.125)):
            continue
        if not expected.is_floating_point():
            return f"{name}: {expected} in eager, compiled {actual}"
        exact = exact or run(program, "cpu", exact=True)
        truth = exact.tensors[name].double()
        allowed = 2 * (expected.double() - truth).abs().max() + 4 * torch.finfo(expected.dtype).eps * truth.abs().max()
        error = (actual.double() - truth).abs().max()
        if not error <= allowed:
            errors = f"error against float64 {error:.3g}, allowed {allowed:.3g}"
            return f"{name}: {errors}\n{expected} in eager, compiled\n{actual}"
    return ""


# ---- making small ----
def shrunk(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A program that still fails, of which no statement and no output can be left out."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _without_one(program):
            if _runs(candidate) and fails(candidate):
                program, smaller = candidate, True
                break
    return program


def _without_one(program: Program) -> list[Program]:
    """One statement or output fewer, with all that needs it; the largest cuts first."""
    found = []
    if program.gradients:
        found.append(replace(program, gradients=False))
    for index in range(len(program.returned)):
        if len(program.returned) > 1:
            found.append(replace(program, returned=program.returned[:index] + program.returned[index + 1 :]))
    for index in range(len(program.statements)):
        gone: set[str] = set()
        kept = []
        for n, line in enumerate(program.statements):
            target = re.match(r"(t\d+) = ", line)
            if n == index or gone & set(re.findall(r"\bt\d+\b", line)):
                gone |= {target[1]} if target else set()
            else:
                kept.append(line)
        returned = tuple(name for name in program.returned if not gone & set(re.findall(r"\bt\d+\b", name)))
        if returned:
            found.append(replace(program, statements=tuple(kept), returned=returned))
    return sorted(found, key=lambda candidate: len(candidate.statements))


def _runs(program: Program) -> bool:
    try:
        run(program, "cpu")
    except (RuntimeError, IndexError, NameError):
        return False
    return True


def report(program: Program, device: str, compiler: Callable[[Any], Any]) -> str:
    """Empty, or the smallest program that still fails, with what is wrong with it."""
    if not difference(program, device, compiler):
        return ""
    small = shrunk(program, lambda candidate: bool(difference(candidate, device, compiler)))
    inputs = ", ".join(f"{name} {tuple(x.shape)} {x.dtype}" for name, x in zip(small.arguments, small.inputs("cpu")))
    words = f"{small.source()}\n# inputs: {inputs}, gradients: {small.gradients}"
    return f"program {program.seed}, made small:\n\n{words}\n\n{difference(small, device, compiler)}"
