"""Notifications to systemd: sd_notify(3) by datagrams to $NOTIFY_SOCKET, nothing if there is none.

Law: never waits, never raises. The watchdog is fed by the loop alone, so a loop that stalls is restarted by systemd.
"""

import contextlib
import socket
from collections.abc import Mapping


class ServiceManager:
    """systemd, or none. `environ` holds NOTIFY_SOCKET and WATCHDOG_USEC where it runs us."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_seconds = int(environ.get("WATCHDOG_USEC", "0")) / 1e6 if address else 0.0
        """systemd restarts us after this long without a sign; 0: it does not."""
        self.listens = bool(address)
        """Is systemd there to be notified?"""
        self._fed_at = float("-inf")
        self._status = ""

    def ready(self) -> None:
        """Started, or reloaded."""
        self._send("READY=1")

    def reloading(self, monotonic: float) -> None:
        """The configuration is read again; `ready` follows. `monotonic`: CLOCK_MONOTONIC now, in seconds."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic * 1e6)}")

    def stopping(self) -> None:
        """On the way out."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`, sent when it changes."""
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
