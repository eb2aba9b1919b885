"""Sends what is owed: a thread for each notifier tries what it is handed, in order, and reports what became of it.

Law: the loop never waits for a receiver, and none waits for another. The loop hands out and settles (`turn`); what is
owed, and what is tried again when, is the outbox's matter (monitor/core/outbox.py). Every message that is handed out
is reported once. After a failure that may pass, the rest of a batch is not tried: the receiver is away, and order is
kept.
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

_SLICE: Final = 1.0  # seconds of one batch: then what was delivered is reported, and saved


class Deliveries:
    """The configured notifiers. For the loop's thread."""

    def __init__(
        self, notifiers: Sequence[Notifier], clock: Clock, wake: Callable[[], None],
        *, chance: Callable[[], float] = random.random,
    ) -> None:  # fmt: skip
        """`wake` makes the loop turn, from any thread; `chance` gives numbers in [0, 1)."""
        self._clock, self.wake, self._chance = clock, wake, chance
        self.accepted: Callable[[str, Transition], None] = lambda _name, _message: None
        """Called with each message that a receiver has taken, in its thread, before anything else is done."""
        self.may_send: Callable[[], bool] = lambda: True
        """Asked before each message, in the notifier's thread."""
        self._lanes = [_Lane(notifier, clock, self) for notifier in notifiers]

    def receivers(self, message: Transition) -> list[str]:
        """Who wants it."""
        return [lane.notifier.name for lane in self._lanes if lane.notifier.wants(message)]

    def turn(self, outbox: Outbox, now: float) -> None:
        """Settle what was tried and hand out what is due."""
        self._settle(outbox, now)
        self._hand(outbox, now, last=False)

    def finish(self, outbox: Outbox, now: float, seconds: float, *, hand: bool = True) -> None:
        """The daemon ends: try everything once more, within `seconds`. What is not delivered stays owed. Without `hand`
        only what is being tried: another daemon goes on.

        A thread that hangs in its receiver is left behind: it ends with the process.
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
                outbox.settle(lane.notifier.name, tried, now, self._chance())

    def _hand(self, outbox: Outbox, now: float, *, last: bool) -> None:
        for lane in self._lanes:
            if batch := outbox.batch(lane.notifier.name, now, last=last):
                lane.ask(batch)


class _Lane(Asking[Sequence[PendingNotification], Sequence[DeliveryResult]]):
    """A notifier and its thread."""

    def __init__(self, notifier: Notifier, clock: Clock, deliveries: Deliveries) -> None:
        super().__init__(f"notify-{notifier.name}", self._tried, _untried, 0, deliveries.wake)
        self.notifier = notifier
        self._clock = clock
        self._deliveries = deliveries
        self._until = float("inf")
        self._failing = False  # the thread's own

    def finish(self, until: float) -> None:
        """Try what was handed until that monotonic second at most; begin nothing after it."""
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
            self.notifier.send(message)
            self._deliveries.accepted(self.notifier.name, message)
        except DeliveryError as error:
            if not error.permanent:
                level = logging.DEBUG if self._failing else logging.WARNING  # a receiver may be away for a day
                self._failing = True
                self._log_outcome(level, message, f"outcome=retried error={str(error)!r}; it stays owed")
                return "later"
            outcome = "failed" if self.notifier.refusal_is_final else "refused"
            self._log_outcome(logging.WARNING, message, f"outcome={outcome} error={str(error)!r}")
            return "final" if outcome == "failed" else "refused"
        except Exception as error:  # noqa: BLE001 - a bug in one notifier must not silence the others, nor itself for ever
            self._log_outcome(logging.ERROR, message, "outcome=bug", exception=error)
            return "refused"
        self._failing = False
        self._log_outcome(logging.INFO, message, "outcome=sent")
        return "sent"

    def _log_outcome(self, level: int, message: Transition, text: str, exception: Exception | None = None) -> None:
        name, what = self.notifier.name, f"run={message.run} incident={message.incident}"
        _log.log(level, "notifier=%s %s status=%s %s", name, what, message.status, text, exc_info=exception)


def _untried(batch: Sequence[PendingNotification], _: Exception | None) -> list[DeliveryResult]:
    return [DeliveryResult(pending.number, "untried") for pending in batch]
