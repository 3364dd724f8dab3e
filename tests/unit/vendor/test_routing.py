"""An entry as a lowering: the kernel it becomes, the guards it leaves, and the calls that it is not for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bringup.compile.kernels import ForeignKernel  # noqa: E402
from bringup.driver import Driver  # noqa: E402
from bringup.lowering import ops  # noqa: E402
from bringup.lowering.call import Call, NoKernel  # noqa: E402
from bringup.lowering.registry import LOWERINGS  # noqa: E402
from bringup.lowering.resolve import lower  # noqa: E402
from bringup.lowering.symbolic import hint_of  # noqa: E402
from bringup.targets.toolchain import compile_c, host_target  # noqa: E402
from bringup.vendor.bound import bind  # noqa: E402
from bringup.vendor.routing import with_tables  # noqa: E402
from bringup.vendor.table import read_table  # noqa: E402

TABLE = """
[[op]]
schema = "aten::addmm"
call = "gemm_{dtype}({mat1}, {mat2}, {out}, {mat1.shape[0]}, {mat2.ld}, {111 + mat1.transposed}, {alpha}, {beta})"
declare = "void gemm_{dtype}(const {type} *, const {type} *, {type} *, int, int64_t, int, {type}, {type});"
dtypes = { float32 = "s", float64 = "d" }
layouts = { mat1 = "blas", mat2 = "row-major", out = "contiguous" }
when = "mat1.shape[0] >= 9"
initial = "self"
flops = "2 * mat1.numel * mat2.shape[1]"

[[op]]
schema = "aten::exp"
call = "vexp({end} - {begin}, {self} + {begin}, {out} + {begin})"
declare = "void vexp(int64_t n, const float *x, float *y);"
dtypes = ["float32"]
units = "self.numel"
elementwise = true

[[op]]
schema = "aten::softplus"
call = "softplus({self}, {out}, {self.numel})"
declare = "void softplus(const float *x, float *y, int64_t n);"
dtypes = ["float32"]
"""


class Chip(Driver):
    name = "chip"


class Other(Driver):
    name = "other"


@pytest.fixture(scope="module")
def lowerings(tmp_path_factory) -> dict[str, Any]:
    ops.load()
    path = tmp_path_factory.mktemp("table") / "ops.toml"
    path.write_text(TABLE)
    return with_tables(LOWERINGS, {"chip": bind(read_table(path))}, lambda index: [Chip(), Other()][index])


def tensor(slot: int, *shape: int, dtype: Any = torch.float32, like: torch.Tensor | None = None) -> tuple[Any, ...]:
    codes = {torch.float32: 6, torch.float64: 7}
    made = torch.empty(shape, device="meta") if like is None else like
    return ("t", slot, codes[dtype], tuple(made.shape), tuple(made.stride()), 2 if made.is_contiguous() else 0)


def addmm(lowerings: dict[str, Any], m: int, mat1: tuple[Any, ...] | None = None, dtype: Any = torch.float32) -> Call:
    arguments = [tensor(0, 7, dtype=dtype), mat1 or tensor(1, m, 5, dtype=dtype), tensor(2, 5, 7, dtype=dtype)]
    numbers = [("s", 0, None, 2.0, 0), ("s", 1, None, 1, 0)]
    out = tensor(0, m, 7, dtype=dtype)
    return lower("aten::addmm", lowerings["aten::addmm"], [*arguments, *numbers], [("new", *out[2:5])])


def foreign(call: Call) -> list[str]:
    return [launch.kernel.name for launch in call.launches if isinstance(launch.kernel, ForeignKernel)]


def test_the_call_is_a_kernel(lowerings) -> None:
    call = addmm(lowerings, 9)
    copy, launch = call.launches
    assert not isinstance(copy.kernel, ForeignKernel)  # `initial`: a kernel of ours
    kernel = launch.kernel
    assert isinstance(kernel, ForeignKernel)
    assert kernel.name == "addmm_gemm_s"
    assert [memory.memory for memory in launch.buffers] == [("tensor", 1), ("tensor", 2), ("output", 0)]
    assert [hint_of(size) for size in launch.sizes] == [9, 7, 111]
    assert [number.slot for number in launch.params] == [1, 0]
    assert "gemm_s(t_mat1, t_mat2, t_out, size0, size1, size2, param0, param1);" in kernel.text
    assert not call.pointwise
    compile_c(kernel.text, host_target())
    assert addmm(lowerings, 12).launches[1].kernel.text == kernel.text  # sizes are data


def test_routing_by_dtype_shape_and_layout(lowerings) -> None:
    assert foreign(addmm(lowerings, 9, dtype=torch.float64)) == ["addmm_gemm_d"]
    few = addmm(lowerings, 8)
    assert foreign(few) == []
    assert few.launches, "the generated kernel is the second choice"
    assert "lt" in [relation for relation, _ in few.trace.guards]  # fewer than 9 rows
    column_major = tensor(1, like=torch.empty(5, 9, device="meta").t())
    assert foreign(addmm(lowerings, 9, column_major)) == ["addmm_gemm_s"]
    scattered = tensor(1, like=torch.empty(9, 10, device="meta")[:, ::2])
    assert foreign(addmm(lowerings, 9, scattered)) == []


def test_a_table_is_for_its_own_driver(lowerings) -> None:
    definition = lowerings["aten::exp"]
    spec = tensor(0, 6)

    def elsewhere(call: Call, *arguments: Any) -> None:
        call.device = 1
        definition(call, *arguments)

    assert foreign(lower("aten::exp", definition, [spec], [("new", *spec[2:5])])) == ["exp_vexp"]
    assert foreign(lower("aten::exp", elsewhere, [spec], [("new", *spec[2:5])])) == []


def test_a_call_can_be_split(lowerings) -> None:
    spec = tensor(0, 6)
    call = lower("aten::exp", lowerings["aten::exp"], [spec], [("new", *spec[2:5])])
    (launch,) = call.launches
    assert "vexp(end - begin, t_self + begin, t_out + begin);" in launch.kernel.text
    assert call.pointwise
    assert repr(launch.kernel.units) == repr(launch.buffers[0].shape[0].index)


def test_an_argument_that_the_call_does_not_use_has_its_default(lowerings) -> None:
    spec = tensor(0, 6)

    def softplus(beta: float) -> Call:
        numbers = [("s", 0, None, beta, 0), ("s", 1, None, 20, 0)]
        return lower("aten::softplus", lowerings["aten::softplus"], [spec, *numbers], [("new", *spec[2:5])])

    call = softplus(1)
    assert foreign(call) == ["softplus_softplus"]
    assert (0, "eq", 1) in call.trace.scalar_guards
    assert foreign(softplus(2)) == []


def test_sizes_that_do_not_fit_the_prototype(lowerings) -> None:
    large = addmm(lowerings, 1 << 31)
    assert foreign(large) == []


def test_without_a_second_choice_the_reasons_are_told(tmp_path: Path) -> None:
    path = tmp_path / "ops.toml"
    path.write_text(TABLE)
    found = with_tables({}, {"chip": bind(read_table(path))}, lambda index: Chip())
    with pytest.raises(NoKernel, match=r"not mat1\.shape"):
        addmm(found, 3)
