"""What the daemon serves and sends, each on threads of its own: HTTP, outputs, notifications.

They read Snapshots and are given transitions; none of them sees the core.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import NamedTuple

from monitor.clock import Clock
from monitor.config import Config, host_and_port
from monitor.incidents import Transition
from monitor.metrics import MonitorCounts
from monitor.notifiers import NotificationQueue
from monitor.outputs import Outputs
from monitor.serve.auth import BasicAuth
from monitor.serve.http import App
from monitor.serve.latest import Latest
from monitor.serve.server import HttpServer
from monitor.serve.tls import Tls, TlsError

_STOP_SECONDS = 0.8  # for each group of threads at the end: with the save, SIGTERM is done within 5 s
_DELIVER_SECONDS = 30.0  # for what is queued for notifiers that a new configuration replaces, in a thread of its own


class StartError(Exception):
    """The daemon cannot start; the message gives the reason and what to do."""


class Prepared(NamedTuple):
    """What of a new configuration may be wrong, built before anything is changed by it."""

    tls: Tls | None
    auth: BasicAuth | None
    notifications: NotificationQueue | None


class Services:
    """Made from a configuration; bound to its address at once."""

    def __init__(self, config: Config, latest: Latest, clock: Clock, turned: Callable[[], float]) -> None:
        """`turned`: monotonic second of the loop's last turn. Raises StartError, ConfigError."""
        self._config = config
        self._latest = latest
        self._clock = clock
        self._notifications = NotificationQueue(config.notifiers, clock=clock)
        host, port = host_and_port(config.listen)
        try:
            tls, auth = _secured(config)
            self._server = HttpServer(host, port, App(latest, clock, turned, latest.figures))
        except TlsError as error:
            raise StartError(f"web.tls_server_config: {error}") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise StartError(
                f"cannot listen on {config.listen}: {reason}; is another megatron-monitor running? "
                "Choose another address with --listen"
            ) from error
        self._server.tls, self._server.auth = tls, auth
        self._outputs = self._made_outputs()

    @property
    def address(self) -> str:
        """host:port that HTTP listens on."""
        host, port = self._server.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> None:
        """Begin to answer, write and send."""
        self._notifications.start()
        self._server.start()
        self._outputs.start()

    def notify(self, transition: Transition) -> None:
        """Send it to whoever wants it."""
        self._notifications.put(transition)

    def count(self, counts: MonitorCounts) -> None:
        """Into `counts`: what was sent, written and connected."""
        for (notifier, outcome), count in self._notifications.counts().items():
            counts.set("notifications_total", count, notifier, outcome)
        for (output, written), count in self._outputs.counts().items():
            counts.set("output_writes_total", count, output, written)
        counts.set("http_connections", self._server.connections)

    def prepare(self, config: Config) -> Prepared:
        """Build what can fail, change nothing. Raises ConfigError, TlsError."""
        tls, auth = _secured(config) if config.web != self._config.web else (None, None)
        changed = config.notifiers != self._config.notifiers
        queue = NotificationQueue(config.notifiers, clock=self._clock) if changed else None
        return Prepared(tls, auth, queue)

    def apply(self, config: Config, prepared: Prepared) -> None:
        """Go on by another configuration."""
        before, self._config = self._config, config
        if prepared.notifications is not None:
            old, self._notifications = self._notifications, prepared.notifications
            self._notifications.start()
            threading.Thread(target=old.stop, args=(_DELIVER_SECONDS,), name="old notifiers", daemon=True).start()
        if config.web != before.web:
            self._server.tls, self._server.auth = prepared.tls, prepared.auth
        if config.outputs != before.outputs:
            self._outputs.stop(_STOP_SECONDS)
            self._outputs = self._made_outputs()
            self._outputs.start()

    def stop(self) -> None:
        """End every thread."""
        self._notifications.stop(_STOP_SECONDS)
        self._outputs.stop(_STOP_SECONDS)
        self.stop_server()

    def stop_server(self) -> None:
        """Give the address back."""
        self._server.stop(_STOP_SECONDS)
        if self._server.auth is not None:
            self._server.auth.close()

    def _made_outputs(self) -> Outputs:
        instance = f"{socket.gethostname()}:{self._server.address[1]}"
        return Outputs(self._config.outputs, self._latest.figures, instance)


def _secured(config: Config) -> tuple[Tls | None, BasicAuth | None]:
    """Raises TlsError."""
    web = config.web
    tls = Tls(web.tls_server_config) if web.tls_server_config is not None else None
    return tls, BasicAuth(web.basic_auth_users) if web.basic_auth_users else None
