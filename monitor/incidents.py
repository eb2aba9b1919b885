"""Turns findings into incidents and their transitions: firing, more severe, repeated, resolved. Pure.

A run has one incident per kind. Its transitions alternate between firing and resolved; firing may repeat with a higher
severity or after the repeat interval. An inhibited incident never fires; if it fired before, the superseding incident
resolves it. A level (a slowdown) that comes and goes is one incident: it ends after five minutes without the problem.
Every incident ends when its run has finished. incident_events.py decides which incidents are one event for people.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from megatron_monitor.detectors import RULES
from megatron_monitor.detectors.base import CLEAR, RANK, Finding, Severity, duration, stated
from megatron_monitor.incident_events import IncidentEvents
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.state import RunState

_INHIBITED_BY: dict[str, tuple[str, ...]] = {name: rule.inhibited_by for name, rule in RULES.items()}
_LEVELS = frozenset(name for name, rule in RULES.items() if rule.is_level)
_HISTORY = 100
_SHOWN = 3600.0  # seconds for which the series of an ended incident is 0: longer than a gap of scrapes
_FOLLOWS = 120.0  # maximum seconds between an incident and one that it leads to
_LINGERS = 300.0  # seconds without the problem after which a level ends, and minimum duration of an incident at the end


class IncidentFacts(Struct):
    """The content of an incident and of each message about it."""

    incident: str
    severity: Severity
    summary: str
    iteration: int | None = None
    """Last known iteration at that time."""
    onset_iteration: int | None = None
    phase: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    display_only: bool = False
    event: str = ""
    """Id of its event (incident_events.py), unless it is display-only."""
    since: float | None = None
    """Begin of the incident."""
    gpus: int | None = None
    """Number of GPUs of the run, if known."""
    job: str = ""
    """Slurm job id, if known."""
    checkpoint: int | None = None
    """Iteration of the last complete checkpoint."""


_REPORTED = IncidentFacts.__struct_fields__
JSON_FIELDS = (
    "run", "incident", "status", "severity", "event", "iteration", "onset_iteration", "time", "phase", "summary",
    "evidence",
)  # fmt: skip


class Transition(IncidentFacts, frozen=True, kw_only=True):  # type: ignore[misc]  # msgspec can do it
    """A change of an incident: the message of notifiers and of `replay`. Times are Unix seconds."""

    run: str
    status: Literal["firing", "resolved"]
    time: float
    occurrence: tuple[int, int | None, int] = (0, None, 0)
    """Attempt, step of the onset, and number among equal messages about them: from the log alone."""
    links: dict[str, str] = field(default_factory=dict)
    """`page` and `runbook` -> address."""

    def to_json(self) -> dict[str, Any]:
        """Return the object of `replay --json`, without unknown values."""
        time = datetime.fromtimestamp(self.time, UTC).isoformat()
        return stated({name: getattr(self, name) for name in JSON_FIELDS} | {"time": time})


class Incident(IncidentFacts, kw_only=True):
    """One open incident. Times are instants."""

    since: float
    notified_at: float
    opened_at: float = 0.0
    attempt: int = 0
    over_since: float | None = None
    """For a level: instant since which the problem is absent, while it may return."""


class IncidentBook(Struct):
    """The incidents of one run. All values can be written as JSON."""

    open: dict[str, Incident] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """Kind -> number of notified incidents."""
    history: list[Transition] = field(default_factory=list)
    over: dict[str, float] = field(default_factory=dict)
    """`KIND SEVERITY EVENT` -> instant of its end: its series is 0 for an hour."""

    def ended_lately(self, kind: str, now: float) -> list[str]:
        """Return the events of recently ended incidents that this kind supersedes.

        A crash line ends a hang, and the crash is reported some seconds later.
        """
        recent = [labels.split(" ", 2) for labels, at in self.over.items() if now - at <= _FOLLOWS]
        return [event for other, _, event in recent if event and kind in _INHIBITED_BY.get(other, ())]

    def ends_at(self, state: RunState) -> float | None:
        """Return when the next incident ends by itself: an absent level, or any incident of a finished run."""
        if state.attempt.phase == "finished":
            ends = [max(over_at(state), one.opened_at + _LINGERS) for one in self.open.values()]
        else:
            ends = [one.over_since + _LINGERS for one in self.open.values() if one.over_since is not None]
        return min(ends, default=None)


def over_at(state: RunState) -> float:
    """Return when all incidents of a finished run end, with time for incidents after its end such as a failed job.
    Infinite: it has not finished.
    """
    return state.attempt.phase_since + _LINGERS if state.attempt.phase == "finished" else math.inf


def judge(
    book: IncidentBook, state: RunState, findings: Mapping[str, Finding], now: float, repeat_interval: float,
    events: IncidentEvents,
) -> list[Transition]:  # fmt: skip
    """Update the incidents by the findings of an evaluation, by kind. Return the transitions in order."""
    firing = {kind: finding for kind, finding in findings.items() if finding.state == "firing"}
    book.over = {labels: at for labels, at in book.over.items() if now - at < _SHOWN}
    tick = _Tick(book, state, now, events)
    out: list[Transition] = []
    firing = {kind: finding for kind, finding in firing.items() if _superseded(kind, firing, book) is None}
    for kind, finding in firing.items():
        out += tick.fires(kind, finding, repeat_interval)
    for kind in [kind for kind in book.open if kind not in firing and findings.get(kind, CLEAR).state != "unknown"]:
        by = _superseded(kind, firing, book)
        if by is not None or not tick.lingers(kind, over=not findings):
            out.append(tick.resolve(kind, by))
    book.history.extend(out)
    del book.history[:-_HISTORY]
    return out


def amend(book: IncidentBook, transition: Transition, facts: Mapping[str, Any]) -> Transition:
    """Return the transition with more evidence, also in the history."""
    amended = replace(transition, evidence={**transition.evidence, **facts})
    book.history = [amended if item is transition else item for item in book.history]
    return amended


def give_up(book: IncidentBook, state: RunState, now: float, why: str = "") -> list[Transition]:
    """Close the open incidents of a run that is no longer watched (`why`), or those that end with its attempt."""
    tick = _Tick(book, state, now, IncidentEvents())
    out = [tick.resolve(kind, unobserved=why) for kind in list(book.open) if why or not RULES[kind].outlives]
    book.history.extend(out)
    return out


def _superseded(kind: str, firing: Mapping[str, Finding], book: IncidentBook) -> str | None:
    """Return the kind that supersedes this kind now; None: no kind does."""
    return next((other for other in _INHIBITED_BY.get(kind, ()) if other in firing or other in book.open), None)


class _Tick(NamedTuple):
    """One evaluation of one run."""

    book: IncidentBook
    state: RunState
    now: float
    events: IncidentEvents

    def fires(self, kind: str, finding: Finding, repeat_interval: float) -> Iterator[Transition]:
        """Yield the transitions of a kind that fires."""
        book, now = self.book, self.now
        known = book.open.get(kind)
        if known is not None and known.over_since is None and _began_again(known, finding):
            yield self.resolve(kind)  # between two evaluations; a level that returned did not end
            known = None
        if known is None:
            superseded = [one.event for one in book.open.values() if kind in _INHIBITED_BY.get(one.incident, ())]
            superseded += book.ended_lately(kind, now)
            known = book.open[kind] = _opened(self.state, kind, finding, now)
            self._joins(known, superseded)
            if not finding.display_only:
                self._count(kind)
        elif not self._repeat_due(known, finding, repeat_interval):
            return
        yield _transition(book, self.state, "firing", known, now)

    def _repeat_due(self, known: Incident, finding: Finding, repeat_interval: float) -> bool:
        """Update an open incident. Return True if it is notified again: worse, no longer display-only, or repeated."""
        worse = RANK[finding.severity] > RANK[known.severity]
        if worse:
            self._note_over(known)
        known.severity = finding.severity if worse else known.severity
        known.summary, known.evidence, known.over_since = finding.summary, finding.facts, None
        begins = known.display_only and not finding.display_only  # it was only shown until now
        if begins:
            known.display_only = False
            self._count(known.incident)
        self._joins(known)
        notify = worse or begins or (not known.display_only and self.now - known.notified_at >= repeat_interval)
        if notify:
            known.notified_at = self.now
        return notify

    def _joins(self, incident: Incident, superseded: Collection[str] = ()) -> None:
        """Assign an event, unless the incident has one or is display-only."""
        if not (incident.event or incident.display_only):
            offset = self.state.wall_offset
            since, at = incident.since + offset, self.now + offset
            timeout = incident.evidence.get("timeout_seconds")
            deadline = since + timeout if incident.incident == "hang" and timeout is not None else None
            incident.event = self.events.of(self.state.name, incident.severity, since, at, superseded, deadline)

    def _count(self, kind: str) -> None:
        self.book.counts[kind] = self.book.counts.get(kind, 0) + 1

    def _note_over(self, incident: Incident) -> None:
        """Record the end of its present severity."""
        self.book.over[f"{incident.incident} {incident.severity} {incident.event}"] = self.now

    def lingers(self, kind: str, *, over: bool) -> bool:
        """Return True if an incident stays open without its problem.

        A level may return while its attempt continues and the problem was absent for a short time. In a finished run
        (`over`) an incident that has just begun stays open, so that it is notified.
        """
        incident = self.book.open[kind]
        if over:
            return self.state.attempt.phase == "finished" and self.now - incident.opened_at < _LINGERS
        continues = self.state.attempt.phase not in ENDED and self.state.attempt.number == incident.attempt
        if kind not in _LEVELS or not continues:
            return False
        if incident.over_since is None:
            incident.over_since = self.now
        return self.now - incident.over_since < _LINGERS

    def resolve(self, kind: str, by: str | None = None, unobserved: str = "") -> Transition:
        """Return the transition of an ended incident, with its duration. `by`: the kind that supersedes it.
        `unobserved`: why its run is no longer watched.
        """
        book, state, now = self.book, self.state, self.now
        incident = book.open.pop(kind)
        over = now if incident.over_since is None else incident.over_since
        lasted = max(0.0, over - incident.since)
        self._note_over(incident)
        incident.evidence = {**incident.evidence, "lasted_seconds": round(lasted, 3)}
        how = f"superseded by {by} after {duration(lasted)}"
        if unobserved:
            how = f"no longer observed ({unobserved}), {duration(lasted)} after it began: {incident.summary}"
        elif by is None:
            how = f"resolved after {duration(lasted)} ({_end(state, incident)})"
        return _transition(book, state, "resolved", replace(incident, summary=how), now)


def _end(state: RunState, incident: Incident) -> str:
    """Return what ended the incident."""
    iteration = state.attempt.latest.iteration
    if state.attempt.number > incident.attempt:
        return "a new attempt began"
    if state.attempt.phase in ENDED:
        failure = state.attempt.failure.failure if state.attempt.failure is not None else "unknown"
        return "the run finished" if state.attempt.phase == "finished" else f"the run ended: {failure}"
    if iteration is None or iteration == incident.iteration:
        return f"{state.attempt.phase} continues"
    return f"iteration {iteration} came" if incident.incident == "hang" else f"at iteration {iteration}"


def _began_again(known: Incident, finding: Finding) -> bool:
    """Return True if the finding is another incident of its kind: it began later, or it is of another attempt."""
    return (finding.since or known.since) > known.since or finding.facts.get("attempt") != known.evidence.get("attempt")


def _opened(state: RunState, kind: str, finding: Finding, now: float) -> Incident:
    return Incident(
        incident=kind, severity=finding.severity, summary=finding.summary, evidence=finding.facts,
        onset_iteration=finding.onset, display_only=finding.display_only, phase=state.attempt.phase,
        since=finding.since if finding.since is not None else now,
        notified_at=now, opened_at=now, attempt=state.attempt.number, **_of_the_run(state),
    )  # fmt: skip


def _of_the_run(state: RunState) -> dict[str, Any]:
    """Return the present facts about the run for a message."""
    return {
        "iteration": state.attempt.latest.iteration,
        "gpus": state.attempt.topology.world_size,
        "job": "" if state.job is None else state.job.number,
        "checkpoint": state.learned.checkpoints.last_iteration,
    }


def _transition(
    book: IncidentBook, state: RunState, status: Literal["firing", "resolved"], incident: Incident, now: float
) -> Transition:
    notify = {name: getattr(incident, name) for name in _REPORTED} | _of_the_run(state)
    notify["since"] = state.unix(incident.since)
    step = incident.iteration if incident.onset_iteration is None else incident.onset_iteration
    equal = [
        one.occurrence[2] for one in book.history
        if (one.incident, one.status, one.severity) == (incident.incident, status, incident.severity)
        and one.occurrence[:2] == (incident.attempt, step)
    ]  # fmt: skip
    notify["occurrence"] = (incident.attempt, step, max(equal, default=0) + 1)
    return Transition(run=state.name, status=status, time=now + state.wall_offset, **notify)
