"""What the daemon serves and writes, each on threads of its own: HTTP, outputs.

They read Snapshots; none of them sees the core.
"""

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

_STOP_SECONDS = 0.8  # for each group of threads at the end: with the save, SIGTERM is done within 5 s


class StartError(Exception):
    """The daemon cannot start; the message gives the reason and what to do."""


class Services:
    """Made from a configuration; bound to its address at once."""

    def __init__(self, config: Config, latest: LatestSnapshot, clock: Clock, turned: Callable[[], float]) -> None:
        """`turned`: monotonic second of the loop's last turn. Raises StartError, ConfigError."""
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
        """What every page begins with besides, if it is not empty."""
        self._secure(tls)
        self._scrapes = app.scrapes
        self._read_by = float("-inf")  # monotonic seconds: until then the last figures may not have been read
        instance = f"{socket.gethostname()}:{self._server.address[1]}"
        self._outputs = Outputs(config.outputs, partial(latest, FIGURES), instance)

    @property
    def tls(self) -> Tls | None:
        """How the page is encrypted."""
        return self._server.tls

    @property
    def address(self) -> str:
        """host:port that HTTP listens on."""
        host, port = self._server.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def page_url(self) -> str | None:
        """Where people reach the page; None if that is not known."""
        if self._config.external_url is not None:
            return self._config.external_url.rstrip("/") + "/"
        host, port = self._server.address
        if host == "localhost" or ip_address(host).is_loopback:
            return None
        host = socket.gethostname() if ip_address(host).is_unspecified else f"[{host}]" if ":" in host else host
        return f"{'https' if self._config.web.tls_server_config else 'http'}://{host}:{port}/"

    def _secure(self, tls: Tls | None) -> None:
        """Who is let in, and under which names; a warning where everybody is."""
        web, server = self._config.web, self._server
        server.tls, server.auth = tls, Auth(web.basic_auth_users) if web.basic_auth_users else None
        public = urlsplit(self._config.external_url or "").hostname
        listen = host_and_port(self._config.listen)[0]
        server.hosts = Hosts(listen, server.address[0], web.allowed_hosts, public)
        asked = web.tls_server_config is not None and web.tls_server_config.client_ca_file is not None
        self._app.notice = ""
        if not (is_loopback(server.address[0]) or server.auth is not None or asked):
            self._app.notice = f"Whoever reaches {self.address} reads this: no password is asked (web.basic_auth_users)"
            _log.warning("listen=%s is open to other hosts without a password: see web: in config.yaml", self.address)
        self._notice = self._app.notice

    def links(self, message: Transition) -> dict[str, str]:
        """What a person who reads the message may open."""
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
        """Into `counts`: what was written and connected."""
        for (output, written), count in self._outputs.counts().items():
            counts.set("output_writes_total", count, output, written)
        counts.set("http_connections", self._server.connections)
        self._app.notice = ". ".join(filter(None, [self._notice, *(note() for note in self.notes)]))
        counts.clear("page_info")
        if (page := self.page_url) is not None:
            counts.set("page_info", 1.0, page)

    def write_last(self) -> None:
        """Outputs hold the present figures as soon as they can; whoever reads them there is waited for."""
        self._read_by = self._clock.monotonic() + self._outputs.write_last()

    def awaited_until(self, since: float) -> float:
        """When all that scrape, or read an output, should have seen what is shown `since`; -inf if they have."""
        read_by = self._read_by if self._clock.monotonic() < self._read_by else float("-inf")
        return max(read_by, self._scrapes.expected_until(since))

    def stop(self) -> None:
        """End every thread. The loop turns no more: an output that waited for it would leave its figures behind."""
        self._latest.end()
        self._outputs.stop(_STOP_SECONDS)
        self.stop_server()

    def stop_server(self) -> None:
        """Give the address back."""
        self._server.stop(_STOP_SECONDS)
        if self._server.auth is not None:
            self._server.auth.close()
