"""sim, with memory that the host does not see: collectives go through pinned memory."""

from __future__ import annotations

from dataclasses import replace

from bringup.driver import DeviceSpec
from bringup.drivers.sim import Driver as Sim


class Driver(Sim):
    name = "staged"

    def open(self, device: int) -> DeviceSpec:
        return replace(super().open(device), host_visible=False)
