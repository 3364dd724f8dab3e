"""The stream sanitizer: finds work of streams, and of the host, that touches the same memory in no order.

    BRINGUP_SANITIZE=stream python program.py

It looks at what a program asks for, not at what happened to run first: a missing wait is found in every run. See
docs/sanitizer.md.
"""

from __future__ import annotations

import atexit
import os

from bringup import user_code
from bringup.sanitizer.race import StreamRace
from bringup.sanitizer.watch import StreamSanitizer

__all__ = ["StreamRace", "StreamSanitizer", "enable_from_environment"]


def enable_from_environment() -> None:
    """Switches the sanitizer on for the whole process where the environment says so.

    >>> enable_from_environment()  # doctest: +SKIP
    """
    wanted = os.environ.get("BRINGUP_SANITIZE", "")
    if wanted == "stream":
        sanitizer = StreamSanitizer().__enter__()
        atexit.register(sanitizer.__exit__, None, None, None)  # before devices close, which is registered already
    elif wanted:  # an exception would take `import torch` down
        user_code.warn(f"BRINGUP_SANITIZE={wanted!r} means nothing: it is 'stream' or not set")
