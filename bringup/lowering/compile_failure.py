"""A kernel that could not be made: told once, with the place of its source; the op then goes its next route."""

from __future__ import annotations

import warnings

from bringup import ledger
from bringup.driver import Driver
from bringup.lowering.call import NoKernel
from bringup.targets.toolchain import CompileError, keep_source


class NotCompiled(NoKernel):
    """The compiler is missing or refused the kernel, or the device did not load it."""

    def __init__(self, driver: Driver, name: str, source: str, error: Exception) -> None:
        #: Equal for failures that need one warning: a missing compiler is missing for every kernel.
        self.reason = f"{driver.name}: {error}"
        super().__init__(f"the kernel {name} could not be made for {self.reason}{_place(source, error)}")


def _place(source: str, error: Exception) -> str:
    if isinstance(error, CompileError):
        return ""  # says it
    try:
        return f"; its source: {keep_source(source)}"
    except OSError as problem:
        return f"; its source could not be kept: {problem}"


_told: set[str] = set()


def refuse(op: str, failure: NotCompiled) -> None:
    """Warns once per reason; where a fallback of the op is an error, this is the error that says why."""
    if ledger.policy_of(op) == "error":
        raise RuntimeError(f"{op}: {failure}") from failure
    if failure.reason not in _told:
        _told.add(failure.reason)
        message = f"{op} runs without a kernel (bringup.fallbacks() counts what runs on the CPU): {failure}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
