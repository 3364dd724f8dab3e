"""The comparison of two commits: what its intervals prove, and which rows it compares."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def before_after(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("before_after")


def test_a_row_is_slower_only_if_all_rounds_say_so(before_after: Any) -> None:
    def rows(ratios: list[float]) -> Any:
        return before_after.compared([({"add": 2.0}, {"add": 2.0 * ratio}, {"add": 2.0}) for ratio in ratios])[0]

    assert rows([1.1, 1.12, 1.09, 1.1, 1.11]).slower
    assert not rows([1.3, 0.9, 1.2, 0.8, 1.1]).slower, "the interval reaches below the bar"
    assert not rows([1.01, 1.02, 1.02, 1.01, 1.02]).slower
    assert rows([1.1] * 5).same == pytest.approx(1 / 1.1, abs=1e-4)


def test_the_interval_holds_the_truth_as_often_as_it_says(before_after: Any) -> None:
    draw = random.Random(3)
    found = [before_after.interval([draw.lognormvariate(0, 0.05) for _ in range(12)])[1:] for _ in range(60)]
    held = sum(low <= 1 <= high for low, high in found)
    assert 48 <= held < 60


def test_only_rows_of_every_process_are_compared(before_after: Any) -> None:
    one = ({"old": 1.0, "both": 1.0, "zero": 0.0}, {"new": 1.0, "both": 1.5, "zero": 1.0}, {"both": 1.5, "zero": 1.0})
    assert [(row.name, row.ratio) for row in before_after.compared([one])] == [("both", 1.5)]


def test_every_benchmark_reads_its_own_rows(before_after: Any) -> None:
    eager = {"name": "add", "value": 1.2, "counted": "ratio"}
    assert before_after.BENCHMARKS["eager"].read(eager) == {"add": 1.2}
    assert before_after.BENCHMARKS["eager"].read({**eager, "counted": "added seconds"}) == {}
    question = {"model": "mlp", "phase": "training", "threads": 1, "library": "generated"}
    row = {"question": question, "vs_inductor": 0.8}
    assert before_after.BENCHMARKS["compile"].read(row) == {"mlp training, 1 threads, generated": 0.8}
    times = {"op": "mm", "first": 0.3, "disk": 0.01, "shape": 0.0001}
    assert before_after.BENCHMARKS["compile_time"].read(times) == {
        "mm: first": 0.3,
        "mm: disk": 0.01,
        "mm: shape": 1e-4,
    }
