"""The one table of definitions, and what is checked when one is added."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch

from bringup import formulas
from bringup.lowering import registry
from bringup.lowering.registry import DEFINITIONS, LOWERINGS, OUTPUTS, Defined, composed, define, lowering, new_output


@pytest.fixture(autouse=True)
def _table_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = dict(DEFINITIONS)
    monkeypatch.setattr(registry, "LATE", [])  # as if no device were open: other tests of this process open some
    yield
    DEFINITIONS.clear()
    DEFINITIONS.update(before)


def test_an_overload_has_one_definition_of_each_kind() -> None:
    @lowering("test::twice")
    def first(call, x): ...

    @define("decomposition", "test::twice")
    def other_kind(x): ...

    with pytest.raises(ValueError, match=r"test::twice has two definitions \(lowering\)") as raised:

        @lowering("test::new", "test::twice")
        def second(call, x): ...

    places = [DEFINITIONS["test::twice", "lowering"].place, f"{__file__.removeprefix(registry.ROOT)}:"]
    assert all(place in str(raised.value) for place in places)
    assert "test::new" not in LOWERINGS  # nothing is half defined
    assert LOWERINGS["test::twice"] is first
    assert Defined("decomposition")["test::twice"] is other_kind


def test_a_view_follows_the_table() -> None:
    assert "test::op" not in LOWERINGS

    @lowering("test::op", "test::op.other", outputs=lambda *_: [new_output(6, (2,))])
    def op(call, x): ...

    @lowering("test::plain")
    def plain(call, x): ...

    assert {"test::op", "test::op.other", "test::plain"} <= set(LOWERINGS)
    assert "test::op" in OUTPUTS
    assert "test::plain" not in OUTPUTS
    assert OUTPUTS.get("test::plain") is None
    assert len(LOWERINGS) == len(list(LOWERINGS))


def test_a_composed_op_of_a_program_serves_the_device_without_any_c() -> None:
    library = torch.library.Library("registry_test", "DEF")
    library.define("positives(Tensor x) -> Tensor")

    @composed("registry_test::positives")
    def positives(x):
        return x[x > 0]

    assert torch._C._dispatch_has_kernel_for_dispatch_key("registry_test::positives", "PrivateUse1")
    assert DEFINITIONS["registry_test::positives", "composed"].place.startswith("tests/unit/lowering/test_registry.py:")


# ---- names that no kernel knows ----
SUM = "'sum' is not a reduction: did you mean 'add'?"


def refused(function) -> str:
    with pytest.raises(ValueError, match="is not a") as raised:
        lowering("test::wrong")(function)
    assert "test::wrong" not in LOWERINGS
    place, _, text = str(raised.value).partition(": ")
    file, _, line = place.rpartition(":")
    assert file == __file__
    assert "# here" in open(file).read().splitlines()[int(line) - 1]  # noqa: SIM115
    return text


def test_an_unknown_reduction_is_an_error_where_it_is_written() -> None:
    def in_place(call, x):
        k = call.kernel()
        rows = k.read(x)
        k.reduce(x.shape[0], lambda i: rows[i], "sum")  # here

    def by_keyword(call, x):
        builder = call.kernel("named")
        rows = builder.read(x)
        builder.scan(
            x.shape[0],
            lambda i: (rows[i],),
            combine="sum",  # here
            inits=[None],
            then=lambda i, found: None,
        )

    def in_an_inner_function(call, x):
        k = call.kernel()

        def folded(rows):
            return k.reduce(x.shape[0], lambda i: rows[i], "sum")  # here

        return folded(k.read(x))

    def without_a_body(call, x):
        k = call.kernel()
        return k.reduce(x, "sum")  # here

    for function in (in_place, by_keyword, in_an_inner_function, without_a_body):
        assert refused(function).startswith(SUM)


FOLD = "sum"


def test_a_name_may_stand_in_a_variable() -> None:
    fold = "sum"

    def of_the_module(call, x):
        k = call.kernel()
        k.reduce(4, lambda i: x, FOLD)  # here

    def of_the_enclosing_function(call, x):
        k = call.kernel()
        k.reduce(4, lambda i: x, combine=fold)  # here

    def its_own(call, x):
        k = call.kernel()
        for fold in ("add", "max"):
            k.reduce(4, lambda i: x, fold)

    assert refused(of_the_module).startswith(SUM)
    assert refused(of_the_enclosing_function).startswith(SUM)
    lowering("test::own_variable")(its_own)


def test_an_unknown_formula_is_an_error_where_it_is_written() -> None:
    def misspelled(call, x):
        k = call.kernel()
        k.store(call.outs[0], (0,), formulas.sigmod(x))  # here

    assert "did you mean 'sigmoid'?" in refused(misspelled)


@pytest.mark.parametrize(
    ("overload", "words"),
    [
        ("aten::tanhh", "PyTorch has no aten::tanhh: did you mean aten::tanh?"),
        ("aten::add", "PyTorch has no aten::add: there are aten::add.Scalar, "),
        ("registry_late::nothing", "registry_late::nothing is not an operator yet: define it"),
    ],
)
def test_a_lowering_of_no_operator_is_refused(overload, words, monkeypatch) -> None:
    monkeypatch.setattr(registry, "LATE", [lambda names: None])  # a device is open
    with pytest.raises(ValueError) as raised:
        lowering(overload)(lambda call, x: None)
    assert words in str(raised.value)
    assert overload not in LOWERINGS


def test_so_is_an_unknown_way_to_combine() -> None:
    def stored(call, x):
        k = call.kernel()
        k.store(k.update(call.outs[0]), (0,), 1, "atomic", "addd")  # here

    assert "did you mean 'add'? There are add, mul, min, max" in refused(stored)


def test_what_is_right_or_not_of_the_builder_is_left_alone() -> None:
    def right(call, x):
        k = call.kernel()
        k.reduce(x.shape[0], lambda i: x, "add")
        k.reduce(x.shape[0], lambda i: x, combine=max)
        k.store(x, (0,), 1, "unique")

    def of_other_objects(call, x):
        k = call.kernel()
        x.reduce(3, k, "sum")
        functools.reduce(lambda a, b: a, [k], "sum")

    def also_something_else(call, x):
        k = call.kernel()
        k = x
        k.reduce(3, k, "sum")

    def of_a_parameter(call, x):
        k = call.kernel()
        return k, lambda k: k.reduce(3, k, "sum")

    def call_is_another(call, x):
        call = x
        k = call.kernel()
        k.reduce(3, k, "sum")

    for n, function in enumerate((right, of_other_objects, also_something_else, of_a_parameter, call_is_another)):
        lowering(f"test::right{n}")(function)


def test_a_function_without_source_is_left_alone() -> None:
    space: dict = {}
    exec("def made(call, x):\n    k = call.kernel()\n    k.reduce(3, x, 'sum')\n", space)
    lowering("test::executed")(space["made"])
    lowering("test::partial")(functools.partial(space["made"]))
    lowering("test::built_in")(print)
    lowering("test::lambda")(lambda call, x: None)
