"""Findings in, transitions out: an incident fires, may grow worse, is notified again after a while, and is resolved.

Law: pure; one incident a run and kind; for each the transitions firing and resolved alternate (a firing one may repeat
with a higher severity or after the repeat interval). An inhibited incident never fires; one that fired before is
resolved by what supersedes it, so that whoever was notified of it hears its end. A kind with a hold time is pending
until its trouble has stood that long. A level (a slowdown) that comes and goes is one incident: it ends when it has
been over for five minutes. Every incident ends when its run has finished. Which incidents are one event for people,
events.py says.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from megatron_monitor.detectors import RULES
from megatron_monitor.detectors.base import RANK, Finding, Severity, duration, stated
from megatron_monitor.incident_events import IncidentEvents
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.state import RunState

_INHIBITED_BY: dict[str, tuple[str, ...]] = {name: rule.inhibited_by for name, rule in RULES.items()}
_LEVELS = frozenset(name for name, rule in RULES.items() if rule.is_level)
_HISTORY = 100
_SHOWN = 3600.0  # seconds that the series of what is over shows 0: longer than a scrape, or a break of one
_FOLLOWS = 120.0  # seconds after the end of an incident in which what it led to begins
# Seconds: a level that is back sooner has not ended, and what has just begun is told to people.
_LINGERS = 300.0
_NO_HOLD: Mapping[str, float] = MappingProxyType({})


class IncidentFacts(Struct):
    """What an incident and each message about it say."""

    incident: str
    severity: Severity
    summary: str
    iteration: int | None = None
    """The last one known then."""
    onset_iteration: int | None = None
    phase: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    display_only: bool = False
    event: str = ""
    """The event that it belongs to (events.py), once it is more than information."""
    since: float | None = None
    """When the incident began."""
    gpus: int | None = None
    """Of the run, where its log tells."""
    job: str = ""
    """Its id in Slurm, where one is known."""
    pid_file: str = ""
    """Of its launcher, where one is configured."""
    checkpoint: int | None = None
    """The last one that was saved whole."""


_REPORTED = IncidentFacts.__struct_fields__
_JSON = (
    "run", "incident", "status", "severity", "event", "iteration", "onset_iteration", "time", "phase", "summary",
    "evidence",
)  # fmt: skip


class Transition(IncidentFacts, frozen=True, kw_only=True):  # type: ignore[misc]  # msgspec can do it
    """A change of judgement: what notifiers send and what `replay` prints. Times are Unix seconds."""

    run: str
    status: Literal["firing", "resolved"]
    time: float
    links: dict[str, str] = field(default_factory=dict)
    """`page` and `runbook`: addresses that the daemon knows."""

    def to_json(self) -> dict[str, Any]:
        """The object of `replay --json`; absent values are left out."""
        time = datetime.fromtimestamp(self.time, UTC).isoformat()
        return stated({name: getattr(self, name) for name in _JSON} | {"time": time})


class Incident(IncidentFacts, kw_only=True):
    """One open incident. Times are instants."""

    since: float
    notified_at: float
    opened_at: float = 0.0
    attempt: int = 0
    over_since: float | None = None
    """Of a level: since when its trouble is over, while it may still come back."""


class IncidentBook(Struct):
    """The incidents of one run. Everything here can be written as JSON."""

    open: dict[str, Incident] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    """Kind -> since when its trouble stands before it is notified."""
    counts: dict[str, int] = field(default_factory=dict)
    """Kind -> incidents that people were to hear of."""
    history: list[Transition] = field(default_factory=list)
    over: dict[str, float] = field(default_factory=dict)
    """`KIND SEVERITY EVENT` of what stood until then: its series shows 0 for an hour."""

    finished_at: float | None = None
    """When the run was first judged as finished. What stands is told then, and ends with the next judgement."""

    def is_over(self, now: float) -> bool:
        """Has the run finished, and was all told that its end may still bring, such as a job that fails behind it?"""
        return self.finished_at is not None and now >= self.finished_at + _LINGERS

    def ended_lately(self, kind: str, now: float) -> list[str]:
        """The events of what such an incident makes needless and that ended a moment ago: with the line of a crash its
        hang ends, and the crash is reported some seconds later.
        """
        recent = [labels.split(" ", 2) for labels, at in self.over.items() if now - at <= _FOLLOWS]
        return [event for other, _, event in recent if event and kind in _INHIBITED_BY.get(other, ())]

    def ends_at(self) -> float | None:
        """When the next incident ends by itself: a level that is over, all that is open of a finished run."""
        if self.finished_at is not None:
            return min((max(self.finished_at, one.opened_at) + _LINGERS for one in self.open.values()), default=None)
        return min(
            (one.over_since + _LINGERS for one in self.open.values() if one.over_since is not None), default=None
        )


def judge(
    book: IncidentBook, state: RunState, findings: Mapping[str, Finding], now: float, repeat_interval: float,
    events: IncidentEvents, hold: Mapping[str, float] = _NO_HOLD,
) -> list[Transition]:  # fmt: skip
    """Bring the book up to date with this tick's findings, by kind; the transitions in the order to be notified."""
    firing = {kind: finding for kind, finding in findings.items() if finding.state == "firing"}
    ends = {kind: finding.summary for kind, finding in findings.items() if finding.state == "clear"}
    unknown = findings.keys() - firing.keys() - ends.keys()
    for kind in book.pending.keys() - firing.keys() - unknown:
        del book.pending[kind]
    book.over = {labels: at for labels, at in book.over.items() if now - at < _SHOWN}
    tick = _Tick(book, state, now, events)
    out: list[Transition] = []
    firing = {kind: finding for kind, finding in firing.items() if _superseded(kind, firing, book) is None}
    for kind, finding in firing.items():
        out += tick.fires(kind, finding, hold.get(kind, 0.0), repeat_interval)
    for kind in [kind for kind in book.open if kind not in firing and kind not in unknown]:
        by = _superseded(kind, firing, book)
        if by is not None or not tick.lingers(kind, over=not findings):
            out.append(tick.resolve(kind, by, ends.get(kind, "")))
    book.history.extend(out)
    del book.history[:-_HISTORY]
    return out


