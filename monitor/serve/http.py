"""The daemon's HTTP application: routes paths, answers /metrics and health checks.

Rule: a request reads only one Snapshot and the clock, never a log or the loop's state. The loop makes the Snapshot on
request (latest.py).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

from megatron_monitor.prometheus_text import TextFormat
from megatron_monitor.serve.exchange import Reply, Request, packed, text_reply
from megatron_monitor.serve.views import UNSHARED, asked_by, static_reply, view_of
from megatron_monitor.snapshot import FIGURES, NOTHING, MetricSample, Snapshot, ViewRequest
from megatron_monitor.system.clock import Clock

_HEADER: Final = "x-prometheus-scrape-timeout-seconds"
"""Only scrapers send this header: Prometheus, its agents and vmagent."""
_AWAITED: Final = 90.0  # seconds since its last scrape in which a scraper is awaited: more than a usual interval


class Scrapes:
    """The known scrapers, each with its last scrape. An orderly stop serves each of them once more.

    Prometheus cannot distinguish a target that was stopped from one that died, so the daemon waits for the last scrapes
    (daemon.py). Only clients that send the scrape header count. Used by HTTP threads and the loop; times are monotonic
    seconds.
    """

    def __init__(self) -> None:
        self._scrapers: dict[str, float] = {}  # address -> its last scrape

    def answered(self, request: Request, asked_at: float) -> None:
        """Record a scrape that was requested at `asked_at`."""
        if _HEADER in request.headers:
            self._scrapers[request.peer] = asked_at
            for peer, at in tuple(self._scrapers.items()):
                if asked_at - at > _AWAITED:
                    self._scrapers.pop(peer, None)

    def expected_until(self, since: float) -> float:
        """Return until when to wait for scrapers that have not come since `since`; -inf if all have."""
        return max((at + _AWAITED for at in tuple(self._scrapers.values()) if at <= since), default=float("-inf"))


_AGE = "megatron_monitor_snapshot_age_seconds"


class Exposition:
    """Answers /metrics."""

    def __init__(self, snapshot: Callable[[], Snapshot], clock: Clock) -> None:
        """`clock` gives the age of the snapshot, which is a metric."""
        self._snapshot, self._clock = snapshot, clock
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        self._text = TextFormat()

    def reply(self) -> Reply:
        """Return the metrics page."""
        page = self._text.page(self._aged(self._snapshot())).encode() + generate_latest(self._process)
        return Reply(200, "text/plain; version=0.0.4; charset=utf-8", page)

    def _aged(self, shown: Snapshot) -> Snapshot:
        if _AGE not in shown.monitor:
            return shown
        age = shown.behind_seconds + max(0.0, self._clock.wall() - shown.at)
        return replace(shown, monitor=shown.monitor | {_AGE: (MetricSample((), age),)})


class Probes:
    """Answers /metrics and /-/healthy, by GET and HEAD."""

    def __init__(self, metrics: Exposition, idle: Callable[[], float], longest: float) -> None:
        """`idle` gives the seconds since the program's last turn. Above `longest` it is not healthy."""
        self._metrics, self._idle, self._longest = metrics, idle, longest

    def __call__(self, request: Request) -> Reply:
        """Answer one request."""
        if request.method not in ("GET", "HEAD"):
            return text_reply(405, "only GET and HEAD are served here\n")
        if request.path == "/metrics":
            return self._metrics.reply()
        if request.path != "/-/healthy":
            return text_reply(404, "no such page; try /metrics\n")
        idle = self._idle()
        return text_reply(200, "healthy\n") if idle < self._longest else text_reply(503, f"no turn for {idle:.0f} s\n")


_MAX_LOOP_PAUSE = 30.0  # seconds: a turn takes milliseconds, but a full disk or swapping may stall the loop
_SHARED_SECONDS = 1.0  # for which all viewers of a page get the same answer,
_SHARED_FACTOR = 4.0  # or this times as long as it took to make
_MAX_SHARED = 32  # pages
_MISSING = text_reply(404, "no such page; try / or /metrics\n")


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
        metrics = Exposition(lambda: snapshot(FIGURES), clock)
        self._probes = Probes(metrics, lambda: clock.monotonic() - turned(), _MAX_LOOP_PAUSE)
        self._ready = False  # stays true, so later probes need no snapshot
        self.notice = ""
        """A warning on top of every HTML page."""
        self.scrapes = Scrapes()
        self._pages: dict[tuple[str, ...], _SharedPage] = {}
        self._guard = threading.Lock()

    def __call__(self, request: Request) -> Reply:
        """Route one request."""
        if request.method not in ("GET", "HEAD") or request.path in ("/metrics", "/-/healthy"):
            asked_at = self._clock.monotonic()
            reply = self._probes(request)
            if request.path == "/metrics":
                self.scrapes.answered(request, asked_at)
            return reply
        if request.path == "/-/ready":
            self._ready = self._ready or self._snapshot(NOTHING).ready
            return text_reply(200, "ready\n") if self._ready else text_reply(503, "reading the backlog\n")
        if request.path.startswith("/static/"):
            return static_reply(request) or _MISSING
        return self._page(request) if request.path not in UNSHARED else self._view(request)

    def _view(self, request: Request) -> Reply:
        page = view_of(request, self._snapshot(asked_by(request)), self._clock.wall(), self.notice)
        return packed(page or _MISSING, request)

    def _page(self, request: Request) -> Reply:
        """Return a view, with its last answer if that is recent."""
        encoding = request.headers.get("accept-encoding", "")
        key = request.raw_path, request.path, request.query, encoding, self.notice
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
