"""Where bringup keeps files between runs: one private directory that no other user can write.

``BRINGUP_CACHE`` names it (``off``: keep nothing); otherwise it is the user's cache directory. Binaries read from it
are executed, so a directory that belongs to someone else, or that others can write, is refused.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import stat
from pathlib import Path

#: The folder in which toolchains keep sources that did not compile.
FAILED = "failed"


class UnsafeDirectory(RuntimeError):
    """The cache directory cannot be trusted; the message says why and what to do."""


def cache_directory() -> Path | None:
    """The directory the environment asks for, whether or not it exists; None: no cache.

    >>> cache_directory()  # doctest: +SKIP
    PosixPath('/home/me/.cache/bringup')
    """
    given = os.environ.get("BRINGUP_CACHE", "").strip()
    if given:
        return None if given.lower() == "off" else Path(given).expanduser().absolute()
    with contextlib.suppress(ImportError):  # an extra: bringup itself needs torch and numpy only
        return Path(importlib.import_module("platformdirs").user_cache_dir("bringup"))
    # What platformdirs does on Linux; XDG says that a relative path is to be ignored.
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "bringup"
    home = os.path.expanduser("~")
    return Path(home) / ".cache" / "bringup" if os.path.isabs(home) else None


def open_private(directory: Path) -> int:
    """Makes the directory if needed, checks it, and returns it as a file descriptor for ``dir_fd=``.

    What was checked is what is used: a directory that is exchanged for another one later changes nothing.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        check_private(os.fstat(descriptor), str(directory))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_private(status: os.stat_result, name: str) -> None:
    """Raises UnsafeDirectory unless a file or directory is ours and writable by us alone."""
    if status.st_uid != os.geteuid():
        raise UnsafeDirectory(
            f"{name} belongs to user {status.st_uid}, not to you ({os.geteuid()}); set BRINGUP_CACHE to a directory of "
            "your own"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeDirectory(
            f"{name} can be written by other users (mode {stat.S_IMODE(status.st_mode):o}); set BRINGUP_CACHE to a "
            "directory that only you can write"
        )
