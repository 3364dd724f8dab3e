"""Counts of ``bringup check --json``: passing cases are in its counts only, and a report without any is refused."""

from __future__ import annotations

from benchmarks.op_reports import compiled, four_samples

REPORT = {
    "seconds": 250,
    "counts": [
        {"kind": "forward", "dtype": "float32", "pass": 7, "fail": 2, "cpu_fails": 3},
        {"kind": "forward", "dtype": "int64", "pass": 5},
        {"kind": "backward", "dtype": "float32", "pass": 4, "skip": 1, "timeout": 1},
    ],
    "rows": [
        {"kind": "forward", "dtype": "float32", "status": "fail", "declared": True},
        {"kind": "forward", "dtype": "float32", "status": "fail", "declared": False},
        {"kind": "backward", "dtype": "float32", "status": "timeout", "declared": False},
        {"kind": "backward", "dtype": "float32", "status": "skip", "declared": False},
    ],
}


def test_compiled_operators() -> None:
    data = compiled(REPORT)
    assert data["forward"] == {"of": 14, "agree": 12, "declared gaps": 1, "undeclared": 1}
    assert data["backward"] == {"of": 5, "agree": 4, "declared gaps": 0, "undeclared": 1}
    assert (data["of"], data["agree"], data["undeclared"], data["not counted"]) == (19, 16, 2, 3)


def test_four_samples() -> None:
    data = four_samples(REPORT)
    assert data["table"]["rows"][0] == ["forward, float32", 9, 7, 1, 1]
    assert data["table"]["rows"][1] == ["forward, the other 1 dtypes", 5, 5, 0, 0]
    assert data["undeclared"] == 2