def amend(book: IncidentBook, transition: Transition, facts: Mapping[str, Any]) -> Transition:
    """The transition with more evidence, in the book's history as well."""
    amended = replace(transition, evidence={**transition.evidence, **facts})
    book.history = [amended if item is transition else item for item in book.history]
    return amended


def give_up(book: IncidentBook, state: RunState, why: str, now: float) -> list[Transition]:
    """The run is watched no more: whatever is open of it is closed, as what it is, no end of the trouble."""
    out = []
    for kind, incident in list(book.open.items()):
        lasted = duration(max(0.0, now - incident.since))
        shown = replace(incident, summary=f"not watched any more ({why}), {lasted} after it began: {incident.summary}")
        del book.open[kind]
        out.append(_transition(state, "resolved", shown, now))
    book.history.extend(out)
    return out


def _superseded(kind: str, firing: Mapping[str, Finding], book: IncidentBook) -> str | None:
    """What makes an incident of this kind needless; None if nothing does."""
    return next((other for other in _INHIBITED_BY.get(kind, ()) if other in firing or other in book.open), None)


class _Tick(NamedTuple):
    """One judgement of one run."""

    book: IncidentBook
    state: RunState
    now: float
    events: IncidentEvents

    def fires(self, kind: str, finding: Finding, hold: float, repeat_interval: float) -> Iterator[Transition]:
        """A kind fires: what is told of it."""
        book, now = self.book, self.now
        known = book.open.get(kind)
        if known is not None and known.over_since is None and (finding.since or known.since) > known.since:
            yield self.resolve(kind)  # it had ended and began anew between two ticks; a level that is back has not
            known = None
        if known is None and now - book.pending.setdefault(kind, now) < hold:
            return
        book.pending.pop(kind, None)
        if known is None:
            superseded = [one.event for one in book.open.values() if kind in _INHIBITED_BY.get(one.incident, ())]
            superseded += book.ended_lately(kind, now)
            known = book.open[kind] = _opened(self.state, kind, finding, now)
            self._joins(known, superseded)
            if not finding.display_only:
                self._count(kind)
        elif not self._repeat_due(known, finding, repeat_interval):
            return
        yield _transition(self.state, "firing", known, now)

    def _repeat_due(self, known: Incident, finding: Finding, repeat_interval: float) -> bool:
        """An incident that is open still fires: is it told again, worse, louder than before, or as a reminder?"""
        worse = RANK[finding.severity] > RANK[known.severity]
        if worse:
            self._note_over(known)
        known.severity = finding.severity if worse else known.severity
        known.summary, known.evidence, known.over_since = finding.summary, finding.facts, None
        begins = known.display_only and not finding.display_only  # what was only shown until now
        if begins:
            known.display_only = False
            self._count(known.incident)
        self._joins(known)
        notify = worse or begins or (not known.display_only and self.now - known.notified_at >= repeat_interval)
        if notify:
            known.notified_at = self.now
        return notify

    def _joins(self, incident: Incident, superseded: Collection[str] = ()) -> None:
        """It gets its event, unless it has one or is only information."""
        if not (incident.event or incident.display_only):
            offset = self.state.wall_offset
            since, at = incident.since + offset, self.now + offset
            budget = incident.evidence.get("budget_seconds")
            deadline = since + budget if incident.incident == "hang" and budget is not None else None
            incident.event = self.events.of(self.state.name, incident.severity, since, at, superseded, deadline)

    def _count(self, kind: str) -> None:
        self.book.counts[kind] = self.book.counts.get(kind, 0) + 1

    def _note_over(self, incident: Incident) -> None:
        """Its present severity stands no more."""
        self.book.over[f"{incident.incident} {incident.severity} {incident.event}"] = self.now

    def lingers(self, kind: str, *, over: bool) -> bool:
        """Whether it stands on although its trouble does not: a level that may still come back, because its attempt
        goes on and it was over for a short time; of a finished run (`over`) what has just begun, so that people hear.
        """
        incident = self.book.open[kind]
        if over:
            return self.book.finished_at is not None and self.now - incident.opened_at < _LINGERS
        goes_on = self.state.attempt.phase not in ENDED and self.state.attempt.number == incident.attempt
        if kind not in _LEVELS or not goes_on:
            return False
        if incident.over_since is None:
            incident.over_since = self.now
        return self.now - incident.over_since < _LINGERS

    def resolve(self, kind: str, by: str | None = None, end: str = "") -> Transition:
        """The incident has ended: how, and how long it lasted. `end` is what its rule says of that."""
        book, state, now = self.book, self.state, self.now
        incident = book.open.pop(kind)
        over = now if incident.over_since is None else incident.over_since
        lasted = max(0.0, over - incident.since)
        self._note_over(incident)
        incident.evidence = {**incident.evidence, "lasted_seconds": round(lasted, 3)}
        how = f"superseded by {by} after {duration(lasted)}"
        if by is None:
            how = f"resolved after {duration(lasted)} ({end or _end(state, incident)})"
        return _transition(state, "resolved", replace(incident, summary=how), now)


