"""Fixtures of compiled graphs. They need a device that compiles kernels, which sim does by default.

``BRINGUP_TEST_BACKEND=aot_eager`` runs the same tests with PyTorch's own backend: what that fails is the test's fault.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch


@pytest.fixture(scope="session")
def backend() -> str:
    """What torch.compile is asked for."""
    return os.environ.get("BRINGUP_TEST_BACKEND", "bringup")


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    """No graph or counter of another test."""
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compiled(backend: str) -> Callable[..., Any]:
    """torch.compile with the backend under test."""

    def of(function: Any, **options: Any) -> Any:
        return torch.compile(function, backend=backend, **options)

    return of


@pytest.fixture
def numbers(device: str) -> Callable[..., torch.Tensor]:
    """The same random numbers for the same shape and seed."""

    def of(*shape: int, seed: int = 0, grad: bool = False) -> torch.Tensor:
        made = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return made.to(device).requires_grad_(grad)

    return of
