"""Tells the user's code on the Python stack from bringup's and PyTorch's: warnings and records point to it."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from types import FrameType

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
#: What calls our code for the user, and PyTorch's.
_BETWEEN = (os.path.dirname(os.path.abspath(importlib.__file__)) + os.sep, os.path.abspath(contextlib.__file__))


def user_frames() -> Iterator[FrameType]:
    """The user's frames of this thread, innermost first; none on a thread that runs no Python of the user's."""
    torch = sys.modules.get("torch")
    folders = [_PACKAGE, *_BETWEEN]
    if torch is not None and torch.__file__:
        folders.append(os.path.dirname(torch.__file__) + os.sep)
    others = ("<frozen ", "<eval_with_key>", *folders)
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if not frame.f_code.co_filename.startswith(others):
            yield frame
        frame = frame.f_back


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warns at the line of the user's code that led here, however many of our calls are in between.

    >>> warn("the cache is full")  # doctest: +SKIP
    """
    frame = next(user_frames(), None)
    if frame is None:
        warnings.warn(message, category, stacklevel=2)
        return
    place = frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", "__main__")
    warnings.warn_explicit(message, category, *place, registry=frame.f_globals.setdefault("__warningregistry__", {}))
