"""What the collectives of a rank did, written to a file when one fails: PyTorch's flight recorder, for Gloo's calls.

Set ``TORCH_FR_BUFFER_SIZE=2000`` to keep the last 2000 calls and ``TORCH_FR_DUMP_TEMP_FILE=/tmp/trace_`` to say where a
dump goes; the rank is added to the name. ``torchfrtrace`` reads the dumps of all ranks and says where they part.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_installed = False


def install(core: Any) -> None:
    """Lets the core report failed collectives here."""
    global _installed
    if not _installed:
        core.observe_failures(_failed)
        _installed = True


def dump() -> str | None:
    """Writes what the recorder holds; returns the file, or None where nothing is recorded."""
    import torch.distributed as dist
    from torch._C import _distributed_c10d

    c10d: Any = _distributed_c10d
    if not int(os.environ.get("TORCH_FR_BUFFER_SIZE", os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE", "0"))):
        return None
    rank = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))
    default = os.environ.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/tmp/bringup_trace_rank_")
    path = os.environ.get("TORCH_FR_DUMP_TEMP_FILE", default) + str(rank)
    with open(path, "wb") as file:
        file.write(c10d._dump_fr_trace())
    return path


def _failed(group: str, why: str) -> None:
    """Reports a collective that failed, on the thread that met it: whoever waits hears it too, but later."""
    where = ""
    try:
        path = dump()
        where = f"\nbringup: its calls so far: {path} (torchfrtrace reads it)" if path else ""
    except (OSError, RuntimeError, ValueError) as error:
        where = f"\nbringup: the flight recorder's dump failed: {error}"
    print(f"bringup: {why}{where}", file=sys.stderr, flush=True)
