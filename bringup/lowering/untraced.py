"""Functions that PyTorch's dispatcher calls and that Dynamo must not look into.

While a compiled function runs, Dynamo sees every Python frame, also those that the core calls on a cache miss: it
would trace the kernel compiler itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


def untraced(function: _F) -> _F:
    """The function, marked so that Dynamo skips it and everything it calls. Imports nothing of Dynamo (1.6 s)."""
    import torch

    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function
