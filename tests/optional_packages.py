"""Leaves out what needs packages that are not installed: files that import them, the command, programs for RISC-V.

Everything runs where ``make test`` has set the environment up; elsewhere the tests say what they miss.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
#: What tests import at their top.
IMPORTED = ("hypothesis", "typer")


def missing(*names: str) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is None]


def files_left_out() -> dict[str, str]:
    """Test files that import a package that is not installed, and its name."""
    found = {}
    for name in missing(*IMPORTED):
        at_top = re.compile(rf"^(?:import|from) {name}\b", re.MULTILINE)
        found |= {str(path): name for path in sorted(FOLDER.rglob("test_*.py")) if at_top.search(path.read_text())}
    return found


def need_the_command() -> None:
    """Skips the test if ``bringup`` cannot run as a command."""
    if gone := missing("typer", "rich"):
        pytest.skip(f"{' and '.join(gone)} not installed: pip install 'bringup[cli]'")


@cache
def no_riscv_compiler() -> str:
    """Says why no RISC-V program can be built here; empty if one can."""
    from bringup.riscv.toolchain import ToolchainMissing, find_toolchain

    try:
        find_toolchain()
    except ToolchainMissing as error:
        return str(error)
    return ""


def skip_without_a_riscv_compiler() -> None:
    if why := no_riscv_compiler():
        pytest.skip(why)


def skip_without_graphs() -> None:
    """Skips the test if this PyTorch cannot capture on devices other than CUDA."""
    import torch

    if not hasattr(torch.accelerator, "Graph"):
        pytest.skip(f"torch.accelerator.Graph is not in PyTorch {torch.__version__}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it was raised from, and what Dynamo packed into it."""
    seen: set[int] = set()  # errors may be each other's context: pytest.raises sets that of what does not match
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__


class SkipWithoutZig:
    """Skips tests that fail for want of a RISC-V compiler, where ziglang is not installed."""

    @staticmethod
    def _skipping() -> Iterator[None]:
        try:
            return (yield)
        except Exception as error:
            from bringup.riscv.toolchain import ToolchainMissing

            gone = [cause for cause in _causes(error) if isinstance(cause, ToolchainMissing)]
            if not gone or not missing("ziglang"):
                raise
            pytest.skip(str(gone[0]))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        return (yield from self._skipping())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        return (yield from self._skipping())
