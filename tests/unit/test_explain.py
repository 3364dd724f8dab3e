"""What ``bringup explain`` and BRINGUP_DEBUG print, from records that are made by hand; no device."""

from __future__ import annotations

import pytest

from bringup import debug
from bringup.compile.index_code import code_of, function_code, made_function
from bringup.compile.kernels import KernelRecord, Origin
from bringup.ir.cost import cost
from bringup.ir.index import Int, Size
from bringup.ir.parser import parse
from bringup.lowering.call import Call, Launch, Tensor
from bringup.lowering.call_text import described, guard_lines, signature_text, tell
from bringup.lowering.observation import CallRecord
from bringup.lowering.symbolic import Trace
from bringup.targets.source import Source

KERNEL = parse(
    "kernel double size n in x: float32[n] strides [1] out y: float32[n] strides [1] grid i < n "
    "{ store y[i] = (x[i] + x[i]) }"
)
SECONDS = {"verify": 0.001, "simplify": 0.001, "render": 0.002, "cost": 0.001}


def record(origin: Origin = "compiled", known: bool = False, refusal: str = "") -> CallRecord:
    trace = Trace()
    n = trace.symbol("t0_n0", 8)
    assert n > 4
    trace.compare_scalar(0, "eq", 2.5, 2.5)
    arguments = [("t", 0, 6, (8,), (1,), 2), ("s", 0, None, 2.5, 0)]
    outputs = [("new", 6, (8,), (1,))]
    if refusal:
        return CallRecord("test::double", 0, arguments, outputs, trace, {}, refusal=refusal)
    tensor = Tensor(("tensor", 0), KERNEL.buffers[0].dtype, (n,), (1,))
    call = Call("test::double", trace, (tensor,), [Launch(KERNEL, (tensor, tensor), (n,), ())])
    made = {"compiled": {"compile": 0.04, "load": 0.0001}, "disk cache": {"cache": 0.0002, "load": 0.0001}}
    source = Source("void bringup_double(void) {}", "bringup_double", Int(1))
    kernel = KernelRecord(KERNEL, source, cost(KERNEL), origin, {**SECONDS, **made.get(origin, {})})
    seconds = {"plan": 2e-5} if known else {"lowering": 0.0005, "plan": 0.0003}
    return CallRecord("test::double", 0, arguments, outputs, trace, seconds, call, "", known, [] if known else [kernel])


# ---- calls in words ----
def test_arguments_in_words() -> None:
    assert described(("t", 0, 6, (2, 3), (3, 1), 2)) == "float32[2, 3]"
    assert described(("t", 0, 15, (2, 3), (1, 2), 0)) == "bfloat16[2, 3] strides (1, 2)"
    assert described([("t", 0, 11, (), (), 2), None]) == "[bool[], None]"
    assert described(("arg", 1)) == "argument t1"
    assert described("none") == "'none'"
    assert signature_text(record()) == "test::double(float32[8], 2.5)"


def test_guards_read_as_comparisons() -> None:
    trace = Trace()
    n, m, s = trace.symbol("n", 8), trace.symbol("m", 8), trace.symbol("s", 2)
    assert n == m
    assert not n < 4
    assert not 3 - s > 2
    assert s * n != 8
    trace.compare_scalar(1, "lt", 0.5, 1.0)
    assert guard_lines(trace) == ["n == m", "n >= 4", "1 <= s", "n*s != 8", "scalar 1 < 1.0"]


# ---- formulas as Python ----
def test_a_formula_as_python_counts_like_the_formula() -> None:
    from bringup.ir.index import evaluate_sizes, maximum, minimum

    n, m = Size("n"), Size("class")
    part = (n + 7) // 8
    formulas = [part * part - m, minimum(part, m) % 5, maximum(part * 3, m)]
    code = function_code("f", ["n", "class"], formulas)
    assert code.count("//") == 1, "what occurs again is computed once"
    for sizes in ({"n": 0, "class": 3}, {"n": 1000, "class": 17}):
        assert made_function(code, "f")(*sizes.values()) == tuple(evaluate_sizes(f, sizes) for f in formulas)
    assert code_of(part, {"n": "v[0]"}) == "((7 + v[0]) // 8)"


