"""Programs about the eager kernel route, with the kernels and plans of hand_written_kernels.py, all in one process."""

from __future__ import annotations

import math
import os
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bringup import _C as core
from tests.device.hand_written_kernels import (
    FLOAT,
    TENSOR,
    answered_by,
    asked,
    both_say,
    fallbacks,
    floats,
    info,
    on_device,
    only,
    plan_add,
    plan_mul,
    raises,
    run_programs,
    same,
)

PROGRAMS: dict[str, Callable[[], None]] = {}


def program(run: Callable[[], None]) -> Callable[[], None]:
    PROGRAMS[run.__name__] = run
    return run


# ---- programs ----
@program
def a_signature_is_resolved_once() -> None:
    x, y = on_device(4), on_device(4)
    for _ in range(5):
        same(x.add(y, alpha=3), floats(4) * 4)
    assert len(asked("aten::add.Tensor")) == 1
    assert (info()["hits"], info()["misses"], info()["plans"]) == (4, 1, 1), info()
    arguments, outputs = asked("aten::add.Tensor")[0]
    tensor = ("t", 0, FLOAT, (4,), (1,), 2)
    assert arguments == [tensor, ("t", 1, *tensor[2:]), ("s", 0, None, 3, 0)]
    assert outputs == [("new", FLOAT, (4,), (1,))]
    assert fallbacks() == {}
    assert core.routes()["aten::add.Tensor"] == "kernel"


@program
def new_shapes_are_new_signatures() -> None:
    for n in range(1, 6):
        same(on_device(n).add(on_device(n)), floats(n) * 2)
    same(on_device(2, 0).add(on_device(2, 0)), floats(2, 0))
    assert info()["entries"] == 6, info()


@program
def scalars_are_data() -> None:
    x, y = on_device(3), on_device(3)
    for i in range(10_000):
        x.add(y, alpha=i * 0.5)
    same(x.add(y, alpha=0.25), floats(3) * 1.25)
    assert (info()["entries"], info()["misses"]) == (1, 1), info()
    x.add(y, alpha=2)  # an int is another kind of number: it takes part in promotion
    assert info()["entries"] == 2


@program
def signatures_are_forgotten_in_turn() -> None:
    y = on_device(1)
    kept = on_device(2000)
    for n in range(600):
        x = torch.empty(n + 1, device="sim")
        x.add(x)
        kept.add(kept)
    del y
    assert info()["entries"] == 512, info()
    before = info()["misses"]
    kept.add(kept)
    assert info()["misses"] == before, "the one in use was forgotten"


@program
def guards_choose_between_plans() -> None:
    x = on_device(3)
    for _ in range(3):
        same(x.pow(2), floats(3) ** 2)
        same(x.pow(3), floats(3) * 3)
        same(x.pow(5), floats(3) * 5)
        same(x.pow(101), floats(3) ** 101)
        same(x.pow(102), floats(3) ** 102)
    counts = {"entries": 1, "plans": 2, "refused": 1, "misses": 3, "hits": 12}
    assert info() == counts, info()
    assert fallbacks() == {"aten::pow.Tensor_Scalar": 6}
    before = info()["misses"]
    for _ in range(3):
        x.pow(math.nan)
    assert info()["misses"] == before + 1, "of a NaN no relation holds but those that begin with not"


@program
def in_place_writes_where_it_lies() -> None:
    x, y = on_device(4), on_device(4)
    address = x.data_ptr()
    for _ in range(2):
        assert x.add_(y) is x
    same(x, floats(4) * 3)
    assert x.data_ptr() == address
    assert asked("aten::add_.Tensor")[0][1] == [("arg", 0)]
    same(x.add_(x), floats(4) * 6)


@program
def out_is_resized_with_a_warning() -> None:
    x, y = on_device(4), on_device(4)
    for _ in range(2):  # a miss, then a hit
        for size, wanted in ((0, 0), (3, 1), (4, 0), (9, 1)):
            out = torch.empty(size, device="sim")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert torch.add(x, y, out=out) is out
            assert sum("was resized" in str(w.message) for w in caught) == wanted, (size, [str(w) for w in caught])
            same(out, floats(4) * 2)
    assert info()["entries"] == 4
    for arguments, outputs in asked("aten::add.out"):  # shown as it will be
        assert arguments[3] == ("t", 2, FLOAT, (4,), (1,), 2), arguments
        assert outputs == [("arg", 2)], outputs
    assert fallbacks() == {}


@program
def overlaps_are_pytorchs_errors() -> None:
    for _ in range(2):
        both_say(lambda x: x[1:].add_(x[:-1]), floats(6))
        both_say(lambda x: torch.add(x[:-1], x[:-1], out=x[1:]), floats(6))
    both_say(lambda x: x.expand(4).add_(1), floats(1))
    x = on_device(6)
    same(torch.add(x[:3], x[3:], out=x[:3]), floats(6)[:3] + floats(6)[3:])


