"""The passes of bare-metal programs: the same results before and after, by the NumPy interpreter."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from bringup.graph.bare_metal.passes import arranged
from bringup.graph.bare_metal.passes.filling import fill_in_words
from bringup.graph.bare_metal.passes.flattening import flatten
from bringup.graph.bare_metal.passes.in_order import in_order
from bringup.graph.bare_metal.passes.joining import join
from bringup.graph.bare_metal.passes.offloading import apart
from bringup.graph.bare_metal.passes.padding import pad
from bringup.graph.bare_metal.passes.pooling import fuse_pooling
from bringup.graph.bare_metal.passes.products import products
from bringup.graph.bare_metal.passes.units import without_units
from bringup.graph.bare_metal.passes.value_folds import value_folds
from bringup.graph.bare_metal.static_program import StaticProgram
from bringup.ir.dtypes import Array, float32
from bringup.ir.index import Int
from bringup.ir.kernel import Contract, Reduce
from tests.loops.bits import same_bits
from tests.riscv.emitting import run_program
from tests.riscv.static_models import flat, program_of_model, together


def _results(program: StaticProgram, arguments: tuple[torch.Tensor, ...]) -> list[Array]:
    return run_program(program, [flat(argument) for argument in arguments]).outputs


def _assert_same(program: StaticProgram, got: list[Array], want: list[Array], what: str) -> None:
    for tensor, one, other in zip(program.outputs, got, want):
        assert same_bits(one, other, tensor.dtype), f"{what} changed {tensor.name}: {one} is not {other}"


def _spoiled(arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Inputs with NaN, infinities and -0.0 among them."""
    out = []
    for argument in arguments:
        changed = argument.clone()
        if changed.is_floating_point():
            for at, value in enumerate((float("nan"), float("inf"), -float("inf"), -0.0)):
                changed.view(-1)[at * 3 % changed.numel()] = value
        out.append(changed)
    return tuple(out)


@pytest.mark.parametrize("spoiled", [False, True])
def test_exact_passes_keep_every_bit(spoiled: bool) -> None:
    _, arguments, program = together()
    inputs = _spoiled(arguments) if spoiled else arguments
    _assert_same(program, _results(without_units(program), inputs), _results(program, inputs), "units")
    ordered = in_order(products(without_units(program)))
    want = _results(ordered, inputs)
    padded = pad(value_folds(ordered))
    _assert_same(program, _results(value_folds(ordered), inputs), want, "value_folds")
    _assert_same(program, _results(padded, inputs), want, "padding")
    for last in (fuse_pooling, flatten, apart, fill_in_words):
        _assert_same(program, _results(last(padded), inputs), want, last.__name__)
        _assert_same(program, _results(join(last(padded)), inputs), want, f"join after {last.__name__}")


@pytest.mark.parametrize("vectors", [False, True])
def test_sums_in_order_are_as_good_as_the_cpus(vectors: bool) -> None:
    """Another order of a sum is another rounding: compared with float64, within a few times what PyTorch's is off."""
    model, arguments, program = together()
    wide = [a.double() if a.is_floating_point() else a for a in arguments]
    with torch.no_grad():
        cpu = model(*arguments)
        exact = copy.deepcopy(model).double()(*wide)
    for tensor, got, own, right in zip(program.outputs, _results(arranged(program, vectors), arguments), cpu, exact):
        if tensor.dtype is not float32:
            continue
        off = np.abs(got.reshape(right.shape) - right.numpy()).max()
        allowed = 4 * (own.double() - right).abs().max().item() + 8e-7 * right.abs().max().item()
        assert off <= allowed, f"{tensor.name}: off by {off}, the CPU by {(own - right).abs().max()}"


def _names(program: StaticProgram) -> list[str]:
    return [step.name for step in program.steps]


def test_every_pass_finds_work() -> None:
    """The tests above do not pass for lack of anything to do."""
    ordered = in_order(products(without_units(together()[2])))
    contracts = [s for step in ordered.steps for s in step.kernel.body if isinstance(s, Contract)]
    assert {contract.lanes for contract in contracts if contract.a.dtype is float32} == {1}
    shortened = value_folds(ordered)
    folds = [
        len(s.names)
        for p in (ordered, shortened)
        for step in p.steps
        for s in step.kernel.body
        if isinstance(s, Reduce)
    ]
    half = len(folds) // 2
    assert folds[half:].count(2) < folds[:half].count(2)
    padded = pad(shortened)
    made = [name for name in _names(padded) if name.endswith("_pad")]
    for model in ("padded_0", "leftovers_0", "strided_0", "dilated_0", "groups_2", "sequence_0", "residual_two"):
        assert any(model in name for name in made), (model, made)
    fused = [name for name in _names(fuse_pooling(padded)) if "_pool2d" in name and "convolution" in name]
    for model in ("cnn_0", "cnn_3", "windows_0", "average_0"):
        assert any(model in name for name in fused), (model, fused)
    assert not any(model in name for model in ("overlapping", "pool_of_two", "leftovers") for name in fused), fused
    flat_axes = {step.name for step in flatten(padded).steps if any(axis.name == "flat" for axis in step.kernel.axes)}
    assert any("padded_0" in name for name in flat_axes), flat_axes
    assert any(a.kernel != b.kernel for a, b in zip(padded.steps, join(padded).steps))
    assert any(name.endswith("_rest") and "mlp_batch" in name for name in _names(apart(padded)))
    assert any(a.kernel != b.kernel for a, b in zip(padded.steps, fill_in_words(padded).steps))
    axes = [axis for step in ordered.steps for axis in step.kernel.axes]
    assert not any(axis.extent == Int(1) for axis in axes)
    assert any(axis.extent == Int(1) for step in together()[2].steps for axis in step.kernel.axes)


def test_a_depthwise_layer_with_nothing_behind_it_is_as_fast_as_one_with() -> None:
    """Fusion had left the axes of one step out of the second only: 2,373 vector instructions, and 506."""
    counts = {}
    for name, layers in {"alone": (), "relu": (torch.nn.ReLU(),)}.items():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, groups=8), *layers)
        program = arranged(program_of_model(model, torch.randn(1, 8, 8, 8)), vectors=True)
        counts[name] = [[axis.extent for axis in step.kernel.axes] for step in program.steps]
    assert counts["alone"] == counts["relu"]
