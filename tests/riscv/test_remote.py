"""Devices in another process: the wire format, a peer in Python, and peers that are dead, slow or wrong."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bringup.riscv import GuestError, Stop, open_machine
from bringup.riscv.device import Device, DeviceError
from bringup.riscv.echo import Echo
from bringup.riscv.remote import serve
from tests.riscv.firmware_programs import SPEC, build, machines, need

SERVER = """
import sys
from bringup.riscv.echo import Echo
from bringup.riscv.remote import serve
serve(Echo(latency=2), sys.argv[1], connections=int(sys.argv[2]))
"""
FIRMWARE = """
#include <stdint.h>
#define ECHO ((volatile uint32_t *)0x10200000)
int main(void) {
  for (uint32_t word = 1; word < 4; word++) {
    ECHO[0] = word * 1000;
    while (ECHO[2] & 1) {
    }
    if (ECHO[1] != word * 1000) return 1;
  }
  return 0;
}
"""


@contextlib.contextmanager
def peer(path: Path, talk: Callable[[socket.socket], None]) -> Iterator[None]:
    """A peer in a thread that does what a test wants with the one who calls."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)

        def work() -> None:
            caller, _ = listener.accept()
            with caller:
                talk(caller)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield
        thread.join(10)
        assert not thread.is_alive()


@machines
def test_a_device_in_a_second_process_serves_a_guest(machine: str, tmp_path: Path) -> None:
    need(machine)
    path = tmp_path / "echo"
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(path), "2"])
    try:
        counts = []
        for _ in range(2):
            remote = Device.remote(path)
            with open_machine(machine, build(FIRMWARE), SPEC, {0x1020_0000: remote}) as guest:
                assert guest.run() == Stop("exit", 0)
                counts.append(guest.counts.instructions)
            remote.close()
        assert counts[0] == counts[1]
        assert server.wait(10) == 0
        assert not path.exists()
    finally:
        server.kill()
        server.wait()


def test_the_wire_format_is_that_of_the_fact_sheet(tmp_path: Path) -> None:
    requests: list[bytes] = []

    def talk(caller: socket.socket) -> None:
        for data in (0, 0x1122_3344_5566_7788):
            requests.append(caller.recv(64))
            caller.sendall(bytes([1]) + bytes(7) + data.to_bytes(8, "little"))

    with peer(tmp_path / "peer", talk):
        device = Device.remote(tmp_path / "peer", base=0x1020_0000)
        device.write(8, 4, 0xCAFE)
        assert device.read(0x10, 8) == 0x1122_3344_5566_7788
    assert requests[0] == bytes([1, 4, 0, 0]) + struct.pack("<QQ", 0x1020_0008, 0xCAFE)
    assert requests[1] == bytes([0, 8, 0, 0]) + struct.pack("<QQ", 0x1020_0010, 0)


def test_a_peer_that_does_not_answer(tmp_path: Path) -> None:
    asked = threading.Event()
    with peer(tmp_path / "slow", lambda caller: (caller.recv(20), asked.wait(5))[0] and None):
        device = Device.remote(tmp_path / "slow", timeout=0.2)
        started = time.monotonic()
        with pytest.raises(DeviceError, match=r"slow: no reply within 0.2 s to the read of 4 bytes at offset 0x8"):
            device.read(8, 4)
        assert time.monotonic() - started < 4
        asked.set()
        with pytest.raises(DeviceError, match=r"slow: .* write of 1 bytes at offset 0x3"):
            device.write(3, 1, 0)  # a late answer to the first must not be taken for one to this


def test_a_peer_that_answers_in_pieces(tmp_path: Path) -> None:
    def talk(caller: socket.socket) -> None:
        caller.recv(20)
        for byte in bytes([1]) + bytes(7) + (9).to_bytes(8, "little"):
            caller.sendall(bytes([byte]))
            time.sleep(0.005)

    with peer(tmp_path / "peer", talk):
        assert Device.remote(tmp_path / "peer").read(0, 4) == 9


