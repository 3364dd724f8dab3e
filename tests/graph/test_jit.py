"""The TorchScript pass: what it groups, what it leaves alone and why, and when a group runs op by op."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bringup.jit
from tests.graph.scripting import check, fresh, groups_of, never_op_by_op, optimized, reasons_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript is deprecated as a whole


@pytest.fixture(autouse=True)
def disabled_afterwards() -> Iterator[None]:
    yield
    bringup.jit.disable()


# ---- what is grouped ----
def with_a_stranger(x: Tensor) -> Tensor:
    y = torch.tanh(torch.sin(x))
    return torch.relu(torch.linalg.matrix_exp(y) + 1) * 2


def test_an_op_without_a_lowering_stays_where_it_was() -> None:
    bringup.jit.enable(driver="sim")
    scripted = optimized(with_a_stranger, torch.randn(4, 4))
    assert groups_of(scripted) == [["sin", "tanh"], ["add", "relu", "mul"]]
    assert reasons_of(scripted) == {"linalg_matrix_exp": "has no lowering"}
    assert never_op_by_op(scripted)


def chain(x: Tensor) -> Tensor:
    return torch.linalg.matrix_exp(torch.sin(x) * 2) + 1


@pytest.mark.parametrize(("size", "groups"), [(1, [["sin", "mul"], ["add"]]), (2, [["sin", "mul"]]), (3, [])])
def test_min_group_size(size: int, groups: list[list[str]]) -> None:
    bringup.jit.enable(driver="sim", min_group_size=size)
    scripted = optimized(chain, torch.randn(3, 3))
    assert groups_of(scripted) == groups
    if size > 1:
        assert "too few neighbours" in reasons_of(scripted)["add.Scalar"]


def of_views(x: Tensor) -> Tensor:
    return x.t().reshape(-1).unsqueeze(0).sin()


def test_views_do_not_count() -> None:
    bringup.jit.enable(driver="sim")
    assert groups_of(optimized(of_views, torch.randn(2, 3))) == []


def pointwise(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(torch.add(x * y, y, alpha=2)) - y


@pytest.mark.parametrize(
    ("allow", "groups"),
    [(["aten::mul", "aten::add"], [["mul", "add"]]), (["aten::relu", "aten::sub.Tensor"], [["relu", "sub"]]), ([], [])],
)
def test_the_allow_list(allow: list[str], groups: list[list[str]]) -> None:
    bringup.jit.enable(driver="sim", allow=allow)
    scripted = optimized(pointwise, torch.randn(5), torch.randn(5))
    assert groups_of(scripted) == groups
    left = {"mul.Tensor", "add.Tensor", "relu", "sub.Tensor"} - {
        {"mul": "mul.Tensor", "add": "add.Tensor", "sub": "sub.Tensor"}.get(op, op) for group in groups for op in group
    }
    assert reasons_of(scripted) == dict.fromkeys(left, "is not on the allow-list")


def with_lists(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a, b, c = torch.cat([x * 2, y, x], dim=1).split([1, 2, 3], dim=1)
    stacked = torch.stack([a + 1, c[:, :1]], dim=0)
    return stacked.sum([0, 2]) * 0.5, torch.relu(b).amax(dim=[1])


def test_lists_of_tensors_and_numbers() -> None:
    bringup.jit.enable(driver="sim")
    scripted = optimized(with_lists, torch.randn(4, 2), torch.randn(4, 2))
    assert never_op_by_op(scripted)
    assert sum(map(len, groups_of(scripted))) >= 9, bringup.jit.report(scripted)


def last_list(x: Tensor, y: Tensor) -> Tensor:
    z = torch.sin(y) * 2 + y.sum()
    return torch.broadcast_tensors(x, z)[1]


def traced_list(x: Tensor, y: Tensor) -> list[Tensor]:
    return list(torch.broadcast_tensors(x, torch.sin(y) * 2 + y.sum()))


@pytest.mark.parametrize("place", ["cpu", "sim"])
def test_a_list_of_tensors_does_not_leave_a_group(place: str) -> None:
    """It used to be the group's result, and no list can be one: the call failed."""
    bringup.jit.enable(driver="sim")
    inputs = (torch.randn(4, 6, device=place), torch.randn(4, 1, device=place))
    for function in (last_list, lambda x, y: tuple(traced_list(x, y))):
        traced = torch.jit.trace(function, inputs, check_trace=False)
        for _ in range(3):
            torch.testing.assert_close(traced(*inputs), function(*inputs), rtol=2e-5, atol=2e-5)
        assert groups_of(traced) == [["sin", "mul", "sum", "add"]]


