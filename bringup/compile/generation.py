"""Which kernel compiler this is: a hash of its own sources, so that nothing an earlier one made is taken for ours."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from bringup import __version__

_PACKAGE = Path(__file__).resolve().parents[1]
#: What decides the source, the work units and the cost of a kernel.
_FOLDERS = ("ir", "targets")


@functools.cache
def generation() -> str:
    """The hash, read once per process (3 ms). A change of any file in ``ir/`` and ``targets/`` is another compiler.

    >>> len(generation())
    64
    """
    digest = hashlib.sha256(__version__.encode())
    for folder in _FOLDERS:
        for path in sorted((_PACKAGE / folder).rglob("*")):
            if path.suffix != ".pyc" and path.is_file():
                digest.update(f"\n{path.relative_to(_PACKAGE).as_posix()}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