@pytest.mark.parametrize("answer", [b"", b"\x01\x00\x00"])
def test_a_peer_that_hangs_up(tmp_path: Path, answer: bytes) -> None:
    def talk(caller: socket.socket) -> None:
        caller.recv(20)
        caller.sendall(answer)

    with peer(tmp_path / "peer", talk):
        device = Device.remote(tmp_path / "peer")
        with pytest.raises(DeviceError, match=r"peer: the peer hung up.* read of 4 bytes at offset 0x0"):
            device.read(0, 4)


def test_a_peer_that_refuses(tmp_path: Path) -> None:
    def talk(caller: socket.socket) -> None:
        caller.recv(20)
        caller.sendall(bytes(16))

    with peer(tmp_path / "peer", talk), pytest.raises(DeviceError, match="refused the write of 2 bytes at offset 0x6"):
        Device.remote(tmp_path / "peer").write(6, 2, 1)


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"nobody: nothing listens there after 0.1 s; start the peer first"):
        Device.remote(tmp_path / "nobody", timeout=0.1)
    with pytest.raises(ValueError, match="at most 107 bytes"):
        Device.remote(tmp_path / ("x" * 200))
    with pytest.raises(ValueError, match="more than 0 seconds"):
        Device.remote(tmp_path / "x", timeout=0)


def test_the_guest_stops_where_it_was_when_the_peer_dies(tmp_path: Path) -> None:
    def talk(caller: socket.socket) -> None:
        caller.recv(20)

    with peer(tmp_path / "peer", talk):
        device = Device.remote(tmp_path / "peer")
        with open_machine("interpreter", build(FIRMWARE), SPEC, {0x1020_0000: device}) as guest:
            with pytest.raises(GuestError, match="hung up in the write of 4 bytes at offset 0x0") as caught:
                guest.run()
            assert (caught.value.function, caught.value.line) == ("main", "firmware.c:6")


def test_what_the_wire_does_not_carry_is_an_error(tmp_path: Path) -> None:
    with peer(tmp_path / "peer", lambda caller: None):
        device = Device.remote(tmp_path / "peer")
        with pytest.raises(DeviceError, match="no access to guest memory"):
            _ = device.mem
        with pytest.raises(DeviceError, match="no interrupts"):
            device.irq()


class Wants(Device):
    """A device that needs more than registers."""

    def read(self, offset: int, size: int) -> int:
        if offset == 0:
            self.irq()
        return len(self.mem.read(0x8000_0000, 4))


def test_a_served_device_has_registers_and_time_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wants"
    server = threading.Thread(target=serve, args=(Wants(), path), kwargs={"connections": 1}, daemon=True)
    server.start()
    remote = Device.remote(path)
    for offset in (0, 4, 0x2000):
        with pytest.raises(DeviceError, match="refused the read"):
            remote.read(offset, 4)
    remote.close()
    server.join(10)
    said = capsys.readouterr().out
    assert "the wire format has no interrupts" in said
    assert "not within memory" in said
    assert "no device at 0x2000" in said


def test_a_socket_that_a_killed_server_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "echo"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    server = threading.Thread(target=serve, args=(Echo(latency=0), path), kwargs={"connections": 1}, daemon=True)
    server.start()
    remote = Device.remote(path)
    remote.write(0, 4, 3)
    assert remote.read(4, 4) == 3
    remote.close()
    server.join(10)
    assert not path.exists()


def test_what_is_not_a_servers_own_socket_stays(tmp_path: Path) -> None:
    """A file of the user's, another server's socket, and one that took the place of ours while we served."""
    notes = tmp_path / "notes"
    notes.write_text("keep")
    with pytest.raises(FileExistsError, match="not a socket"):
        serve(Echo(), notes)
    assert notes.read_text() == "keep"

    path = tmp_path / "echo"
    server = threading.Thread(target=serve, args=(Echo(latency=0), path), kwargs={"connections": 1}, daemon=True)
    server.start()
    remote = Device.remote(path)
    with pytest.raises(FileExistsError, match="another server"):
        serve(Echo(), path)
    remote.write(0, 4, 3)
    assert remote.read(4, 4) == 3
    path.unlink()
    path.write_text("mine")
    remote.close()
    server.join(10)
    assert not server.is_alive()
    assert path.read_text() == "mine"
