"""Chooses a driver where none was named: the one installed driver that has a device, else ``sim``.

An installed driver is an entry point of the group ``bringup.drivers`` that another distribution brings. Nothing here
imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from bringup.driver import Driver
from bringup.driver.lookup import driver_of_entry, installed_entries

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DEFAULT = "sim"


class SeveralDrivers(RuntimeError):
    """More than one installed driver has a device, and nothing says which is meant; ``names`` are theirs."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


@dataclass(frozen=True)
class Probe:
    """What one installed driver answered when it was asked for its devices."""

    name: str
    distribution: str
    devices: int = 0
    driver: Driver | None = None
    error: BaseException | None = None

    def answer(self) -> str:
        """The answer in words: a count of devices, or what went wrong."""
        return f"{self.devices} device(s)" if self.error is None else f"{type(self.error).__name__}: {self.error}"


@dataclass(frozen=True)
class Choice:
    """The driver that was chosen, why, and what the installed ones answered."""

    name: str
    reason: str
    driver: Driver | None = None
    probes: tuple[Probe, ...] = ()


@cache
def default_choice() -> Choice:
    """Asks every installed driver for its devices, once per process; raises SeveralDrivers if two have some."""
    probes = tuple(_probe(entry) for entry in installed_entries())
    present = [probe for probe in probes if probe.devices]
    if len(present) > 1:
        listing = " and ".join(f"{probe.name} (from {probe.distribution})" for probe in present)
        names = " or ".join(f"BRINGUP_DRIVERS={probe.name}" for probe in present)
        both = ",".join(probe.name for probe in present)
        raise SeveralDrivers(
            f"{len(present)} installed drivers have a device: {listing}. Say which one this process uses: {names}, "
            f"or BRINGUP_DRIVERS={both} to have them all",
            tuple(probe.name for probe in present),
        )
    if present:
        [one] = present
        reason = f"the only installed driver that has a device ({one.distribution}: {one.devices})"
        return Choice(one.name, reason, one.driver, probes)
    if not probes:
        return Choice(DEFAULT, "no other driver is installed")
    return Choice(DEFAULT, f"no installed driver has a device ({_answers(probes)})", probes=probes)


def failed_probes() -> tuple[Probe, ...]:
    """The installed drivers that could not even be asked; empty before ``default_choice``."""
    return tuple(probe for probe in default_choice().probes if probe.error is not None)


def _answers(probes: tuple[Probe, ...]) -> str:
    return "; ".join(f"{probe.name} from {probe.distribution}: {probe.answer()}" for probe in probes)


def _probe(entry: EntryPoint) -> Probe:
    name, distribution = entry.name, entry.dist.name if entry.dist is not None else "an unnamed distribution"
    try:
        driver = driver_of_entry(entry)
        return Probe(name, distribution, int(driver.device_count()), driver)
    except (Exception, SystemExit) as error:
        return Probe(name, distribution, error=error)


class FailedDriver(Driver):
    """Stands in for a driver that was asked for and could not be activated: no device, and ``cause`` says why."""

    def __init__(self, name: str, cause: BaseException) -> None:
        self.name = name  # type: ignore[misc]
        self.cause = cause

    def device_count(self) -> int:
        """No device."""
        return 0

    def absent_reason(self) -> str:
        """What went wrong at activation."""
        return f"bringup is not active: {self.cause}"

    def _refuse(self, *_: Any) -> Any:
        raise RuntimeError(self.absent_reason()) from self.cause

    open: Any = _refuse
    alloc: Any = _refuse
    free: Any = _refuse
    copy: Any = _refuse
