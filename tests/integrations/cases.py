"""Every program, and which of them can run here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from tests.integrations import programs_models, programs_training  # noqa: F401 (they fill the list)
from tests.integrations.judging import CASES, Case

__all__ = ["CASES", "missing"]


def missing(case: Case) -> str:
    """Says what to install for a case; empty if it can run."""
    try:
        version(case.library)
    except PackageNotFoundError:
        return f"{case.library} is not installed: pip install 'bringup[integrations]'"
    return ""
