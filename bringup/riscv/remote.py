"""Devices in another process: each access goes over a Unix socket to whoever serves the registers.

The wire format is that of the QEMU-SST infrastructure, little-endian: a request of 20 bytes
``{u8 type (0 read, 1 write), u8 size, u16 0, u64 address, u64 data}`` and a reply of 16 bytes
``{u8 ok, u8[7] 0, u64 data}``. So an SST component, SystemC or RTL under Verilator can be the peer; `serve` lets a
Python device be one. The format carries no memory access, no interrupt and no time.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import struct
import time
from pathlib import Path

import numpy as np

from bringup.riscv.device import Bus, Device, DeviceError, Memory

REQUEST = struct.Struct("<BBHQQ")
REPLY = struct.Struct("<B7xQ")
READ, WRITE = 0, 1
#: What the kernel allows for the path of a Unix socket.
LONGEST_PATH = 107


class RemoteDevice(Device):
    """A device served by another process; `Device.remote` makes one.

    It connects at once, waiting up to ``timeout`` seconds for the peer to listen; every access has that long, too.
    The address sent is ``base`` plus the offset in the device.
    """

    def __init__(self, socket_path: str | Path, *, timeout: float = 5.0, base: int = 0) -> None:
        if timeout <= 0:
            raise ValueError(f"timeout is {timeout}; it must be more than 0 seconds")
        self.path, self.timeout, self.base = _checked(socket_path), timeout, base
        self._socket = _connect(self.path, timeout)

    def read(self, offset: int, size: int) -> int:
        """Asks the peer."""
        return self._ask(READ, offset, size, 0)

    def write(self, offset: int, size: int, value: int) -> None:
        """Tells the peer, and waits until it has it."""
        self._ask(WRITE, offset, size, value)

    @property
    def mem(self) -> Memory:
        """There is none: the peer cannot reach the guest's memory."""
        raise DeviceError(f"remote device {self.path}: the wire format has no access to guest memory")

    def irq(self, level: bool = True) -> None:
        """There is none."""
        raise DeviceError(f"remote device {self.path}: the wire format has no interrupts; the guest must poll")

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

    def _ask(self, kind: int, offset: int, size: int, value: int) -> int:
        what = f"{'write' if kind else 'read'} of {size} bytes at offset {offset:#x}"
        try:
            self._socket.sendall(REQUEST.pack(kind, size, 0, self.base + offset, value))
            reply = _receive(self._socket, REPLY.size, self.timeout)
        except TimeoutError:
            self.close()  # a late reply would be taken for that of the next access
            raise DeviceError(f"remote device {self.path}: no reply within {self.timeout:g} s to the {what}") from None
        except OSError as error:
            raise DeviceError(f"remote device {self.path}: {error.strerror or error} in the {what}") from error
        if reply is None:
            self.close()
            raise DeviceError(f"remote device {self.path}: the peer hung up in the {what}")
        ok, data = REPLY.unpack(reply)
        if not ok:
            raise DeviceError(f"remote device {self.path}: the peer refused the {what}")
        return int(data)


class _NoGuest(Bus):
    """What a served device is connected to: time is the number of accesses, and there is neither memory nor guest."""

    def __init__(self, device: Device) -> None:
        self.accesses = 0
        super().__init__({0: device}, np.zeros(0, np.uint8), 0, lambda: self.accesses)

    def _check_places(self, ram_base: int, ram_bytes: int) -> None:
        """Nothing can be in the way."""

    def set_line(self, device: Device, level: bool) -> None:
        if level:
            raise DeviceError("a served device cannot interrupt: the wire format has no interrupts")


def serve(device: Device, socket_path: str | Path, *, base: int = 0, connections: int | None = None) -> None:
    """Serves a device's registers to guests in other processes, one guest at a time, until interrupted.

    A path that holds anything but the socket of a server that is gone is a FileExistsError. The device's time is the
    number of accesses so far. What it raises is printed and refuses the access. With
    ``connections`` it returns after that many guests.
    """
    path = _checked(socket_path)
    bus = _NoGuest(device)
    _make_room(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        ours = _file(path)
        try:
            listener.listen(1)
            while connections is None or connections > 0:
                peer, _ = listener.accept()
                with peer:
                    asked = _serve_peer(bus, peer, base)
                connections = None if connections is None else connections - asked
        finally:
            if _file(path) == ours:  # not replaced meanwhile
                os.unlink(path)


def _make_room(path: str) -> None:
    """Removes the socket of a server that was killed, and nothing else."""
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise FileExistsError(f"{path} is there, and it is not a socket: choose another path, or remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(1)
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except TimeoutError:  # its queue is full, so it listens
            pass
    raise FileExistsError(f"{path}: another server listens there")


def _file(path: str) -> tuple[int, int] | None:
    """Returns which file is under a path; None without one."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _serve_peer(bus: _NoGuest, peer: socket.socket, base: int) -> bool:
    """True if it was a guest; who only looks whether there is a server asks for nothing."""
    before = bus.accesses
    with contextlib.suppress(ConnectionError):  # a guest may stop at any time
        while (request := _receive(peer, REQUEST.size, None)) is not None:
            kind, size, _, address, value = REQUEST.unpack(request)
            data, ok = 0, 1
            try:
                if kind not in (READ, WRITE) or size not in (1, 2, 4, 8):
                    raise DeviceError(f"request of type {kind} for {size} bytes at {address:#x}")
                if kind == READ:
                    data = bus.read(address - base, size)
                else:
                    bus.write(address - base, size, value)
            except Exception as error:  # whatever the device's code raises must not end the service
                print(f"{type(error).__name__}: {error}", flush=True)
                ok = 0
            bus.accesses += 1
            peer.sendall(REPLY.pack(ok, data))
    return bus.accesses > before


def _checked(socket_path: str | Path) -> str:
    path = os.fspath(socket_path)
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ValueError(f"the path of a Unix socket has at most {LONGEST_PATH} bytes: {path}")
    return path


def _connect(path: str, timeout: float) -> socket.socket:
    end = time.monotonic() + timeout
    while True:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.settimeout(timeout)
        try:
            peer.connect(path)
            return peer
        except OSError as error:
            peer.close()
            # The peer may be starting: its socket is not there yet, or not listening yet.
            waiting = isinstance(error, (FileNotFoundError, ConnectionRefusedError))
            if not waiting or time.monotonic() >= end:
                reason = f"nothing listens there after {timeout:g} s" if waiting else error.strerror or str(error)
                raise DeviceError(f"remote device {path}: {reason}; start the peer first") from None
        time.sleep(0.01)


def _receive(peer: socket.socket, nbytes: int, timeout: float | None) -> bytes | None:
    """Exactly so many bytes; None when the other side hung up before the first, within one limit for all of them."""
    end = None if timeout is None else time.monotonic() + timeout
    received = b""
    while len(received) < nbytes:
        left = None if end is None else max(0.0, end - time.monotonic())
        if not select.select([peer], [], [], left)[0]:
            raise TimeoutError
        part = peer.recv(nbytes - len(received))
        if not part:
            if received:
                raise ConnectionResetError(f"the peer hung up after {len(received)} of {nbytes} bytes")
            return None
        received += part
    return received