# ---- the ladder ----
def told(level: int, what: CallRecord, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(debug, "level", level)
    tell(what)
    return capsys.readouterr().err


def test_each_step_tells_more(capsys, monkeypatch) -> None:
    texts = [told(level, record(), capsys, monkeypatch) for level in range(6)]
    assert texts[0] == ""
    assert texts[1] == (
        "bringup: kernel bringup_double compiled for device 0 in 45.1 ms, 40.0 of them in the compiler\n"
    )
    assert "guard t0_n0 > 4" in texts[2]
    assert "guard scalar 0 == 2.5" in texts[2]
    assert "lowered in 0.50 ms" in texts[2]
    assert "store y[i]" not in texts[2]
    assert "store y[i] = (x[i] + x[i])" in texts[3]
    assert "void bringup_double" not in texts[3]
    assert "void bringup_double(void) {}" in texts[4]
    assert texts[5] == texts[4], "launches are told by the driver's struct"


def test_where_a_kernel_came_from(capsys, monkeypatch) -> None:
    assert told(1, record("disk cache"), capsys, monkeypatch) == ""
    assert "bringup_double from the disk cache in 0.20 ms" in told(2, record("disk cache"), capsys, monkeypatch)
    assert "is loaded already" in told(4, record("memory"), capsys, monkeypatch)
    assert "void bringup_double" not in told(4, record("memory"), capsys, monkeypatch)
    assert "known structure, plan in 20 µs" in told(2, record(known=True), capsys, monkeypatch)


def test_a_refusal_has_its_reason(capsys, monkeypatch) -> None:
    assert told(1, record(refusal="no such type"), capsys, monkeypatch) == (
        "bringup: no kernel for test::double(float32[8], 2.5): no such type\n"
    )


@pytest.mark.parametrize(("text", "level"), [("", 0), ("3", 3), ("9", 0), ("yes", 0)])
def test_the_variable(text: str, level: int, monkeypatch, capsys) -> None:
    monkeypatch.setenv("BRINGUP_DEBUG", text)
    assert debug._from_environment() == level
    assert ("is not a number from 0 to 5" in capsys.readouterr().err) == (text in ("9", "yes"))


# ---- explain ----
def test_the_parts_of_an_explanation() -> None:
    from bringup.kit.explain import OpCall
    from bringup.kit.explain_command import PARTS, sections

    call = OpCall("test::double", "float32[8], 2.5", "kernel", [record()], first=0.05, warm=3e-6)
    shown = list(sections(1, call, list(PARTS)))
    text = "\n".join(part for _, part in shown)
    assert text.startswith("1. test::double(float32[8], 2.5)\n   kernel")
    assert "t0_n0 > 4" in text
    assert "store y[i] = (x[i] + x[i])" in text
    assert "cost: 8 flops (0 of them transcendental), 32 bytes read, 32 written, 0.12 flops per byte" in text
    assert "first call 50.0 ms: lowering 500.0 µs, plan 300.0 µs, verify 1.0 ms" in text
    assert "compile 40.0 ms" in text
    assert "warm call 3.0 µs" in text
    assert [language for language, _ in shown if language] == ["rust", "c"]
    only = "\n".join(part for _, part in sections(1, call, ["cost"]))
    assert "cost:" in only
    assert "guards" not in only
    assert "void" not in only
    assert "warm" not in only


def test_steps_that_the_disk_cache_spared_are_not_counted() -> None:
    from bringup.kit.explain import OpCall, spent_on_watching

    call = OpCall("test::double", "", "kernel", [record("disk cache")], first=0.002)
    assert set(call.steps) == {"lowering", "plan", "cache", "load", "shapes, memory, launch"}
    assert sum(call.steps.values()) == pytest.approx(0.002)
    assert spent_on_watching(call.records) == pytest.approx(sum(SECONDS.values()))
    assert spent_on_watching([record("compiled")]) == 0


def test_reasons() -> None:
    from bringup.kit.explain import OpCall

    assert OpCall("o", "", "kernel", [record(refusal="because")], fell_back=True).reason == "because"
    assert "fell back to the CPU" in OpCall("o", "", "fallback", fell_back=True).reason
    assert "signature" in OpCall("o", "", "kernel", hits=1).reason
    assert OpCall("o", "", "kernel", [record()]).reason == ""
    assert "nothing to compile" in OpCall("o", "", "native").reason
