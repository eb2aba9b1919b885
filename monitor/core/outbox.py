"""The owed messages: what a receiver wants and has not accepted yet. Part of the state, saved with it.

Law: pure, the loop's alone. A message is owed until its receiver accepts it or something newer says all that it said.
A notifier's thread (monitor/deliveries.py) tries what it is handed and reports; what is tried when is decided here:

    owe ──► waiting ── batch ──► the notifier's thread ── settle ──► accepted, tried again later, or refused

A receiver that is down is asked again for as long as it takes. What it refuses (a 404, a wrong password) waits apart,
so that it holds up no other incident. After ten minutes, or if too much waits, what ended meanwhile is no longer sent
as it was: an incident that began and ended is one message, and those of many runs are one digest.

A message is handed out when it is saved, so that what is sent again after a crash carries the same id. Instants are
those of the core.
"""

import logging
import math
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Final, Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from megatron_monitor.detectors.base import RANK, duration
from megatron_monitor.incidents import Transition

_log = logging.getLogger(__name__)

_STALE: Final = 600.0  # seconds owed after which only what still holds is sent: shorter is a restart of the receiver
_CROWDED: Final = 500  # messages for one receiver that are kept as they are: every run of a large site, twice
_MANY: Final = 20  # ended incidents that nobody heard of which are listed one by one: more is a storm
_NAMED: Final = 20  # runs that a digest names
_BATCH: Final = 50  # messages handed to a thread at once, which tries them for a second
_UNSAVED: Final = 2.0  # seconds that a message waits to be saved: a disk that hangs delays it by no more
_FIRST, _LONGEST = 1.0, 60.0  # seconds between two tries of a receiver that may come back
_REFUSED_FIRST, _REFUSED_LONGEST = 300.0, 3600.0  # and of a message that it refused: somebody has to mend something
_GIVE_UP: Final = 86400.0  # seconds of refusals after which a message has failed: a day, so that somebody has looked

