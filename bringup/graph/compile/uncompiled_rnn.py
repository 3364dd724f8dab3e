"""Says when Dynamo leaves out an nn.RNN, nn.GRU or nn.LSTM: no backend hears of it.

Up to torch 2.14 it gives up the whole function that calls one, with the layers before and after, unless its
``allow_rnn`` is on. That is set for the process, and would change CPU and CUDA graphs too: the choice is the user's.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch

from bringup import user_code


def watch() -> None:
    """Looks at what Dynamo could not compile, at the end of each compilation."""
    from torch._dynamo.callback import callback_handler

    if _look not in callback_handler.end_callbacks:
        callback_handler.register_end_callback(_look)


def _look(_: Any) -> None:
    from torch._dynamo.utils import counters

    for table in ("unimplemented", "graph_break"):
        if any("allow_rnn" in reason for reason in counters.get(table, ())) and _in_use():
            warn(", nor anything of a function that calls one" if table == "unimplemented" else "")


def _in_use() -> bool:
    """Whether this process compiles with bringup: a backend was named, or ops run on our device."""
    module = torch.get_device_module(torch._C._get_privateuse1_backend_name())
    return "bringup.graph.compile.backend" in sys.modules or module.is_initialized()


@cache
def warn(more: str) -> None:
    """Warns once, of ``more`` if more than the layer is left out."""
    user_code.warn(
        f"torch.compile does not compile nn.RNN, nn.GRU and nn.LSTM{more}: the ops run one by one. With "
        "torch._dynamo.config.allow_rnn = True before the first call they are compiled, all steps of the sequence in "
        "one graph"
    )
