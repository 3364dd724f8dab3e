"""Fixtures of compiled graphs. They need a device that compiles kernels, which sim does by default.

``BRINGUP_TEST_BACKEND=aot_eager`` runs the same tests with PyTorch's own backend: what that fails is the test's fault.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


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
