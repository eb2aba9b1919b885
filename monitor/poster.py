"""Posts all alerts to each Alertmanager, by a thread for each: one that hangs delays no other.

Only the newest alerts matter: what an Alertmanager did not take is not kept, it is posted with the next.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

from megatron_monitor.alerts import Alert
from megatron_monitor.notifiers.alertmanager import Alertmanager, api
from megatron_monitor.notifiers.message import DeliveryError, Notifier
from megatron_monitor.system.clock import Clock

_log = logging.getLogger(__name__)

_OUTCOMES: Final = ("sent", "retried", "failed")
_AGAIN: Final = 5.0  # seconds until what an Alertmanager did not take is posted to it again


class Poster:
    """For the loop's thread."""

    def __init__(self, notifiers: Sequence[Notifier], clock: Clock) -> None:
        """Of these notifiers those that are Alertmanagers."""
        found = [one for one in notifiers if isinstance(one, Alertmanager)]
        self._notifiers = [(one, [_Lane(one, url, clock) for url in one.urls]) for one in found]

    @property
    def urls(self) -> list[str]:
        """Whom it posts to."""
        return [url for one, _ in self._notifiers for url in one.urls]

    def show(self, alerts: Sequence[Alert], now: float) -> None:
        """Post these to all of them. `now`: Unix seconds."""
        for notifier, lanes in self._notifiers:
            content = notifier.content(alerts, now)
            for lane in lanes:
                lane.offer(content)

    def outcomes(self) -> dict[tuple[str, str], int]:
        """By notifier and outcome (sent, retried, failed), how many posts since the last call."""
        found: dict[tuple[str, str], int] = {}
        for notifier, lanes in self._notifiers:
            found |= {(notifier.name, outcome): 0 for outcome in _OUTCOMES}
            for outcome in (one for lane in lanes for one in lane.take_outcomes()):
                found[notifier.name, outcome] += 1
        return found

    def failing(self) -> dict[str, int]:
        """By notifier, how many Alertmanagers did not accept the last post."""
        return {notifier.name: sum(lane.failing for lane in lanes) for notifier, lanes in self._notifiers}

    def stop(self, seconds: float) -> None:
        """Post what is new once more, within so many seconds in all."""
        lanes = [lane for _, several in self._notifiers for lane in several]
        for lane in lanes:
            lane.end()
        for lane in lanes:
            lane.join(seconds)


class _Lane:
    """One Alertmanager, and its thread."""

    def __init__(self, notifier: Alertmanager, url: str, clock: Clock) -> None:
        self._notifier, self._url, self._clock = notifier, api(url), clock
        self._changed = threading.Condition()
        self._content: list[dict[str, Any]] | None = None
        self._ended = False
        self.failing = False
        self._outcomes: list[str] = []
        self._thread: threading.Thread | None = None

    def offer(self, content: list[dict[str, Any]]) -> None:
        with self._changed:
            self._content = content
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"alerts-{self._notifier.name}", daemon=True)
                self._thread.start()

    def take_outcomes(self) -> list[str]:
        with self._changed:
            taken, self._outcomes = self._outcomes, []
        return taken

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._content is not None)
                content, self._content = self._content, None
            if content is None:
                return
            outcome = self._post(content) if content else "sent"
            with self._changed:
                self._outcomes.append(outcome)
                if outcome == "sent" or self._ended:
                    continue
                if self._content is None:
                    self._content = content
                    self._changed.wait(_AGAIN)

    def _post(self, content: list[dict[str, Any]]) -> str:
        try:
            self._notifier.post(self._url, content)
        except DeliveryError as error:
            level = logging.DEBUG if self.failing else logging.WARNING
            self.failing = True
            _log.log(level, "notifier=%s %d alerts are posted again: %s", self._notifier.name, len(content), error)
            return "failed" if error.permanent else "retried"
        self.failing = False
        return "sent"
