"""Which incidents are one event for people: one page, one group of messages, one entry of the pager.

Law: pure; an incident gets its event when it first becomes a warning, and keeps it. A new event is a new identity for
whoever receives it, so that nothing remembered of an older one (a silence, an acknowledgement, the last repetition)
can swallow it. Times are Unix seconds.

A new incident joins
- the event of an open incident of its run that it supersedes (a hang becomes a crash),
- its run's event if that one's last incident began at most two minutes ago (a full disk: the save, then the crash),
- if critical, another run's critical event whose last incident began at most a minute ago (an outage of the cluster).
Else it begins an event. Its id is made of the run and of when the trouble began, to the minute: a monitor that lost its
state, and a second one of the same logs, give the same.
"""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct, field

from megatron_monitor.detectors.base import RANK, Severity

UNWATCHED: Final = "unwatched"
"""The event of what nobody watched: the alert of a missed deadline has it (deploy/prometheus/rules)."""
_SAME_RUN: Final = 120.0  # seconds: what one cause does to a run follows within them
_SAME_CLUSTER: Final = 60.0  # seconds: a file system that stops fails all its runs within their next save or read
_LONGEST: Final = 300.0  # seconds over which an event of several runs grows: later ones are told of anew
_MISSED: Final = 180.0  # seconds after which the rule of a missed deadline fires (deploy/prometheus/rules)
_BACK: Final = 120.0  # seconds in which a monitor that is back finds what happened while it was away
_KEPT: Final = 86400.0  # seconds that an event's id is not given again
_CRITICAL: Final = RANK["critical"]
_LEAST: Final = RANK["warning"]


class EventNotices(Struct):
    """What one receiver of messages was told of an event."""

    open: set[str] = field(default_factory=set)
    """Its incidents that stand."""
    rank: int = -1
    """The worst severity that it was told of,"""
    of: str = ""
    """and the incident that had it."""

    def wants(self, key: str, rank: int, *, fires: bool) -> bool:
        """Is this one of the messages of the event: its first, one that it became worse, a reminder, its end?"""
        if fires:
            reminds = key in self.open and key == self.of
            self.open.add(key)
            if rank > self.rank:
                self.rank, self.of, reminds = rank, key, True
            return reminds
        self.open.discard(key)
        if self.open or self.rank < 0:
            return False
        self.rank, self.of = -1, ""
        return True


class IncidentEvent(Struct):
    """What began together."""

    id: str
    run: str
    """Of its first incident."""
    first: float
    last: float
    """When its first and last incident became one."""
    critical: bool = False
    """Was any of its incidents critical when it began?"""
    notices: dict[str, EventNotices] = field(default_factory=dict)
    """By receiver."""


class IncidentEvents(Struct):
    """The events of the last day, by their ids, oldest first. Part of the state."""

    known: dict[str, IncidentEvent] = field(default_factory=dict)
    away_since: float | None = None
    """When the monitor was last stopped or killed,"""
    back_at: float | None = None
    """and when it watched again."""

    def of(
        self, run: str, severity: Severity, since: float, at: float, superseded: Collection[str] = (),
        deadline: float | None = None,
    ) -> str:  # fmt: skip
        """The event of an incident of this run that becomes one at `at`; its trouble began at `since`. `superseded`:
        the events of open incidents of the run that it makes needless; `deadline`: of a hang, when silence became one.
        Empty for what is only information.
        """
        rank = RANK[severity]
        if rank < _LEAST:
            return ""
        if deadline is not None and self._was_missed(deadline, at):
            return UNWATCHED
        event = self._joined(run, rank, at, superseded) or self._begun(run, since, at)
        event.last = max(event.last, at)
        event.critical = event.critical or rank >= _CRITICAL
        return event.id

    def _was_missed(self, deadline: float, at: float) -> bool:
        """Did it pass while the monitor was away, long enough ago for the rule of a missed deadline to have fired?"""
        if self.away_since is None or self.back_at is None or at - self.back_at > _BACK:
            return False
        return self.away_since < deadline <= self.back_at - _MISSED

    def changes(self, event: str, receiver: str, incident: str, severity: Severity, *, fires: bool) -> bool:
        """Whether a receiver gets a message of this `incident` (its run and kind): one an event, one each time that
        the event becomes worse, one when all of it has ended. Each of what is only information.
        """
        known = self.known.get(event)
        if known is None:
            return True
        return known.notices.setdefault(receiver, EventNotices()).wants(incident, RANK[severity], fires=fires)

    def _joined(self, run: str, rank: int, at: float, superseded: Collection[str]) -> IncidentEvent | None:
        recent = [one for one in reversed(self.known.values()) if at - one.first < _KEPT]
        for event in recent:
            if event.id in superseded or (event.run == run and abs(at - event.last) <= _SAME_RUN):
                return event
        for event in recent if rank >= _CRITICAL else ():
            if event.critical and abs(at - event.last) <= _SAME_CLUSTER and abs(at - event.first) <= _LONGEST:
                return event
        return None

    def _begun(self, run: str, since: float, at: float) -> IncidentEvent:
        for old in [one for one in self.known.values() if at - one.last >= _KEPT]:
            if not any(notices.open for notices in old.notices.values()):
                del self.known[old.id]
        name = f"{run} {datetime.fromtimestamp(since, UTC):%Y-%m-%dT%H:%MZ}"
        found, number = name, 1
        while found in self.known:
            number += 1
            found = f"{name} {number}"
        self.known[found] = IncidentEvent(found, run, at, at)
        return self.known[found]
