"""Trap 16 and the ops a plain fallback misses: cells, convolution, attention, storages, printing, unusual layouts."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional


def gradients_agree(call: Callable[..., Any], *inputs: torch.Tensor, device: str) -> None:
    """Forward and backward give what the CPU gives."""
    sides = []
    for where in ("cpu", device):
        leaves = [x.detach().to(where).requires_grad_() for x in inputs]
        result = call(*leaves)
        result = result[0] if isinstance(result, tuple) else result
        assert result.device.type == where
        torch.manual_seed(0)
        result.backward(torch.randn(result.shape).to(where))
        sides.append([result.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves)])
    for got, expected in zip(sides[1], sides[0], strict=True):
        # Sums of many terms that nearly cancel are as exact as their terms are large, on both sides.
        largest = expected.abs().max().item() if expected.numel() else 0.0
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=max(1e-5, 1e-6 * largest))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_trap_16_recurrent_layers(kind: str, layers: int, bidirectional: bool, device: str) -> None:
    torch.manual_seed(0)
    layer = getattr(torch.nn, kind)(5, 7, layers, bidirectional=bidirectional)
    there = copy.deepcopy(layer).to(device)
    gradients_agree(lambda x: (layer if x.device.type == "cpu" else there)(x), torch.randn(6, 3, 5), device=device)
    for one, other in zip(layer.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(other.grad.cpu(), one.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_trap_16_cells(kind: str, device: str) -> None:
    torch.manual_seed(0)
    cell = getattr(torch.nn, kind)(5, 7)
    there = copy.deepcopy(cell).to(device)
    gradients_agree(lambda x: (cell if x.device.type == "cpu" else there)(x), torch.randn(3, 5), device=device)


def test_trap_16_packed_sequences(device: str) -> None:
    torch.manual_seed(0)
    layer = torch.nn.LSTM(4, 6)
    there = copy.deepcopy(layer).to(device)

    def run(x: torch.Tensor) -> torch.Tensor:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 2]))
        output, _ = (layer if x.device.type == "cpu" else there)(packed)
        return torch.nn.utils.rnn.pad_packed_sequence(output)[0]

    gradients_agree(run, torch.randn(5, 3, 4), device=device)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("settings", [{}, {"stride": 2, "padding": 1}, {"dilation": 2}, {"groups": 2}], ids=str)
def test_trap_16_convolution_and_backward(dims: int, transposed: bool, settings: dict[str, int], device: str) -> None:
    torch.manual_seed(0)
    call = getattr(functional, f"conv{'_transpose' if transposed else ''}{dims}d")
    groups = settings.get("groups", 1)
    channels = (4, 6 // groups) if transposed else (6, 4 // groups)
    weight, bias = torch.randn(*channels, *[3] * dims), torch.randn(6)
    gradients_agree(
        lambda x, w, b: call(x, w, b, **settings), torch.randn(2, 4, *[7] * dims), weight, bias, device=device
    )


def test_trap_16_convolution_in_channels_last_and_double_backward(device: str) -> None:
    x = torch.randn(2, 3, 8, 8, device=device).to(memory_format=torch.channels_last).requires_grad_()
    w = torch.randn(4, 3, 3, 3, device=device).to(memory_format=torch.channels_last).requires_grad_()
    y = functional.conv2d(x, w)
    assert y.is_contiguous(memory_format=torch.channels_last)
    (g,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    g.sum().backward()
    a, b = x.detach().cpu().requires_grad_(), w.detach().cpu().requires_grad_()
    (h,) = torch.autograd.grad(functional.conv2d(a, b).square().sum(), a, create_graph=True)
    h.sum().backward()
    torch.testing.assert_close(w.grad.cpu(), b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_trap_16_attention_and_backward(mask: str, device: str) -> None:
    torch.manual_seed(0)
    masks = {"bool": torch.ones(5, 5).tril().bool(), "float": torch.randn(5, 5)}

    def attend(*qkv: torch.Tensor) -> torch.Tensor:
        chosen = masks[mask].to(qkv[0].device) if mask in masks else None
        return functional.scaled_dot_product_attention(*qkv, chosen, is_causal=mask == "causal")

    gradients_agree(attend, *(torch.randn(2, 3, 5, 8) for _ in range(3)), device=device)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: functional.rms_norm(x, (8,)),
        lambda x: functional.layer_norm(x, (8,)),
        lambda x: functional.batch_norm(x, None, None, training=True),
        lambda x: functional.group_norm(x, 2),
        lambda x: functional.instance_norm(x.view(1, 4, 8)),
        lambda x: functional.embedding(torch.tensor([0, 2, 2], device=x.device), x),
        lambda x: functional.max_pool1d(x, 2),
        lambda x: functional.interpolate(x[None], scale_factor=2),
        lambda x: torch.cdist(x, x.flip(0)),
        lambda x: functional.ctc_loss(
            x[:, None].log_softmax(2), torch.tensor([[1, 2]], device=x.device), torch.tensor([4]), torch.tensor([2])
        ),
    ],
)
def test_trap_16_normalisation_and_friends(call: Callable[[torch.Tensor], torch.Tensor], device: str) -> None:
    torch.manual_seed(0)
    gradients_agree(call, torch.randn(4, 8), device=device)


@pytest.mark.parametrize(
    ("op", "call"),
    [
        ("_thnn_fused_lstm_cell", lambda x: torch.ops.aten._thnn_fused_lstm_cell(x.repeat(1, 4), x.repeat(1, 4), x)),
        ("mm", lambda x: torch.mm(x.bfloat16(), x.bfloat16(), out_dtype=torch.float32)),
        ("batch_norm_stats", lambda x: torch.batch_norm_stats(x, 1e-5)),
    ],
)
def test_trap_16_ops_without_a_cpu_kernel_work_or_name_themselves(
    op: str, call: Callable[..., Any], device: str
) -> None:
    try:
        call(torch.randn(4, 4, device=device))
    except (NotImplementedError, RuntimeError) as error:
        assert op in str(error)  # noqa: PT017 - both outcomes are right


def test_trap_16_a_backward_without_kernel_is_a_python_error_that_names_the_op(device: str) -> None:
    """An autograd thread must not end the process."""

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return torch.ops.aten._cslt_compress(gradient)

    x = torch.ones(2, 2, device=device, requires_grad=True)
    with pytest.raises((RuntimeError, NotImplementedError), match="_cslt_compress"):
        Broken.apply(x).sum().backward()
    assert torch.ones(2, device=device).sum().item() == 2


def test_trap_16_a_bad_workspace_is_an_error(device: str, run_python: Callable[..., Any]) -> None:
    """In a process of its own: arguments of the wrong size must not crash."""
    run_python(f"""
        import torch
        x = torch.ones(2, 2, device={device!r})
        try:
            torch.ops.aten._thnn_fused_gru_cell_backward(x, x, False)
        except (RuntimeError, ValueError, NotImplementedError):
            pass
        """)


# ---- storages ----
def test_resize_keeps_data_and_grows(device: str) -> None:
    x = torch.arange(4.0, device=device)
    x.resize_(2)
    assert x.cpu().tolist() == [0.0, 1.0]
    x.resize_(100_000)
    assert x[:4].cpu().tolist() == [0.0, 1.0, 2.0, 3.0]
    x.fill_(1)
    assert x.sum().item() == 100_000
    x.resize_(2, 3)
    assert x.shape == (2, 3)
    y = torch.empty(0, device=device).resize_as_(x)
    assert y.shape == x.shape


def test_set_and_storage_resize(device: str) -> None:
    x, y = torch.arange(6.0, device=device), torch.empty(0, device=device)
    y.set_(x)
    y[0] = 42
    assert x[0].item() == 42
    y.set_(x.untyped_storage(), 2, (2, 2), (2, 1))
    assert y.cpu().tolist() == [[2.0, 3.0], [4.0, 5.0]]
    y.set_()
    assert y.numel() == 0
    storage = x.untyped_storage()
    storage.resize_(400)
    assert storage.nbytes() == 400
    assert x.cpu().tolist() == [42.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    storage.resize_(0)
    assert storage.nbytes() == 0
    with pytest.raises(RuntimeError):
        y.set_(torch.ones(3))


def test_storage_methods(device: str) -> None:
    x = torch.arange(6, dtype=torch.int16, device=device)
    storage = x.untyped_storage()
    assert storage.device.type == device
    assert storage.nbytes() == 12
    assert bytes(storage.cpu().tolist()) == x.cpu().numpy().tobytes()
    assert storage.clone().data_ptr() != storage.data_ptr()
    assert storage.is_shared() in (True, False)
    other = torch.UntypedStorage(12, device=device).copy_(storage)
    assert torch.empty(0, dtype=torch.int16, device=device).set_(other, 0, (6,)).cpu().tolist() == list(range(6))
    assert storage.fill_(1) is storage
    assert x[0].item() == 257


# ---- printing, pickling ----
EVERY_DTYPE = [
    getattr(torch, name)
    for name in (
        "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex32 complex64 "
        "complex128 float8_e4m3fn float8_e5m2"
    ).split()
]

#: PyTorch itself cannot pickle the others without torch.save: they have no typed storage class.
PLAINLY_PICKLED = set(torch.storage._dtype_to_storage_type_map())


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_printing_every_dtype(dtype: torch.dtype, device: str) -> None:
    for shape in ((), (0,), (3,), (2, 3), (60, 60)):
        host = torch.zeros(shape, dtype=torch.float32).fill_(1.5).to(dtype)
        text = repr(host.to(device))
        assert f"device='{device}" in text
        body = repr(host).removesuffix(")").split(", dtype")[0].split(", size")[0]
        assert text.startswith(body[: len(body) if host.numel() < 1000 else 40])


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_dtype_saves_loads_copies_and_pickles(dtype: torch.dtype, device: str) -> None:
    def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu().contiguous().view(torch.uint8)

    x = torch.arange(6.0).reshape(2, 3).to(dtype).to(device).t()
    buffer = io.BytesIO()
    torch.save(x, buffer)
    buffer.seek(0)
    copies = [torch.load(buffer, weights_only=True), copy.deepcopy(x), x.clone()]
    if dtype in PLAINLY_PICKLED:
        copies.append(pickle.loads(pickle.dumps(x)))
    for y in copies:
        assert y.device == x.device
        assert y.dtype == dtype
        assert y.stride() == x.stride()
        assert torch.equal(as_bytes(y), as_bytes(x))


# ---- unusual layouts: they work, or say that they do not ----
@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("sparse", lambda x: x.to_sparse().to_dense()),
        ("sparse", lambda x: torch.sparse_coo_tensor(x[:2, :2].long().clamp(0, 1), x[0, :2], (4, 4)).to_dense()),
        ("sparse", lambda x: torch.sparse.mm(x.to_sparse(), x)),
        ("sparse", lambda x: x.to_sparse_csr().to_dense()),
        ("quant", lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()),
        ("quant", lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)),
        ("nested", lambda x: torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged).sum(-1).values()),
        ("mkldnn", lambda x: x.to_mkldnn().to_dense()),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse", "ignore:.*prototype", "ignore:.*deprecated")
def test_unusual_layouts_agree_or_say_so(kind: str, call: Callable[[torch.Tensor], torch.Tensor], device: str) -> None:
    x = torch.randn(4, 4).relu()
    try:
        got = call(x.to(device))
    except (NotImplementedError, RuntimeError) as error:
        text = str(error).lower()
        assert device in text or "privateuse" in text, text  # both outcomes are right
        assert kind in text or "aten::" in text, text
    else:
        torch.testing.assert_close(got.cpu(), call(x))


@pytest.mark.parametrize(
    "call",
    [
        lambda z: z.abs(),
        lambda z: z.angle(),
        lambda z: torch.fft.ifft(torch.fft.fft(z)),
        lambda z: torch.fft.irfft(torch.fft.rfft(z.real)),
        lambda z: torch.fft.hfft(z),
        lambda z: torch.fft.ihfft(z.real),
        lambda z: torch.linalg.eigvalsh(z @ z.mH),
        lambda z: torch.polar(z.abs(), z.angle()),
        lambda z: torch.linalg.inv(z),
    ],
)
def test_complex(call: Callable[[torch.Tensor], torch.Tensor], device: str) -> None:
    torch.manual_seed(0)
    z = torch.randn(4, 4, dtype=torch.complex128)
    torch.testing.assert_close(call(z.to(device)).cpu(), call(z))
