"""What systemd is told, by a socket of our own in its place."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_monitor.system.systemd import ServiceManager


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A NOTIFY_SOCKET, of the abstract kind, which @ stands for."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(f"\0megatron-monitor-test-{os.getpid()}")
        channel.setblocking(False)
        yield channel


def reported(listener: socket.socket) -> list[str]:
    """Every message so far."""
    messages = []
    while True:
        try:
            messages.append(listener.recv(4096).decode())
        except BlockingIOError:
            return messages


def test_the_watchdog_is_fed_thrice_in_its_patience(listener: socket.socket) -> None:
    """Every third of WATCHDOG_USEC while the loop turns, and never more often."""
    where = listener.getsockname().decode().replace("\0", "@")
    manager = ServiceManager({"NOTIFY_SOCKET": where, "WATCHDOG_USEC": "3000000"})
    assert manager.watchdog_seconds == 3.0
    for tenth in range(31):
        manager.turned(100 + tenth / 10)
    assert reported(listener) == ["WATCHDOG=1"] * 4


def test_nobody_listens(tmp_path: Path) -> None:
    """Without systemd, or with a socket that is gone or full, nothing happens."""
    ServiceManager({}).ready()
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "none")}).ready()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "full"))
        manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "full")})
        for _ in range(5000):
            manager.ready()
