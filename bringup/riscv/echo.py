"""Echo: gives back the word that was written to it, after a while. The smallest device with a status register."""

from __future__ import annotations

from bringup.riscv.device import Alarm, Device, DeviceError
from bringup.riscv.register_names import read_only, register

BASE = 0x1020_0000
REGISTERS = {0x0: "DATA_IN", 0x4: "DATA_OUT", 0x8: "STATUS", 0xC: "CONTROL"}
BUSY, READY = 1, 2
RESET = 1


class Echo(Device):
    """DATA_IN starts it: STATUS is busy for ``latency`` instructions, then ready, and DATA_OUT is what was written."""

    def __init__(self, latency: int = 8) -> None:
        if latency < 0:
            raise ValueError(f"latency is {latency}; it counts instructions, 0 or more")
        self.latency = latency
        self._reset()

    def _reset(self) -> None:
        self.data_in = self.data_out = self.status = 0
        self._work: Alarm | None = None

    def read(self, offset: int, size: int) -> int:
        """DATA_IN, DATA_OUT or STATUS; CONTROL reads as 0."""
        name = register(self, REGISTERS, offset, size)
        return {"DATA_IN": self.data_in, "DATA_OUT": self.data_out, "STATUS": self.status}.get(name, 0)

    def write(self, offset: int, size: int, value: int) -> None:
        """Starts (DATA_IN) or resets (CONTROL)."""
        name = register(self, REGISTERS, offset, size)
        if name == "DATA_IN":
            if self.status & BUSY:
                raise DeviceError("Echo: DATA_IN was written while busy; wait until STATUS is ready")
            self.data_in, self.status = value, BUSY
            self._work = self.after(self.latency, self._finish)
        elif name == "CONTROL":
            if value & RESET:
                if self._work:
                    self._work.cancel()
                self._reset()
        else:
            raise read_only(self, name)

    def _finish(self) -> None:
        self.data_out, self.status = self.data_in, READY
