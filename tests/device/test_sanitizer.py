"""The stream sanitizer: finds planted mistakes with both places, and nothing in programs without any."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bringup.sanitizer.order import Order
from bringup.sanitizer.span import Span
from tests.device.programs_streams import CORRECT, MISTAKES, SETUP

ON = "from bringup.sanitizer import StreamSanitizer; StreamSanitizer().__enter__()"
TWO_DEVICES = {"BRINGUP_SIM": "mode=kernels,devices=2"}


def line_of(text: str, mark: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"# {mark}"))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str, run_python: Callable[..., Any]) -> None:
    program, says = MISTAKES[name]
    text = SETUP + ON + program
    result = run_python(text, env=TWO_DEVICES, check=False)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "StreamRace" in result.stderr
    assert says in result.stderr, result.stderr
    lines = {int(number) for number in re.findall(r'File "<string>", line (\d+), in <module>', result.stderr)}
    assert {line_of(text, "first"), line_of(text, "second")} <= lines, result.stderr


@pytest.mark.parametrize("mode", ["kernels", "library"])
def test_correct_programs_raise_no_alarm(mode: str, run_python: Callable[..., Any]) -> None:
    programs = [text for text in CORRECT.values() if mode == "kernels" or "Graph" not in text]  # no captures there
    tried = "\n".join(f"def program_{n}():\n" + indented(text) for n, text in enumerate(programs))
    calls = "".join(f"program_{n}(); torch.sim.synchronize()\n" for n in range(len(programs)))
    env = {"BRINGUP_SIM": f"mode={mode},devices=2"}
    run_python(f"{SETUP}\n{ON}\n{tried}\n{calls}", env=env, timeout=240)


def test_the_variable_watches_the_whole_program(run_python: Callable[..., Any]) -> None:
    program, says = MISTAKES["two streams write"]
    env = {**TWO_DEVICES, "BRINGUP_SANITIZE": "stream"}
    result = run_python(SETUP + program, env=env, check=False, fresh=True)
    assert result.returncode == 1, result.stderr
    assert says in result.stderr


def test_the_variable_where_the_sanitizer_is_imported_before_torch(run_python: Callable[..., Any]) -> None:
    program = f"""
from bringup.sanitizer import StreamRace
{SETUP}
x = torch.ones(1000, device="sim")
try:
    with on(side):
        x + 1
except StreamRace:
    print("found")
"""
    assert "found" in run_python(program, env={"BRINGUP_SANITIZE": "stream"}, fresh=True).stdout


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.strip().splitlines())


def test_a_block_of_code_alone(run_python: Callable[..., Any]) -> None:
    program = """
from bringup.sanitizer import StreamSanitizer
x = torch.ones(4, device="sim")
with on(side):
    x + 1  # nobody looks
torch.sim.synchronize()
with StreamSanitizer():
    y = x + 1
    try:
        with on(side):
            y + 1
    except StreamRace as race:
        print("found:", str(race).splitlines()[0])
with on(third):
    y + 1
"""
    result = run_python(SETUP + program, env={"BRINGUP_SIM": "mode=kernels"})
    assert "found: the same memory is touched in no order (16 bytes" in result.stdout


def test_another_value_is_a_warning(run_python: Callable[..., Any]) -> None:
    result = run_python("import torch; torch.ones(1, device='sim')", env={"BRINGUP_SANITIZE": "streams"}, fresh=True)
    assert "BRINGUP_SANITIZE='streams' means nothing" in result.stderr


def test_spans_overlap_where_their_bytes_do() -> None:
    random = np.random.default_rng(0)
    seen = [0, 0]
    for _ in range(2000):
        spans, touched = [], []
        for _ in range(2):
            sizes = tuple(int(n) for n in random.integers(0 if random.random() < 0.1 else 1, 5, random.integers(0, 4)))
            strides = tuple(int(n) for n in random.integers(0, 12, len(sizes)))
            itemsize = int(random.choice([1, 2, 4, 8]))
            span = Span(int(random.integers(0, 100)), sizes, strides, itemsize)
            elements = itertools.product(*map(range, sizes))
            places = [sum(n * stride for n, stride in zip(element, strides, strict=True)) for element in elements]
            spans.append(span)
            touched.append({span.address + place * itemsize + byte for place in places for byte in range(itemsize)})
        expected = bool(touched[0] & touched[1])
        seen[expected] += 1
        assert spans[0].overlaps(spans[1]) == spans[1].overlaps(spans[0]) == expected, spans
    assert min(seen) > 200


def test_order_goes_through_events_and_the_host() -> None:
    order, a, b, c = Order(), (0, 0), (0, 1), (0, 2)
    first = order.work(a)
    order.record(0, 7, a)
    second = order.work(a)
    order.wait(0, 7, b)
    assert order.follows(b, a, first)
    assert not order.follows(b, a, second)
    order.record(0, 8, b)
    order.wait(0, 8, c)  # through b
    assert order.follows(c, a, first)
    assert not order.follows(None, a, first)
    order.synchronize(a)
    assert order.follows(None, a, second)
    assert order.follows(c, a, second)  # what the host asks for now comes later
