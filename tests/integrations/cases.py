"""Every program, and which of them can run here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from tests.integrations import (  # noqa: F401 (they fill the list)
    programs_architectures,
    programs_models,
    programs_training,
)
from tests.integrations.judging import CASES, Case
from tests.integrations.torchvision_import import import_torchvision

__all__ = ["CASES", "missing"]

#: They import torchvision where it is installed.
WITH_PICTURES = {"diffusers", "lightning", "peft", "timm", "torchmetrics", "transformers"}


def missing(case: Case) -> str:
    """Says what to install for a case; empty if it can run."""
    try:
        version(case.library)
    except PackageNotFoundError:
        return f"{case.library} is not installed: pip install 'bringup[integrations]'"
    if case.library in WITH_PICTURES:
        import_torchvision()
    return ""
