"""Calls a function when a module has been imported for the first time: an import costs only who needs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def call_after_import(name: str, function: Callable[[], None]) -> None:
    """Calls ``function`` at the end of the first ``import name``; at once if that has happened.

    >>> call_after_import("sys", lambda: print("imported"))
    imported
    """
    if name in sys.modules:
        function()
    else:
        sys.meta_path.insert(0, _Finder(name, function))


class _Finder:
    """Finds one module where Python finds it, and adds a call to the end of its execution."""

    def __init__(self, name: str, function: Callable[[], None]) -> None:
        self._name, self._function = name, function

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:  # not for every spec that was asked for: once
                sys.meta_path.remove(self)
                self._function()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