def with_numbers(x: Tensor, n: int, f: float, flag: bool, sizes: list[int], missing: Tensor | None) -> Tensor:
    y = torch.sub(x * n, x, alpha=f).view(sizes)
    return torch.clamp(y, min=-f, max=None).sum(dim=0, keepdim=flag) + torch.where(y > f, y, -y).mean(0, keepdim=flag)


def test_numbers_that_are_arguments() -> None:
    bringup.jit.enable(driver="sim")
    x = torch.randn(4, 6)
    scripted = optimized(with_numbers, x, 3, 0.5, True, [8, 3], None)
    before = [group.compiled for group in bringup.jit.report(scripted).groups]
    for arguments in [(2, 0.5, True, [8, 3]), (2, 0.25, False, [2, 12]), (3, 0.5, True, [8, 3])]:
        check(scripted, with_numbers, x, *arguments, None)
    after = [group.compiled for group in bringup.jit.report(scripted).groups]
    assert len(after) == 1
    assert after[0] == before[0] + 2
    assert never_op_by_op(scripted)


def of_integers(x: Tensor) -> Tensor:
    return (x * 3 + 1) // 2 - (x > 2).to(torch.int64)


def test_other_types() -> None:
    bringup.jit.enable(driver="sim")
    assert never_op_by_op(optimized(of_integers, torch.arange(6)))
    scripted = optimized(pointwise, torch.randn(5, dtype=torch.float64), torch.randn(5, dtype=torch.float64))
    assert never_op_by_op(scripted)


# ---- control flow ----
def with_branches(x: Tensor, n: int) -> Tensor:
    y = torch.sin(x) + 1
    for i in range(n):
        y = torch.tanh(y * i) + x
        if bool(y.sum() > 0):  # noqa: SIM108 (as people write it)
            y = torch.relu(y) * 2
        else:
            y = y * y - 1
    return y


def test_blocks_have_groups_of_their_own() -> None:
    bringup.jit.enable(driver="sim")
    x = torch.randn(8)
    scripted = optimized(with_branches, x, 3)
    for n in (0, 1, 5):
        check(scripted, with_branches, x, n)
        check(scripted, with_branches, -x, n)
    assert reasons_of(scripted)["prim::Loop"].startswith("is control flow")
    assert len(groups_of(scripted)) >= 3


# ---- when a group runs op by op ----
def test_too_many_signatures_do_not_compile_for_ever() -> None:
    bringup.jit.enable(driver="sim")

    def scaled(x: Tensor, n: int) -> Tensor:
        return torch.relu(x * n) + n

    scripted = optimized(scaled, torch.randn(3), 0)
    for n in range(70):
        check(scripted, scaled, torch.randn(3), n)
    (group,) = bringup.jit.report(scripted).groups
    assert group.compiled == 64
    assert group.op_by_op == {"it has been called with too many signatures": 6}


def test_gradients_and_modes() -> None:
    bringup.jit.enable(driver="sim")
    x, y = torch.randn(5), torch.randn(5)
    scripted = optimized(pointwise, x, y)
    leaf = x.clone().requires_grad_()
    scripted(leaf, y).sum().backward()
    expected = x.clone().requires_grad_()
    pointwise(expected, y).sum().backward()
    torch.testing.assert_close(leaf.grad, expected.grad)
    batched = torch.func.vmap(scripted)(torch.stack([x, y]), torch.stack([y, x]))
    torch.testing.assert_close(batched, torch.stack([pointwise(x, y), pointwise(y, x)]))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones(5))
        found = torch.autograd.forward_ad.unpack_dual(scripted(dual, y)).tangent
        torch.testing.assert_close(found, torch.autograd.forward_ad.unpack_dual(pointwise(dual, y)).tangent)
    with torch.inference_mode():
        torch.testing.assert_close(scripted(x, y), pointwise(x, y))
        torch.testing.assert_close(scripted(x.clone(), y.clone()), pointwise(x, y))
    (group,) = bringup.jit.report(scripted).groups
    assert group.op_by_op["an input requires a gradient"] >= 1
    assert len(group.op_by_op) == 2, group


