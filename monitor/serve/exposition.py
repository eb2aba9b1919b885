"""/metrics: the text of text.py and the process's own families from prometheus_client, which also negotiates."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder, gzip_accepted

from monitor.prometheus_text import TextFormat
from monitor.serve.server import Reply, Request
from monitor.snapshot import Snapshot

_GZIP_LEVEL = 1  # ten times as fast as 9, and the page still shrinks to a tenth


class Exposition:
    """Answers /metrics in the format that the client accepts: text, or OpenMetrics, which Prometheus prefers."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        self._formats = {openmetrics: TextFormat(openmetrics=openmetrics) for openmetrics in (False, True)}

    def reply(self, request: Request) -> Reply:
        """The page, or with `?name[]=` these samples of it."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        ours = self._formats[content_type.startswith("application/openmetrics-text")]
        text = ours.page(self._snapshot()) + encode(self._process).decode()
        if names := parse_qs(request.query).get("name[]"):
            text = _chosen(text, frozenset(names))
        page, headers = text.encode(), [("Vary", "Accept, Accept-Encoding")]
        if gzip_accepted(request.headers.get("accept-encoding", "")):
            page = gzip.compress(page, _GZIP_LEVEL)
            headers.append(("Content-Encoding", "gzip"))
        return Reply(200, content_type, page, tuple(headers))


def _chosen(page: str, names: frozenset[str]) -> str:
    """The samples of these names, under the heads of their families."""
    out: list[str] = []
    head: list[str] = []
    for line in page.split("\n")[:-1]:
        if line == "# EOF":
            out.append(line)
        elif line.startswith("# HELP "):
            head = [line]
        elif line.startswith("# "):
            head.append(line)
        elif line.partition("{")[0].partition(" ")[0] in names:
            out += [*head, line]
            head = []
    return "".join(f"{line}\n" for line in out)
