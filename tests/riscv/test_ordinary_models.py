"""Ordinary modules and ops that stand in no list of ours: they run in an emulator, or are refused with a way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bringup
from bringup.graph.bare_metal.build import model_of
from bringup.graph.bare_metal.guest import RunningModel
from bringup.graph.bare_metal.options import BareMetal
from bringup.graph.export.bare_metal import array_of
from bringup.graph.export.trace import ExportError
from tests.riscv.static_models import program_of_model

R = torch.randn
I = torch.tensor  # noqa: E741 - a list of integers, or of anything


class Calls(nn.Module):
    """A function of some modules and inputs, as a module."""

    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.function, self.modules_ = function, nn.ModuleList(modules)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*self.modules_, *inputs)


def _first(module: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = module(*inputs)[0]
    return result


def _attention(module: nn.Module, x: torch.Tensor, *mask: torch.Tensor) -> Any:
    return module(x, x, x, attn_mask=mask[0] if mask else None, need_weights=not mask)


def _masked_number(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[x > 0] = 1.5
    return y


HIDDEN = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
#: name → (module or function, inputs)
CASES: dict[str, tuple[Any, ...]] = {
    "encoder layer": (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), R(2, 5, 16)),
    "encoder layer, norm first": (
        nn.TransformerEncoderLayer(16, 4, 24, activation="gelu", norm_first=True, batch_first=True),
        R(1, 3, 16),
    ),
    "decoder layer": (nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), R(1, 4, 8), R(1, 3, 8)),
    "attention": (Calls(_attention, nn.MultiheadAttention(8, 2, batch_first=True)), R(2, 5, 8)),
    "attention, masked": (Calls(_attention, nn.MultiheadAttention(8, 2, batch_first=True)), R(2, 5, 8), HIDDEN),
    "one_hot": (lambda i: F.one_hot(i, 5), I([[1, 4], [0, 2]])),
    "bilinear": (nn.Bilinear(4, 5, 3), R(2, 4), R(2, 5)),
    "masked number": (_masked_number, R(3, 4)),
    "gru": (Calls(_first, nn.GRU(4, 6, num_layers=2, batch_first=True)), R(1, 3, 4)),
    "rnn": (Calls(_first, nn.RNN(4, 6, bidirectional=True)), R(3, 1, 4)),
    "rnn cell": (nn.RNNCell(4, 6), R(2, 4)),
    "gru cell": (nn.GRUCell(4, 6), R(2, 4)),
    "lstm cell": (nn.LSTMCell(4, 6), R(2, 4)),
    "pixel shuffle": (nn.PixelShuffle(2), R(1, 8, 3, 3)),
    "unfold": (nn.Unfold(2), R(1, 2, 4, 4)),
    "fold": (nn.Fold((4, 4), 2), R(1, 8, 9)),
    "embedding bag": (nn.EmbeddingBag(10, 4), I([1, 2, 4, 5]), I([0, 2])),
    "cosine similarity": (nn.CosineSimilarity(), R(3, 4), R(3, 4)),
    "pairwise distance": (nn.PairwiseDistance(), R(3, 4), R(3, 4)),
    "cdist": (torch.cdist, R(3, 4), R(5, 4)),
    "local response norm": (nn.LocalResponseNorm(2), R(1, 4, 3, 3)),
    "adaptive max pool": (nn.AdaptiveMaxPool2d(2), R(1, 2, 5, 5)),
    "max unpool": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), R(1, 2, 4, 4)),
    "group norm": (nn.GroupNorm(2, 4), R(1, 4, 3, 3)),
    "instance norm": (nn.InstanceNorm2d(3, affine=True), R(2, 3, 4, 4)),
    "rms norm": (nn.RMSNorm(6), R(2, 6)),
    "softmax of channels": (nn.Softmax2d(), R(1, 4, 3, 3)),
    "transposed convolution": (nn.ConvTranspose2d(4, 6, 3, 2, groups=2), R(1, 4, 3, 3)),
    "3d convolution": (nn.Conv3d(2, 3, 2), R(1, 2, 3, 3, 3)),
    "circular padding": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), R(1, 2, 5, 5)),
    "grid_sample": (lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), R(1, 2, 4, 4), R(1, 3, 3, 2)),
    "bicubic": (lambda x: F.interpolate(x, size=5, mode="bicubic"), R(1, 2, 3, 3)),
    "grouped queries": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        *(R(1, 4, 4, 8), R(1, 2, 4, 8), R(1, 2, 4, 8)),
    ),
    "topk": (lambda x: x.topk(2), R(3, 4)),
    "kthvalue": (lambda x: x.kthvalue(2), R(3, 4)),
    "median": (lambda x: x.median(1), R(3, 5)),
    "aminmax": (lambda x: torch.aminmax(x, dim=1), R(3, 5)),
    "cummax": (lambda x: x.cummax(1), R(3, 4)),
    "index_put": (lambda x, i, v: x.index_put((i,), v), R(4, 3), I([0, 2]), R(2, 3)),
    "scatter_add": (lambda x, i, v: x.scatter_add(0, i, v), R(4, 3), I([[0, 1, 2], [0, 1, 2]]), R(2, 3)),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->bki", a, b), R(2, 3, 4), R(2, 4, 5)),
    "masked softmax": (lambda a, m: a.masked_fill(m, -torch.inf).softmax(-1), R(2, 3), I([True, False, True])),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 0), R(2, 3)),
    "searchsorted": (torch.searchsorted, torch.arange(5.0), R(3)),
    "bucketize": (lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), R(6)),
    "adaptive log softmax": (
        Calls(lambda module, x: module.log_prob(x), nn.AdaptiveLogSoftmaxWithLoss(8, 10, [4])),
        R(2, 8),
    ),
    "inverse": (torch.linalg.inv, R(2, 3, 5, 5)),
    "inverse by other rows": (torch.inverse, torch.eye(4)[[2, 0, 3, 1]] * 2),
    "inverse, double": (torch.linalg.inv, R(7, 7).double()),
    "solve": (torch.linalg.solve, R(2, 4, 4), R(2, 4, 3)),
    "solve, vectors": (torch.linalg.solve, R(2, 4, 4), R(2, 4)),
    "solve from the right": (lambda a, b: torch.linalg.solve(a, b, left=False), R(4, 4), R(3, 4)),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), R(2, 3)),
}


def _leaves(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


#: What `make test` runs; all of them take ten seconds to compile.
SOME = (
    "encoder layer, norm first",
    "attention, masked",
    "one_hot",
    "bilinear",
    "masked number",
    "gru cell",
    "topk",
    "aminmax",
    "embedding bag",
    "scatter_add",
    "searchsorted",
    "inverse",
    "inverse by other rows",
    "solve from the right",
)


class Together(nn.Module):
    """Some cases as one model: one program is built."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.cases = [CASES[name] for name in names]
        made = [case[0] if isinstance(case[0], nn.Module) else Calls(case[0]) for case in self.cases]
        self.made = nn.ModuleList(made)

    def forward(self, *inputs: torch.Tensor) -> list[tuple[Any, ...]]:
        results, left = [], list(inputs)
        for one, (_, *mine) in zip(self.made, self.cases):
            results.append(tuple(_leaves(one(*left[: len(mine)]))))
            left = left[len(mine) :]
        return results


