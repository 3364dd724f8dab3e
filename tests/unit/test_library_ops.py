"""Which op a driver's ``ops`` may name, and which forms of it are derived; no device."""

from __future__ import annotations

import importlib.util

import pytest

torch = pytest.importorskip("torch")

from bringup.vendor import op_lookup  # noqa: E402


@pytest.fixture(scope="module")
def library_ops():
    if not importlib.util.find_spec("bringup._C"):  # not built: nothing below needs a device
        importlib.import_module("tests.fake_core")
    from bringup.vendor import library_ops

    return library_ops


@pytest.mark.parametrize(
    ("name", "out", "in_place"),
    [
        ("aten::mm", "aten::mm.out", None),
        ("aten::add.Tensor", "aten::add.out", "aten::add_.Tensor"),
        ("aten::add", "aten::add.out", "aten::add_.Tensor"),
        ("aten::relu", "aten::relu.out", "aten::relu_"),
        ("aten::sum.dim_IntList", "aten::sum.IntList_out", None),
        ("aten::sort", "aten::sort.values", None),
        ("aten::clamp.Tensor", "aten::clamp.Tensor_out", "aten::clamp_.Tensor"),
        ("aten::native_layer_norm", "aten::native_layer_norm.out", None),
        ("aten::_softmax", "aten::_softmax.out", None),
    ],
)
def test_the_forms_of_an_op(library_ops, name: str, out: str, in_place: str | None) -> None:
    op = library_ops.find_op(name, "chip")
    found = op_lookup.out_form(op)
    assert found._name == out
    found = op_lookup.in_place_form(op)
    assert (found and found._name) == in_place


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mm", "PyTorch has no such op; names look like aten::mm"),
        ("aten::", "no such op"),
        ("aten::matmull", "no such op"),
        ("nowhere::mm", "no such op"),
        ("aten::add.Tensors", "name one of the overloads of aten::add: .*Tensor"),
        ("aten::all_close", "no such op"),
        ("aten::add_.Tensor", "name the functional op"),
        ("aten::mm.out", "name the functional op"),
        ("aten::item", "only ops that return tensors"),
        ("aten::unbind.int", "only ops that return tensors"),
        ("aten::transpose.int", "a view op"),
    ],
)
def test_what_cannot_be_a_library_op(library_ops, name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"driver 'chip'.*{reason}"):
        library_ops.find_op(name, "chip")
