"""Transitions in, deliveries out: a bounded queue and a thread of its own for each notifier.

Law: `put` never blocks and never raises, so a slow receiver delays neither detection nor another receiver. A message
that a notifier wants ends in exactly one of sent, failed and dropped; `retried` counts the tries after the first.
Messages of one notifier keep their order: what waits behind a failing delivery waits with it.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from monitor.clock import Clock
from monitor.incidents import Transition
from monitor.notifiers.message import DeliveryError, Notifier, loudness

Outcome = Literal["sent", "retried", "failed", "dropped"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("sent", "retried", "failed", "dropped")
DEFAULT_CAPACITY: Final = 200
"""Messages that wait for one notifier: every run of a large site, each with a few incidents at once."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how far apart a delivery is tried."""

    attempts: int = 10
    """With the delays below some four minutes: longer than the restart of a receiver takes."""
    first_delay: float = 1.0
    """Seconds before the second try; each further delay is twice as long."""
    longest_delay: float = 60.0

    def delay(self, attempt: int, chance: float) -> float:
        """Seconds after failed try `attempt` (from 1); `chance` in [0, 1) takes up to half of it away."""
        full = min(self.longest_delay, self.first_delay * 2.0 ** min(attempt - 1, 60))
        return full * (1.0 - 0.5 * chance)


def _wait(stop: threading.Event, seconds: float) -> None:
    stop.wait(seconds)


class NotificationQueue:
    """Hand each message to every notifier that wants it."""

    def __init__(
        self,
        notifiers: Sequence[Notifier],
        capacity: int = DEFAULT_CAPACITY,
        *,
        clock: Clock,
        retry: Retry | None = None,
        chance: Callable[[], float] = random.random,
        wait: Callable[[threading.Event, float], None] = _wait,
    ) -> None:
        """`chance` gives numbers in [0, 1); `wait` waits between two tries, and returns early once the event is set."""
        self._clock = clock
        self._lanes = [_Lane(one, capacity, retry or Retry(), chance, wait) for one in notifiers]

    def start(self) -> None:
        """Start the threads; what was put before waits for them."""
        for lane in self._lanes:
            lane.thread.start()

    def put(self, message: Transition) -> None:
        """Queue the message for every notifier that wants it; from any thread."""
        for lane in self._lanes:
            if lane.notifier.wants(message):
                lane.put(message)

    def stop(self, timeout: float) -> None:
        """Deliver what waits, one try each and without pauses, for `timeout` seconds at most; drop the rest.

        A thread that hangs in its receiver is left behind: it ends with the process.
        """
        deadline = self._clock.monotonic() + timeout
        for lane in self._lanes:
            lane.begin_stop()
        for lane in self._lanes:
            if lane.thread.is_alive():
                lane.thread.join(max(0.0, deadline - self._clock.monotonic()))
        for lane in self._lanes:
            lane.abandon()

    def counts(self) -> dict[tuple[str, Outcome], int]:
        """(notifier, outcome) -> how many so far, zeros included: `megatron_monitor_notifications_total`."""
        return {
            (lane.notifier.name, outcome): count for lane in self._lanes for outcome, count in lane.outcomes().items()
        }


class _Lane:
    """One notifier's waiting messages and the thread that delivers them."""

    def __init__(
        self,
        notifier: Notifier,
        capacity: int,
        retry: Retry,
        chance: Callable[[], float],
        wait: Callable[[threading.Event, float], None],
    ) -> None:
        self.notifier = notifier
        self.thread = threading.Thread(target=self._run, name=f"notify-{notifier.name}", daemon=True)
        self._capacity = max(1, capacity)
        self._retry = retry
        self._chance = chance
        self._wait = wait
        self._waiting: list[Transition] = []
        self._changed = threading.Condition()  # guards all below and the list above; never held while sending
        self._stopping = threading.Event()
        self._counts: dict[Outcome, int] = dict.fromkeys(OUTCOMES, 0)

    def put(self, message: Transition) -> None:
        with self._changed:
            if self._stopping.is_set():
                self._counts["dropped"] += 1
                return
            self._waiting.append(message)
            if len(self._waiting) > self._capacity:  # the oldest of the quietest goes, which may be the new one
                dropped = min(range(len(self._waiting)), key=lambda place: loudness(self._waiting[place]))
                del self._waiting[dropped]
                self._counts["dropped"] += 1
            self._changed.notify()

    def begin_stop(self) -> None:
        with self._changed:
            self._stopping.set()
            self._changed.notify()

    def abandon(self) -> None:
        with self._changed:
            self._counts["dropped"] += len(self._waiting)
            self._waiting.clear()

    def outcomes(self) -> dict[Outcome, int]:
        with self._changed:
            return dict(self._counts)

    def _run(self) -> None:
        while (message := self._next()) is not None:
            self._deliver(message)

    def _next(self) -> Transition | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping.is_set())
            return self._waiting.pop(0) if self._waiting else None

    def _deliver(self, message: Transition) -> None:
        attempt = 1
        while (error := self._try(message)) is not None:
            # Once the daemon stops, a try that began before or at the stop is the last.
            if error.permanent or attempt >= self._retry.attempts or self._stopping.is_set():
                self._count("failed")
                self._log_outcome(logging.WARNING, message, f"outcome=failed attempts={attempt} error={str(error)!r}")
                return
            self._count("retried")
            self._wait(self._stopping, self._retry.delay(attempt, self._chance()))
            attempt += 1
        self._count("sent")
        self._log_outcome(logging.INFO, message, f"outcome=sent attempts={attempt}")

    def _try(self, message: Transition) -> DeliveryError | None:
        try:
            self.notifier.send(message)
        except DeliveryError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a bug in one notifier must not silence the others, nor itself for ever
            self._log_outcome(logging.ERROR, message, "outcome=bug", exception=error)
            return DeliveryError(f"{type(error).__name__} in the notifier", permanent=True)
        return None

    def _count(self, outcome: Outcome) -> None:
        with self._changed:
            self._counts[outcome] += 1

    def _log_outcome(self, level: int, message: Transition, text: str, exception: Exception | None = None) -> None:
        name, what = self.notifier.name, f"run={message.run} incident={message.incident}"
        _log.log(level, "notifier=%s %s status=%s %s", name, what, message.status, text, exc_info=exception)
