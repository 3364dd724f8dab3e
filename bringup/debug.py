"""BRINGUP_DEBUG=1…5: what bringup does, told on standard error while it does it; each step includes those before.

1  kernels as they are compiled or refused, with the time it took
2  where they come from: guards and the cache
3  their loop IR
4  their generated source
5  every launch
"""

from __future__ import annotations

import os
import sys


def _from_environment() -> int:
    text = os.environ.get("BRINGUP_DEBUG", "0")
    try:
        return int(text)
    except ValueError:
        print(f"bringup: BRINGUP_DEBUG={text!r} is no number from 0 to 5", file=sys.stderr)
        return 0


#: The step of the ladder; tests set it.
level = _from_environment()


def say(step: int, text: str) -> None:
    """Prints a text if BRINGUP_DEBUG is at least ``step``.

    >>> say(6, "nobody hears this")
    """
    if level >= step:
        print(f"bringup: {text}", file=sys.stderr, flush=True)
