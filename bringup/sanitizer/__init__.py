"""The stream sanitizer: finds work of streams, and of the host, that touches the same memory in no order.

    BRINGUP_SANITIZE=stream python program.py

It looks at what a program asks for, not at what happened to run first: a missing wait is found in every run. See
docs/sanitizer.md.
"""

from __future__ import annotations

import torch  # noqa: F401  # first: its import imports what follows, under BRINGUP_SANITIZE

from bringup.sanitizer.race import StreamRace
from bringup.sanitizer.watch import StreamSanitizer

__all__ = ["StreamRace", "StreamSanitizer"]
