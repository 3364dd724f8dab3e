"""BRINGUP_SANITIZE: watches the whole process where the environment says so."""

from __future__ import annotations

import atexit
import os

from bringup import user_code
from bringup.sanitizer.watch import StreamSanitizer


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