def _end(state: RunState, incident: Incident) -> str:
    """What ended it, in a few words, where its rule says nothing of that."""
    iteration = state.attempt.latest.iteration
    if state.attempt.number > incident.attempt:
        return "a new attempt began"
    if state.attempt.phase in ENDED:
        failure = state.attempt.failure.failure if state.attempt.failure is not None else "unknown"
        return "the run finished" if state.attempt.phase == "finished" else f"the run ended: {failure}"
    if iteration is None or iteration == incident.iteration:
        return f"{state.attempt.phase} goes on"
    return f"iteration {iteration} came" if incident.incident == "hang" else f"at iteration {iteration}"


def _opened(state: RunState, kind: str, finding: Finding, now: float) -> Incident:
    return Incident(
        incident=kind, severity=finding.severity, summary=finding.summary, evidence=finding.facts,
        onset_iteration=finding.onset, display_only=finding.display_only, phase=state.attempt.phase,
        since=finding.since if finding.since is not None else now,
        notified_at=now, opened_at=now, attempt=state.attempt.number, **_of_the_run(state),
    )  # fmt: skip


def _of_the_run(state: RunState) -> dict[str, Any]:
    """What a message says of the run as it is now."""
    return {
        "iteration": state.attempt.latest.iteration,
        "gpus": state.attempt.topology.world_size,
        "job": "" if state.job is None else state.job.array_id or state.job.id,
        "pid_file": state.pid_file,
        "checkpoint": state.learned.checkpoints.last_iteration,
    }


def _transition(state: RunState, status: Literal["firing", "resolved"], incident: Incident, now: float) -> Transition:
    notify = {name: getattr(incident, name) for name in _REPORTED} | _of_the_run(state)
    notify["since"] = state.unix(incident.since)
    return Transition(run=state.name, status=status, time=now + state.wall_offset, **notify)