@program
def a_kernel_that_reads_what_it_wrote_gets_a_copy() -> None:
    for _ in range(2):
        x = on_device(4)
        assert torch.cumsum(x, 0, out=x) is x
        same(x, floats(4).cumsum(0))
        x = on_device(6)
        torch.cumsum(x[:4], 0, out=x[2:])
        same(x[2:], floats(4).cumsum(0))
        x = on_device(4)
        same(x.cumsum_(0), floats(4).cumsum(0))
    apart = torch.empty(4, device="sim")
    same(torch.cumsum(on_device(4), 0, out=apart), floats(4).cumsum(0))
    assert fallbacks() == {}


@program
def meta_promotes_and_refuses() -> None:
    whole = torch.arange(4).to("sim")
    same(on_device(4).add(whole), floats(4) + torch.arange(4))
    assert asked("aten::add.Tensor")[0][1] == [("new", FLOAT, (4,), (1,))]
    both_say(lambda a, b: a + b, floats(3), floats(4))
    both_say(lambda a, b: a.add_(b), floats(3), floats(2, 3))
    both_say(lambda a, b: a.add_(b), torch.arange(3), floats(3))
    both_say(lambda a: a.add(a, alpha=1.5), torch.arange(3))
    both_say(lambda a, i: a.gather(0, i), floats(3), floats(3))


@program
def strides_come_from_meta() -> None:
    x = floats(2, 3, 4, 5).to(memory_format=torch.channels_last)
    result = x.to("sim").add(x.to("sim"))
    assert result.stride() == x.stride()
    same(result, x + x)


@program
def cpu_numbers_are_scalars() -> None:
    x = on_device(4)
    for value in (2.0, 3, torch.tensor(0.5), torch.tensor(4, dtype=torch.int8), torch.tensor(1.5, dtype=torch.half)):
        for _ in range(2):
            same(x.mul(value), floats(4) * value)
    numbers = [arguments[1] for arguments, _ in asked("aten::mul.Tensor")]
    assert [(n[0], n[1], n[3], n[4]) for n in numbers] == [
        ("n", 0, 2.0, 1),
        ("n", 0, 3, 1),
        ("n", 0, 0.5, 0),
        ("n", 0, 4, 0),
        ("n", 0, 1.5, 0),
    ], numbers
    assert fallbacks() == {}


@program
def scalars_that_do_not_fit_are_errors() -> None:
    x = torch.zeros(3, dtype=torch.int8, device="sim")
    same(x.fill_(-5), torch.full((3,), -5, dtype=torch.int8))
    both_say(lambda x: x.fill_(300), torch.zeros(3, dtype=torch.int8))
    same(x.fill_(7), torch.full((3,), 7, dtype=torch.int8))


@program
def mixed_devices_are_an_error() -> None:
    x = on_device(3)
    for other in (floats(3), floats(3).to("sim:1")):
        with raises(RuntimeError, "Expected all tensors to be on the same device", "sim:0", str(other.device)):
            x.add(other)
    with raises(RuntimeError, "Expected all tensors to be on the same device", "cpu"):
        torch.add(x, x, out=torch.empty(3))
    same(floats(3).to("sim:1").add(floats(3).to("sim:1")), floats(3) * 2)


@program
def no_plan_is_a_counted_fallback() -> None:
    x = torch.arange(4).to("sim")
    for _ in range(3):
        same(x.add(x), torch.arange(4) * 2)
    assert fallbacks() == {"aten::add.Tensor": 3}, fallbacks()
    assert (info()["refused"], info()["misses"], info()["hits"]) == (1, 1, 2), info()
    x = on_device(3)
    with answered_by("aten::_foreach_add.List", lambda *_: None):  # a composite: its parts have kernels
        torch._foreach_add([x], [x])
    assert fallbacks() == {"aten::add.Tensor": 3}, fallbacks()


@program
def what_the_resolver_raises_is_raised() -> None:
    def fail(*_: Any) -> None:
        raise KeyError("no luck")

    x = on_device(5)
    with answered_by("aten::add.Tensor", fail):
        for _ in range(2):
            with raises(KeyError, "no luck"):
                x.add(x)
    with answered_by("aten::add.Tensor", lambda *_: "nonsense"), raises(TypeError, "Plan or None"):
        x.add(x)
    with (
        answered_by("aten::add.Tensor", lambda *_: only("add", 5, (TENSOR, 7, 0))),
        raises(ValueError, "tensor 7 of 2"),
    ):
        x.add(x)
    same(x.add(x), floats(5) * 2)

    leaf = on_device(7).requires_grad_()
    product = (leaf * leaf).sum()
    with answered_by("aten::mul.Tensor", fail), raises(KeyError, "no luck"):
        product.backward(torch.ones((), device="sim"))