def test_tensors_of_several_devices_get_pytorchs_error() -> None:
    bringup.jit.enable(driver="sim")
    x, y = torch.randn(5), torch.randn(5)
    scripted = optimized(pointwise, x, y)
    with pytest.raises(RuntimeError, match="device"):
        scripted(x, y.to("sim"))
    torch.testing.assert_close(scripted(x, y), pointwise(x, y))


def draws(x: Tensor, train: bool) -> Tensor:
    return torch.nn.functional.dropout(x * 2, 0.5, train) + 1


def test_dropout_draws_where_it_was() -> None:
    bringup.jit.enable(driver="sim")
    scripted = fresh(draws)
    x = torch.randn(50)
    for train in (False, True, False, True):
        torch.manual_seed(5)
        found = scripted(x, train)
        torch.manual_seed(5)
        assert torch.equal(found, draws(x, train))
    (group,) = bringup.jit.report(scripted).groups
    assert group.compiled == 1
    assert any("random" in reason for reason in group.op_by_op)


def test_a_wrong_shape_gets_pytorchs_error_and_the_next_call_works() -> None:
    bringup.jit.enable(driver="sim")

    def product(a: Tensor, b: Tensor) -> Tensor:
        return torch.relu(a @ b) + 1

    a, b = torch.randn(2, 3), torch.randn(3, 4)
    scripted = optimized(product, a, b)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        scripted(a, torch.randn(5, 4))
    check(scripted, product, a, b)