@pytest.mark.parametrize("names", [SOME, pytest.param(tuple(CASES), marks=pytest.mark.sweep)], ids=["some", "all"])
def test_ordinary_models_run_exported(names: Sequence[str]) -> None:
    model = Together(names).eval()
    inputs = [tensor for name in names for tensor in CASES[name][1:]]
    with torch.no_grad():
        expected = [(name, leaf) for name, leaves in zip(names, model(*inputs)) for leaf in leaves]
    guest = RunningModel(model_of(program_of_model(model, *inputs), BareMetal()), BareMetal())
    found = guest([array_of(tensor) for tensor in inputs]).outputs
    assert len(found) == len(expected)
    for (name, theirs), ours in zip(expected, found):
        ours_ = torch.from_numpy(ours.copy()).view(theirs.dtype)
        torch.testing.assert_close(ours_, theirs, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    "name", ["encoder layer, norm first", "one_hot", "bilinear", "masked number", "inverse", "solve"]
)
def test_ordinary_models_run_compiled(name: str) -> None:
    torch._dynamo.reset()
    model, *inputs = CASES[name]
    model = model.eval() if isinstance(model, nn.Module) else model
    backend = bringup.Backend(target="riscv", vector=256)
    with torch.no_grad():
        found = torch.compile(model, backend=backend, dynamic=False)(*inputs)
        torch.testing.assert_close(found, model(*inputs), rtol=1e-4, atol=1e-5)
    assert len(backend.reports()) == 1, "it ran somewhere else"


def test_an_assertion_is_checked_in_the_guest_and_says_what_is_wrong() -> None:
    model = Calls(lambda i: F.one_hot(i, 5))
    guest = RunningModel(model_of(program_of_model(model, I([1, 2])), BareMetal()), BareMetal())
    assert guest([I([0, 4]).numpy()]).outputs[0].tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1]]
    with pytest.raises(IndexError, match=r"assertion is false.*Class values must be smaller than num_classes"):
        guest([I([0, 5]).numpy()])
    with pytest.raises(IndexError, match="Class values must be non-negative"):
        guest([I([-1, 0]).numpy()])


