"""Index algebra against Python's integers, and proofs against every value in range."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bringup.ir.index import (
    AxisVar,
    FloorDiv,
    Int,
    Mod,
    Size,
    axes_in,
    coefficient,
    evaluate,
    maximum,
    minimum,
    substitute,
)
from bringup.ir.index_proof import Facts
from bringup.ir.injective import disjoint, injective
from bringup.ir.printer import index_text

i, j, n, m = AxisVar("i"), AxisVar("j"), Size("n"), Size("m")
FACTS = Facts(axes={"i": n, "j": m}, sizes={"n": (1, None), "m": (1, None)})


def grown(children):
    two = st.tuples(children, children)
    divided = st.tuples(children, st.integers(1, 4).map(Int) | st.sampled_from([n, m]))
    return st.one_of(
        two.map(lambda p: p[0] + p[1]),
        two.map(lambda p: p[0] - p[1]),
        st.tuples(children, st.integers(-3, 3)).map(lambda p: p[0] * p[1]),
        st.tuples(children, st.sampled_from([n, m])).map(lambda p: p[0] * p[1]),
        divided.map(lambda p: p[0] // p[1]),
        divided.map(lambda p: p[0] % p[1]),
        two.map(lambda p: minimum(*p)),
        two.map(lambda p: maximum(*p)),
    )


indices = st.recursive(st.sampled_from([i, j, n, m]) | st.integers(-4, 4).map(Int), grown, max_leaves=6)


def places():
    for rows, columns in itertools.product((1, 2, 5), (1, 3)):
        for a, b in itertools.product(range(rows), range(columns)):
            yield {"i": a, "j": b, "n": rows, "m": columns}


def number(index, values):
    return evaluate(index, lambda atom: values[atom.name])


@given(indices, indices)
@settings(max_examples=150, deadline=None)
def test_operators_are_those_of_integers(a, b):
    for values in itertools.islice(places(), 0, None, 3):
        x, y = number(a, values), number(b, values)
        assert number(a + b, values) == x + y
        assert number(a - b, values) == x - y
        assert number(a * b, values) == x * y
        assert number(a // 3, values) == x // 3
        assert number(a % m, values) == x % values["m"]
        assert number(minimum(a, b), values) == min(x, y)
        assert number(substitute(a, {"i": b}), values) == number(a, {**values, "i": y})


@given(indices)
@settings(max_examples=150, deadline=None)
def test_simplify_keeps_the_value(index):
    simple = FACTS.simplify(index)
    for values in places():
        assert number(simple, values) == number(index, values)


@given(indices, indices)
@settings(max_examples=200, deadline=None)
def test_proofs_are_sound(a, b):
    if FACTS.always_less(a, b):
        assert all(number(a, values) < number(b, values) for values in places())
    upper, lower = FACTS.bound(a, upper=True), FACTS.bound(a, upper=False)
    for values in places():
        assert upper is None or number(a, values) <= number(upper, values)
        assert lower is None or number(a, values) >= number(lower, values)


@given(st.lists(indices, min_size=1, max_size=2))
@settings(max_examples=150, deadline=None)
def test_injective_is_sound(found):
    if injective(found, ["i", "j"], FACTS):
        for rows, columns in itertools.product((1, 2, 5), (1, 3)):
            here = [v for v in places() if (v["n"], v["m"]) == (rows, columns)]
            assert len({tuple(number(x, v) for x in found) for v in here}) == len(here)


def test_what_lowerings_need_is_proved():
    flat = i * m + j
    assert FACTS.simplify(flat // m) == i
    assert FACTS.simplify(flat % m) == j
    assert FACTS.simplify((flat // m) * m + flat % m) == flat
    assert FACTS.in_range(flat, n * m)
    assert FACTS.in_range(n - 1 - i, n)
    assert not FACTS.always_less(i + 1, n)
    p = AxisVar("p")
    over = Facts(axes={"p": n * m * 4}, sizes={"n": (1, None), "m": (1, None)})
    assert over.in_range(p // (m * 4), n)
    assert over.in_range((p // 4) % m, m)
    assert over.simplify(over.simplify((p // 4) * 4) + p % 4) == p
    assert injective([p // (m * 4), (p // 4) % m, p % 4], ["p"], over)
    assert not injective([p // (m * 4), p % 4], ["p"], over)


def test_guards_and_ranges_help_proofs():
    row = i * 2 + j - 1
    padded = FACTS.with_inequalities((row, n - row - 1))
    assert padded.in_range(row, n)
    assert not FACTS.in_range(row, n)
    small = Facts(axes={"i": n}, sizes={"n": (1, 64)})
    assert small.always_less(i, Int(64))
    assert small.constant_bound(i * 4 + 3, upper=True) == 255
    assert Facts().constant_bound(n, upper=True) is None


def test_conflicts():
    assert injective([i, j], ["i", "j"], FACTS)
    assert injective([j * n + i], ["i", "j"], FACTS)
    assert injective([n * m - 1 - (i * m + j)], ["i", "j"], FACTS)
    assert not injective([i + j], ["i", "j"], FACTS)
    assert not injective([i], ["i", "j"], FACTS)
    assert not injective([i // 2], ["i"], FACTS)
    assert disjoint((i,), (i + n,), FACTS)
    assert not disjoint((i,), (i + 1,), FACTS)


def test_forms_and_text():
    assert coefficient(m * i + 3 * i + j, i) == (m + 3, j)
    assert axes_in((i % n) // m + j) == {"i", "j"}
    assert index_text(-i + 2 * m * j - 3) == "-i + 2*j*m - 3"
    assert isinstance(i // 2, FloorDiv)
    assert isinstance(i % n, Mod)
    assert (i // 2) // 3 == i // 6
    with pytest.raises(ZeroDivisionError):
        i // 0
