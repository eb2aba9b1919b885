"""Turns the transitions of a core into notifications, which are saved and then sent, and calls the optional parts.

The daemon has one dispatcher for all followed files, and one for each of its partitions of a Kafka topic.
"""

import logging
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from megatron_monitor.config import Config
from megatron_monitor.core import Core
from megatron_monitor.deliveries import Deliveries
from megatron_monitor.extensions import extend
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers.alertmanager import Alertmanager
from megatron_monitor.poster import Poster
from megatron_monitor.saving import Saving
from megatron_monitor.system.clock import Clock

_log = logging.getLogger(__name__)

_ALERTS = 60.0  # seconds after which all alerts are posted again: a restarted Alertmanager has none
_RETRY_SECONDS = 5.0  # after a post that an Alertmanager did not accept

Links = Callable[[Transition], Mapping[str, str]]


class Dispatcher:
    """Used by the loop's thread. Times are instants of its core."""

    def __init__(self, core: Core, config: Config, clock: Clock, wake: Callable[[], None], links: Links) -> None:
        """`wake` wakes the loop from any thread; `links` returns the links of a message."""
        self.core, self._links, self._clock = core, links, clock
        self.saving = Saving(core, clock, wake)
        # for single messages; Alertmanagers get all alerts instead
        self._notifiers = [one for one in config.notifiers if not isinstance(one, Alertmanager)]
        self.deliveries = Deliveries(self._notifiers, clock, wake)
        self.deliveries.accepted = self.saving.accepted
        self.poster = Poster(config.notifiers)
        self._post_at = float("-inf")
        extend(core, clock)

    def start(self) -> None:
        """Allow sending of restored notifications."""
        self.core.outbox.receivers(one.name for one in self._notifiers)

    def judge(self, now: float, until: float | None = None, *, act: bool = True) -> None:
        """Evaluate what is due, as at the instant `until`, with the optional parts before and after it.

        `act`: False if `now` is past, so that the optional parts wait.
        """
        extensions = self.core.extensions if act else ()
        for extension in extensions:
            extension.look(now)
        for transition in self.core.tick(now if until is None else until):
            self._report(transition, now, is_evaluated=True)
        for extension in extensions:
            for transition in extension.act(now):
                self._report(transition, now)

    def stop(self) -> None:
        """End the threads of the optional parts."""
        for extension in self.core.extensions:
            extension.stop()

    def _report(self, transition: Transition, now: float, *, is_evaluated: bool = False) -> None:
        level = logging.WARNING if transition.status == "firing" else logging.INFO
        if transition.display_only:  # `late` precedes `hung`: one incident would be logged twice
            level = logging.DEBUG
        _log.log(
            level, "run=%s incident=%s status=%s severity=%s %s",
            transition.run, transition.incident, transition.status, transition.severity, transition.summary,
        )  # fmt: skip
        linked = replace(transition, links=dict(self._links(transition)))
        if is_evaluated:
            self.core.alerts.take(linked)
            self._post_at = float("-inf")
        if not transition.display_only:
            wanting = self._receivers(transition) if is_evaluated else self.deliveries.receivers(transition)
            self.core.outbox.enqueue(linked, wanting, now)
            self.saving.soon()

    def _receivers(self, message: Transition) -> list[str]:
        """Return the notifiers that want the message and have not been notified of its event."""
        incident, fires = f"{message.run}\0{message.incident}", message.status == "firing"
        return [
            name
            for name in self.deliveries.receivers(message)
            if self.core.judge.events.changes(message.event, name, incident, message.severity, fires=fires)
        ]

    def send(self, now: float) -> None:
        """Send what is due: messages to the notifiers' threads, all alerts to the Alertmanagers."""
        self.deliveries.turn(self.core.outbox, now)
        self._post(now)
        for outcome, many in self.poster.ended().items():
            self.core.counts.add("notifications_total", *outcome, by=many)
            if many and outcome[1] != "sent":
                self._post_at = min(self._post_at, now + _RETRY_SECONDS)
        self.core.unposted = self.poster.failing()

    def _post(self, now: float) -> None:
        if self.poster.lanes and not now < self._post_at <= now + _ALERTS:
            at, alerts = now + self.core.wall_offset, self.core.alerts
            self.poster.show(alerts.shown(at), at)
            self._post_at = min(now + _ALERTS, alerts.next_end(at) - self.core.wall_offset)

    def all_is_read(self, now: float) -> None:
        """End the alerts of runs that do not exist, after every log was read to its end."""
        if self.core.alerts.end_all(now + self.core.wall_offset, self.core.runs):
            self._post_at = float("-inf")
            self.core.changed = True

    def stop_runs(self, now: float, *, over: bool) -> None:
        """The daemon stops in order: post all alerts once more. `over`: its runs end too."""
        self.core.stop_runs(now + self.core.wall_offset, over=over)
        self._post_at = float("-inf")

    def finish(self, now: float, seconds: float) -> None:
        """Send pending notifications once more, within so many seconds."""
        self._post(now)
        self.deliveries.finish(self.core.outbox, now, seconds)
        self.poster.stop(seconds)
        if self.core.outbox.changed:
            self.saving.save_last(now)
