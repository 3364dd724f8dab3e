"""The op-level check itself: it passes what is right and catches what is wrong. Needs torch, no bringup device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bringup.kit.gaps import Gap, GapsFileError, default_gaps_file, judge, load_gaps
from bringup.kit.op_cases import Case, CaseResult, Status, list_cases, load_op_list
from bringup.kit.op_checks import OpReport, main_ops, run_op_checks
from bringup.kit.op_compare import Mismatch, compare, is_as_exact, tolerance_override
from bringup.kit.op_forms import IncomingGradients
from bringup.kit.op_random import Draws, check_distribution
from bringup.kit.op_samples import WIDE, Call, copy_to
from bringup.kit.op_unique import unique_part
from bringup.kit.op_workers import OpCheckError, Plan

BROKEN = "tests.unit.broken_ops:OPS"
KINDS = ("forward", "backward", "error")


@pytest.fixture(scope="module")
def broken() -> OpReport:
    """One run over all broken operators with a short limit per case; one worker, so that each has predecessors."""
    return run_op_checks("cpu", kinds=("forward",), op_list=BROKEN, timeout=5, workers=1)


def status_of(report: OpReport, op: str, kind: str = "forward") -> CaseResult:
    return next(r for r in report.results if (r.case.op, r.case.kind) == (op, kind))


@pytest.mark.parametrize("op", ["good", "good_out", "cpu_spoils_out", "good_random"])
def test_right_operators_pass(broken: OpReport, op: str) -> None:
    result = status_of(broken, op)
    assert (result.status, result.message, result.samples_run) == (Status.PASS, "", 1)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("wrong_value", "not close"),
        ("wrong_dtype", "dtype torch.float32 expected, got torch.float64"),
        ("wrong_shape", "shape"),
        ("wrong_nan", "not close"),
        ("wrong_structure", "a tensor expected, got tuple"),
        ("raises", "RuntimeError: no kernel for this"),
        ("spoils_input", "arguments[0][0]"),
        ("inplace_elsewhere", "in-place: facts: True expected, got False"),
        ("ignores_out", "out=: "),
        ("ignores_seed", "the same seed gives two results"),
        ("wrong_strides", "strides like (1, 4) expected, got (3, 1)"),
        ("constant_noise", "seeds give one and the same result"),
        ("one_number", "1.0 different numbers in a result on average"),
        ("wrong_scale", "one that the CPU never has there"),
        ("not_random", "not close"),
        ("wrong_number", "not close"),
    ],
)
def test_wrong_operators_fail(broken: OpReport, op: str, message: str) -> None:
    result = status_of(broken, op)
    assert result.status is Status.FAIL
    assert message in result.message
    assert result.sample == 0


def test_a_crash_costs_one_case_and_says_the_signal(broken: OpReport) -> None:
    crash = status_of(broken, "crashes")
    assert crash.status is Status.CRASH
    assert crash.message.startswith("SIGSEGV")
    assert "broken_ops.py" in crash.message, "the worker's last words (faulthandler) are kept"
    assert crash.note.startswith("alone in a fresh worker: crash")
    assert len(broken.results) == len(load_op_list(BROKEN)), "the cases after the crash ran"


def test_a_hang_is_a_timeout(broken: OpReport) -> None:
    assert status_of(broken, "hangs").status is Status.TIMEOUT
    assert broken.seconds < 600, "it would sleep that long"


@pytest.mark.parametrize(("op", "message"), [("cpu_raises", "no kernel"), ("cpu_disagrees", "CPU against itself")])
def test_what_fails_on_the_cpu_does_not_count(broken: OpReport, op: str, message: str) -> None:
    result = status_of(broken, op)
    assert result.status is Status.CPU_FAILS
    assert message in result.message
    assert op not in [r.case.op for r in broken.verdict.undeclared]


def test_wrong_gradients_and_errors_fail() -> None:
    names = ["good", "wrong_gradient", "good_error", "other_error", "no_error"]
    report = run_op_checks("cpu", kinds=("backward", "error"), ops=names, op_list=BROKEN, workers=2)
    found = {(r.case.op, r.case.kind): r.status.value for r in report.results}
    assert found["good", "backward"] == "pass"
    assert found["wrong_gradient", "backward"] == "fail"
    assert found["good", "error"] == "skip"
    assert found["good_error", "error"] == "pass"
    assert found["other_error", "error"] == found["no_error", "error"] == "fail"
    assert "TypeError: not like that; the CPU says RuntimeError" in status_of(report, "other_error", "error").message


def test_real_operators_pass_against_themselves() -> None:
    names = "add nn.functional.relu nn.functional.dropout linalg.svd sort empty view_as_real bernoulli".split()
    seen: list[tuple[int, int]] = []
    report = run_op_checks(
        "cpu",
        kinds=KINDS,
        dtypes=("float32", "complex64"),
        ops=names,
        samples=3,
        progress=lambda done, total, result: seen.append((done, total)),
    )
    assert report.ok, report.summary()
    assert not [r for r in report.results if r.status not in (Status.PASS, Status.SKIP)]
    assert report.counts()["forward", "float32"] == {"pass": 7, "skip": 1}
    assert seen == [(n, len(report.results)) for n in range(1, len(report.results) + 1)]


def test_a_run_may_be_split() -> None:
    cases = [Case(f"op{number}", "forward", "float32") for number in range(7)]
    plan = Plan("cpu", ("forward",), ("float32",), None, 1, 1, 1.0)
    parts = [replace(plan, shard=(part, 3)).part(cases) for part in range(3)]
    assert sorted(case for part in parts for case in part) == cases
    assert replace(plan, done=("op1 forward float32",)).part(cases) == [cases[0], *cases[2:]]
    with pytest.raises(ValueError, match="a shard is"):
        run_op_checks("cpu", shard=(2, 2))


def test_a_run_that_was_cut_goes_on() -> None:
    done = [CaseResult(Case(op, "forward", "float32"), Status.PASS) for op in ("good", "good_out")]
    cut = run_op_checks("cpu", ops=["good*"], op_list=BROKEN, workers=1, earlier=done, seconds=1e-9)
    assert [result.case.op for result in cut.results[:2]] == ["good", "good_out"]
    assert (len(cut.results), cut.finished) == (3, False)
    assert cut.results[2].case.op not in ("good", "good_out")


def test_json_and_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main_ops(driver="cpu", ops="abs,jiterator_unary", samples=2, json_file=str(out)) == 0
    written = json.loads(out.read_text())
    assert written["ok"]
    assert written["device"] == "cpu"
    assert written["versions"]["torch"] == torch.__version__
    assert written["counts"] == [{"kind": "forward", "dtype": "float32", "pass": 1, "cpu_fails": 1}]
    assert [(row["op"], row["status"]) for row in written["rows"]] == [("jiterator_unary", "cpu_fails")]
    assert "2 cases on cpu" in capsys.readouterr().out


def test_a_run_that_cannot_be_done_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OpCheckError, match="device 'xla' cannot be used"):
        run_op_checks("xla", ops=["add"])
    with pytest.raises(OpCheckError, match="no operator of the list matches 'no_such_\\*'"):
        run_op_checks("cpu", ops=["no_such_*"])
    with pytest.raises(ValueError, match="unknown kind 'sideways'"):
        run_op_checks("cpu", kinds=("sideways",))
    assert main_ops(driver="cpu", kinds="sideways") == 2
    assert "sideways" in capsys.readouterr().err


def results(*statuses: tuple[str, str, Status]) -> list[CaseResult]:
    return [CaseResult(Case(op, "forward", dtype), status) for op, dtype, status in statuses]


def test_gaps_are_strict() -> None:
    star = Gap("add", "forward", ("*",), "why")
    half = Gap("mul", "forward", ("float16",), "why")
    ran = results(("add", "float32", Status.FAIL), ("add", "int64", Status.PASS), ("mul", "float16", Status.CRASH))
    assert judge([star, half], ran, ["add", "mul"]).ok
    assert [r.case.op for r in judge([star], ran, ["add", "mul"]).undeclared] == ["mul"]
    passing = judge([star], results(("add", "float32", Status.PASS)), ["add"])
    assert passing.passing == [star]
    assert not passing.ok
    assert judge([star], results(("add", "float32", Status.CPU_FAILS)), ["add"]).ok
    assert judge([half], results(("mul", "float32", Status.PASS)), ["mul"]).ok, "not among its dtypes"
    assert judge([half], results(("mul", "float32", Status.FAIL)), ["mul"]).undeclared
    assert judge([Gap("mull", "forward", ("*",), "why")], [], ["mul"], "2.13.0").unknown
    new = Gap("mull", "forward", ("*",), "why", since="2.13")
    assert not judge([new], [], ["mul"], "2.11.0+cpu").unknown
    assert judge([new], [], ["mul"], "2.13.0").unknown == [new]
    assert judge([new], [], ["mul"]).unknown == [new]


def test_a_gap_may_name_samples_and_a_limit() -> None:
    case = Case("add", "forward", "float32")

    def ran(failed: list[int], difference: float | None = None, samples: tuple[int, ...] = (0, 1, 2)) -> CaseResult:
        status = Status.FAIL if failed else Status.PASS
        return CaseResult(case, status, ran=list(samples), failed=failed, difference=difference)

    one = Gap("add", "forward", ("*",), "why", samples=(1,))
    assert judge([one], [ran([1])], ["add"]).ok
    assert judge([one], [ran([1, 2])], ["add"]).undeclared, "sample 2 is not declared"
    assert judge([one], [ran([])], ["add"]).passing == [one]
    assert judge([one], [ran([], samples=(0, 2))], ["add"]).ok, "sample 1 did not run"
    assert judge([one], [CaseResult(case, Status.CRASH)], ["add"]).undeclared
    small = Gap("add", "forward", ("*",), "why", at_most=1e-4)
    assert judge([small], [ran([1], 9e-5)], ["add"]).ok
    assert judge([small], [ran([1], 2e-4)], ["add"]).undeclared
    assert judge([small], [ran([1])], ["add"]).undeclared, "not a difference of values"
    both = Gap("add", "forward", ("*",), "why", samples=(1,), at_most=1e-4)
    assert judge([both], [ran([2], 9e-5)], ["add"]).ok, "rounding strikes another sample"
    assert judge([both], [ran([1], 2e-4)], ["add"]).undeclared
    assert judge([both], [ran([])], ["add"]).passing == [both]


def test_a_gap_that_passes_fails_the_run(tmp_path: Path) -> None:
    path = tmp_path / "gaps.toml"
    entry = '[[gap]]\nop = "{}"\nkind = "forward"\ndtypes = ["*"]\nreason = "declared for the test"\n'
    path.write_text(entry.format("good") + entry.format("raises") + entry.format("nothing"))
    report = run_op_checks("cpu", ops=["good", "raises"], op_list=BROKEN, gaps=path)
    assert report.exit_code == 1
    assert [g.op for g in report.verdict.passing] == ["good"]
    assert [g.op for g in report.verdict.unknown] == ["nothing"]
    assert [r.case.op for r in report.verdict.declared] == ["raises"]
    assert "DECLARED GAP PASSES good" in report.summary()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[gap]]\nop = "a"\nkind = "forward"\ndtypes = ["*"]\n', "missing or unknown: reason"),
        ('[[gap]]\nop = "a"\nkind = "forward"\ndtypes = ["*"]\nreason = " "\n', "reason must be"),
        ('[[gap]]\nop = "a"\nkind = "up"\ndtypes = ["*"]\nreason = "r"\n', "kind 'up' is none of"),
        ('[[gap]]\nop = "a"\nkind = "error"\ndtypes = "*"\nreason = "r"\n', "dtypes must be a list"),
        ('[[gap]]\nop = "a"\nkind = "error"\ndtypes = ["*"]\nreason = "r"\n' * 2, "declared twice"),
        ('[[gap]]\nop = "a"\nkind = "error"\ndtypes = ["*"]\nreason = "r"\nsamples = 3\n', "samples must be"),
        ('[[gap]]\nop = "a"\nkind = "error"\ndtypes = ["*"]\nreason = "r"\nat_most = 0\n', "at_most must be"),
        ('[[gap]]\nop = "a"\nkind = "error"\ndtypes = ["*"]\nreason = "r"\nsince = 2.13\n', "since must be"),
        ("[[gaps]]\n", "unknown gaps"),
        ("[[gap", "gaps.toml"),
    ],
)
def test_a_gaps_file_that_is_unclear_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "gaps.toml"
    path.write_text(text)
    with pytest.raises(GapsFileError, match=message):
        load_gaps(path)


def test_shipped_gaps_are_readable_and_name_operators() -> None:
    path = default_gaps_file("sim:1")
    assert path is not None
    assert judge(load_gaps(path), [], load_op_list(), torch.__version__).unknown == []
    assert default_gaps_file("nothing") is None


def test_cases_of_all_dtypes() -> None:
    ops = load_op_list()
    cases, skipped = list_cases(ops, ("forward",), ("all",))
    assert len(cases) == sum(len(op.dtypes) for op in ops.values())
    assert not skipped
    cases, skipped = list_cases(ops, ("backward",), ("all",), ["mul"])
    assert [c.dtype for c in cases] == ["complex64", "float32", "float64"]
    cases, skipped = list_cases(ops, ("forward",), ("float32",))
    assert len(cases) + len(skipped) == len(ops)


def test_copies_keep_layout_and_aliasing() -> None:
    base = torch.arange(24.0).view(4, 6)
    view = base.t()[1:, ::2]
    expanded = torch.ones(1, 3).expand(5, 3)
    conj = torch.tensor([1 + 2j]).conj()
    leaf = torch.ones(2, requires_grad=True)
    value = ([view, {"base": base}], expanded, conj, leaf, {"device": "cpu", "dtype": torch.int8})
    (moved, inner), wide, conjugated, grad, options = copy_to(value, "cpu")
    assert moved.stride() == view.stride()
    assert moved.storage_offset() == view.storage_offset()
    assert moved.data_ptr() != view.data_ptr()
    assert torch.equal(moved, view)
    inner["base"].zero_()
    assert moved.eq(0).all(), "aliasing is kept among the copies"
    assert not view.eq(0).all(), "and with the original there is none"
    assert wide.stride() == (0, 1)
    assert conjugated.is_conj()
    assert torch.equal(conjugated, conj)
    assert grad.is_leaf
    assert grad.requires_grad
    assert options == {"device": "cpu", "dtype": torch.int8}


def test_tolerances_come_from_the_opinfo() -> None:
    ops = load_op_list()
    assert tolerance_override(ops["nn.functional.relu"], torch.float32, "forward") is None
    widened = [name for name, op in ops.items() if tolerance_override(op, torch.float32, "forward")]
    assert 5 < len(widened) < 60
    with pytest.raises(Mismatch):
        compare(torch.ones(2), torch.ones(2) + 1e-3, "cpu")
    compare(torch.ones(2), torch.ones(2) + 1e-3, "cpu", override=(0.0, 2e-3))
    compare(torch.ones(2), torch.ones(2) + 1e-3, "cpu", values=False)


def test_distributions_are_told_apart() -> None:
    def draw(**options: float) -> list[torch.Tensor]:
        return [torch.empty(50).uniform_(*options.values()) for _ in range(16)]

    check_distribution(draw(low=0, high=1), draw(low=0, high=1))
    with pytest.raises(Mismatch, match="distributed differently"):
        check_distribution(draw(low=0, high=1), draw(low=0, high=1.5))
    with pytest.raises(Mismatch, match="distributed differently"):
        check_distribution(draw(low=0, high=1), [torch.full((50,), 0.5)] * 16)


@pytest.mark.parametrize("wrong", [0.0, 1e30, float("nan"), -float("inf")])
def test_the_second_opinion_licenses_nothing_where_truth_is_not_finite(wrong: float) -> None:
    exact = torch.tensor([float("inf"), 1.0], dtype=torch.float64)
    cpu = torch.tensor([65504.0, 1.0], dtype=torch.float16)
    assert is_as_exact(cpu, cpu.clone(), exact)
    assert not is_as_exact(cpu, torch.tensor([wrong, 1.0]).half(), exact)


def test_the_second_opinion_looks_at_each_element() -> None:
    """An error that the CPU makes in one element is not a licence for another."""
    exact = torch.tensor([1000.0, 1.0, 2.0], dtype=torch.float64)
    cpu = torch.tensor([1100.0, 1.0, 2.0])
    assert is_as_exact(cpu, torch.tensor([1000.1, 1.0, 2.0]), exact)
    assert not is_as_exact(cpu, torch.tensor([1100.0, 1.0, 2.5]), exact)
    assert not is_as_exact(cpu, torch.tensor([1000.0, 1.0, 2.0001]), exact)


def test_the_second_opinion_has_none_on_plain_numbers() -> None:
    assert is_as_exact((1.0, 2), (1.0, 2), (1.0, 2))
    assert not is_as_exact((1.0, 2), (1.5, 2), (1.0, 2))


def test_where_results_are_and_how_they_lie_is_compared() -> None:
    right = torch.ones(2, 3)
    compare(right, right.clone(), "cpu")
    compare((1, [right]), (1, [right.clone()]), "cpu:0")
    with pytest.raises(Mismatch, match="is on cpu, expected on meta"):
        compare((1, [right]), (1, [right.clone()]), "meta")  # a gradient, as the check of backward returns it
    with pytest.raises(Mismatch, match="strides like"):
        compare(right, torch.ones(3, 2).t(), "cpu")
    compare(torch.ones(1, 3), torch.ones(3, 1).t(), "cpu")
    compare(right[:0], torch.ones(3, 0).t(), "cpu")


def test_draws_are_seen_by_the_generator_not_by_the_name() -> None:
    x = torch.randn(8)
    for call, drew in (
        (lambda: torch.nn.functional.rrelu(x, training=True), True),
        (lambda: torch.nn.functional.rrelu(x, training=False), False),
        (lambda: torch.rand(3, generator=torch.Generator()), True),
        (lambda: torch.rand(0), False),
        (lambda: x + 1, False),
    ):
        with Draws() as draws:
            call()
        assert draws.yes is drew


def test_the_parts_of_a_factorisation_that_are_unique() -> None:
    """Other signs pass; a sign of one element does not."""
    call = Call((torch.randn(4, 3),), {}, lambda value: value, False)
    unique = unique_part("linalg.svd", "forward", call)
    assert unique is not None
    u, s, vh = torch.linalg.svd(call.args[0], full_matrices=False)
    expected = unique(call, (u, s, vh))
    signs = torch.tensor([1.0, -1.0, 1.0])
    compare(expected, unique(call, (u * signs, s, signs[:, None] * vh)), "cpu")
    wrong = u.clone()
    wrong[0, 0] *= -1
    with pytest.raises(Mismatch):
        compare(expected, unique(call, (wrong, s, vh)), "cpu")


def test_indices_of_a_sort_name_each_element_once() -> None:
    call = Call((torch.tensor([2.0, 1.0, 2.0]),), {}, lambda value: value, False)
    unique = unique_part("sort", "forward", call)
    assert unique is not None
    values = torch.tensor([1.0, 2.0, 2.0])
    expected = unique(call, (values, torch.tensor([1, 0, 2])))
    compare(expected, unique(call, (values, torch.tensor([1, 2, 0]))), "cpu")
    with pytest.raises(Mismatch):
        compare(expected, unique(call, (values, torch.tensor([1, 2, 2]))), "cpu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.complex64])
def test_the_second_opinion_asks_who_is_closer(dtype: torch.dtype) -> None:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    exact = torch.tensor([1.0, 20.0, 300.0], dtype=wide) * (1 - 2j if dtype.is_complex else 1)
    unit = torch.finfo(dtype).eps

    def off_by(units: float) -> torch.Tensor:
        return (exact * (1 + units * unit)).to(dtype)

    assert is_as_exact(off_by(20), off_by(2), exact)
    assert not is_as_exact(off_by(2), off_by(20), exact)
    assert not is_as_exact(off_by(20), off_by(2).index_fill(0, torch.tensor(0), float("nan")), exact)
    assert not is_as_exact(off_by(20), off_by(2).to(wide), exact)


def test_the_second_opinion_on_terms_that_cancel() -> None:
    """Where the exact result is zero, the errors themselves are what is compared, and they fall either way."""
    exact = torch.tensor([0.0, 1e-9, 0.5], dtype=torch.float64)

    def off_by(*errors: float) -> torch.Tensor:
        return (exact + torch.tensor(errors)).bfloat16()

    cpu = off_by(0.0, 0.002, 0.0)
    assert is_as_exact(cpu, off_by(0.0039, -0.0039, 0.0), exact)
    assert not is_as_exact(cpu, off_by(0.0041, 0.0, 0.0), exact)
    assert not is_as_exact(off_by(0.0, 0.008, 0.0), off_by(0.0, 0.0, 0.0156), exact), "no zero, no grace"


@pytest.mark.parametrize(("device", "expected"), [("cpu", Status.FAIL), ("cpu:0", Status.PASS)])
def test_a_gradient_that_is_closer_to_float64_than_the_cpus(device: str, expected: Status) -> None:
    """Nobody asks for a second opinion on the plain CPU; ``cpu:0`` counts as a device."""
    report = run_op_checks(device, kinds=("backward",), ops=["exact_gradient"], op_list=BROKEN, workers=1)
    assert [result.status for result in report.results] == [expected]


def test_the_second_opinion_gets_the_gradients_that_were_drawn() -> None:
    incoming = IncomingGradients()
    like = torch.ones(40, dtype=torch.float16)
    (drawn,) = incoming.of([like], "cpu")
    (wide,) = incoming.of([like.double()], WIDE)
    assert drawn.dtype == like.dtype
    assert wide.dtype == torch.float64
    assert torch.equal(wide, drawn.double())
    (others,) = incoming.of([like.double()], "cpu")
    assert not torch.equal(others, wide), "what float64 draws by itself"


def test_in_the_second_opinion_complex_numbers_are_wide_too() -> None:
    copied = copy_to([torch.ones(2, dtype=torch.complex64), torch.complex64, torch.half, torch.int8], WIDE)
    assert copied[0].dtype == copied[1] == torch.complex128
    assert copied[2:] == [torch.float64, torch.int8]


def test_in_the_second_opinion_views_read_what_they_read() -> None:
    base = torch.arange(6, dtype=torch.float16)
    view, whole = copy_to([base[1::2], base], WIDE)
    assert view.stride() == (2,)
    assert torch.equal(view.as_strided((3,), (1,), 2), torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64))
    whole.zero_()
    assert view.eq(0).all()
