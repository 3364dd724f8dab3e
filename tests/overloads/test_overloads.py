"""The sweep over overloads: a fixed sample of it, all of it behind the marker, and the judge's own mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.overloads import judge
from tests.overloads.calls import OverloadCall, overload_named
from tests.overloads.siblings import borrowed, out_forms
from tests.overloads.sweep import Sweep, findings_of, run_sweep
from tests.overloads.synthesis import synthesised

#: Operators of op_db whose samples give the arguments, and the overloads that are called with them.
OPERATORS = ["nn.functional.glu", "histc", "nn.functional.rrelu", "nn.functional.unfold", "linalg.cross", "cumsum"]
OVERLOADS = ["aten::glu*", "aten::histc*", "aten::rrelu_with_noise*", "aten::im2col*", "aten::linalg_cross*",
             "aten::cumsum*", "aten::kaiser_window*"]  # fmt: skip


def said(sweep: Sweep) -> str:
    findings = [f for r in sweep.undeclared for f in findings_of(r)]
    return "\n".join([*(f"{f['kind']}: {f['call']}\n    {f['message']}" for f in findings), *sweep.passing])


def test_a_sample_of_overloads(device: str) -> None:
    """Functional, in-place, out=, backward and forward-mode overloads of a few ops: each as on the CPU."""
    sweep = run_sweep(device, OVERLOADS, operators=OPERATORS, samples=1)
    assert not sweep.undeclared, said(sweep)
    assert sweep.overloads - len(sweep.not_called) >= 25, sweep.not_called


@pytest.mark.sweep
@pytest.mark.timeout(7200)
def test_every_overload(device: str, tmp_path: Path) -> None:
    sweep = run_sweep(device, calls_file=tmp_path / "calls", samples=2, workers=2)
    assert not sweep.undeclared, said(sweep)
    assert not sweep.passing, said(sweep)
    assert sweep.overloads - len(sweep.not_called) >= 1700, sweep.not_called


#: What a broken device may do to the right result of a call.
MUTATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a value": lambda t: t + torch.eye(3) * 1e-2,
    "NaN": lambda t: torch.where(torch.eye(3) > 0, torch.nan, t),
    "dtype": lambda t: t.double(),
    "shape": lambda t: t[:2],
    "strides": lambda t: t.t().contiguous().t(),
    "device": lambda t: t.to("meta"),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_judge_sees(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second device is the CPU under another name, with one thing wrong."""
    honest = judge._run

    def broken(call: OverloadCall, device: str) -> Any:
        value, arguments, _ = honest(call, "cpu" if device == "cpu:0" else device)
        value = MUTATIONS[mutation](value) if device == "cpu:0" else value
        return value, arguments, judge._layout([value], [])

    monkeypatch.setattr(judge, "_run", broken)
    found = judge.judge_call(OverloadCall("aten::exp", {"self": torch.rand(3, 3)}), "cpu:0")
    assert isinstance(found, dict)
    assert found["kind"] == "differs"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("false INTERNAL ASSERT FAILED"), "internal"),
        (TypeError("f() got an unexpected keyword argument 'out0'"), "internal"),
        (NotImplementedError("no"), "refuses"),
    ],
)
def test_the_judge_sorts_errors(error: Exception, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = judge._run

    def broken(call: OverloadCall, device: str) -> Any:
        if device == "cpu:0":
            raise error
        return honest(call, device)

    monkeypatch.setattr(judge, "_run", broken)
    found = judge.judge_call(OverloadCall("aten::exp", {"self": torch.rand(3)}), "cpu:0")
    assert isinstance(found, dict)
    assert found["kind"] == kind


def test_out_forms_are_borrowed_from_the_functional_form() -> None:
    recorded = {
        "aten::add.Tensor": [OverloadCall("aten::add.Tensor", {"self": torch.ones(2, 3), "other": torch.ones(3)})]
    }
    (call,) = borrowed("aten::add.out", recorded)
    forms = {form.form.rpartition(", ")[2]: form for form in out_forms(call, {"out": torch.ones(2, 3)})}
    assert set(forms) == {"out= of the right size", "out= that must grow", "out= with gaps", "transposed out=",
                          "out= is an input"}  # fmt: skip
    for form in forms.values():
        assert form.run("cpu")[0].shape == (2, 3)


def test_arguments_are_made_from_a_schema() -> None:
    assert synthesised("aten::addcmul", 2)
    assert overload_named("aten::no_such_op") is None
