"""Posts all alerts to each Alertmanager on its own thread, so that none delays another.

Only the newest alerts matter: a newer post replaces one that waits, and a failed one is followed by the next.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from megatron_monitor.alerts import Alert
from megatron_monitor.notifiers.alertmanager import Alertmanager, api
from megatron_monitor.notifiers.message import DeliveryError, Notifier
from megatron_monitor.system.asking import Asking

_log = logging.getLogger(__name__)

_OUTCOMES: Final = ("sent", "retried", "failed")
_Content = list[dict[str, Any]]


class Poster:
    """All configured Alertmanagers. Used by the loop's thread."""

    def __init__(self, notifiers: Sequence[Notifier]) -> None:
        """Uses the Alertmanagers among these notifiers."""
        self.lanes = [_Lane(one, url) for one in notifiers if isinstance(one, Alertmanager) for url in one.urls]

    def show(self, alerts: Sequence[Alert], now: float) -> None:
        """Post these alerts to all Alertmanagers, each after the post that it has begun. `now`: Unix seconds."""
        for lane in self.lanes:
            lane.ask_instead(lane.notifier.content(alerts, now))

    def ended(self) -> Counter[tuple[str, str]]:
        """Return (notifier, outcome) -> number of posts that ended since the last call."""
        found = Counter({(lane.notifier.name, outcome): 0 for lane in self.lanes for outcome in _OUTCOMES})
        found.update((lane.notifier.name, outcome) for lane in self.lanes for outcome in lane.answers())
        return found

    def failing(self) -> dict[str, int]:
        """Return notifier -> number of Alertmanagers that did not accept the last post."""
        found = dict.fromkeys((lane.notifier.name for lane in self.lanes), 0)
        for lane in self.lanes:
            found[lane.notifier.name] += lane.failing
        return found

    def stop(self, seconds: float) -> None:
        """End after the newest alerts were posted, each Alertmanager within so many seconds."""
        for lane in self.lanes:
            lane.end(seconds)


class _Lane(Asking[_Content, str]):
    """One Alertmanager with its thread."""

    def __init__(self, notifier: Alertmanager, url: str) -> None:
        super().__init__(f"alerts-{notifier.name}", self._post, lambda _content, _error: "failed", 0)
        self.notifier, self._url = notifier, api(url)
        self.failing = False

    def _post(self, content: _Content) -> str:
        try:
            if content:
                self.notifier.post(self._url, content)
        except DeliveryError as error:
            level = logging.DEBUG if self.failing else logging.WARNING
            self.failing = True
            _log.log(level, "notifier=%s %d alerts are posted again: %s", self.notifier.name, len(content), error)
            return "failed" if error.permanent else "retried"
        self.failing = False
        return "sent"