@program
def a_resolver_may_call_ops() -> None:
    def recurse(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
        x = on_device(6)
        same(x.add(x), floats(6) * 2)
        return plan_add(arguments, outputs)

    x = on_device(6)
    with answered_by("aten::add.Tensor", recurse):
        same(x.add(x), floats(6) * 2)
    assert fallbacks() == {"aten::add.Tensor": 1}


@program
def eight_threads_resolve_once() -> None:
    calls = []

    def slowly(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
        calls.append(arguments[0][3])
        time.sleep(0.05)
        return plan_add(arguments, outputs)

    failures: list[str] = []

    def work(number: int) -> None:
        try:
            for n in range(1, 9):
                x = on_device(n)
                for _ in range(200):
                    same_sum = x.add(x)
                same(same_sum, floats(n) * 2)
        except BaseException:
            failures.append(traceback.format_exc())

    with answered_by("aten::add.Tensor", slowly):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not failures, failures[0]
    assert sorted(calls) == [(n,) for n in range(1, 9)], calls
    assert fallbacks() == {}


@program
def backward_misses_on_autograds_thread() -> None:
    threads = []

    def note(arguments: list[Any], outputs: list[Any] | None) -> core.Plan | None:
        threads.append(threading.get_ident())
        return plan_mul(arguments, outputs)

    with answered_by("aten::mul.Tensor", note):
        x, y = on_device(9).requires_grad_(), on_device(9)
        z = x * y
        core.kernel_cache_clear()
        z.backward(on_device(9))
    same(x.grad, floats(9) ** 2)
    assert len(set(threads)) == 2, threads


@program
def an_index_out_of_range_names_the_op() -> None:
    x = on_device(5)
    for _ in range(2):
        with raises(IndexError, "aten::gather: index 9 is out of range for a dimension of 5"):
            x.gather(0, torch.tensor([1, 9, 2]).to("sim"))
        same(x.gather(0, torch.tensor([4, 0]).to("sim")), floats(5)[[4, 0]])
    torch.accelerator.synchronize()


@program
def random_plans_draw_from_the_generator() -> None:
    x = torch.zeros(2, dtype=torch.int64, device="sim")
    drawn = []
    for generator in (None, None, torch.Generator("sim").manual_seed(77), None):
        torch.manual_seed(5) if not drawn else None
        drawn.append(x.random_(generator=generator).tolist())
    (seed, first), (again, second), (other, begin), (_, third) = drawn
    assert (seed, again, other, begin) == (5, 5, 77, 0), drawn
    assert first < second < third, drawn
    assert second - first == third - second, drawn
    assert len(asked("aten::random_")) == 1


@program
def lists_are_flattened() -> None:
    left, right = [on_device(2), on_device(3)], [on_device(2), on_device(3)]
    for _ in range(2):
        for result, n in zip(torch._foreach_add(left, right, alpha=2), (2, 3), strict=True):
            same(result, floats(n) * 3)
    arguments, outputs = asked("aten::_foreach_add.List")[0]
    assert [tensor[1] for part in arguments[:2] for tensor in part] == [0, 1, 2, 3]
    assert outputs == [("new", FLOAT, (2,), (1,)), ("new", FLOAT, (3,), (1,))]
    torch._foreach_add_(left, right)
    same(left[1], floats(3) * 2)
    assert fallbacks() == {}


@program
def an_op_without_a_meta_kernel_says_what_comes_out() -> None:
    for _ in range(2):
        same(torch.ops.kernel_route.twice(on_device(3, 2)), floats(3, 2) * 2)


@program
def sizes_that_numbers_decide_are_keys() -> None:
    for end in (3, 5, 3.5):
        same(torch.arange(end, device="sim"), torch.arange(end))
    assert [outputs for _, outputs in asked("aten::arange.start_out")] == [[("arg", 0)]] * 3


@program
def indices_may_come_from_the_cpu() -> None:
    same(on_device(4)[torch.tensor([2, 0])], floats(4)[[2, 0]])
    (arguments, outputs), *_ = asked("aten::index.Tensor")
    assert arguments[1][0][:3] == ("t", 1, 4), arguments
    assert outputs == [("new", FLOAT, (2,), (1,))]


@program
def modes_do_not_see_the_miss() -> None:
    ops = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ops.append(str(op))
            return op(*args, **(kwargs or {}))

    x, image = on_device(11), on_device(1, 2, 4, 4)
    with Watch(), Watch():
        x.add(x)
        torch.ops.aten._adaptive_avg_pool2d(image, [2, 2])
    assert ops == ["aten.add.Tensor"] * 2 + ["aten._adaptive_avg_pool2d.default"] * 2, ops
    assert asked("aten::_adaptive_avg_pool2d")[0][1] == [("new", FLOAT, (1, 2, 2, 2), (8, 4, 2, 1))]


if __name__ == "__main__":
    assert "mode=kernels" in os.environ.get("BRINGUP_SIM", "")
    run_programs(PROGRAMS)
