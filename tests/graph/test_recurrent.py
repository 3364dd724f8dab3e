"""nn.RNN, nn.GRU and nn.LSTM under torch.compile: Dynamo leaves them out, says bringup, or takes them when asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from bringup.graph.compile import uncompiled_rnn
from bringup.graph.compile.backend import Backend
from tests.graph.comparing import graphs, same


class Recurrent(nn.Module):
    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.before, self.cells, self.after = nn.Linear(3, 4), getattr(nn, kind)(4, 5, **options), nn.Linear(5, 2)
        if options.get("bidirectional"):
            self.after = nn.Linear(10, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.cells(self.before(x))[0]).relu()


@pytest.fixture(autouse=True)
def _told_nobody() -> Iterator[None]:
    uncompiled_rnn.warn.cache_clear()
    with torch._dynamo.config.patch(allow_rnn=False):
        yield
    uncompiled_rnn.warn.cache_clear()


@pytest.mark.parametrize("backend", ["bringup", None, "object", "riscv"])
def test_nothing_is_compiled_and_that_is_said(backend: str | None, device: str) -> None:
    """With the way out; whether the backend is named, an object, the default, or compiles for a bare core."""
    model, x = Recurrent("LSTM"), torch.ones(3, 2, 3)
    if backend != "riscv":
        model, x = model.to(device), x.to(device)
    made = {"object": Backend(), "riscv": Backend(target="riscv")}.get(str(backend), backend)
    with pytest.warns(RuntimeWarning, match=r"torch\._dynamo\.config\.allow_rnn = True"):
        torch.compile(model, backend=made)(x)


def test_a_model_without_one_is_no_reason_to_warn(numbers: Any, device: str, recwarn: Any) -> None:
    torch.compile(nn.Linear(3, 2).to(device), backend="bringup")(numbers(2, 3))
    assert not [warning for warning in recwarn if "allow_rnn" in str(warning.message)]


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_allow_rnn_compiles_the_whole_model(kind: str, numbers: Any, device: str) -> None:
    torch.manual_seed(0)
    model, x = Recurrent(kind, num_layers=2, bidirectional=True).to(device), numbers(3, 2, 3)
    with torch._dynamo.config.patch(allow_rnn=True):
        run = torch.compile(model, backend="bringup", options={"strict": True})
        same(run(x).detach(), model(x).detach())
        with torch.no_grad():
            same(run(x), model(x))
    assert graphs() == 2


@pytest.mark.parametrize("options", [{}, {"bias": False, "bidirectional": True}], ids=str)
def test_an_lstm_of_the_cpu_is_taken_apart(options: dict[str, Any], device: str) -> None:
    """PyTorch's tracer makes one op of oneDNN of each layer of CPU tensors; on our device it is kernels."""
    torch.manual_seed(0)
    model, x = Recurrent("LSTM", **options).eval(), torch.randn(3, 2, 3)
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        run = torch.compile(model, backend="bringup", options={"device": device, "strict": True})
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-6)


def test_an_lstm_on_a_bare_core() -> None:
    torch.manual_seed(0)
    model, x = Recurrent("LSTM").eval(), torch.randn(2, 1, 3)
    backend = Backend(target="riscv")
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x), rtol=1e-5, atol=1e-6)
    assert len(backend.reports()) == 1
