"""QEMU's debugger port: stops, registers and breakpoints, over a Unix socket, with many requests in one go."""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

#: What a trap changes, and what is read after every stop.
OF_A_TRAP = ("mepc", "mcause", "mtval")
WATCHED = ("mstatus", "mie", "mtvec", *OF_A_TRAP, "minstret")
_PACKET = re.compile(rb"\$([^#]*)#..", re.DOTALL)
_REGISTER = re.compile(rb"<reg ([^>]*)/>")
_ATTRIBUTE = re.compile(rb'(\w+)="([^"]*)"')


class PeerGone(ConnectionError):
    """QEMU ended."""


class GdbPort:
    """A connection to QEMU's gdb server.

    Requests are sent together and answered in order: the ``$`` of the next packet acknowledges an answer, too, so
    a stop with a dozen registers costs two trips instead of a dozen.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self._received = b""
        self._socket = _connect(path, timeout)
        self.numbers: dict[str, tuple[int, int]] = {}
        self._read_description()

    def ask(self, *requests: bytes, timeout: float = 10.0) -> list[bytes]:
        """The answers to some requests."""
        self.send(*requests)
        return [self.answer(timeout) for _ in requests]

    def send(self, *requests: bytes) -> None:
        """Sends requests without waiting for answers."""
        try:
            self._socket.sendall(b"".join(b"$%s#%02x" % (request, sum(request) & 0xFF) for request in requests))
        except OSError as error:
            raise PeerGone(f"QEMU has gone: {error.strerror}") from error

    def answer(self, timeout: float) -> bytes:
        """The next answer; TimeoutError if there is none in time."""
        end = time.monotonic() + timeout
        while (packet := _PACKET.search(self._received)) is None:
            if not select.select([self._socket], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError
            part = self._socket.recv(1 << 16)
            if not part:
                raise PeerGone("QEMU has gone")
            self._received += part
        self._received = self._received[packet.end() :]
        return packet[1]

    def interrupt(self) -> None:
        """Stops a running guest; the answer to its `c` comes then."""
        self._socket.sendall(b"\x03")

    def read_registers(self, names: Sequence[str]) -> tuple[list[int], dict[str, int]]:
        """x0…x31 and pc, and the registers of those names."""
        numbers = [self.numbers[name][0] for name in names]
        everything, *rest = self.ask(b"g", *(b"p%x" % number for number in numbers))
        width = self.numbers["pc"][1] // 8
        data = bytes.fromhex(everything.decode())
        general = [int.from_bytes(data[at * width : (at + 1) * width], "little") for at in range(33)]
        return general, {name: _number(name, text) for name, text in zip(names, rest)}

    def read_register(self, name: str) -> int:
        """One register."""
        return _number(name, self.ask(b"p%x" % self.numbers[name][0])[0])

    def writes(self, values: Mapping[str, int]) -> list[bytes]:
        """Requests that change registers; each is answered with OK."""
        requests = []
        for name, value in values.items():
            number, bits = self.numbers[name]
            requests.append(b"P%x=%s" % (number, value.to_bytes(bits // 8, "little").hex().encode()))
        return requests

    def expect_ok(self, requests: Iterable[bytes]) -> None:
        """Requests that must be answered with OK."""
        requests = list(requests)
        for request, answer in zip(requests, self.ask(*requests)):
            if answer != b"OK":
                raise RuntimeError(f"QEMU's debugger port answered {answer!r} to {request!r}")

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

    def _read_description(self) -> None:
        """Which numbers the registers have in this QEMU."""
        target = self._file(b"target.xml")
        number = 0
        for name in re.findall(rb'href="([^"]+)"', target):
            for found in _REGISTER.finditer(self._file(name)):
                attributes = dict(_ATTRIBUTE.findall(found[1]))
                number = int(attributes.get(b"regnum", number))
                self.numbers[attributes[b"name"].decode()] = number, int(attributes[b"bitsize"])
                number += 1
        for number, name in enumerate(("zero", "ra", "sp", "gp", "tp")):
            if self.numbers.get(name, (-1, 0))[0] != number:
                raise RuntimeError("QEMU's debugger port describes its registers in an unknown way")

    def _file(self, name: bytes) -> bytes:
        text = b""
        while True:
            part = self.ask(b"qXfer:features:read:%s:%x,%x" % (name, len(text), 0x800))[0]
            if part[:1] not in (b"m", b"l"):
                raise RuntimeError(f"QEMU's debugger port does not describe its registers: {part!r}")
            text += part[1:]
            if part[:1] == b"l":
                return text


class QemuHart:
    """The registers of a stopped QEMU: read at once, changes are kept until it goes on."""

    def __init__(self, port: GdbPort, xlen: int) -> None:
        self._port, self._mask = port, (1 << xlen) - 1
        self.names = sorted(port.numbers, key=lambda name: port.numbers[name][0])
        self.general: list[int] = [0] * 33
        self.csrs: dict[str, int] = {}
        self.changed: dict[str, int] = {}

    def fetch(self) -> None:
        """Reads the registers after a stop."""
        self.general, self.csrs = self._port.read_registers(WATCHED)
        self.changed = {}

    @property
    def pc(self) -> int:
        """Where it is."""
        return self.general[32]

    @pc.setter
    def pc(self, value: int) -> None:
        self.general[32] = self.changed["pc"] = value & self._mask

    def x(self, number: int) -> int:
        """An integer register."""
        return self.general[number]

    def set_x(self, number: int, value: int) -> None:
        """Changes one; x0 stays 0."""
        if number:
            self.general[number] = self.changed[self.names[number]] = value & self._mask

    def f(self, number: int) -> int:
        """The bits of a floating-point register."""
        return self._port.read_register(self.names[33 + number])

    def set_f(self, number: int, value: int) -> None:
        """Changes one."""
        name = self.names[33 + number]
        self.changed[name] = value & ((1 << self._port.numbers[name][1]) - 1)

    def csr(self, name: str) -> int:
        """A control register."""
        return self.csrs[name]

    def set_csr(self, name: str, value: int) -> None:
        """Changes one."""
        self.csrs[name] = self.changed[name] = value & self._mask


def _number(name: str, text: bytes) -> int:
    if not text or text[:1] == b"E":
        raise RuntimeError(f"QEMU's debugger port gives no {name}: {text!r}")
    return int.from_bytes(bytes.fromhex(text.decode()), "little")


def _connect(path: Path, timeout: float) -> socket.socket:
    end = time.monotonic() + timeout
    while True:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.connect(str(path))
            return peer
        except OSError:
            peer.close()
            if time.monotonic() > end:
                raise TimeoutError from None
        time.sleep(0.002)
