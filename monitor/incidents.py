"""Verdicts in, transitions out: an incident fires, may grow worse, is notified again after a while, and is resolved.

Law: pure; one incident a run and kind; for each the transitions firing and resolved alternate (a firing one may repeat
with a higher severity or after the repeat interval). An inhibited incident never fires; one that fired before is
resolved by what supersedes it, so that whoever was notified of it hears its end. A kind with a hold
time is pending until its trouble has stood that long.

Messages of one kind and run are limited (`MessageLimit`). An incident that is kept back lives as the others do, but
quietly: it is shown, nobody is notified. If it still stands when the window is over, it is notified then. Crashes are
never kept back.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from megatron_monitor.detectors import DETECTORS
from megatron_monitor.detectors.base import RANK, Severity, Verdict, duration, stated
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.state import RunState
from megatron_monitor.units import PositiveSeconds, Seconds

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
    """After it what was kept back and still stands is notified: one message of a kind an hour while trouble comes and
    goes.
    """
    critical: Seconds = 600.0
    """A critical incident that is kept back is notified when it has stood for so long: what comes and goes does not."""


_LIMIT = MessageLimit()


class Told(Struct):
    """What an incident and each message about it say."""

    incident: str
    severity: Severity
    summary: str
    iteration: int | None = None
    """The last one known then."""
    onset_iteration: int | None = None
    phase: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    quiet: bool = False
    kept_back: bool = False
    """Quiet because of the limit, not by its verdict."""
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


_TOLD = Told.__struct_fields__
_JSON = (
    "run", "incident", "status", "severity", "iteration", "onset_iteration", "time", "phase", "summary", "evidence",
)  # fmt: skip


class Transition(Told, frozen=True, kw_only=True):  # type: ignore[misc]  # msgspec can do it
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


class Incident(Told, kw_only=True):
    """One open incident. Times are instants."""

    since: float
    notified_at: float
    opened_at: float = 0.0
    attempt: int = 0


class Messages(Struct):
    """Messages of one kind: those of the last window."""

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

    def alike(self, rank: int, now: float, window: float) -> int:
        """How many as bad were sent within the window."""
        self.sent = [item for item in self.sent if now - item[0] < window]
        return sum(rank <= sent for _, sent in self.sent)

    def just_ended(self, now: float, window: float, launch: int) -> bool:
        """Did one end within the window, in this launch?"""
        return self.ended_at is not None and now - self.ended_at < window and self.ended_attempt == launch

    def note_sent(self, incident: Incident, now: float) -> None:
        """A firing message goes out now."""
        self.sent.append((now, RANK[incident.severity]))
        self.last_at = now


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

    def due_at(self, limit: MessageLimit) -> float | None:
        """When the next incident that was kept back and still stands is notified; None where there is none."""
        return min([self.due(one, limit) for one in self.open.values() if one.kept_back], default=None)

    def due(self, kept_back: Incident, limit: MessageLimit) -> float:
        """When this one is."""
        at = self.messages[kept_back.incident].last_at + limit.window
        return min(at, kept_back.opened_at + limit.critical) if RANK[kept_back.severity] == _CRITICAL else at


def judge(
    book: IncidentBook, state: RunState, verdicts: Mapping[str, Verdict], now: float, repeat_interval: float,
    hold: Mapping[str, float] = _NO_HOLD, limit: MessageLimit = _LIMIT,
) -> list[Transition]:  # fmt: skip
    """Bring the book up to date with this tick's verdicts, by kind; the transitions in the order to be notified."""
    firing = {kind: verdict for kind, verdict in verdicts.items() if verdict.status == "firing"}
    ends = {kind: verdict.summary for kind, verdict in verdicts.items() if verdict.status == "clear"}
    unknown = verdicts.keys() - firing.keys() - ends.keys()
    for kind in book.pending.keys() - firing.keys() - unknown:
        del book.pending[kind]
    tick = _Tick(book, state, now, limit)
    out: list[Transition] = []
    firing = {kind: verdict for kind, verdict in firing.items() if _superseded(kind, firing, book) is None}
    for kind, verdict in firing.items():
        out += tick.fires(kind, verdict, hold.get(kind, 0.0), repeat_interval)
    for kind in [kind for kind in book.open if kind not in firing and kind not in unknown]:
        out.append(tick.resolve(kind, _superseded(kind, firing, book), ends.get(kind, "")))
    out += tick.overdue()
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


def _superseded(kind: str, firing: Mapping[str, Verdict], book: IncidentBook) -> str | None:
    """What makes an incident of this kind needless; None if nothing does."""
    return next((other for other in _INHIBITED_BY.get(kind, ()) if other in firing or other in book.open), None)