Outcome = Literal["sent", "retried", "failed", "dropped"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("sent", "retried", "failed", "dropped")
Result = Literal["sent", "later", "refused", "final", "untried"]


class Tried(NamedTuple):
    """What became of a message that a notifier's thread was handed. `later`: the receiver is away, `refused`: it does
    not take this one, `final`: it never will.
    """

    number: int
    result: Result


class Owed(Struct):
    """One message for one receiver."""

    number: int
    """They are tried in this order."""
    message: Transition
    since: float
    due: float = 0.0
    """It is not tried before."""
    refused_since: float | None = None
    refusals: int = 0
    known: bool = False
    """It was tried, or ends what was: its receiver may have heard of the incident."""
    ended: dict[str, int] = field(default_factory=dict)
    """For a digest: kind -> incidents that began and ended before anybody was told."""
    runs: list[str] = field(default_factory=list)
    """and the runs, where there are several."""


class _Lane(Struct):
    """One receiver."""

    waiting: dict[int, Owed] = field(default_factory=dict)
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

    def owe(self, message: Transition, receivers: Iterable[str], now: float) -> None:
        """Each of these is to get it."""
        for name in receivers:
            self.last = number = next(self._numbers)
            self._lane(name).waiting[number] = Owed(number, message, now)

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

    def batch(self, name: str, now: float, *, last: bool = False) -> list[Owed]:
        """What the receiver is to be asked to take now; nothing while it still has the batch before, or while it is
        away. `last`: there is no later, so that no pause is kept.
        """
        lane, until = self._lanes.get(name), math.inf if last else now
        if lane is None or lane.handed or not lane.waiting or until < lane.due:
            return []
        self._condense(lane, now)
        blocked: set[tuple[str, str]] = set()
        chosen: list[Owed] = []
        for owed in lane.waiting.values():
            if owed.number > self.saved and until - owed.since < self.patience:
                break
            key = owed.message.run, owed.message.incident
            if key in blocked or until < owed.due:
                blocked.add(key)  # what ends an incident never overtakes what began it
                continue
            chosen.append(owed)
            if len(chosen) == _BATCH and not last:
                break
        lane.handed = {owed.number for owed in chosen}
        return chosen

    def settle(self, name: str, tried: Sequence[Tried], now: float, chance: float = 0.0) -> None:
        """A receiver's thread has done what it could with a batch. `chance` in [0, 1) takes up to half of the pause
        after a failure away, so that many daemons do not come back at once.
        """
        lane = self._lanes.get(name)
        if lane is None:
            return  # no longer configured
        for number, result in tried:
            lane.handed.discard(number)
            owed = lane.waiting.get(number)
            if owed is None or result == "untried":
                continue
            owed.known = True
            if result == "later":
                lane.failures += 1
                lane.due = now + min(_LONGEST, _FIRST * 2.0 ** min(lane.failures - 1, 60)) * (1.0 - 0.5 * chance)
                self._count(name, "retried")
                continue
            lane.failures, lane.due, self.changed = 0, float("-inf"), True
            if result == "refused" and not self._given_up(owed, now):
                self._count(name, "retried")
                continue
            del lane.waiting[number]
            self._count(name, "sent" if result == "sent" else "failed")

    def _given_up(self, owed: Owed, now: float) -> bool:
        owed.refused_since = now if owed.refused_since is None else owed.refused_since
        owed.due = now + min(_REFUSED_LONGEST, _REFUSED_FIRST * 2.0 ** min(owed.refusals, 60))
        owed.refusals += 1
        return now - owed.refused_since >= _GIVE_UP

    # --- what is owed -----------------------------------------------------------------------------------------------

    def owed(self) -> dict[str, int]:
        """Receiver -> how many messages."""
        return {name: len(lane.waiting) for name, lane in self._lanes.items()}

    def take_outcomes(self) -> dict[tuple[str, Outcome], int]:
        """(receiver, outcome) -> how many since the last call."""
        taken, self.outcomes = self.outcomes, {}
        return taken

    def save(self) -> dict[str, list[Owed]]:
        """For the state."""
        return {name: list(lane.waiting.values()) for name, lane in self._lanes.items() if lane.waiting}

    def restore(self, saved: dict[str, list[Owed]]) -> None:
        """What an earlier daemon owed."""
        for name, waiting in saved.items():
            self._lane(name).waiting = {owed.number: owed for owed in waiting}
            self.last = self.saved = max([self.last, *(owed.number for owed in waiting)])
        self._numbers = count(self.last + 1)

    def _lane(self, name: str) -> _Lane:
        return self._lanes.setdefault(name, _Lane())

    def _count(self, name: str, outcome: Outcome, by: int = 1) -> None:
        self.outcomes[name, outcome] = self.outcomes.get((name, outcome), 0) + by

    # --- what need not be said any more -----------------------------------------------------------------------------

    def _condense(self, lane: _Lane, now: float) -> None:
        """Leave what still holds, and one message for what does not."""
        crowded = len(lane.waiting) > _CROWDED
        groups: dict[tuple[str, str], list[Owed]] = {}
        for owed in lane.waiting.values():
            if owed.runs:
                continue  # a digest of many runs
            groups.setdefault((owed.message.run, owed.message.incident), []).append(owed)
        for group in groups.values():
            if len(group) > 1 and (crowded or now - group[0].since >= _STALE):
                for owed in group:
                    del lane.waiting[owed.number]
                lane.waiting.update((owed.number, owed) for owed in _condensed(group))
        lone = [owed for owed in lane.waiting.values() if owed.ended and not owed.known]
        if len(lone) > _MANY:
            for owed in lone:
                del lane.waiting[owed.number]
            digest = _digest(lone)
            lane.waiting[digest.number] = digest
        lane.waiting = dict(sorted(lane.waiting.items()))


def _condensed(group: Sequence[Owed]) -> list[Owed]:
    """One incident's messages: what ended is one message, what still fires another."""
    firing: Owed | None = None
    end: Owed | None = None
    ended, known, trouble = 0, False, ""
    for owed in group:
        if owed.message.status == "firing":
            known |= owed.known
            heard = owed.known or (firing is not None and firing.known)
            trouble = f": {owed.message.summary}"
            # It grew worse, or was repeated: the newest says it all, in the place of the first.
            firing = owed if firing is None else replace(owed, number=firing.number, since=firing.since, known=heard)
        else:
            ended += sum(owed.ended.values()) or firing is not None
            known |= owed.known or not (owed.ended or firing)
            firing, end = None, owed
    kept = []
    if end is not None:
        message = end.message
        if ended != sum(end.ended.values()):
            times = "" if ended == 1 else f" {ended} times"
            last = "" if ended == 1 else "the last time "
            summary = f"began and ended{times} before this could be delivered; {last}{message.summary}{trouble}"
            message = replace(message, summary=summary, evidence={**message.evidence, "kept_back": ended})
        kinds = {message.incident: ended} if ended else {}
        kept.append(replace(end, message=message, known=known, ended=kinds))
    return [*kept, firing] if firing is not None else kept


def _digest(lone: Sequence[Owed]) -> Owed:
    """Incidents of many runs that began and ended before anybody was told, as one message."""
    newest = max(lone, key=lambda owed: owed.message.time)
    kinds: dict[str, int] = {}
    runs: dict[str, None] = {}
    for owed in lone:
        runs.update(dict.fromkeys(owed.runs or [owed.message.run]))
        for kind, many in owed.ended.items():
            kinds[kind] = kinds.get(kind, 0) + many
    counted = ", ".join(f"{many} {kind}" for kind, many in sorted(kinds.items(), key=lambda item: -item[1]))
    since = min(owed.since for owed in lone)
    more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    message = Transition(
        run=f"{len(runs)} runs",
        incident=max(kinds, key=lambda kind: kinds[kind]),
        status="resolved",
        severity=max((owed.message.severity for owed in lone), key=lambda severity: RANK[severity]),
        time=newest.message.time,
        summary=(
            f"{sum(kinds.values())} incidents of {len(runs)} runs began and ended within "
            f"{duration(max(owed.since for owed in lone) - since)} before this could be delivered: {counted}"
        ),
        evidence={"kept_back": sum(kinds.values()), "kinds": kinds, "runs": ", ".join([*runs][:_NAMED]) + more},
    )
    return Owed(newest.number, message, since, ended=kinds, runs=[*runs])
