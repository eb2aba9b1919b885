"""The figures pushed to a Pushgateway: one group a daemon, replaced at each push, deleted when it ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import (
    basic_auth_handler,
    default_handler,
    delete_from_gateway,
    push_to_gateway,
)

from monitor.config import PushgatewaySettings

_EMPTY = CollectorRegistry()
"""prometheus_client makes the request; the page is ours."""


class Pushgateway:
    """One gateway. The password's file is read at each push, so that it may be renewed under the daemon."""

    def __init__(self, settings: PushgatewaySettings, instance: str) -> None:
        self._settings = settings
        self._group = {"instance": settings.instance or instance}

    @property
    def name(self) -> str:
        """The name in the configuration."""
        return self._settings.name

    def write(self, page: bytes) -> None:
        """PUT: a run that is no longer exported disappears from the gateway too. Raises OSError or HTTPException."""
        handler = partial(self._handler, page=page)
        where = self._settings
        push_to_gateway(where.url, where.job, _EMPTY, self._group, timeout=where.timeout, handler=handler)

    def remove(self) -> None:
        """Delete the group: a gateway keeps the last push. Raises OSError or HTTPException."""
        where = self._settings
        delete_from_gateway(where.url, where.job, self._group, timeout=where.timeout, handler=self._handler)

    def _handler(
        self,
        url: str,
        method: str,
        timeout: float | None,
        headers: list[tuple[str, str]],
        data: bytes,
        page: bytes = b"",
    ) -> Callable[[], None]:
        body, where = data or page, self._settings
        if where.username is None or where.password_file is None:
            return default_handler(url, method, timeout, headers, body)
        password = Path(where.password_file).read_text("utf-8").strip("\r\n")
        return basic_auth_handler(url, method, timeout, headers, body, where.username, password)
