"""Compute: adds, subtracts, multiplies or divides two words, and asks another one of its kind for its result."""

from __future__ import annotations

from bringup.riscv.device import Alarm, Device, DeviceError
from bringup.riscv.register_names import read_only, register

BASE = 0x1030_0000
REGISTERS = {
    0x00: "OPERAND_A",
    0x04: "OPERAND_B",
    0x08: "OPERATION",
    0x0C: "RESULT",
    0x10: "STATUS",
    0x14: "CONTROL",
    0x18: "PEER_OUT",
    0x1C: "PEER_IN",
}
ADD, SUB, MUL, DIV = range(4)
BUSY, READY, ERROR, PEER = 1, 2, 4, 8
RESET, TRIGGER = 1, 2


class Compute(Device):
    """OPERAND_A (operation) OPERAND_B, as unsigned words, ``latency`` instructions after a trigger.

    A division by zero and an unknown operation end with the error bit alone, not ready, and RESULT 0: firmware that
    waits for READY must look for ERROR, too. With a ``peer`` (each becomes the other's), a store to PEER_OUT asks the
    peer, which answers ``latency`` instructions later with what its RESULT is by then: the answer is in PEER_IN here,
    where the peer bit stands until it is read.
    """

    def __init__(self, latency: int = 8, peer: Compute | None = None) -> None:
        if latency < 0:
            raise ValueError(f"latency is {latency}; it counts instructions, 0 or more")
        if peer is not None and not isinstance(peer, Compute):
            raise TypeError(
                f"the peer of a Compute is another Compute, not {type(peer).__name__}: it is asked for its RESULT, and "
                f"{type(peer).__name__} has no RESULT; give Compute(peer=Compute()), or a subclass of Compute"
            )
        self.latency = latency
        self.peer: Compute | None = None
        self._reset()
        if peer is not None:
            if peer.peer is not None:
                raise ValueError("the peer of this Compute has a peer already")
            self.peer, peer.peer = peer, self

    def _reset(self) -> None:
        self.values = dict.fromkeys(REGISTERS.values(), 0)
        self._work: Alarm | None = None
        self._answer: Alarm | None = None

    def read(self, offset: int, size: int) -> int:
        """Any register; PEER_IN clears the peer bit."""
        name = register(self, REGISTERS, offset, size)
        if name == "PEER_IN":
            self.values["STATUS"] &= ~PEER
        return self.values[name]

    def write(self, offset: int, size: int, value: int) -> None:
        """Operands, CONTROL (reset, trigger) and PEER_OUT."""
        name = register(self, REGISTERS, offset, size)
        if name in ("RESULT", "STATUS", "PEER_IN"):
            raise read_only(self, name)
        if name == "CONTROL":
            self._control(value)
        elif name == "PEER_OUT":
            if self.peer is None:
                raise DeviceError(
                    "Compute: PEER_OUT was written, but there is no peer; make it with Compute(peer=other)"
                )
            self.values[name] = value
            if self._answer:  # as the words on a wire: the last question counts
                self._answer.cancel()
            self._answer = self.after(self.latency, self._receive)
        else:
            self.values[name] = value

    def _control(self, value: int) -> None:
        self.values["CONTROL"] = value
        if value & RESET:
            for alarm in (self._work, self._answer):
                if alarm:
                    alarm.cancel()
            self._reset()
        if value & TRIGGER:
            if self.values["STATUS"] & BUSY:
                raise DeviceError("Compute: triggered while busy; wait until STATUS is ready")
            self.values["STATUS"] = self.values["STATUS"] & PEER | BUSY
            result, error = _compute(*(self.values[name] for name in ("OPERATION", "OPERAND_A", "OPERAND_B")))
            self._work = self.after(self.latency, lambda: self._finish(result, error))

    def _finish(self, result: int, error: bool) -> None:
        self.values["RESULT"] = result
        self.values["STATUS"] = self.values["STATUS"] & PEER | (ERROR if error else READY)

    def _receive(self) -> None:
        assert self.peer is not None, "nothing is asked without a peer"
        self.values["PEER_IN"] = self.peer.values["RESULT"]
        self.values["STATUS"] |= PEER


def _compute(operation: int, a: int, b: int) -> tuple[int, bool]:
    """The 32-bit result and whether it is an error."""
    if operation > DIV or (operation == DIV and b == 0):
        return 0, True
    result = a // b if operation == DIV else (a + b, a - b, a * b)[operation]
    return result & 0xFFFF_FFFF, False
