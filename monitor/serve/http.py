"""The application behind server.py: one table of paths, health, /metrics, security headers, gzip.

Law: a request reads one Snapshot and a clock, nothing else: no file of a log, no state of the loop's. The loop makes
the Snapshot when it is asked; who asks waits for a moment at most (latest.py).
"""

import gzip
import threading
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder, gzip_accepted

from megatron_monitor.prometheus_text import TextFormat
from megatron_monitor.serve.exchange import Reply, Request, text_reply
from megatron_monitor.serve.views import asked_by, static_reply, view_of
from megatron_monitor.snapshot import FIGURES, NOTHING, MetricSample, Snapshot, ViewRequest
from megatron_monitor.system.clock import Clock

_HEADER: Final = "x-prometheus-scrape-timeout-seconds"
"""Prometheus, its agents and vmagent send it with each scrape, nobody else does."""
_UNKNOWN: Final = 15.0  # seconds between two scrapes of one that came once: what deploy/prometheus/ ships
_LATE: Final = 1.25  # times its interval after which a scraper is not expected any more,
_ROUND_TRIP: Final = 1.0  # and seconds more
_PEERS: Final = 16  # scrapers that are remembered; a pair of Prometheus is two


class Scrapes:
    """Who scrapes, and how often, each one's last scrape and the time between its last two: an orderly stop serves each
    of them once more.

    A Prometheus whose target is gone cannot tell a stop from a death. The daemon therefore asks here whether a scraper
    is still to come (daemon.py). Only what says that it scrapes counts: a person's curl or a test is waited for by
    nobody. Called by HTTP threads and by the loop. Instants are monotonic seconds.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._scrapers: dict[str, tuple[float, float]] = {}  # address -> its last scrape, and its interval

    def answered(self, request: Request, asked_at: float) -> None:
        """A page that was asked for at `asked_at` is ready."""
        if _HEADER not in request.headers:
            return
        with self._guard:
            before, _ = self._scrapers.pop(request.peer, (asked_at - _UNKNOWN, _UNKNOWN))
            self._scrapers[request.peer] = asked_at, asked_at - before
            if len(self._scrapers) > _PEERS:
                del self._scrapers[next(iter(self._scrapers))]

    def expected_until(self, since: float) -> float:
        """When the last scraper that has not come after `since` should have come; -inf if all have."""
        with self._guard:
            waiting = [one for one in self._scrapers.values() if one[0] <= since]
        return max((at + _LATE * interval + _ROUND_TRIP for at, interval in waiting), default=float("-inf"))


_AGE = "megatron_monitor_snapshot_age_seconds"
_GZIP_LEVEL = 1  # ten times as fast as 9, and the page still shrinks to a tenth


class Exposition:
    """Answers /metrics in the format that the client accepts: text, or OpenMetrics, which Prometheus prefers."""

    def __init__(self, snapshot: Callable[[], Snapshot], clock: Clock) -> None:
        """By the clock the age of what is shown grows until the loop makes another snapshot."""
        self._snapshot, self._clock = snapshot, clock
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        self._formats = {openmetrics: TextFormat(openmetrics=openmetrics) for openmetrics in (False, True)}

    def reply(self, request: Request) -> Reply:
        """The page."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        ours = self._formats[content_type.startswith("application/openmetrics-text")]
        text = ours.page(self._aged(self._snapshot())) + encode(self._process).decode()
        page, headers = text.encode(), [("Vary", "Accept, Accept-Encoding")]
        if gzip_accepted(request.headers.get("accept-encoding", "")):
            page = gzip.compress(page, _GZIP_LEVEL)
            headers.append(("Content-Encoding", "gzip"))
        return Reply(200, content_type, page, tuple(headers))

    def _aged(self, shown: Snapshot) -> Snapshot:
        if _AGE not in shown.monitor:
            return shown
        age = shown.behind_seconds + max(0.0, self._clock.wall() - shown.at)
        return replace(shown, monitor=shown.monitor | {_AGE: (MetricSample((), age),)})


_HEALTHY_WITHIN = 30.0
"""Seconds since the loop last turned: a turn takes milliseconds, a full disk or swap may stall it."""
_WORTH_PACKING = 1000  # bytes
_SECURITY = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
)


class App:
    """Answers requests. Reads one `snapshot` a request."""

    def __init__(self, snapshot: Callable[[ViewRequest], Snapshot], clock: Clock, turned: Callable[[], float]) -> None:
        """`turned` gives the monotonic second of the loop's last turn."""
        self._snapshot = snapshot
        self._clock = clock
        self._turned = turned
        self._metrics = Exposition(lambda: snapshot(FIGURES), clock)
        self._ready = False  # once ready it stays so, and no probe waits for a snapshot
        self.notice = ""
        """A warning that every page for people begins with."""
        self.scrapes = Scrapes()
        """Who scrapes: an orderly stop waits for them."""

    def __call__(self, request: Request) -> Reply:
        """Route one request."""
        if request.method not in ("GET", "HEAD"):
            return text_reply(405, "only GET and HEAD are served here\n")
        if request.path == "/metrics":
            asked_at = self._clock.monotonic()
            reply = self._metrics.reply(request)
            self.scrapes.answered(request, asked_at)
            return reply
        if request.path == "/-/healthy":
            idle = self._clock.monotonic() - self._turned()
            if idle < _HEALTHY_WITHIN:
                return text_reply(200, "healthy\n")
            return text_reply(503, f"the loop has not turned for {idle:.0f} s\n")
        if request.path == "/-/ready":
            self._ready = self._ready or self._snapshot(NOTHING).ready
            return text_reply(200, "ready\n") if self._ready else text_reply(503, "reading the backlog\n")
        if request.path.startswith("/static/"):
            page = static_reply(request)
        else:
            page = view_of(request, self._snapshot(asked_by(request)), self._clock.wall(), self.notice)
        if page is None:
            return text_reply(404, "no such page; try / or /metrics\n")
        return _packed(page, request)


def _packed(reply: Reply, request: Request) -> Reply:
    """With the headers of every page, and compressed where the client accepts it and it helps."""
    headers = (*reply.headers, *_SECURITY)
    if "Cache-Control" not in dict(reply.headers):
        headers += (("Cache-Control", "no-store"),)
    if len(reply.body) < _WORTH_PACKING or "gzip" not in request.headers.get("accept-encoding", ""):
        return reply._replace(headers=headers)
    body = gzip.compress(reply.body, compresslevel=4, mtime=0)
    return reply._replace(body=body, headers=(*headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")))
