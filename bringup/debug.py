"""BRINGUP_DEBUG=1…5: what bringup does, printed to standard error while it does it; each step includes those before.

1  kernels that are compiled, and calls that get no kernel, with the time it took and the reason
2  where plans come from: guards, and whether the disk, this process or the compiler had the kernel
3  the kernels' loop IR
4  their generated source
5  every launch, also of calls that are known by their signature
"""

from __future__ import annotations

import os
import sys


def _from_environment() -> int:
    text = os.environ.get("BRINGUP_DEBUG", "") or "0"
    if text not in ("0", "1", "2", "3", "4", "5"):
        print(f"bringup: BRINGUP_DEBUG={text!r} is not a number from 0 to 5: nothing is printed", file=sys.stderr)
        return 0
    return int(text)


#: The step of the ladder; tests set it.
level = _from_environment()


def say(step: int, text: str) -> None:
    """Prints a text if BRINGUP_DEBUG is at least ``step``.

    >>> say(6, "above every level")
    """
    if level >= step:
        print(f"bringup: {text}", file=sys.stderr, flush=True)
