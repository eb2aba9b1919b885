"""Posts all alerts to each Alertmanager, by a thread for each: one that hangs delays no other.

Only the newest alerts matter: what an Alertmanager did not take is posted again, or replaced by what is newer.
"""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from megatron_monitor.alerts import Alert
from megatron_monitor.notifiers.alertmanager import Alertmanager, api
from megatron_monitor.notifiers.message import DeliveryError, Notifier
from megatron_monitor.system.asking import Asking

_log = logging.getLogger(__name__)

_OUTCOMES: Final = ("sent", "retried", "failed")
_AGAIN: Final = 5.0  # seconds until what an Alertmanager did not take is posted to it again
_Content = list[dict[str, Any]]


class Poster:
    """For the loop's thread."""

    def __init__(self, notifiers: Sequence[Notifier]) -> None:
        """Of these notifiers those that are Alertmanagers."""
        found = [one for one in notifiers if isinstance(one, Alertmanager)]
        self._notifiers = [(one, [_Lane(one, url) for url in one.urls]) for one in found]

    @property
    def urls(self) -> list[str]:
        """The Alertmanagers that it posts to."""
        return [url for one, _ in self._notifiers for url in one.urls]

    def show(self, alerts: Sequence[Alert], now: float) -> None:
        """Post these to all of them, at the next turn. `now`: Unix seconds."""
        for notifier, lanes in self._notifiers:
            content = notifier.content(alerts, now)
            for lane in lanes:
                lane.content, lane.due = content, -math.inf

    def turn(self, now: float) -> Counter[tuple[str, str]]:
        """Post what is due at this instant. By notifier and outcome (sent, retried, failed), how many posts ended."""
        found = Counter({(notifier.name, outcome): 0 for notifier, _ in self._notifiers for outcome in _OUTCOMES})
        for notifier, lanes in self._notifiers:
            found.update((notifier.name, outcome) for lane in lanes for outcome in lane.turn(now))
        return found

    def failing(self) -> dict[str, int]:
        """By notifier, how many Alertmanagers did not accept the last post."""
        return {notifier.name: sum(lane.failing for lane in lanes) for notifier, lanes in self._notifiers}

    def stop(self, seconds: float) -> None:
        """Post what is new once more, each Alertmanager within so many seconds."""
        lanes = [lane for _, several in self._notifiers for lane in several]
        for lane in lanes:
            lane.turn(math.inf)
        for lane in lanes:
            lane.end(seconds)


class _Lane(Asking[_Content, str]):
    """One Alertmanager, and its thread."""

    def __init__(self, notifier: Alertmanager, url: str) -> None:
        super().__init__(f"alerts-{notifier.name}", self._post, lambda _content, _error: "failed", 0)
        self._notifier, self._url = notifier, api(url)
        self.content: _Content | None = None
        """What is to be posted."""
        self.due = -math.inf
        self.failing = False
        self._posted: _Content | None = None

    def turn(self, now: float) -> list[str]:
        """Post the content if it is due and the last post has ended, or if there is no later (`now` is infinite)."""
        outcomes = self.answers()
        for outcome in outcomes:
            if outcome != "sent" and self.content is None:
                self.content, self.due = self._posted, now + _AGAIN
            self._posted = None
        if self.content is not None and now >= self.due and (self._posted is None or now == math.inf):
            self._posted, self.content = self.content, None
            self.ask(self._posted)
        return outcomes

    def _post(self, content: _Content) -> str:
        try:
            if content:
                self._notifier.post(self._url, content)
        except DeliveryError as error:
            level = logging.DEBUG if self.failing else logging.WARNING
            self.failing = True
            _log.log(level, "notifier=%s %d alerts are posted again: %s", self._notifier.name, len(content), error)
            return "failed" if error.permanent else "retried"
        self.failing = False
        return "sent"
