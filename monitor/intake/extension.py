"""The receiver beside the daemon: takes pushed logs over the network into a spool, which the observer follows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from megatron_monitor.config import Config, host_and_port, spool_directory
from megatron_monitor.extensions import Service
from megatron_monitor.intake.door import Door
from megatron_monitor.intake.labels import followed
from megatron_monitor.serve.auth import Auth, is_loopback
from megatron_monitor.services import StartError

if TYPE_CHECKING:
    from megatron_monitor.daemon import Daemon
    from megatron_monitor.snapshot import MonitorCounts

_log = logging.getLogger(__name__)

_STOP_SECONDS = 0.8  # for its threads at the end


class Receiver(Service):
    """Listens from `start` to `close`."""

    fixed = ("receiver.listen", "receiver.spool_size")

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._door: Door | None = None

    def follow(self, config: Config) -> Config:
        """The spool is followed beside what the configuration names."""
        directory = spool_directory(config)
        return followed(config, directory) if directory is not None else config

    def start(self) -> None:
        """Open the spool and listen. Raises StartError."""
        daemon, config = self._daemon, self._daemon.followed
        listen, directory = config.receiver.listen, spool_directory(config)
        assert listen is not None
        assert directory is not None
        try:
            self._door = door = Door(config, *host_and_port(listen), directory, daemon.clock)
            door.open()
        except OSError as error:
            raise StartError(
                f"receiver: cannot listen on {listen} or use {directory}: {error.strerror or error}"
            ) from error
        self._secure(config)
        daemon.live.carriers, door.on_new = door.heard, daemon.live.search
        door.server.start()
        _log.info("logs may be pushed to %s:%d", *door.server.address)

    def _secure(self, config: Config) -> None:
        """Who may push; by the certificate and, unless it has its own, the passwords of the page."""
        assert self._door is not None
        server, asks, web = self._door.server, config.receiver, config.web
        users, tokens = asks.basic_auth_users or web.basic_auth_users, asks.bearer_tokens.values()
        server.tls, server.auth = self._daemon.services.tls, Auth(users, tokens) if users or tokens else None
        asked = web.tls_server_config is not None and web.tls_server_config.client_ca_file is not None
        if not (is_loopback(server.address[0]) or server.auth is not None or asked):
            _log.warning(
                "receiver.listen=%s: whoever reaches it can push lines: see receiver.basic_auth_users", server.address
            )

    @property
    def notice(self) -> str:  # type: ignore[override]
        """Says that lines come which name no run."""
        return self._door.unnamed if self._door is not None else ""

    def count(self, counts: MonitorCounts) -> None:
        """What was pushed, and which agents are heard."""
        if self._door is not None:
            self._door.count(counts)

    def configure(self, config: Config) -> None:
        """Name runs by another configuration from the next push on."""
        if self._door is not None:
            config = self.follow(config)
            self._door.configure(config)
            self._secure(config)

    def close(self) -> None:
        """Give the address back."""
        if self._door is not None:
            self._door.stop(_STOP_SECONDS)


def for_daemon(daemon: Daemon) -> Receiver | None:
    """None unless the configuration lets agents push."""
    return Receiver(daemon) if daemon.config.receiver.listen is not None else None
