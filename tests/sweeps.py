"""Splits a long list of cases: some run in ``make test``, all of them in ``make test-all``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def swept_unless(kept: Callable[[int, Any], bool] | Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Returns the cases for ``parametrize``, marked as a sweep unless they are kept.

    ``kept`` names the cases that ``make test`` runs, or decides by index and case. A case may be a tuple of arguments.
    """
    if not callable(kept):
        names = set(kept)
        cases = list(cases)
        assert names <= set(cases), f"no such case: {names - set(cases)}"
        return swept_unless(lambda _, case: case in names, cases)
    return [case if kept(index, case) else _swept(case) for index, case in enumerate(cases)]


def _swept(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.sweep)
