"""Formulas in files are the formulas they were; sizes that are tried lie in their range."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bringup.graph.export.sizes import ALL, sizes_to_try
from bringup.ir.index import Index, Int, Size, as_index, evaluate_sizes, maximum, minimum
from bringup.ir.index_json import BadFormula, from_json, to_json

NAMES = ("a", "b", "c")


def combined(inner: st.SearchStrategy[Index]) -> st.SearchStrategy[Index]:
    positive = st.integers(1, 9).map(as_index) | st.sampled_from(NAMES).map(lambda name: Size(name) + 1)
    return st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, n: a * n, inner, st.integers(-5, 5)),
        st.builds(lambda a, b: a // b, inner, positive),
        st.builds(lambda a, b: a % b, inner, positive),
        st.builds(minimum, inner, inner),
        st.builds(maximum, inner, inner),
    )


FORMULAS = st.recursive(st.integers(-9, 9).map(as_index) | st.sampled_from(NAMES).map(Size), combined, max_leaves=8)


@given(formula=FORMULAS, numbers=st.tuples(*(st.integers(0, 20) for _ in NAMES)))
def test_a_formula_comes_back_from_json(formula: Index, numbers: tuple[int, ...]) -> None:
    sizes = dict(zip(NAMES, numbers))
    read = from_json(json.loads(json.dumps(to_json(formula))), NAMES)
    assert evaluate_sizes(read, sizes) == evaluate_sizes(formula, sizes)
    assert to_json(read) == to_json(from_json(to_json(read), NAMES))
    if isinstance(formula, (Int, Size)):
        assert read == formula


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1.5,
        "d",
        "",
        [],
        {},
        ["+", 3],
        ["+", []],
        ["+", ["a", 2]],
        ["+", [1, 2]],
        ["+", [1, ["+", [1, "a"]], "b"], [True, "a"]],
        ["+", [1, "a"], [2, "a"]],
        ["+", [1, ["+", [1, "a"], [1, "b"]]]],
        ["**", "a", "b"],
        ["//", "a"],
        ["//", "a", 0],
        ["%", 5, 0],
        [["+"], "a", "b"],
        1 << 63,
        ["+", *([n, *["a"] * n] for n in range(40))],
    ],
    ids=lambda value: json.dumps(value)[:30],
)
def test_what_is_no_formula_is_refused(value: Any) -> None:
    with pytest.raises(BadFormula):
        from_json(value, NAMES)


@given(ranges=st.lists(st.tuples(st.integers(0, 9000), st.none() | st.integers(0, 100_000)), min_size=1, max_size=4))
def test_sizes_that_are_tried_lie_in_their_range(ranges: list[tuple[int, int | None]]) -> None:
    bounds = [(low, None if more is None else low + more) for low, more in ranges]
    tried = sizes_to_try(bounds)
    assert 0 < len(tried) <= ALL
    assert len(set(tried)) == len(tried)
    for n, (low, high) in enumerate(bounds):
        seen = {sizes[n] for sizes in tried}
        assert min(seen) == low
        assert high is None or max(seen) == high
