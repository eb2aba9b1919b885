"""The daemon's HTTP application: routes paths, answers /metrics and health checks, adds security headers, compresses.

Rule: a request reads only one Snapshot and the clock, never a log or the loop's state. The loop makes the Snapshot on
request (latest.py).
"""

import gzip
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder, gzip_accepted

from megatron_monitor.prometheus_text import TextFormat
from megatron_monitor.serve.exchange import Reply, Request, text_reply
from megatron_monitor.serve.views import UNSHARED, asked_by, static_reply, view_of
from megatron_monitor.snapshot import FIGURES, NOTHING, MetricSample, Snapshot, ViewRequest
from megatron_monitor.system.clock import Clock

_HEADER: Final = "x-prometheus-scrape-timeout-seconds"
"""Only scrapers send this header: Prometheus, its agents and vmagent."""
_DEFAULT_INTERVAL: Final = 15.0  # seconds, as in deploy/prometheus/; used until a scraper has come twice
_GRACE_FACTOR: Final = 1.25  # a scraper is awaited for its interval times this,
_ROUND_TRIP: Final = 1.0  # plus these seconds
_MAX_SCRAPERS: Final = 16


class Scrapes:
    """The known scrapers, each with its last scrape and its interval. An orderly stop serves each of them once more.

    Prometheus cannot distinguish a target that was stopped from one that died, so the daemon waits for the last scrapes
    (daemon.py). Only clients that send the scrape header count. Used by HTTP threads and the loop; times are monotonic
    seconds.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._scrapers: dict[str, tuple[float, float]] = {}  # address -> its last scrape, and its interval

    def answered(self, request: Request, asked_at: float) -> None:
        """Record a scrape that was requested at `asked_at`."""
        if _HEADER not in request.headers:
            return
        with self._guard:
            before, _ = self._scrapers.pop(request.peer, (asked_at - _DEFAULT_INTERVAL, _DEFAULT_INTERVAL))
            self._scrapers[request.peer] = asked_at, asked_at - before
            if len(self._scrapers) > _MAX_SCRAPERS:
                del self._scrapers[next(iter(self._scrapers))]

    def expected_until(self, since: float) -> float:
        """Return until when to wait for scrapers that have not come since `since`; -inf if all have."""
        with self._guard:
            waiting = [scraper for scraper in self._scrapers.values() if scraper[0] <= since]
        return max((at + _GRACE_FACTOR * interval + _ROUND_TRIP for at, interval in waiting), default=float("-inf"))


_AGE = "megatron_monitor_snapshot_age_seconds"
_GZIP_LEVEL = 1  # ten times as fast as 9, and the page still shrinks to a tenth


class Exposition:
    """Answers /metrics in the format that the client accepts: text, or OpenMetrics, which Prometheus prefers."""

    def __init__(self, snapshot: Callable[[], Snapshot], clock: Clock) -> None:
        """`clock` gives the age of the snapshot, which is a metric."""
        self._snapshot, self._clock = snapshot, clock
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        self._formats = {openmetrics: TextFormat(openmetrics=openmetrics) for openmetrics in (False, True)}

    def reply(self, request: Request) -> Reply:
        """Return the metrics page."""
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


_MAX_LOOP_PAUSE = 30.0  # seconds: a turn takes milliseconds, but a full disk or swapping may stall the loop
_MIN_GZIP_BYTES = 1000
_SHARED_SECONDS = 1.0  # for which all viewers of a page get the same answer,
_SHARED_FACTOR = 4.0  # or this times as long as it took to make
_MAX_SHARED = 32  # pages
_SECURITY = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
)


@dataclass
class _SharedPage:
    """The last answer of a view. The thread that holds the lock renews it, and the others wait for it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    reply: Reply | None = None
    until: float = float("-inf")  # monotonic seconds


class App:
    """The daemon's application. It reads one `snapshot` for each answer, and makes a page once for all its viewers."""

    def __init__(self, snapshot: Callable[[ViewRequest], Snapshot], clock: Clock, turned: Callable[[], float]) -> None:
        """`turned` gives the monotonic second of the loop's last turn."""
        self._snapshot = snapshot
        self._clock = clock
        self._turned = turned
        self._metrics = Exposition(lambda: snapshot(FIGURES), clock)
        self._ready = False  # stays true, so later probes need no snapshot
        self.notice = ""
        """A warning on top of every HTML page."""
        self.scrapes = Scrapes()
        self._pages: dict[tuple[str, ...], _SharedPage] = {}
        self._guard = threading.Lock()

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
            if idle < _MAX_LOOP_PAUSE:
                return text_reply(200, "healthy\n")
            return text_reply(503, f"the loop has not turned for {idle:.0f} s\n")
        if request.path == "/-/ready":
            self._ready = self._ready or self._snapshot(NOTHING).ready
            return text_reply(200, "ready\n") if self._ready else text_reply(503, "reading the backlog\n")
        if request.path.startswith("/static/"):
            return _with_headers(static_reply(request), request)
        return self._page(request) if request.path not in UNSHARED else self._view(request)

    def _view(self, request: Request) -> Reply:
        page = view_of(request, self._snapshot(asked_by(request)), self._clock.wall(), self.notice)
        return _with_headers(page, request)

    def _page(self, request: Request) -> Reply:
        """Return a view, with its last answer if that is recent."""
        key = request.raw_path, request.path, request.query, str(_packs(request)), self.notice
        with self._guard:
            page = self._pages[key] = self._pages.pop(key, _SharedPage())
            if len(self._pages) > _MAX_SHARED:
                del self._pages[next(iter(self._pages))]
        with page.lock:
            began = self._clock.monotonic()
            if page.reply is None or began >= page.until:
                page.reply = self._view(request)
                ended = self._clock.monotonic()
                page.until = ended + max(_SHARED_SECONDS, _SHARED_FACTOR * (ended - began))
            return page.reply


def _packs(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def _with_headers(reply: Reply | None, request: Request) -> Reply:
    """Add the headers of every page, and compress a long body if the client accepts gzip. None: no such page."""
    if reply is None:
        return text_reply(404, "no such page; try / or /metrics\n")
    headers = (*reply.headers, *_SECURITY)
    if "Cache-Control" not in dict(reply.headers):
        headers += (("Cache-Control", "no-store"),)
    if len(reply.body) < _MIN_GZIP_BYTES or not _packs(request):
        return reply._replace(headers=headers)
    body = gzip.compress(reply.body, compresslevel=4, mtime=0)
    return reply._replace(body=body, headers=(*headers, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")))
