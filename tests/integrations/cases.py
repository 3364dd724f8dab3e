"""Every program, and which of them can run here."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from tests.integrations import (  # noqa: F401 (they fill the list)
    programs_architectures,
    programs_models,
    programs_training,
)
from tests.integrations.judging import CASES, Case

__all__ = ["CASES", "missing"]

#: They import torchvision where it is installed, and fail with it.
WITH_PICTURES = {"diffusers", "lightning", "peft", "timm", "torchmetrics", "transformers"}


def missing(case: Case) -> str:
    """Says what to install for a case; empty if it can run."""
    try:
        version(case.library)
    except PackageNotFoundError:
        return f"{case.library} is not installed: pip install 'bringup[integrations]'"
    return wrong_torchvision() if case.library in WITH_PICTURES else ""


@cache
def wrong_torchvision() -> str:
    """Says so where torchvision was built for another torch; it then fails with this error, and with no other."""
    try:
        import torchvision  # noqa: F401
    except ModuleNotFoundError:
        return ""
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        return "torchvision was built for another torch: docs/integrations.md says how to get both from one index"
    return ""
