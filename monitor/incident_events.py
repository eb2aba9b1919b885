"""Groups incidents into events for people: one page, one group of notifications, one entry of the pager. Pure.

An incident gets its event when it first becomes a warning, and keeps it. A new event has a new identity for its
receivers, so that nothing about an older one (a silence, an acknowledgement, the last repetition) suppresses it. Times
are Unix seconds.

A new incident joins
- the event of an open incident of its run that it supersedes (a hang becomes a crash),
- its run's event if that event's last incident began at most two minutes ago (a slowdown, then the hang),
- if critical, another run's critical event whose last incident began at most a minute ago (an outage of the cluster).

Otherwise it begins an event. The id consists of the run and the minute in which the problem began, so that a monitor
which lost its state, and a second monitor of the same logs, compute the same id.
"""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct, field

from megatron_monitor.detectors.base import RANK, Severity

UNWATCHED: Final = "unwatched"
"""The event of unobserved time: the alert of a missed deadline has it (deploy/prometheus/rules)."""
_SAME_RUN: Final = 120.0  # seconds within which one cause affects a run again
_SAME_CLUSTER: Final = 60.0  # seconds: a failed file system affects all runs within their next save or read
_MAX_GROWTH_SECONDS: Final = (
    300.0  # seconds for which an event of several runs grows; later incidents begin another one
)
_MISSED: Final = 180.0  # seconds after which the rule of a missed deadline fires (deploy/prometheus/rules)
_AFTER_RESTART: Final = 120.0  # seconds in which a restarted monitor finds what happened meanwhile
_MEMORY_SECONDS: Final = 86400.0  # seconds for which an event's id is not reused
_CRITICAL: Final = RANK["critical"]
_MIN_RANK: Final = RANK["warning"]


class EventNotices(Struct):
    """What one receiver was notified about an event."""

    open: set[str] = field(default_factory=set)
    """Its open incidents."""
    rank: int = -1
    """The worst notified severity."""
    of: str = ""
    """The incident that had it."""

    def wants(self, key: str, rank: int, *, fires: bool) -> bool:
        """Return True if the event needs this notification: its first, one that it became worse, a
        repetition, its end.
        """
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
    """Incidents that began together."""

    id: str
    run: str
    """Run of its first incident."""
    first: float
    last: float
    """When its last incident began."""
    critical: bool = False
    """True if one of its incidents was critical when it began."""
    notices: dict[str, EventNotices] = field(default_factory=dict)
    """Receiver -> what it was notified."""


class IncidentEvents(Struct):
    """The events of the last day by id, the oldest first. Part of the state."""

    known: dict[str, IncidentEvent] = field(default_factory=dict)
    away_since: float | None = None
    """When the monitor was last stopped or killed."""
    back_at: float | None = None
    """When it was observing again."""

    def of(
        self, run: str, severity: Severity, since: float, at: float, superseded: Collection[str] = (),
        deadline: float | None = None,
    ) -> str:  # fmt: skip
        """Return the event of an incident of this run that became a warning at `at`. Its problem began at `since`.
        `superseded`: events of the run's open incidents that it replaces. `deadline`: for a hang, when its timeout
        passed. Empty for information.
        """
        rank = RANK[severity]
        if rank < _MIN_RANK:
            return ""
        if deadline is not None and self._was_missed(deadline, at):
            return UNWATCHED
        event = self._joined(run, rank, at, superseded) or self._begun(run, since, at)
        event.last = max(event.last, at)
        event.critical = event.critical or rank >= _CRITICAL
        return event.id

    def _was_missed(self, deadline: float, at: float) -> bool:
        """Return True if the deadline passed while the monitor was stopped, long enough ago for the rule of a missed
        deadline to have fired.
        """
        if self.away_since is None or self.back_at is None or at - self.back_at > _AFTER_RESTART:
            return False
        return self.away_since < deadline <= self.back_at - _MISSED

    def changes(self, event: str, receiver: str, incident: str, severity: Severity, *, fires: bool) -> bool:
        """Return True if a receiver is notified about this `incident` (its run and kind): once per event, each time
        that the event becomes worse, and once when all of it has ended. Each information is notified.
        """
        known = self.known.get(event)
        if known is None:
            return True
        return known.notices.setdefault(receiver, EventNotices()).wants(incident, RANK[severity], fires=fires)

    def _joined(self, run: str, rank: int, at: float, superseded: Collection[str]) -> IncidentEvent | None:
        recent = [one for one in reversed(self.known.values()) if at - one.first < _MEMORY_SECONDS]
        for event in recent:
            if event.id in superseded or (event.run == run and abs(at - event.last) <= _SAME_RUN):
                return event
        for event in recent if rank >= _CRITICAL else ():
            if (
                event.critical
                and abs(at - event.last) <= _SAME_CLUSTER
                and abs(at - event.first) <= _MAX_GROWTH_SECONDS
            ):
                return event
        return None

    def _begun(self, run: str, since: float, at: float) -> IncidentEvent:
        for old in [one for one in self.known.values() if at - one.last >= _MEMORY_SECONDS]:
            if not any(notices.open for notices in old.notices.values()):
                del self.known[old.id]
        name = f"{run} {datetime.fromtimestamp(since, UTC):%Y-%m-%dT%H:%MZ}"
        found, number = name, 1
        while found in self.known:
            number += 1
            found = f"{name} {number}"
        self.known[found] = IncidentEvent(found, run, at, at)
        return self.known[found]
