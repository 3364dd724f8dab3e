"""Traps 10–16 and 18 of design/pytorch-traps.md: what a CPU kernel on device memory gets wrong, one test per rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

Run = Callable[..., Any]


def agrees(call: Callable[..., Any], *inputs: torch.Tensor, device: str) -> None:
    """The call gives on the device what it gives on the CPU, and leaves its result there."""
    expected = call(*inputs)
    got = call(*(x.to(device) for x in inputs))
    for one, reference in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, expected)), strict=True):
        assert one.device.type == device
        torch.testing.assert_close(one.cpu(), reference)


# ---- 10: the alias copies conj, neg and wrapped-number flags ----
@pytest.mark.parametrize(
    "call",
    [
        lambda a: a.conj() @ a,
        lambda a: a @ a.mH,
        lambda a: a.conj().sum(),
        lambda a: a.conj().imag + 1,
        lambda a: torch.view_as_real(a.conj().resolve_conj()),
        lambda a: torch.stack([a.conj(), a]),
        lambda a: torch.empty_like(a).copy_(a.conj()),
        lambda a: a.conj().clone(),
        lambda a: torch.linalg.solve(a.conj(), a),
        lambda a: a.conj().imag.neg().sort().values,
    ],
)
def test_trap_10_conjugate_and_negative_views(call: Callable[[torch.Tensor], torch.Tensor], device: str) -> None:
    agrees(call, torch.randn(3, 3, dtype=torch.complex64), device=device)


def test_trap_10_lazy_bits_survive_the_trip(device: str) -> None:
    a = torch.randn(3, dtype=torch.complex64)
    there = a.to(device).conj()
    assert there.is_conj()
    assert there.imag.is_neg()
    assert torch.equal(there.cpu(), a.conj())
    assert torch.equal(a.conj().to(device).cpu(), a.conj())
    target = torch.zeros(3, dtype=torch.complex64, device=device)
    target.conj().copy_(a.to(device))
    assert torch.equal(target.cpu(), a.conj().resolve_conj())


def test_trap_10_wrapped_numbers_promote_like_on_the_cpu(device: str) -> None:
    whole, half = torch.ones(3, dtype=torch.int32, device=device), torch.ones(3, dtype=torch.float16, device=device)
    zero_dim = torch.tensor(2.0, dtype=torch.float64)
    assert (whole + 1.5).dtype == torch.float32
    assert (half * 2.5).dtype == torch.float16
    assert (half * zero_dim).dtype == torch.float16
    assert (half * zero_dim.to(device)).dtype == torch.float16
    assert torch.where(whole > 0, half, 0.0).dtype == torch.float16


# ---- 11: out= that must grow ----
GROWING: dict[str, Callable[[torch.Tensor, Callable[..., torch.Tensor]], Any]] = {
    "cumsum": lambda x, new: torch.cumsum(x, 0, out=new()),
    "mm": lambda x, new: torch.mm(x, x, out=new()),
    "sort": lambda x, new: torch.sort(x, out=(new(), new(torch.long))),
    "add": lambda x, new: torch.add(x, x, out=new()),
    "cat": lambda x, new: torch.cat([x, x], out=new()),
    "nonzero": lambda x, new: torch.nonzero(x > 0, out=new(torch.long)),
    "topk": lambda x, new: torch.topk(x, 2, out=(new(), new(torch.long))),
    "svd": lambda x, new: torch.linalg.svdvals(x, out=new()),
    "arange": lambda x, new: torch.arange(17, out=new(torch.long)),
    "index_select": lambda x, new: torch.index_select(x, 0, torch.tensor([1, 0], device=x.device), out=new()),
}


@pytest.mark.parametrize("op", GROWING)
def test_trap_11_growing_out(op: str, device: str) -> None:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        given: list[torch.Tensor] = []

        def new(dtype: torch.dtype = torch.float32) -> torch.Tensor:
            given.append(torch.empty(0, dtype=dtype, device=x.device))
            return given[-1]

        result = GROWING[op](x, new)
        for returned, made in zip(result if isinstance(result, tuple) else (result,), given, strict=True):
            assert returned.data_ptr() == made.data_ptr(), "out= was not written"
            assert made.device.type == x.device.type
        return given

    x = torch.randn(4, 4)
    for got, expected in zip(run(x.to(device)), run(x), strict=True):
        torch.testing.assert_close(got.cpu(), expected)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_trap_11_out_with_the_wrong_dtype_or_device_is_refused(device: str) -> None:
    x = torch.randn(4, 4, device=device)
    with pytest.raises(RuntimeError):
        torch.mm(x, x, out=torch.empty(0, dtype=torch.int64, device=device))
    with pytest.raises(RuntimeError):
        torch.mm(x, x, out=torch.empty(0))


# ---- 12: every view op aliases ----
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(6, 4),
    "view dtype": lambda x: x.view(torch.int32),
    "view smaller dtype": lambda x: x.view(torch.int16),
    "as_strided": lambda x: x.as_strided((2, 3), (1, 2), 1),
    "reshape": lambda x: x.reshape(-1),
    "reshape of a transpose": lambda x: x.transpose(0, 1).reshape(3, 1, 2, 4),
    "unfold": lambda x: x.unfold(2, 2, 1),
    "view_as_complex": lambda x: torch.view_as_complex(x.view(2, 3, 2, 2)),
    "view_as_real": lambda x: torch.view_as_real(torch.view_as_complex(x.view(2, 3, 2, 2))),
    "slice": lambda x: x[:, 1:, ::2],
    "select": lambda x: x[1],
    "narrow": lambda x: x.narrow(1, 1, 2),
    "transpose": lambda x: x.mT,
    "permute": lambda x: x.permute(2, 0, 1),
    "expand": lambda x: x[:1].expand(5, 3, 4),
    "squeeze": lambda x: x[:1].squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "diagonal": lambda x: x.diagonal(dim1=1, dim2=2),
    "split": lambda x: x.split(2, dim=2)[1],
    "chunk": lambda x: x.chunk(2, dim=0)[1],
    "unbind": lambda x: x.unbind(0)[1],
    "tensor_split": lambda x: x.tensor_split(2, dim=1)[1],
    "detach": lambda x: x.detach(),
    "flatten": lambda x: x.flatten(),
    "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "movedim": lambda x: x.movedim(0, 2),
    "real of a complex": lambda x: torch.view_as_complex(x.view(2, 3, 2, 2)).real,
    "imag of a complex": lambda x: torch.view_as_complex(x.view(2, 3, 2, 2)).imag,
    "alias": lambda x: torch.ops.aten.alias(x),
    "_reshape_alias": lambda x: torch.ops.aten._reshape_alias(x, [24], [1]),
    "lift": lambda x: torch.ops.aten.lift_fresh(x),
    "view_as": lambda x: x.view_as(torch.empty(4, 6)),
    "swapaxes": lambda x: x.swapaxes(0, 2),
}


@pytest.mark.parametrize("op", VIEWS)
def test_trap_12_views_alias_their_storage(op: str, device: str) -> None:
    base = torch.randn(2, 3, 4)
    there = base.clone().to(device)
    view, expected = VIEWS[op](there), VIEWS[op](base)
    assert view.untyped_storage().data_ptr() == there.untyped_storage().data_ptr()
    assert (view.shape, view.stride(), view.storage_offset()) == (
        expected.shape,
        expected.stride(),
        expected.storage_offset(),
    )
    assert torch.equal(view.cpu(), expected)
    if op != "expand":
        view.zero_()
        expected.zero_()
        assert torch.equal(there.cpu(), base), "writing through the view did not reach the base"


def test_trap_12_in_place_ops_return_the_tensor_they_changed(device: str) -> None:
    x = torch.randn(4, device=device)
    for op in ("add_", "mul_"):
        assert getattr(x, op)(2) is x
    assert x.sort().values.sub_(1).cumsum_(0).device.type == device
    view = x[1:]
    assert view.fill_(5) is view
    assert x[1:].cpu().tolist() == [5.0] * 3


# ---- 13: outputs come from the device allocator ----
@pytest.mark.parametrize("mode", ["library", "kernels"])
def test_trap_13_outputs_are_counted_and_limited(mode: str, device: str, run_python: Run) -> None:
    if device != "sim":
        pytest.skip("needs a device with a memory limit")
    run_python(
        """
        import torch
        x = torch.randn(1 << 20, device="sim")
        for call in (torch.relu, torch.sort, torch.cumsum, torch.isnan, torch.randn_like, torch.nonzero, torch.clone):
            before = torch.sim.memory_allocated()
            y = call(x, 0) if call is torch.cumsum else call(x)
            outputs = y if isinstance(y, tuple) else (y,)
            expected = sum(o.untyped_storage().nbytes() for o in outputs)
            grown = torch.sim.memory_allocated() - before
            assert grown >= expected, (call, grown, expected)
            del y, outputs
            assert torch.sim.memory_allocated() == before, call
        host = torch.ones(1000)                     # ordinary CPU tensors stay out of it
        assert torch.sim.memory_allocated() == before

        keep = torch.empty(46 << 20, dtype=torch.uint8, device="sim")
        try:
            torch.sort(x)                           # values 4 MB, indices 8 MB: more than is left
        except torch.OutOfMemoryError:
            pass
        else:
            raise SystemExit("sort allocated outside the device's limit")
        del keep
        assert torch.sort(x).values[0].item() == x.min().item()
        """,
        env={"BRINGUP_SIM": f"memory=56M,mode={mode}", "BRINGUP_DRIVERS": "sim"},
    )


# ---- 14: tensors of two devices do not meet ----
@pytest.mark.parametrize(
    "call",
    [
        lambda dev, cpu: dev.mm(cpu),
        lambda dev, cpu: cpu.mm(dev),
        lambda dev, cpu: dev + cpu,
        lambda dev, cpu: torch.cat([dev, cpu]),
        lambda dev, cpu: functional.linear(dev, cpu),
        lambda dev, cpu: torch.where(dev > 0, dev, cpu),
        lambda dev, cpu: torch.nn.LayerNorm(4)(dev),
        lambda dev, cpu: torch.linalg.solve(dev, cpu),
        lambda dev, cpu: torch.gather(dev, 0, cpu.bool().long()),
        lambda dev, cpu: torch.conv1d(dev[None], cpu[None]),
        lambda dev, cpu: dev.addmm_(cpu, cpu),
    ],
)
def test_trap_14_mixed_devices_are_refused(call: Callable[[torch.Tensor, torch.Tensor], Any], device: str) -> None:
    with pytest.raises(RuntimeError, match=r"same device|should be the same") as error:
        call(torch.randn(4, 4).to(device), torch.randn(4, 4))
    assert device in str(error.value)


def test_trap_14_scalars_and_cpu_indices_pass(device: str) -> None:
    x = torch.arange(6.0, device=device)
    two = torch.tensor(2.0)
    assert (x * two).device.type == device
    assert (two - x).cpu().tolist() == [2.0, 1.0, 0.0, -1.0, -2.0, -3.0]
    assert x[torch.tensor([1, 3])].cpu().tolist() == [1.0, 3.0]
    x[torch.tensor([0, 1])] = two
    assert x.cpu().tolist()[:2] == [2.0, 2.0]
    assert x.add_(two, alpha=2)[5].item() == 9
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.ones(3, 2, 4, device=device), torch.tensor([3, 2]))
    assert packed.data.device.type == device
    assert torch.nn.utils.rnn.pad_packed_sequence(packed)[0].shape == (3, 2, 4)


# ---- 15: composite kernels do not hide the CPU's own ----
def test_trap_15_ops_with_their_own_cpu_kernel_have_a_route(device: str) -> None:
    from bringup.kit import op_table

    routes = op_table.routes()
    for op in ("aten::native_layer_norm", "aten::_foreach_add.List", "aten::_foreach_add_.List", "aten::_fused_adamw_"):
        assert op in routes, f"{op} has no route of its own: it would decompose without a word"
        assert routes[op] in {"kernel", "library", "native", "random"}
    assert set(routes.values()) <= {"kernel", "library", "native", "random", "composite", "error"}


def test_trap_15_layer_norm_is_one_call(device: str) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    names = []

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.name())
            return func(*args, **(kwargs or {}))

    layer = torch.nn.LayerNorm(8).to(device)
    with Listen():
        layer(torch.ones(2, 8, device=device)).sum().backward()
    assert "aten::native_layer_norm" in names
    assert "aten::native_layer_norm_backward" in names
    assert "aten::rsqrt" not in names


# ---- 18: the host library is a route, not a fallback ----
def test_trap_18_library_mode_is_no_fallback(device: str, run_python: Run) -> None:
    if device != "sim":
        pytest.skip("library mode is the simulator's")
    run_python(
        """
        import bringup, torch
        x = torch.randn(8, 8, device="sim", requires_grad=True)
        (x @ x).softmax(-1).sort().values.sum().backward()
        assert len(bringup.fallbacks()) == 0, bringup.fallbacks()
        """,
        env={"BRINGUP_SIM": "mode=library", "BRINGUP_FALLBACK": "error", "BRINGUP_DRIVERS": "sim"},
    )


def test_trap_18_elsewhere_the_ledger_counts(device: str, run_python: Run) -> None:
    if device != "sim":
        pytest.skip("kernels mode is the simulator's")
    run_python(
        """
        import bringup, torch
        x = torch.randn(8, 8, device="sim")
        torch.linalg.qr(x)
        torch.linalg.qr(x)
        (row,) = [row for row in bringup.fallbacks() if row.op.startswith("aten::linalg_qr")]
        assert row.calls == 2 and row.ms > 0 and row.stack, row
        with bringup.fallback_policy("error"):
            try:
                torch.linalg.qr(x)
            except (RuntimeError, NotImplementedError) as error:
                assert "linalg_qr" in str(error), error
            else:
                raise SystemExit("policy error let a fallback pass")
        """,
        env={"BRINGUP_SIM": "mode=kernels", "BRINGUP_FALLBACK": "allow", "BRINGUP_DRIVERS": "sim"},
    )
