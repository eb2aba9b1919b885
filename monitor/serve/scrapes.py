"""Who scrapes, and how often: an orderly stop serves each of them once more.

A Prometheus whose target is gone cannot tell a stop from a death. The daemon therefore asks here whether a scraper is
still to come (daemon.py). Only what says that it scrapes counts: a person's curl or a test is waited for by nobody.
Called by HTTP threads and by the loop. Instants are monotonic seconds.
"""

import threading
from typing import Final, NamedTuple

from monitor.serve.exchange import Request

_HEADER: Final = "x-prometheus-scrape-timeout-seconds"
"""Prometheus, its agents and vmagent send it with each scrape, nobody else does."""
_UNKNOWN: Final = 15.0  # seconds between two scrapes of one that came once: what deploy/prometheus/ ships
_LATE: Final = 1.25  # times its interval after which a scraper is not expected any more,
_ROUND_TRIP: Final = 1.0  # and seconds more
_PEERS: Final = 16  # scrapers that are remembered; a pair of Prometheus is two


class _Scraper(NamedTuple):
    asked_at: float
    interval: float


class Scrapes:
    """Each scraper's last scrape and the time between its last two."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._scrapers: dict[str, _Scraper] = {}

    def answered(self, request: Request, asked_at: float) -> None:
        """A page that was asked for at `asked_at` is ready."""
        if _HEADER not in request.headers:
            return
        with self._guard:
            known = self._scrapers.pop(request.peer, None)
            interval = _UNKNOWN if known is None else asked_at - known.asked_at
            self._scrapers[request.peer] = _Scraper(asked_at, interval)
            if len(self._scrapers) > _PEERS:
                del self._scrapers[next(iter(self._scrapers))]

    def expected_until(self, since: float) -> float:
        """When the last scraper that has not come after `since` should have come; -inf if all have."""
        with self._guard:
            waiting = [one for one in self._scrapers.values() if one.asked_at <= since]
        return max((one.asked_at + _LATE * one.interval + _ROUND_TRIP for one in waiting), default=float("-inf"))
