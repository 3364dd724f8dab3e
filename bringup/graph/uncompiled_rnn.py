"""Says when Dynamo compiles nothing because of an nn.RNN, nn.GRU or nn.LSTM: no backend is called then.

Dynamo gives up the whole function that calls one, with the layers before and after it, unless its ``allow_rnn`` is on.
That is set for the process, and would change CPU and CUDA graphs as well: the choice is the user's.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from typing import Any

import torch


def watch() -> None:
    """Looks at what Dynamo could not compile, at the end of each compilation."""
    from torch._dynamo.callback import callback_handler

    if _look not in callback_handler.end_callbacks:
        callback_handler.register_end_callback(_look)


def _look(_: Any) -> None:
    from torch._dynamo.utils import counters

    reasons = [reason for table in ("unimplemented", "graph_break") for reason in counters.get(table, ())]
    if any("allow_rnn" in reason for reason in reasons) and _in_use():
        warn()


def _in_use() -> bool:
    """Whether this process compiles with bringup: a backend was named, or ops run on our device."""
    module = torch.get_device_module(torch._C._get_privateuse1_backend_name())
    return "bringup.graph.backend" in sys.modules or module.is_initialized()


@cache
def warn() -> None:
    """Warns once."""
    warnings.warn(
        "torch.compile compiles nothing of a function that calls nn.RNN, nn.GRU or nn.LSTM, nor the layers around it; "
        "its ops run one by one. torch._dynamo.config.allow_rnn = True before the first call has it compiled, "
        "step by step for this length of the sequence",
        RuntimeWarning,
        stacklevel=2,
    )
