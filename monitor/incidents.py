"""Verdicts in, transitions out: an incident fires, may grow worse, is notified again after a while, and is resolved.

Law: pure; one incident a run and kind; for each the transitions firing and resolved alternate (a firing one may repeat
with a higher severity or after the repeat interval). An inhibited incident never fires; one that fired before is
resolved by what supersedes it, so that whoever was notified of it hears its end. A kind with a hold
time is pending until its trouble has stood that long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal

from monitor.detectors import DETECTORS
from monitor.detectors.base import RANK, Severity, Verdict
from monitor.run.state import RunState

_INHIBITED_BY: dict[str, tuple[str, ...]] = {name: row.inhibited_by for name, row in DETECTORS.items()}
_HISTORY = 100
_NO_HOLD: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of judgement: what notifiers send and what `replay` prints."""

    run: str
    incident: str
    status: Literal["firing", "resolved"]
    severity: Severity
    time: float
    """Unix seconds."""
    summary: str
    iteration: int | None = None
    onset_iteration: int | None = None
    phase: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    quiet: bool = False

    def to_json(self) -> dict[str, Any]:
        """The object of `replay --json`; absent values are left out."""
        fields = {
            "run": self.run,
            "incident": self.incident,
            "status": self.status,
            "severity": self.severity,
            "iteration": self.iteration,
            "onset_iteration": self.onset_iteration,
            "time": datetime.fromtimestamp(self.time, UTC).isoformat(),
            "phase": self.phase,
            "summary": self.summary,
            "evidence": self.evidence,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(slots=True)
class Incident:
    """One open incident."""

    incident: str
    severity: Severity
    since: float
    summary: str
    onset_iteration: int | None
    phase: str
    notified_at: float
    evidence: dict[str, Any] = field(default_factory=dict)
    quiet: bool = False


@dataclass(slots=True)
class IncidentBook:
    """The incidents of one run. Everything here can be written as JSON."""

    open: dict[str, Incident] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    """Kind -> since when its trouble stands before it is notified."""
    counts: dict[str, int] = field(default_factory=dict)
    history: list[Transition] = field(default_factory=list)


def judge(
    book: IncidentBook,
    state: RunState,
    verdicts: Iterable[Verdict],
    now: float,
    repeat_interval: float,
    hold: Mapping[str, float] = _NO_HOLD,
) -> list[Transition]:
    """Bring the book up to date with the verdicts of this tick; the transitions in the order to be notified."""
    verdicts = list(verdicts)
    firing = {verdict.incident: verdict for verdict in verdicts if verdict.status == "firing"}
    unknown = {verdict.incident for verdict in verdicts if verdict.status == "unknown"}
    for kind in [kind for kind in book.pending if kind not in firing and kind not in unknown]:
        del book.pending[kind]
    out: list[Transition] = []
    for kind in [kind for kind in firing if _superseded(kind, firing, book) is not None]:
        del firing[kind]
    for kind, verdict in firing.items():
        known = book.open.get(kind)
        if known is not None and verdict.since is not None and verdict.since > known.since:
            # the trouble had ended and began anew between two ticks
            out.append(_transition(state, "resolved", _ended(book.open.pop(kind)), now))
            known = None
        if known is None and now - book.pending.setdefault(kind, now) < hold.get(kind, 0.0):
            continue
        book.pending.pop(kind, None)
        if known is None:
            book.open[kind] = _opened(state, verdict, now)
            book.counts[kind] = book.counts.get(kind, 0) + (not verdict.quiet)
            out.append(_transition(state, "firing", book.open[kind], now))
            continue
        worse = RANK[verdict.severity] > RANK[known.severity]
        again = now - known.notified_at >= repeat_interval and not verdict.quiet
        if worse and known.quiet and not verdict.quiet:
            book.counts[kind] = book.counts.get(kind, 0) + 1
        known.severity = verdict.severity if worse else known.severity
        known.summary, known.evidence = verdict.summary, verdict.evidence
        known.quiet = known.quiet and verdict.quiet
        if worse or again:
            known.notified_at = now
            out.append(_transition(state, "firing", known, now))
    for kind in [kind for kind in book.open if kind not in firing and kind not in unknown]:
        by = _superseded(kind, firing, book)
        out.append(_transition(state, "resolved", _ended(book.open.pop(kind), by), now))
    book.history.extend(out)
    del book.history[:-_HISTORY]
    return out


def _superseded(kind: str, firing: Mapping[str, Verdict], book: IncidentBook) -> str | None:
    """What makes an incident of this kind needless; None if nothing does."""
    return next((other for other in _INHIBITED_BY.get(kind, ()) if other in firing or other in book.open), None)


def _ended(incident: Incident, by: str | None = None) -> Incident:
    incident.summary = f"{f'superseded by {by}' if by else 'resolved'}: {incident.summary}"
    return incident


def _opened(state: RunState, verdict: Verdict, now: float) -> Incident:
    return Incident(
        incident=verdict.incident,
        severity=verdict.severity,
        since=verdict.since if verdict.since is not None else now,
        summary=verdict.summary,
        onset_iteration=verdict.onset_iteration,
        phase=state.phase,
        notified_at=now,
        evidence=verdict.evidence,
        quiet=verdict.quiet,
    )


def _transition(state: RunState, status: Literal["firing", "resolved"], incident: Incident, now: float) -> Transition:
    return Transition(
        run=state.name,
        incident=incident.incident,
        status=status,
        severity=incident.severity,
        time=now + state.wall_offset,
        summary=incident.summary,
        iteration=state.latest.iteration,
        onset_iteration=incident.onset_iteration,
        phase=incident.phase,
        evidence=incident.evidence,
        quiet=incident.quiet,
    )