class _Tick(NamedTuple):
    """One judgement of one run."""

    book: IncidentBook
    state: RunState
    now: float
    limit: MessageLimit

    def fires(self, kind: str, verdict: Verdict, hold: float, repeat_interval: float) -> Iterator[Transition]:
        """A kind fires: what is told of it."""
        book, now = self.book, self.now
        known = book.open.get(kind)
        if known is not None and verdict.since is not None and verdict.since > known.since:
            yield self.resolve(kind)  # it had ended and began anew between two ticks
            known = None
        if known is None and now - book.pending.setdefault(kind, now) < hold:
            return
        book.pending.pop(kind, None)
        if known is None:
            known = book.open[kind] = _opened(self.state, kind, verdict, now)
            if not verdict.quiet:
                self._notify(known)
        elif not self._told_again(known, verdict, repeat_interval):
            return
        yield _transition(self.state, "firing", known, now)

    def _told_again(self, known: Incident, verdict: Verdict, repeat_interval: float) -> bool:
        """An incident that is open still fires: is it told again, worse, louder than before, or as a reminder?"""
        worse = RANK[verdict.severity] > RANK[known.severity]
        known.severity = verdict.severity if worse else known.severity
        known.summary, known.evidence = verdict.summary, verdict.evidence
        begins = known.quiet and not known.kept_back and not verdict.quiet  # what was only shown until now
        if not verdict.quiet and (worse or begins):
            self._notify(known, anew=begins)
        told = worse or begins or (not known.quiet and self.now - known.notified_at >= repeat_interval)
        if told:
            known.notified_at = self.now
        return told

    def _notify(self, incident: Incident, *, anew: bool = True) -> None:
        """People are to hear of it, unless as much of its kind was sent already. `anew`: it begins now."""
        book, now, limit = self.book, self.now, self.limit
        kind, rank = incident.incident, RANK[incident.severity]
        incident.quiet = incident.kept_back = False
        if kind in _UNLIMITED or limit.messages == 0:
            book.counts[kind] = book.counts.get(kind, 0) + anew
            return
        messages = book.messages.setdefault(kind, Messages())
        alike = messages.alike(rank, now, limit.window)
        level = kind in _LEVELS and messages.just_ended(now, limit.window, self.state.launch.number)
        reopens = level and (alike > 0 or rank <= messages.ended_rank)
        book.counts[kind] = book.counts.get(kind, 0) + (anew and not reopens)
        limited = (reopens or alike >= limit.messages) and now - messages.last_at < limit.window
        if not anew or not limited:
            messages.note_sent(incident, now)
            return
        incident.quiet = incident.kept_back = True

    def resolve(self, kind: str, by: str | None = None, end: str = "") -> Transition:
        """The incident has ended: how, and how long it lasted. `end` is what its detector says of that."""
        book, state, now = self.book, self.state, self.now
        incident = book.open.pop(kind)
        messages = book.messages.get(kind)
        lasted = max(0.0, now - incident.since)
        if messages is not None:
            messages.ended_at, messages.ended_attempt = now, state.launch.number
            if not incident.quiet:
                messages.ended_rank, messages.last_at = RANK[incident.severity], now
        if by is None and not incident.quiet:
            book.ended[kind] = Ended(incident.severity, incident.since, now)
        incident.evidence = {**incident.evidence, "lasted_seconds": round(lasted, 3)}
        how = f"superseded by {by} after {duration(lasted)}"
        if by is None:
            how = f"resolved after {duration(lasted)} ({end or _end(state, incident)})"
        return _transition(state, "resolved", replace(incident, summary=how), now)

    def overdue(self) -> Iterator[Transition]:
        """What was kept back, still stands, and is due."""
        for incident in [one for one in self.book.open.values() if one.kept_back]:
            if self.now >= self.book.due(incident, self.limit):
                incident.quiet, incident.kept_back, incident.notified_at = False, False, self.now
                self.book.messages[incident.incident].note_sent(incident, self.now)
                yield _transition(self.state, "firing", incident, self.now)


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


def _opened(state: RunState, kind: str, verdict: Verdict, now: float) -> Incident:
    return Incident(
        incident=kind, severity=verdict.severity, summary=verdict.summary, evidence=verdict.evidence,
        onset_iteration=verdict.onset, quiet=verdict.quiet, phase=state.launch.phase,
        since=verdict.since if verdict.since is not None else now,
        notified_at=now, opened_at=now, attempt=state.launch.number, **_of_the_run(state),
    )  # fmt: skip


def _of_the_run(state: RunState) -> dict[str, Any]:
    """What a message says of the run as it is now."""
    return {
        "iteration": state.launch.latest.iteration,
        "gpus": state.launch.topology.world_size,
        "job": "" if state.job is None else state.job.array_id or state.job.id,
        "pid_file": state.pid_file,
        "checkpoint": state.past.checkpoints.last_iteration,
    }


def _transition(state: RunState, status: Literal["firing", "resolved"], incident: Incident, now: float) -> Transition:
    told = {name: getattr(incident, name) for name in _TOLD} | _of_the_run(state)
    told["since"] = state.unix(incident.since)
    return Transition(run=state.name, status=status, time=now + state.wall_offset, **told)
