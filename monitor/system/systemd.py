"""Notifies systemd by sd_notify(3): datagrams to $NOTIFY_SOCKET. Without the variable nothing is sent.

Rule: no call blocks or raises. Only the loop feeds the watchdog, so systemd restarts a daemon with a stalled loop.
"""

import contextlib
import socket
from collections.abc import Mapping


class ServiceManager:
    """systemd, if it started this process: `environ` then has NOTIFY_SOCKET and WATCHDOG_USEC."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_seconds = int(environ.get("WATCHDOG_USEC", "0")) / 1e6 if address else 0.0
        """Seconds without a notification after which systemd restarts this process; 0: never."""
        self.listens = bool(address)
        """True if systemd is to be notified."""
        self._fed_at = float("-inf")
        self._status = ""

    def ready(self) -> None:
        """The daemon has started or reloaded."""
        self._send("READY=1")

    def reloading(self, monotonic: float) -> None:
        """The configuration is read again; `ready` follows. `monotonic`: CLOCK_MONOTONIC now, in seconds."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic * 1e6)}")

    def stopping(self) -> None:
        """The daemon is stopping."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Send a line for `systemctl status` if it has changed."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def turned(self, monotonic: float) -> None:
        """The loop has turned: feed the watchdog, three times in its timeout."""
        if self.watchdog_seconds and monotonic - self._fed_at >= self.watchdog_seconds / 3:
            self._fed_at = monotonic
            self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            channel.sendto(message.encode("utf-8", "replace"), self._address)
