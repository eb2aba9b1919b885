"""Verdicts in, transitions out: an incident fires, may grow worse, is notified again after a while, and is resolved.

Law: pure; one incident a run and kind; for each the transitions firing and resolved alternate (a firing one may repeat
with a higher severity or after the repeat interval). An inhibited incident never fires; one that fired before is
resolved by what supersedes it, so that whoever was notified of it hears its end. A kind with a hold
time is pending until its trouble has stood that long.

Messages of one kind and run are limited (`MessageLimit`). An incident that is kept back lives as the others do, but
quietly: it is shown, nobody is notified. When the window is over, a digest tells how many were kept back; a digest of
what has ended by then is a resolved transition without a firing one. Crashes are never kept back.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from monitor.detectors import DETECTORS
from monitor.detectors.base import RANK, Severity, Verdict, duration, stated
from monitor.run.phases import ENDED
from monitor.run.state import RunState
from monitor.units import PositiveSeconds, Seconds

_INHIBITED_BY: dict[str, tuple[str, ...]] = {name: row.inhibited_by for name, row in DETECTORS.items()}
_UNLIMITED = frozenset(name for name, row in DETECTORS.items() if row.messages == "each")
_LEVELS = frozenset(name for name, row in DETECTORS.items() if row.messages == "level")
_CRITICAL = RANK["critical"]
_HISTORY = 100
_NO_HOLD: Mapping[str, float] = MappingProxyType({})


class MessageLimit(Struct, frozen=True):
    """How many messages of one kind a run may send. What is worse than all that was sent is never kept back."""

    messages: int = 2
    """Firing ones within `window`: the first is news, the second says that it was no chance, the third says nothing
    new. Of a level, such as a slowdown, one: back within the window it is the same incident, which reopens quietly.
    0: no limit.
    """
    window: PositiveSeconds = 3600.0
    """After it a digest tells what was kept back: one message of a kind an hour while trouble comes and goes."""
    critical: Seconds = 600.0
    """A critical incident that is kept back is notified when it has stood for so long: what comes and goes does not."""


_LIMIT = MessageLimit()


class Transition(Struct, frozen=True):
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
    since: float | None = None
    """Unix seconds: when the incident began."""
    gpus: int | None = None
    """Of the run, where its log tells."""
    job: str = ""
    """Its id in Slurm, where one is known."""
    pid_file: str = ""
    """Of its launcher, where one is configured."""
    checkpoint: int | None = None
    """The last one that was saved whole."""
    links: dict[str, str] = field(default_factory=dict)
    """`page` and `runbook`: addresses that the daemon knows."""

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
        return stated(fields)


class Incident(Struct):
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
    kept_back: bool = False
    """Quiet because of the limit, not by its verdict."""
    opened_at: float = 0.0
    iteration: int | None = None
    """The last one known as it opened."""
    attempt: int = 0
    gpus: int | None = None
    job: str = ""
    pid_file: str = ""
    checkpoint: int | None = None


class Messages(Struct):
    """Messages of one kind: those of the last window, and what was kept back since the last one."""

    sent: list[tuple[float, int]] = field(default_factory=list)
    """(instant, rank of the severity) of firing ones."""
    last_at: float = 0.0
    """When the last one was sent, firing or resolved."""
    ended_at: float | None = None
    """When an incident of this kind last ended,"""
    ended_rank: int = 0
    """the rank of the last one that was notified,"""
    ended_attempt: int = 0
    """and the launch in which it did."""
    kept_back: int = 0
    kept_since: float = 0.0
    last_kept: Incident | None = None
    """The last incident that was kept back, once it has ended."""


class Ended(Struct):
    """The last incident of a kind that people were told of and that ended. Instants."""

    severity: Severity
    since: float
    at: float


class IncidentBook(Struct):
    """The incidents of one run. Everything here can be written as JSON."""

    open: dict[str, Incident] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    """Kind -> since when its trouble stands before it is notified."""
    counts: dict[str, int] = field(default_factory=dict)
    """Kind -> incidents; a level that reopens is not counted again."""
    history: list[Transition] = field(default_factory=list)
    messages: dict[str, Messages] = field(default_factory=dict)
    """Kind -> its messages, where the kind is limited."""
    ended: dict[str, Ended] = field(default_factory=dict)
    """Kind -> its last end. What another incident made needless has not ended: it goes on under that name."""

    def digest_at(self, limit: MessageLimit) -> float | None:
        """When the next digest is due; None where nothing is kept back."""
        due = [self._due(kind, limit) for kind, messages in self.messages.items() if messages.kept_back]
        return min(due, default=None)

    def _due(self, kind: str, limit: MessageLimit) -> float:
        messages, known = self.messages[kind], self.open.get(kind)
        at = messages.last_at + limit.window
        if known is not None and known.kept_back and RANK[known.severity] == _CRITICAL:
            at = min(at, known.opened_at + limit.critical)
        return at


def judge(
    book: IncidentBook,
    state: RunState,
    verdicts: Iterable[Verdict],
    now: float,
    repeat_interval: float,
    hold: Mapping[str, float] = _NO_HOLD,
    limit: MessageLimit = _LIMIT,
) -> list[Transition]:
    """Bring the book up to date with the verdicts of this tick; the transitions in the order to be notified."""
    firing: dict[str, Verdict] = {}
    other: dict[str, Verdict] = {}
    for verdict in verdicts:
        (firing if verdict.status == "firing" else other)[verdict.incident] = verdict
    unknown = {kind for kind, verdict in other.items() if verdict.status == "unknown"}
    for kind in book.pending.keys() - firing.keys() - unknown:
        del book.pending[kind]
    out: list[Transition] = []
    firing = {kind: verdict for kind, verdict in firing.items() if _superseded(kind, firing, book) is None}
    for kind, verdict in firing.items():
        known = book.open.get(kind)
        if known is not None and _began_anew(known, verdict):
            out.append(_resolve(book, state, kind, now))
            known = None
        if known is None and now - book.pending.setdefault(kind, now) < hold.get(kind, 0.0):
            continue
        book.pending.pop(kind, None)
        if known is None:
            out.append(_transition(state, "firing", _begin(book, state, verdict, now, limit), now))
        elif _goes_on(book, state, known, verdict, now, repeat_interval, limit):
            out.append(_transition(state, "firing", known, now))
    for kind in [kind for kind in book.open if kind not in firing and kind not in unknown]:
        clear = other.get(kind)
        out.append(_resolve(book, state, kind, now, _superseded(kind, firing, book), clear.summary if clear else ""))
    out += _digests(book, state, now, limit)
    book.history.extend(out)
    del book.history[:-_HISTORY]
    return out


def _begin(book: IncidentBook, state: RunState, verdict: Verdict, now: float, limit: MessageLimit) -> Incident:
    incident = book.open[verdict.incident] = _opened(state, verdict, now)
    if not verdict.quiet:
        _notify(book, state, incident, now, limit)
    return incident


def _began_anew(known: Incident, verdict: Verdict) -> bool:
    """Whether the trouble had ended and began anew between two ticks."""
    return verdict.since is not None and verdict.since > known.since


def _goes_on(
    book: IncidentBook, state: RunState, known: Incident, verdict: Verdict, now: float, repeat_interval: float,
    limit: MessageLimit,
) -> bool:  # fmt: skip
    """An incident that is open still fires. Whether it is told again: worse, louder than before, or as a reminder."""
    worse = RANK[verdict.severity] > RANK[known.severity]
    known.severity = verdict.severity if worse else known.severity
    known.summary, known.evidence = verdict.summary, verdict.evidence
    begins = known.quiet and not known.kept_back and not verdict.quiet  # what was only shown until now
    if not verdict.quiet and (worse or begins):
        _notify(book, state, known, now, limit, anew=begins)
    told = worse or begins or (not known.quiet and now - known.notified_at >= repeat_interval)
    if told:
        known.notified_at = now
    return told


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


def _superseded(kind: str, firing: Mapping[str, Verdict], book: IncidentBook) -> str | None:
    """What makes an incident of this kind needless; None if nothing does."""
    return next((other for other in _INHIBITED_BY.get(kind, ()) if other in firing or other in book.open), None)


def _notify(
    book: IncidentBook, state: RunState, incident: Incident, now: float, limit: MessageLimit, *, anew: bool = True
) -> None:
    """People are to hear of this incident, unless as much of its kind was sent already. `anew`: it begins now."""
    kind, rank = incident.incident, RANK[incident.severity]
    incident.quiet = incident.kept_back = False
    if kind in _UNLIMITED or limit.messages == 0:
        book.counts[kind] = book.counts.get(kind, 0) + anew
        return
    messages = book.messages.setdefault(kind, Messages())
    messages.sent = [item for item in messages.sent if now - item[0] < limit.window]
    alike = sum(rank <= sent for _, sent in messages.sent)
    reopens = (
        kind in _LEVELS
        and messages.ended_at is not None
        and now - messages.ended_at < limit.window
        and messages.ended_attempt == state.launch.number
        and (alike > 0 or rank <= messages.ended_rank)
    )
    book.counts[kind] = book.counts.get(kind, 0) + (anew and not reopens)
    if anew and (reopens or alike >= limit.messages):
        if not messages.kept_back:
            messages.kept_since = now
        messages.kept_back += 1
        incident.quiet = incident.kept_back = True
        return
    if not anew and incident.kept_back and alike:
        incident.quiet = True
        return
    _sent(messages, incident, now)


def _sent(messages: Messages, incident: Incident, now: float) -> None:
    """A firing message goes out now; a digest goes with it."""
    messages.sent.append((now, RANK[incident.severity]))
    messages.last_at = now
    messages.kept_back, messages.last_kept = 0, None


def _resolve(
    book: IncidentBook, state: RunState, kind: str, now: float, by: str | None = None, end: str = ""
) -> Transition:
    """The incident has ended: how, and how long it lasted. `end` is what its detector says of that."""
    incident = book.open.pop(kind)
    messages = book.messages.get(kind)
    lasted = max(0.0, now - incident.since)
    if messages is not None:
        messages.ended_at, messages.ended_attempt = now, state.launch.number
        if incident.kept_back:
            messages.last_kept = incident
        elif not incident.quiet:
            messages.ended_rank, messages.last_at = RANK[incident.severity], now
    if by is None and not incident.quiet:
        book.ended[kind] = Ended(incident.severity, incident.since, now)
    incident.evidence = {**incident.evidence, "lasted_seconds": round(lasted, 3)}
    how = f"superseded by {by} after {duration(lasted)}"
    if by is None:
        how = f"resolved after {duration(lasted)} ({end or _end(state, incident)})"
    return _transition(state, "resolved", replace(incident, summary=how), now)


def _end(state: RunState, incident: Incident) -> str:
    """What ended it, in a few words, where its detector says nothing of that."""
    iteration = state.launch.latest.iteration
    if state.launch.number > incident.attempt:
        return "a new launch began"
    if state.launch.phase in ENDED:
        failure = state.launch.failure.failure if state.launch.failure is not None else "unknown"
        return "the run finished" if state.launch.phase == "finished" else f"the run ended: {failure}"
    if iteration is None or iteration == incident.iteration:
        return f"{state.launch.phase} goes on"
    return f"iteration {iteration} came" if incident.incident == "hang" else f"at iteration {iteration}"


def _digests(book: IncidentBook, state: RunState, now: float, limit: MessageLimit) -> list[Transition]:
    """What was kept back, of each kind whose time has come."""
    out: list[Transition] = []
    at = book.digest_at(limit) if book.messages else None
    if at is None or now < at:
        return out
    for kind, messages in book.messages.items():
        known, ended, many = book.open.get(kind), messages.last_kept, messages.kept_back
        if not many or now < book._due(kind, limit):
            continue
        counted = (
            f"{many} {'time' if many == 1 else 'times'} in {duration(now - messages.kept_since)} without a message"
        )
        if known is not None and known.kept_back:
            known.quiet, known.kept_back, known.notified_at = False, False, now
            shown = replace(known, summary=f"{known.summary}; began {counted}")
            _sent(messages, known, now)
        elif known is None and ended is not None:
            shown = replace(ended, quiet=False, summary=f"came and went {counted}, the last time: {ended.summary}")
            messages.kept_back, messages.last_kept, messages.last_at = 0, None, now
        else:  # one that was notified is open: whoever was told of it knows
            messages.kept_back, messages.last_kept = 0, None
            continue
        shown.evidence = {**shown.evidence, "kept_back": many}
        out.append(_transition(state, "firing" if known is not None else "resolved", shown, now))
    return out


def _opened(state: RunState, verdict: Verdict, now: float) -> Incident:
    launch = state.launch
    return Incident(
        incident=verdict.incident,
        severity=verdict.severity,
        since=verdict.since if verdict.since is not None else now,
        summary=verdict.summary,
        onset_iteration=verdict.onset_iteration,
        phase=launch.phase,
        notified_at=now,
        evidence=verdict.evidence,
        quiet=verdict.quiet,
        opened_at=now,
        iteration=launch.latest.iteration,
        attempt=launch.number,
        gpus=launch.topology.world_size,
        job=_job(state),
        pid_file=state.pid_file,
        checkpoint=state.past.checkpoints.last_iteration,
    )


def _job(state: RunState) -> str:
    return "" if state.job is None else state.job.array_id or state.job.id


def _transition(state: RunState, status: Literal["firing", "resolved"], incident: Incident, now: float) -> Transition:
    launch = state.launch
    return Transition(
        run=state.name,
        incident=incident.incident,
        status=status,
        severity=incident.severity,
        time=now + state.wall_offset,
        summary=incident.summary,
        iteration=launch.latest.iteration,
        onset_iteration=incident.onset_iteration,
        phase=incident.phase,
        evidence=incident.evidence,
        quiet=incident.quiet,
        since=state.unix(incident.since),
        gpus=launch.topology.world_size,
        job=_job(state),
        pid_file=state.pid_file,
        checkpoint=state.past.checkpoints.last_iteration,
    )
