"""The daemon's HTTP server and outputs, on threads of their own. They read Snapshots, never the core."""

import logging
import socket
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from urllib.parse import quote, urlsplit

from megatron_monitor.config import Config, host_and_port
from megatron_monitor.incidents import Transition
from megatron_monitor.outputs import Outputs
from megatron_monitor.serve.auth import Auth, Hosts, is_loopback
from megatron_monitor.serve.http import App
from megatron_monitor.serve.latest import LatestSnapshot
from megatron_monitor.serve.server import HttpServer
from megatron_monitor.serve.tls import Tls, TlsError
from megatron_monitor.snapshot import FIGURES, MonitorCounts
from megatron_monitor.system.clock import Clock

_log = logging.getLogger(__name__)

_STOP_SECONDS = 0.8  # for each group of threads at the end: with the save, SIGTERM takes at most 5 s


class StartError(Exception):
    """The daemon cannot start. The message has the reason and what to do."""


class Services:
    """The HTTP server, which is bound to its address at once, and the outputs."""

    def __init__(self, config: Config, latest: LatestSnapshot, clock: Clock, turned: Callable[[], float]) -> None:
        """`turned` returns the monotonic second of the loop's last turn. Raises StartError, ConfigError."""
        self._config = config
        self._clock = clock
        self._latest = latest
        host, port = host_and_port(config.listen)
        try:
            tls = Tls(config.web.tls_server_config) if config.web.tls_server_config is not None else None
            self._app = app = App(latest, clock, turned)
            self._server = HttpServer(host, port, app)
        except TlsError as error:
            raise StartError(f"web.tls_server_config: {error}") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise StartError(
                f"cannot listen on {config.listen}: {reason}; is another megatron-monitor running? "
                "Choose another address with --listen"
            ) from error
        self.notes: list[Callable[[], str]] = []
        """Functions that return a further notice for the top of every page, or an empty text."""
        self._secure(tls)
        self._scrapes = app.scrapes
        self._read_by = float("-inf")  # monotonic second until which readers of the outputs may miss the final figures
        instance = f"{socket.gethostname()}:{self._server.address[1]}"
        self._outputs = Outputs(config.outputs, partial(latest, FIGURES), instance)

    @property
    def address(self) -> str:
        """HOST:PORT on which the server listens."""
        host, port = self._server.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def page_url(self) -> str | None:
        """The public address of the page; None if it is unknown."""
        if self._config.external_url is not None:
            return self._config.external_url.rstrip("/") + "/"
        host, port = self._server.address
        if host == "localhost" or ip_address(host).is_loopback:
            return None
        host = socket.gethostname() if ip_address(host).is_unspecified else f"[{host}]" if ":" in host else host
        return f"{'https' if self._config.web.tls_server_config else 'http'}://{host}:{port}/"

    def _secure(self, tls: Tls | None) -> None:
        """Set up authentication and allowed host names, with a warning if anyone has access."""
        web, server = self._config.web, self._server
        server.tls = tls
        self._auth = Auth(web.basic_auth_users)
        server.auth = self._auth.allows if web.basic_auth_users else None
        public = urlsplit(self._config.external_url or "").hostname
        listen = host_and_port(self._config.listen)[0]
        server.hosts = Hosts(listen, server.address[0], public)
        asked = web.tls_server_config is not None and web.tls_server_config.client_ca_file is not None
        self._app.notice = ""
        if not (is_loopback(server.address[0]) or server.auth is not None or asked):
            self._app.notice = f"{self.address} is readable without a password from other hosts (web.basic_auth_users)"
            _log.warning(
                "listen=%s is readable from other hosts without a password: see web: in config.yaml", self.address
            )
        self._notice = self._app.notice

    def links(self, message: Transition) -> dict[str, str]:
        """Return the links of a message: name -> address."""
        found = {}
        if (page := self.page_url) is not None:
            found["page"] = f"{page}runs/{quote(message.run, safe='')}"
        if self._config.runbook_url is not None:
            found["runbook"] = f"{self._config.runbook_url}#{message.incident.replace('_', '-')}"
        return found

    def start(self) -> None:
        """Begin to answer and write."""
        self._server.start()
        self._outputs.start()

    def count(self, counts: MonitorCounts) -> None:
        """Add the counts of outputs and connections to `counts`."""
        for (output, written), count in self._outputs.counts().items():
            counts.set("output_writes_total", count, output, written)
        counts.set("http_connections", len(self._server.open))
        self._app.notice = ". ".join(filter(None, [self._notice, *(note() for note in self.notes)]))
        counts.clear("page_info")
        if (page := self.page_url) is not None:
            counts.set("page_info", 1.0, page)

    def write_last(self) -> None:
        """Write the final figures to the outputs, and note until when their readers need."""
        self._read_by = self._clock.monotonic() + self._outputs.write_last()

    def awaited_until(self, since: float) -> float:
        """Return when all scrapers and readers of outputs should have the figures of `since`; -inf if they have."""
        read_by = self._read_by if self._clock.monotonic() < self._read_by else float("-inf")
        return max(read_by, self._scrapes.expected_until(since))

    def stop(self) -> None:
        """End every thread. The loop has ended, so requests for snapshots are refused first."""
        self._latest.end()
        self._outputs.stop(_STOP_SECONDS)
        self.stop_server()

    def stop_server(self) -> None:
        """Stop the server and release its address."""
        self._server.stop(_STOP_SECONDS)
        self._auth.close()
