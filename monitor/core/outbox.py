"""The owed messages: what a receiver wants and has not accepted yet. Part of the state, saved with it.

Law: pure, the loop's alone. A message is owed until its receiver accepts it.
A notifier's thread (monitor/deliveries.py) tries what it is handed and reports; what is tried when is decided here:

    owe ──► waiting ── batch ──► the notifier's thread ── settle ──► accepted, tried again later, or refused

A receiver that is down is asked again for as long as it takes. What it refuses (a 404, a wrong password) waits apart,
so that it holds up no other incident. Where more than 500 messages wait for one receiver, only the newest of each
incident is kept; the others are suppressed and counted.

A message is handed out when it is saved, so that what is sent again after a crash carries the same id. Instants are
those of the core.
"""

import logging
import math
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Final, Literal, NamedTuple, get_args

from msgspec import Struct, field

from megatron_monitor.incidents import Transition

_log = logging.getLogger(__name__)

_CROWDED: Final = 500  # messages for one receiver that are kept as they are: every run of a large site, twice
_BATCH: Final = 50  # messages handed to a thread at once, which tries them for a second
_UNSAVED: Final = 2.0  # seconds that a message waits to be saved: a disk that hangs delays it by no more
_FIRST, _LONGEST = 1.0, 60.0  # seconds between two tries of a receiver that may come back
_REFUSED_FIRST, _REFUSED_LONGEST = 300.0, 3600.0  # and of a message that it refused: somebody has to mend something
_GIVE_UP: Final = 86400.0  # seconds of refusals after which a message has failed: a day, so that somebody has looked

Outcome = Literal["sent", "retried", "failed", "dropped", "suppressed"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
Result = Literal["sent", "later", "refused", "final", "untried"]


class DeliveryResult(NamedTuple):
    """What became of a message that a notifier's thread was handed. `later`: the receiver is away, `refused`: it does
    not take this one, `final`: it never will.
    """

    number: int
    result: Result


class PendingNotification(Struct):
    """One message for one receiver."""

    number: int
    """They are tried in this order."""
    message: Transition
    since: float
    due: float = 0.0
    """It is not tried before."""
    refused_since: float | None = None
    refusals: int = 0


class _Lane(Struct):
    """One receiver."""

    waiting: dict[int, PendingNotification] = field(default_factory=dict)
    handed: set[int] = field(default_factory=set)
    failures: int = 0
    """In a row."""
    due: float = float("-inf")


class Outbox:
    """By receiver, in order."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._numbers = count(1)
        self.last = 0
        """The number of the newest message."""
        self.saved = 0
        """Messages up to this number are in the state file."""
        self.patience = _UNSAVED
        """Seconds after which a message is sent that is not saved."""
        self.changed = False
        """Something was accepted or given up since the flag was last cleared."""
        self.outcomes: dict[tuple[str, Outcome], int] = {}
        """What happened since they were last taken away."""

    # --- in ---------------------------------------------------------------------------------------------------------

    def enqueue(self, message: Transition, receivers: Iterable[str], now: float) -> None:
        """Each of these is to get it."""
        for name in receivers:
            self.last = number = next(self._numbers)
            self._lane(name).waiting[number] = PendingNotification(number, message, now)

    def receivers(self, names: Iterable[str]) -> None:
        """These are configured now; what others are owed is dropped."""
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
        """What the receiver is to be asked to take now; nothing while it still has the batch before, or while it is
        away. `last`: there is no later, so that no pause is kept.
        """
        lane, until = self._lanes.get(name), math.inf if last else now
        if lane is None or lane.handed or not lane.waiting or until < lane.due:
            return []
        if len(lane.waiting) > _CROWDED:
            self._thin(name, lane)
        blocked: set[tuple[str, str]] = set()
        chosen: list[PendingNotification] = []
        for pending in lane.waiting.values():
            if pending.number > self.saved and until - pending.since < self.patience:
                break
            key = pending.message.run, pending.message.incident
            if key in blocked or until < pending.due:
                blocked.add(key)  # what ends an incident never overtakes what began it
                continue
            chosen.append(pending)
            if len(chosen) == _BATCH and not last:
                break
        lane.handed = {pending.number for pending in chosen}
        return chosen

    def settle(self, name: str, tried: Sequence[DeliveryResult], now: float, chance: float = 0.0) -> None:
        """A receiver's thread has done what it could with a batch. `chance` in [0, 1) takes up to half of the pause
        after a failure away, so that many daemons do not come back at once.
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

    # --- what is owed -----------------------------------------------------------------------------------------------

    def pending(self) -> dict[str, int]:
        """Receiver -> how many messages."""
        return {name: len(lane.waiting) for name, lane in self._lanes.items()}

    def take_outcomes(self) -> dict[tuple[str, Outcome], int]:
        """(receiver, outcome) -> how many since the last call."""
        taken, self.outcomes = self.outcomes, {}
        return taken

    def save(self) -> dict[str, list[PendingNotification]]:
        """For the state."""
        return {name: list(lane.waiting.values()) for name, lane in self._lanes.items() if lane.waiting}

    def restore(self, saved: dict[str, list[PendingNotification]]) -> None:
        """What an earlier daemon owed."""
        for name, waiting in saved.items():
            self._lane(name).waiting = {pending.number: pending for pending in waiting}
            self.last = self.saved = max([self.last, *(pending.number for pending in waiting)])
        self._numbers = count(self.last + 1)

    def _lane(self, name: str) -> _Lane:
        return self._lanes.setdefault(name, _Lane())

    def _count(self, name: str, outcome: Outcome, by: int = 1) -> None:
        self.outcomes[name, outcome] = self.outcomes.get((name, outcome), 0) + by

    def _thin(self, name: str, lane: _Lane) -> None:
        """Of many that wait, keep the newest of each incident: it says what holds now."""
        newest = {(pending.message.run, pending.message.incident): pending.number for pending in lane.waiting.values()}
        kept = {number: lane.waiting[number] for number in sorted(newest.values())}
        self._count(name, "suppressed", len(lane.waiting) - len(kept))
        lane.waiting = kept
