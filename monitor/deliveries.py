"""Sends pending notifications: a thread per notifier sends its messages in order and reports the results.

Rule: the loop never waits for a receiver, and no receiver delays another. The loop distributes messages and applies
results (`turn`); the outbox decides what is sent when (monitor/core/outbox.py). Each message has one result. After a
transient failure the rest of a batch is not sent, which keeps the order.
"""

import logging
import random
from collections.abc import Callable, Sequence
from typing import Final

from megatron_monitor.core.outbox import DeliveryResult, Outbox, PendingNotification, Result
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers import DeliveryError, Notifier
from megatron_monitor.system.asking import Asking
from megatron_monitor.system.clock import Clock

_log = logging.getLogger(__name__)

_SLICE: Final = 1.0  # maximum seconds of one batch, so that deliveries are reported and saved soon


class Deliveries:
    """The configured notifiers. Used by the loop's thread."""

    def __init__(self, notifiers: Sequence[Notifier], clock: Clock, wake: Callable[[], None]) -> None:
        """`wake` wakes the loop from any thread."""
        self._clock, self.wake = clock, wake
        self.accepted: Callable[[str, Transition], None] = lambda _name, _message: None
        """Called in the notifier's thread with each accepted message, before anything else."""
        self.may_send: Callable[[], bool] = lambda: True
        """Called in the notifier's thread before each message. False: do not send."""
        self._lanes = [_Lane(notifier, clock, self) for notifier in notifiers]

    def receivers(self, message: Transition) -> list[str]:
        """Return the notifiers that want the message."""
        return [lane.notifier.name for lane in self._lanes if lane.notifier.wants(message)]

    def turn(self, outbox: Outbox, now: float) -> None:
        """Apply results and distribute due messages."""
        self._settle(outbox, now)
        self._hand(outbox, now, last=False)

    def finish(self, outbox: Outbox, now: float, seconds: float, *, hand: bool = True) -> None:
        """Send everything once more within `seconds`, at the end of the daemon. Undelivered messages stay pending.

        `hand`: False if another process continues, so that only messages being sent are finished. A thread that hangs
        ends with the process.
        """
        until = self._clock.monotonic() + seconds
        self._settle(outbox, now)
        if hand:
            self._hand(outbox, now, last=True)
        for lane in self._lanes:
            lane.finish(until)
        self._settle(outbox, now)

    def _settle(self, outbox: Outbox, now: float) -> None:
        for lane in self._lanes:
            for tried in lane.answers():
                outbox.settle(lane.notifier.name, tried, now, random.random())  # noqa: S311 - not a secret

    def _hand(self, outbox: Outbox, now: float, *, last: bool) -> None:
        for lane in self._lanes:
            if batch := outbox.batch(lane.notifier.name, now, last=last):
                lane.ask(batch)


class _Lane(Asking[Sequence[PendingNotification], Sequence[DeliveryResult]]):
    """A notifier with its thread."""

    def __init__(self, notifier: Notifier, clock: Clock, deliveries: Deliveries) -> None:
        super().__init__(f"notify-{notifier.name}", self._tried, _untried, 0, deliveries.wake)
        self.notifier = notifier
        self._clock = clock
        self._deliveries = deliveries
        self._until = float("inf")
        self._failing = False  # the thread's own

    def finish(self, until: float) -> None:
        """Send until that monotonic second at most."""
        self._until = until
        self.end(max(0.0, until - self._clock.monotonic()))

    def _tried(self, batch: Sequence[PendingNotification]) -> list[DeliveryResult]:
        began, results = self._clock.monotonic(), list[Result]()
        for pending in batch:
            now = self._clock.monotonic()
            over = results and now - began >= _SLICE and self._until == float("inf")
            if over or "later" in results or now >= self._until or not self._deliveries.may_send():
                break
            results.append(self._try(pending.message))
        results += ["untried"] * (len(batch) - len(results))
        return [DeliveryResult(pending.number, result) for pending, result in zip(batch, results, strict=True)]

    def _try(self, message: Transition) -> Result:
        try:
            answer = self.notifier.send(message).replace("\n", "; ")
            self._deliveries.accepted(self.notifier.name, message)
        except DeliveryError as error:
            if not error.permanent:
                level = logging.DEBUG if self._failing else logging.WARNING  # a receiver may be down for a day
                self._failing = True
                self._log_outcome(level, message, "retried", f"{error}; it stays pending")
                return "later"
            self._log_outcome(logging.WARNING, message, "refused", str(error))
            return "refused"
        except Exception as error:  # noqa: BLE001 - a bug in one notifier must not stop the others, nor this one for ever
            self._log_outcome(logging.ERROR, message, "bug", exception=error)
            return "refused"
        self._failing = False
        self._log_outcome(logging.INFO, message, "sent", answer)
        return "sent"

    def _log_outcome(
        self, level: int, message: Transition, outcome: str, answer: str = "", exception: Exception | None = None
    ) -> None:
        _log.log(
            level, "notifier=%s run=%s incident=%s status=%s outcome=%s %s",
            self.notifier.name, message.run, message.incident, message.status, outcome, answer, exc_info=exception,
        )  # fmt: skip


def _untried(batch: Sequence[PendingNotification], _: Exception | None) -> list[DeliveryResult]:
    return [DeliveryResult(pending.number, "untried") for pending in batch]
