"""Op tables: what a good one becomes, and that a bad one is refused with its file, entry and field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bringup.vendor import custom  # noqa: E402
from bringup.vendor.bound import bind  # noqa: E402
from bringup.vendor.call_text import prototypes, read_call  # noqa: E402
from bringup.vendor.table import TableError, read_table  # noqa: E402

GOOD = {
    "schema": '"aten::mm"',
    "call": '"gemm({self}, {mat2}, {out}, {self.shape[0]}, {self.shape[1]}, {mat2.shape[1]})"',
    "declare": '"void gemm(const float *a, const float *b, float *c, int m, int64_t k, int n);"',
    "dtypes": '["float32"]',
}
NEW = {
    "schema": '"shop::scale(Tensor x, float a) -> Tensor"',
    "call": '"scale({x}, {a}, {out}, {x.numel})"',
    "declare": '"void scale(const float *x, double a, float *out, int64_t n);"',
    "dtypes": '["float32"]',
    "output": '"like x"',
}


def written(folder: Path, *entries: dict[str, str | None]) -> Path:
    path = folder / "ops.toml"
    lines = []
    for entry in entries:
        lines += ["[[op]]", *(f"{key} = {value}" for key, value in entry.items() if value is not None)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_good_table(tmp_path: Path) -> None:
    gemm, scale = bind(read_table(written(tmp_path, GOOD, NEW)))
    assert (gemm.op, gemm.outs, gemm.tensors) == ("aten::mm", ("out",), ("self", "mat2", "out"))
    call = gemm.calls["float32"]
    assert call.text.symbols == ("gemm",)
    assert {formula.text for formula in call.narrow} == {"self.shape[0]", "mat2.shape[1]"}  # the two of type int
    (op,) = custom.prepare([gemm, scale])
    assert op.forms() == {
        "scale": "scale(Tensor x, float a) -> Tensor",
        "scale.out": "scale.out(Tensor x, float a, *, Tensor(a!) out) -> Tensor(a!)",
        "scale_": "scale_(Tensor(a!) x, float a) -> Tensor(a!)",
    }
    assert not torch._C._jit_get_schemas_for_operator("shop::scale")  # nothing is registered by reading


def test_a_call_per_dtype_and_a_meta_function(tmp_path: Path) -> None:
    (tmp_path / "shapes.py").write_text("def halved(x, a):\n    return x[: len(x) // 2]\n")
    calls = '{ float32 = "sscale({x}, {a}, {out}, {x.numel})", float64 = "dscale({x}, {a}, {out}, {x.numel})" }'
    declare = '"void sscale(float *, double, float *, int64_t); void dscale(double *, double, double *, int64_t);"'
    entry = NEW | {"call": None, "dtypes": None, "calls": calls, "declare": declare}
    (bound,) = bind(read_table(written(tmp_path, entry | {"output": None, "meta": '"shapes:halved"'})))
    assert {dtype: call.text.symbols for dtype, call in bound.calls.items()} == {
        "float32": ("sscale",),
        "float64": ("dscale",),
    }
    (op,) = custom.prepare([bound])
    assert op.meta is not None
    assert op.meta(torch.empty(6, device="meta"), 1.0).shape == (3,)
    assert list(op.forms()) == ["scale", "scale.out"]


BAD = [
    ({"speed": "1"}, "speed: unknown key; known: schema, call"),
    ({"schema": None}, "schema: is missing"),
    ({"schema": '"mm"'}, "schema: 'mm' names no op"),
    ({"schema": '"aten::matmull"'}, "(aten::matmull): schema: PyTorch has no such op"),
    ({"schema": '"aten::mm_"'}, "schema: PyTorch has no such op"),
    ({"schema": '"aten::add_.Tensor"'}, "schema: name the functional op"),
    ({"schema": '"aten::linear"'}, "schema: PyTorch composes it of other ops"),
    ({"schema": '"aten::mm(Tensor self, Tensor other) -> Tensor"'}, "schema: PyTorch's schema is aten::mm("),
    ({"call": None}, "call: an entry has one of call, calls and function"),
    ({"function": '"a:b"'}, "call: an entry has one of call, calls and function, not ['call', 'function']"),
    ({"call": "3"}, "call: 3 is not a text"),
    ({"call": '"gemm({self)"'}, "call: 'gemm({self)': a brace"),
    ({"call": '"gemm({selff}, {mat2})"'}, "call: 'selff': there is no 'selff' here"),
    ({"call": '"gemm({self}, {mat2})"'}, "call: gemm takes 6 arguments, the call has 2"),
    ({"call": '"geem({self}, {mat2})"'}, "declare: there is no prototype of geem"),
    ({"call": '"gemm(0, {mat2}, {out}, 1, 2, 3)"'}, "call: self is not used; if that is meant, say ignore = ['self']"),
    ({"call": '"1 + {self.shape[0]}"'}, "calls no function"),
    ({"dtypes": None}, "dtypes: say which dtypes"),
    ({"dtypes": '["float23"]'}, "dtypes: 'float23' is not a dtype; there are bool"),
    ({"dtypes": '["complex64"]'}, "dtypes: C has no type for complex64"),
    ({"dtypes": '"float32"'}, "dtypes: 'float32' is neither a list"),
    ({"layouts": '"diagonal"'}, "layouts: 'diagonal' is not known; there are contiguous"),
    ({"layouts": '{ matt = "any" }'}, "layouts: there is no 'matt' here, only mat2, out, self"),
    ({"argument_dtypes": '{ self = "int23" }'}, "argument_dtypes: 'int23' is not a dtype"),
    ({"when": '"self.shape[0] >"'}, "when: 'self.shape[0] >' cannot be read"),
    ({"flops": '"2 * m"'}, "flops: '2 * m': there is no 'm' here"),
    ({"units": '"self.shape[0]"'}, "units: a call that is split says which part it does"),
    ({"initial": '"third"'}, "initial: there is no 'third' here"),
    ({"ignore": '["third"]'}, "ignore: there is no 'third' here"),
    ({"examples": "[{ third = [1] }]"}, "examples[0]: there is no 'third' here"),
    ({"library": '"libnowhere.so.7"'}, "library: libnowhere.so.7 cannot be loaded"),
    ({"library": '"package:no_such_blas/lib/x.so"'}, "library: the Python package no_such_blas is not installed"),
    ({"library": '"libm.so.6"'}, "libm.so.6 has no symbol gemm"),
    ({"backward": '{ self = "grad" }'}, "backward: PyTorch's op has its own"),
    ({"autocast": '"lower"'}, "autocast: PyTorch's op has its own"),
    ({"call": None, "function": '"nowhere"'}, "function: 'nowhere' is not of the form module:function"),
    ({"call": None, "function": '"nowhere_at_all:f"'}, "function: nowhere_at_all:f: ModuleNotFoundError"),
]
BAD_NEW = [
    ({"schema": '"shop::scale(Tensr x) -> Tensor"'}, "schema: cannot be used: unknown type specifier"),
    ({"schema": '"shop::scale(Tensor x, float a) -> int"'}, "schema: cannot be used: only ops that return tensors"),
    (
        {"schema": '"shop::scale(Tensor(a!) x, float a) -> Tensor(a!)"'},
        "schema: cannot be used: name the functional op",
    ),
    ({"output": None}, "output: a new op needs one of output and meta"),
    ({"output": '"same as x"'}, "output: 'same as x' is not of the form 'like x'"),
    ({"output": '"like z"'}, "output: there is no tensor 'z', only x"),
    ({"output": '{ shape = ["x.shape[0"] }'}, "output: 'x.shape[0' cannot be read"),
    ({"output": '["like x", "like x"]'}, "output: the op has 1 outputs, the rule says 2"),
    ({"require": '["x.ndims == 1"]'}, "require: 'x.ndims == 1': .ndims is not known"),
    ({"backward": '{ a = "grad" }'}, "backward: there is no 'a' here, only x"),
    ({"backward": '{ x = "grad * b" }'}, "backward: 'grad * b': there is no 'b' here"),
    ({"backward": '{ x = "grad *" }'}, "backward: 'grad *' cannot be read"),
    ({"backward": '"shop::scale_backward"'}, "backward: there is no op 'shop::scale_backward'"),
    ({"reference": '"x * b"'}, "reference: 'x * b': there is no 'b' here"),
    ({"autocast": '"higher"'}, "autocast: 'higher' is not known; there are lower, float32, promote"),
]


@pytest.mark.parametrize(
    ("entry", "message"),
    [(GOOD | change, message) for change, message in BAD] + [(NEW | change, message) for change, message in BAD_NEW],
    ids=[message[:40] for _, message in [*BAD, *BAD_NEW]],
)
def test_a_bad_entry_is_named(tmp_path: Path, entry: dict[str, str | None], message: str) -> None:
    path = written(tmp_path, GOOD, entry)
    with pytest.raises(TableError, match=re.escape(message)) as error:
        custom.prepare(bind(read_table(path)))
    assert str(error.value).startswith(f"{path}: entry 2")


def test_bad_files(tmp_path: Path) -> None:
    path = tmp_path / "ops.toml"
    for text, message in [("[[op", "not valid TOML"), ("speed = 1", "unknown key 'speed'"), ("op = 3", "[[op]]")]:
        path.write_text(text)
        with pytest.raises(TableError, match=re.escape(message)) as error:
            read_table(path)
        assert str(path) in str(error.value)
    with pytest.raises(TableError, match="there is no such file"):
        read_table(tmp_path / "none.toml")
    with pytest.raises(TableError, match=r"entry 2 .*the op is defined twice"):
        bind(read_table(written(tmp_path, NEW, NEW)))


def test_calls_and_prototypes_are_taken_apart() -> None:
    call = read_call("f({x}, g(1, 2), {{3}}, {n} + 1)", {"x", "n"})
    assert call.symbols == ("f", "g")
    assert [len(argument) for argument in call.arguments("f")] == [1, 1, 1, 2]
    assert call.fill({"x": "p", "n": "7"}) == "f(p, g(1, 2), {3}, 7 + 1)"
    found = prototypes("typedef int count;\nvoid f(const float *x, /* of x */ count n); float g(void);")
    assert found == {"f": ["const float *x", "count n"], "g": []}
