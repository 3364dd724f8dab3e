"""Calls without a kernel, and kernels that could not be made."""

from __future__ import annotations

from bringup.driver import Driver
from bringup.targets.toolchain import CompileError, keep_source


class NoKernel(Exception):
    """This call has no kernel (a dtype or a case that the lowering leaves out): the op goes the next route."""


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