def test_a_matrix_without_an_inverse_is_an_error_in_the_guest() -> None:
    torch._dynamo.reset()
    layer = nn.Linear(3, 3)  # weights beside the graph's token
    model = Calls(lambda layer, x: layer(torch.linalg.inv(x)), layer)
    compiled = torch.compile(model, backend=bringup.Backend(target="riscv"))
    x = torch.tensor([[0.0, 2, 0], [1, 0, 0], [0, 0, 4]])
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        if torch.__version__ < (2, 13):  # AOTAutograd drops the check of linalg.inv, for every backend
            assert compiled(torch.ones(3, 3)).isnan().all()
            return
        with pytest.raises(IndexError, match=r"assertion is false.*linalg.inv: the matrix is singular"):
            compiled(torch.ones(3, 3))


@pytest.mark.parametrize("repeats", [1, 4])
def test_a_bad_index_into_one_element_is_found(repeats: int) -> None:
    """Its position moves nothing, so that passes could lose it."""
    model = Calls(lambda x, y, i: (x.sum(0, keepdim=True).expand(repeats)[i] * 2, y.expand(repeats)[i]))
    good, bad = I([[0, 0, 0]] * 2), I([[0, 0, 0], [0, 0, 7]])
    guest = RunningModel(model_of(program_of_model(model, R(3), R(1), good), BareMetal()), BareMetal())
    x, y = R(3), R(1)
    found = guest([x.numpy(), y.numpy(), good.numpy()]).outputs
    torch.testing.assert_close(torch.from_numpy(found[1].copy()), y.expand(2, 3))
    with pytest.raises(IndexError, match="index_Tensor"):
        guest([x.numpy(), y.numpy(), bad.numpy()])


REFUSED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], str]] = {
    "large inv": (torch.linalg.inv, (R(99, 99),), r"matrices of 99 × 99 are too large.*\n(.*\n)*  factorisations and"),
    "cholesky": (torch.linalg.cholesky, (torch.eye(3),), r"linalg_cholesky_ex.*\n(.*\n)*  factorisations and solvers"),
    "svd": (lambda x: torch.linalg.svd(x).S, (R(3, 3),), r"_linalg_svd.*\n(.*\n)*  factorisations and solvers"),
    "fft": (lambda x: torch.fft.fft(x).abs(), (R(8),), r"_fft_r2c.*\n(.*\n)*  a Fourier transform runs on the host"),
    "complex": (lambda a, b: torch.complex(a, b).abs(), (R(3), R(3)), r"complex numbers have no kernels; compute with"),
    "masked_select": (lambda x: x[x > 0], (R(5),), r"depends on the data(.*\n)*  results with as many elements as the"),
    "corrcoef": (torch.corrcoef, (R(3, 5),), r"aten.equal.default: how the model goes on depends on the data"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported_names_the_way_out(name: str, tmp_path: Path) -> None:
    function, inputs, words = REFUSED[name]
    with pytest.raises(ExportError, match=words) as caught:
        bringup.export(Calls(function), inputs, target="riscv", out=tmp_path / "out")
    assert str(caught.value).count("or keep it outside") == 1
    assert "@torch.compiler.disable" in str(caught.value).splitlines()[-1]


def test_one_hot_without_a_number_of_classes_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"depends on the data .*F.one_hot\(x, num_classes=10\)"):
        bringup.export(Calls(F.one_hot), (I([1, 2]),), target="riscv", out=tmp_path / "out")


def test_the_way_out_of_a_solver_leaves_the_rest_compiled() -> None:
    torch._dynamo.reset()
    factored = torch.compiler.disable(torch.linalg.cholesky)

    def model(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = factored(x @ x.T + torch.eye(3)) @ (x * 2)
        return result

    x = R(3, 3)
    backend = bringup.Backend(target="riscv")
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(backend.reports()) == 2


def test_the_way_out_of_a_fourier_transform_is_a_product() -> None:
    class Spectrum(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.register_buffer("parts", torch.view_as_real(torch.fft.fft(torch.eye(n))).unbind(-1)[0].clone())
            self.register_buffer("others", torch.view_as_real(torch.fft.fft(torch.eye(n))).unbind(-1)[1].clone())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.hypot(x @ self.parts, x @ self.others)

    x = R(2, 16)
    guest = RunningModel(model_of(program_of_model(Spectrum(16), x), BareMetal()), BareMetal())
    (found,) = guest([x.numpy()]).outputs
    torch.testing.assert_close(torch.from_numpy(found.copy()), torch.fft.fft(x).abs())