@pytest.mark.parametrize("when", ["compiling", "running"])
def test_an_error_on_the_device_names_the_groups_ops(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from bringup.graph.compile import backend

    def broken(*arguments: Any) -> Any:
        if when == "compiling":
            raise ValueError("the chip is on fire")

        def run(*tensors: Tensor) -> list[Tensor]:
            raise ValueError("the chip is on fire")

        return run

    monkeypatch.setattr(backend, "compile_fx_graph", broken)
    bringup.jit.enable(driver="sim")
    scripted = fresh(pointwise)
    inputs = torch.randn(5), torch.randn(5)
    scripted(*inputs)
    with pytest.raises(RuntimeError, match=r"aten::mul, aten::add, aten::relu, aten::sub.*the chip is on fire"):
        scripted(*inputs)


@pytest.mark.parametrize("error", [AssertionError(), RuntimeError("first\nsecond"), KeyError("ours")])
def test_what_tracing_raises_is_the_reason_unless_it_is_our_mistake(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bringup.jit import compile_group as module

    def fails(replay: Any) -> Any:
        raise error

    monkeypatch.setattr(module, "_traced", fails)
    graph = torch._C.parse_ir("graph(%x : Tensor):\n  %y : Tensor = aten::relu(%x)\n  return (%y)")
    if isinstance(error, KeyError):
        with pytest.raises(KeyError):
            module.compile_group(graph, [torch.ones(2)], 0)
    else:
        first_line = str(error).partition("\n")[0]
        reason = f"tracing failed: {type(error).__name__}: {first_line}"
        assert module.compile_group(graph, [torch.ones(2)], 0) == reason


def test_after_disable_nothing_runs_on_the_device() -> None:
    bringup.jit.enable(driver="sim")
    inputs = torch.randn(5), torch.randn(5)
    scripted, untouched = optimized(pointwise, *inputs), fresh(with_a_stranger)
    bringup.jit.disable()
    check(scripted, pointwise, *inputs)
    for _ in range(3):
        untouched(torch.randn(4, 4))
    bringup.jit.enable(driver="sim")
    (group,) = bringup.jit.report(scripted).groups
    assert group.op_by_op == {"bringup.jit is disabled": 1}
    assert groups_of(untouched) == []  # optimized while there was no pass


def test_two_threads() -> None:
    bringup.jit.enable(driver="sim")
    x, y = torch.randn(64), torch.randn(64)
    scripted = fresh(pointwise)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for n in range(20):
            rows = 1 + (n + seed) % 8
            try:
                found = scripted(x[:rows], y[:rows])
                torch.testing.assert_close(found, pointwise(x[:rows], y[:rows]))
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (0, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    (group,) = bringup.jit.report(scripted).groups
    assert group.compiled == 8


# ---- the report ----
def test_a_plan_before_and_counts_after() -> None:
    bringup.jit.enable(driver="sim")
    x = torch.randn(4, 4)
    scripted = fresh(with_a_stranger)
    plan = bringup.jit.report(scripted)
    assert not plan.optimized
    assert [group.ops for group in plan.groups] == [
        ("aten::sin", "aten::tanh"),
        ("aten::add", "aten::relu", "aten::mul"),
    ]
    assert str(plan).splitlines()[0] == (
        "2 group(s) with 5 ops, 1 left out (planned: the JIT optimizes it on its second call)"
    )
    for _ in range(3):
        scripted(x)
    report = bringup.jit.report(scripted)
    assert report.optimized
    assert [group.calls for group in report.groups] == [2, 2]
    text = str(report).splitlines()
    assert text[:4] == [
        "2 group(s) with 5 ops, 1 left out (as the JIT runs it)",
        "group 0: sin tanh",
        "  2 calls, 1 signature(s) compiled",
        "group 1: add relu mul",
    ]
    assert text[-1].startswith("  aten::linalg_matrix_exp: has no lowering  (")
    assert "test_jit.py:" in text[-1]


def test_ops_on_numbers_are_one_line() -> None:
    bringup.jit.enable(driver="sim")
    report = bringup.jit.report(optimized(with_branches, torch.randn(8), 2))
    assert sum(row.reason == "gives no tensor" for row in report.left_out) >= 1
    assert str(report).count("gives no tensor") == 1


# ---- bad input ----
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"driver": "nochip"}, ValueError, "nochip"),
        ({"min_group_size": 0}, ValueError, "at least 1"),
        ({"min_group_size": -3}, ValueError, "at least 1"),
        ({"min_group_size": 2.5}, TypeError, "number of ops"),
        ({"min_group_size": True}, TypeError, "number of ops"),
        ({"allow": "aten::relu"}, TypeError, r'\["aten::relu"\]'),
        ({"allow": ["aten::rellu"]}, ValueError, "no op 'aten::rellu'"),
        ({"allow": ["aten::linalg_matrix_exp"]}, ValueError, "no lowering"),
        ({"allow": [torch.relu]}, TypeError, "is named as"),
    ],
)
def test_bad_settings(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        bringup.jit.enable(**{"driver": "sim", **arguments})
    bringup.jit.enable(driver="sim")  # nothing of it stuck


def test_enabling_twice() -> None:
    bringup.jit.enable(driver="sim", allow=["aten::relu", "aten::add"])
    bringup.jit.enable(driver="sim", allow=["aten::add", "aten::relu"])
    with pytest.raises(RuntimeError, match="disable"):
        bringup.jit.enable(driver="sim")
    bringup.jit.disable()
    bringup.jit.disable()
    bringup.jit.enable(driver="sim")


def test_reports_of_what_has_none() -> None:
    with pytest.raises(RuntimeError, match=r"bringup\.jit\.enable"):
        bringup.jit.report(fresh(pointwise))
    bringup.jit.enable(driver="sim")
    with pytest.raises(TypeError, match="Linear"):
        bringup.jit.report(nn.Linear(2, 2))


def test_a_driver_without_a_compiler(run_python: Any, tmp_path: Any) -> None:
    """The group is traced the same way; its ops are the driver's library."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import torch, bringup.jit
bringup.jit.enable()
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
x = torch.randn(3, 4)
with torch.no_grad():
    for place in ("cpu", "sim"):
        scripted = torch.jit.trace(model.to(place), x.to(place))
        for _ in range(3):
            torch.testing.assert_close(scripted(x.to(place)), model(x.to(place)))
        (group,) = bringup.jit.report(scripted).groups
        assert group.compiled == 1 and not group.op_by_op, group
"""
    )
    run_python(f"exec(open({str(program)!r}).read())", env={"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "mode=library"})


def test_the_module_is_there_without_an_import_of_its_own(run_python: Any) -> None:
    assert run_python("import bringup\nprint(bringup.jit.enable.__name__)").stdout.strip() == "enable"


def test_a_whole_transformer_layer_is_part_of_a_group(device: str) -> None:
    """In eval mode without gradients PyTorch traces it as one op."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.ReLU()).eval().to(device)
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)).to(device)
    bringup.jit.enable()
    with torch.no_grad():
        traced = torch.jit.trace(model, (x,), check_trace=False)
        for _ in range(3):
            torch.testing.assert_close(traced(x), model(x), rtol=2e-5, atol=2e-5)
    assert groups_of(traced) == [["_transformer_encoder_layer_fwd", "relu"]]
    assert never_op_by_op(traced)
