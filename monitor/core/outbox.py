"""The outbox: notifications that a receiver has not accepted yet. Pure, saved with the state.

A notification is pending until its receiver accepts it. A notifier's thread (monitor/deliveries.py) sends what it is
given and reports the result; this module decides what is sent when:

    enqueue ──► waiting ── batch ──► the notifier's thread ── settle ──► accepted, retried or refused

A receiver that is down is retried without limit. A refused message (a 404, a wrong password) waits without delaying
other incidents. If more than 500 messages wait for one receiver, only the newest of each incident is kept; the others
are suppressed and counted. A message is sent after it is saved, so that a repetition after a crash has the same id.
Times are instants of the core.
"""

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, get_args

from msgspec import Struct, field

from megatron_monitor.incidents import Transition
from megatron_monitor.snapshot import MonitorCounts

_log = logging.getLogger(__name__)

_MAX_UNTHINNED: Final = 500  # messages for one receiver that are kept as they are: every run of a large site, twice
_BATCH: Final = 50  # messages given to a thread at once
_UNSAVED: Final = 2.0  # maximum seconds that a message waits to be saved, if the disk hangs
_FIRST, _LONGEST = 1.0, 60.0  # first and maximum seconds between retries of an unreachable receiver
_REFUSED_FIRST, _REFUSED_LONGEST = 300.0, 3600.0  # the same for a refused message: a person must correct something
_GIVE_UP: Final = 86400.0  # seconds of refusals after which a message has failed: a day for a person to notice

Outcome = Literal["sent", "retried", "failed", "dropped", "suppressed"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
Result = Literal["sent", "later", "refused", "untried"]


class DeliveryResult(NamedTuple):
    """The result of a message. `later`: the receiver is unreachable. `refused`: it refuses this message; the address or
    the password may be wrong, so the message stays pending for a day.
    """

    number: int
    result: Result


class PendingNotification(Struct):
    """One message for one receiver."""

    number: int
    """Messages are sent in this order."""
    message: Transition
    since: float
    due: float = 0.0
    """Instant before which it is not sent."""
    refused_since: float | None = None
    refusals: int = 0


class _Lane(Struct):
    """The notifications of one receiver."""

    waiting: dict[int, PendingNotification] = field(default_factory=dict)
    handed: set[int] = field(default_factory=set)
    failures: int = 0
    """Consecutive failures."""
    due: float = float("-inf")


class Outbox:
    """The pending notifications, by receiver, in order."""

    def __init__(self, counts: MonitorCounts) -> None:
        self._counts = counts
        self._lanes: dict[str, _Lane] = {}
        self.last = 0
        """Number of the newest message."""
        self.saved = 0
        """Messages up to this number are in the state file."""
        self.patience = _UNSAVED
        """Seconds after which an unsaved message is sent."""
        self.changed = False
        """True: a message was accepted or given up since the flag was cleared."""

    # --- in ---------------------------------------------------------------------------------------------------------

    def enqueue(self, message: Transition, receivers: Iterable[str], now: float) -> None:
        """Add a message for each of these receivers."""
        for name in receivers:
            self.last += 1
            self._lane(name).waiting[self.last] = PendingNotification(self.last, message, now)

    def receivers(self, names: Iterable[str]) -> None:
        """Set the configured receivers. Pending messages of others are dropped."""
        wanted = list(names)
        for name in [name for name in self._lanes if name not in wanted]:
            lane = self._lanes.pop(name)
            if lane.waiting:
                _log.warning("notifier=%s is no longer configured: %d messages dropped", name, len(lane.waiting))
                self._count(name, "dropped", len(lane.waiting))
        for name in wanted:
            self._lane(name)
            for outcome in OUTCOMES:
                self._count(name, outcome, 0)

    # --- out --------------------------------------------------------------------------------------------------------

    def batch(self, name: str, now: float, *, last: bool = False) -> list[PendingNotification]:
        """Return the messages to send now; none during the batch before or a pause after a failure.

        `last`: the monitor stops, so pauses are ignored.
        """
        lane, until = self._lanes.get(name), math.inf if last else now
        if lane is None or lane.handed or not lane.waiting or until < lane.due:
            return []
        if len(lane.waiting) > _MAX_UNTHINNED:
            self._thin(name, lane)
        blocked: set[tuple[str, str]] = set()
        chosen: list[PendingNotification] = []
        for pending in lane.waiting.values():
            if pending.number > self.saved and until - pending.since < self.patience:
                break
            key = pending.message.run, pending.message.incident
            if key in blocked or until < pending.due:
                blocked.add(key)  # the end of an incident must not overtake its begin
                continue
            chosen.append(pending)
            if len(chosen) == _BATCH and not last:
                break
        lane.handed = {pending.number for pending in chosen}
        return chosen

    def settle(self, name: str, tried: Sequence[DeliveryResult], now: float, chance: float = 0.0) -> None:
        """Apply the results of a batch.

        `chance` in [0, 1) shortens the pause after a failure by up to half, so that many daemons do not retry at once.
        """
        lane = self._lanes.get(name)
        if lane is None:
            return  # no longer configured
        for number, result in tried:
            lane.handed.discard(number)
            pending = lane.waiting.get(number)
            if pending is None or result == "untried":
                continue
            if result == "later":
                lane.failures += 1
                lane.due = now + min(_LONGEST, _FIRST * 2.0 ** min(lane.failures - 1, 60)) * (1.0 - 0.5 * chance)
                self._count(name, "retried")
                continue
            lane.failures, lane.due, self.changed = 0, float("-inf"), True
            if result == "refused" and not self._given_up(pending, now):
                self._count(name, "retried")
                continue
            del lane.waiting[number]
            self._count(name, "sent" if result == "sent" else "failed")

    def _given_up(self, pending: PendingNotification, now: float) -> bool:
        pending.refused_since = now if pending.refused_since is None else pending.refused_since
        pending.due = now + min(_REFUSED_LONGEST, _REFUSED_FIRST * 2.0 ** min(pending.refusals, 60))
        pending.refusals += 1
        return now - pending.refused_since >= _GIVE_UP

    # --- pending ----------------------------------------------------------------------------------------------------

    def pending(self) -> dict[str, int]:
        """Return receiver -> number of pending messages."""
        return {name: len(lane.waiting) for name, lane in self._lanes.items()}

    def save(self) -> dict[str, list[PendingNotification]]:
        """Return the pending messages for the state."""
        return {name: list(lane.waiting.values()) for name, lane in self._lanes.items() if lane.waiting}

    def restore(self, saved: dict[str, list[PendingNotification]]) -> None:
        """Restore the pending messages of an earlier process."""
        for name, waiting in saved.items():
            self._lane(name).waiting = {pending.number: pending for pending in waiting}
            self.last = self.saved = max([self.last, *(pending.number for pending in waiting)])

    def _lane(self, name: str) -> _Lane:
        return self._lanes.setdefault(name, _Lane())

    def _count(self, name: str, outcome: Outcome, by: int = 1) -> None:
        self._counts.add("notifications_total", name, outcome, by=by)

    def _thin(self, name: str, lane: _Lane) -> None:
        """Of many waiting messages, keep the newest of each incident, which has the present state."""
        newest = {(pending.message.run, pending.message.incident): pending.number for pending in lane.waiting.values()}
        kept = {number: lane.waiting[number] for number in sorted(newest.values())}
        self._count(name, "suppressed", len(lane.waiting) - len(kept))
        lane.waiting = kept
