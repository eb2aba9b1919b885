"""Decides how an attempt ended, from its evidence. Pure: facts are stored in any order, and the ending is computed.

The first rule that holds decides:
    1. killed at exit  the training was done, and its processes were killed at the time limit: they hung at exit
    2. finished        its loop ended as planned, and failures came later; a failed job is then a warning
    3. crashed         a fatal failure, an uncaught traceback, or a process with a bad exit code
    4. finished        all its processes ended well, or it is done and silent
    5. exiting         its loop is done, or some processes ended well or are leaving
    6. running         everything else is a hint
The cause is the strongest evidence by `KINDS`. Of equally strong evidence the earliest counts. Lines within one moment
come in any order; then the kind that comes first in `KINDS` is the cause of the others.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

Sort = Literal[
    "failure", "watchdog", "traceback", "exit", "terminated", "left", "done", "finished", "orderly", "silence"
]
"""`done`: the loop reports that it is done; `finished`: the program does; `orderly`: it ended as a signal requested;
`left`: a process is leaving, so an exception before was not caught; `terminated`: the other processes were terminated;
`silence`: a running attempt would have continued by now.
"""
State = Literal["running", "exiting", "crashed", "finished"]

MOMENT = 5.0  # seconds within which lines of ranks, launchers and daemons about one end come in any order
_EXIT_SECONDS = 10.0  # normal duration of the exit: destroying process groups takes seconds


class FailureKind(Struct, frozen=True):
    """A class of failures."""

    strength: float
    """How strongly it explains why an attempt ended."""
    planned: bool = False
    """Not a failure: an action of the scheduler or of a person."""
    survivable: bool = False
    """A program may catch it and continue: it splits a batch or repeats a save."""
    of_node: bool = False
    """It points to its node, if the job has others."""
    hardware: bool = False
    """Its node is faulty."""
    bare: bool = False
    """It shows that something ended, but not why."""


KINDS: dict[str, FailureKind] = {
    "ecc": FailureKind(5.0, of_node=True, hardware=True),
    "nan_loss": FailureKind(5.0, survivable=True),
    "disk_full": FailureKind(5.0, survivable=True),
    "host_oom": FailureKind(5.0, of_node=True),
    "cuda_oom": FailureKind(5.0, survivable=True),
    "node_failure": FailureKind(5.0, of_node=True, hardware=True),
    "cuda_error": FailureKind(4.5, of_node=True),
    "bus_error": FailureKind(4.5, of_node=True),
    "time_limit": FailureKind(4.0, planned=True),
    "preempted": FailureKind(4.0, planned=True),
    "requeued": FailureKind(4.0, planned=True),
    "python_exception": FailureKind(4.0),
    "nccl": FailureKind(4.0, of_node=True),
    "segfault": FailureKind(4.0, of_node=True),
    "killed": FailureKind(4.0, bare=True),
    "stopped": FailureKind(4.0, planned=True, bare=True),
    "unknown": FailureKind(3.0, bare=True),
}
"""The fault of a rank, a node or a disk is stronger than the failures that follow from it. The order matters."""
_FIRST = {name: place for place, name in enumerate(reversed(KINDS))}
PLANNED = frozenset(name for name, kind in KINDS.items() if kind.planned)
BARE = frozenset(name for name, kind in KINDS.items() if kind.bare)
NODE_FAULTS = frozenset(name for name, kind in KINDS.items() if kind.of_node)
HARDWARE_FAULTS = frozenset(name for name, kind in KINDS.items() if kind.hardware)


class Evidence(Struct, frozen=True):
    """One fact about an attempt's end. Of equal facts the earliest is kept, with their number."""

    sort: Sort
    at: float
    """Instant of its line."""
    failure: str = ""
    """One of `KINDS`."""
    message: str = ""
    line: str = ""
    fatal: bool = False
    """True: it ended its process, if that belongs to the training. For a traceback: it was not caught."""
    consequence: bool = False
    """True: another process had ended before."""
    rank: int | None = None
    node: str | None = None
    logged_at: str | None = None
    exit_code: int | None = None
    by: str | None = None
    """The reporter if it is not the program itself."""
    notice: str | None = None
    pattern: bool = False
    """True: from a pattern of the site."""
    raised: bool = False
    """True: it has the exception's message."""
    helper: bool = False
    """True: it comes from another or an unknown program of the job."""
    optional: bool = False
    """True: a failed import or a program that could not start, before the first iteration: a training may continue."""
    attempt: bool = False
    """True: the whole attempt has ended."""
    output_follows: bool = False
    """True: earlier output of its program follows."""
    after: int = 0
    """Iterations of the attempt at that time."""
    count: int = 1
    passed_at: float | None = None
    """Instant of a later step, which may have been delayed."""
    stream: str = ""
    """Its stream: the order of lines is known within a stream only."""
    clock: float | None = None
    """The time of its line on the log's clock, which may be estimated."""


class Ending(Struct, frozen=True):
    """The conclusion from the evidence."""

    state: State = "running"
    cause: Evidence | None = None
    """The cause of the end; for a running attempt the probable cause if it ended now."""
    certain: bool = False
    """True: the failure cannot have been caught."""
    since: float | None = None
    """Instant of the failure."""
    certain_at: float | None = None
    """Instant at which a line proved that; None if only silence does."""
    passed_at: float | None = None
    """Instant of a step reported after the failure."""
    done_at: float | None = None
    """Instant at which the loop reported that it is done."""
    job_failed_at: float | None = None
    """Instant at which the job then failed: the training's work is complete."""
    killed_at: float | None = None
    """Instant at which its processes were killed, because they did not exit."""
    ended: int = 0
    """Number of processes known to have ended."""
    gone: bool = False
    """True: a process has ended or was killed."""
    hint: Evidence | None = None
    """For a running attempt: the probable cause, with evidence before a possibly delayed step."""

    @property
    def partial(self) -> bool:
        """True: some processes have ended, and others have not."""
        return self.state == "exiting" and self.ended > 0 and self.killed_at is None


RUNNING = Ending()


class _RankedEvidence(NamedTuple):
    """The evidence in order, and what the rules need."""

    in_order: list[Evidence]
    rows: list[Evidence]
    """The evidence that still indicates an end."""
    fatal: list[Evidence]
    done: Evidence | None
    over: Evidence | None
    """Evidence that it is over: by its program, or by silence after its end."""
    silence: Evidence | None
    processes: int | None
    found: Ending
    """The part of the ending that does not depend on the state."""


def ending(evidence: Sequence[Evidence], *, all_done: bool = False, processes: int | None = None) -> Ending:
    """Return the ending that the evidence proves.

    `all_done`: the last requested iteration is done. `processes`: number of processes of which the log reports the end.
    """
    if not evidence:
        return RUNNING
    ranked = _ranked(evidence, all_done, processes)
    for rule in (_killed_at_exit, _over, _job_failed_behind, _died, _all_well, _leaving):
        if (found := rule(ranked)) is not None:
            return found
    return replace(ranked.found, hint=_cause(ranked.in_order))


def _ranked(evidence: Sequence[Evidence], all_done: bool, processes: int | None) -> _RankedEvidence:
    in_order = sorted(evidence, key=lambda row: row.at)
    rows = [row for row in in_order if _holds(row)]
    done, over, silence = _first(rows, "done", "finished"), _first(rows, "finished"), _first(rows, "silence")
    leaving = all_done or done is not None or any(_ended_well(row) for row in rows)
    fatal = _fatal(rows, leaving=leaving)
    if silence is not None and over is None and not any(row.at <= silence.at for row in fatal):
        over = silence
    found = Ending(
        cause=_cause(in_order if fatal else rows),
        done_at=done.at if done is not None else None,
        ended=sum(row.count for row in rows if row.sort == "exit"),
        gone=any(_is_gone(row) for row in rows),
    )
    return _RankedEvidence(in_order, rows, fatal, done, over, silence, processes, found)


def _killed_at_exit(it: _RankedEvidence) -> Ending | None:
    """The training was done, and its processes still existed at the time limit."""
    if (done := it.done) is None:
        return None
    cancelled = (row for row in it.rows if row.failure == "time_limit" and row.notice == "step_cancelled")
    cancellation = next((row for row in cancelled if row.at - done.at >= _EXIT_SECONDS), None)
    if cancellation is None:
        return None
    return replace(
        it.found, cause=cancellation, killed_at=cancellation.at, state="exiting" if it.silence is None else "finished"
    )


def _over(it: _RankedEvidence) -> Ending | None:
    over, own = it.over, [row for row in it.fatal if _is_own(row) and _is_proof(row)]
    if over is None or any(row.at < over.at - MOMENT for row in own):
        return None
    failed = _job_failed(it, [row for row in it.fatal if row.sort != "exit" or row.exit_code is not None])
    if failed is None and over.sort == "finished":
        failed = _failed_behind(it, over, own)
    return replace(it.found, state="finished", job_failed_at=failed)


def _failed_behind(it: _RankedEvidence, over: Evidence, own: Sequence[Evidence]) -> float | None:
    """Return when a failure came after the program's end, from the program or another script: no iteration is lost."""
    later = it.rows[it.rows.index(over) :]
    return next((row.at for row in later if row in own or (row.sort == "traceback" and row.fatal)), None)


def _job_failed_behind(it: _RankedEvidence) -> Ending | None:
    failed = _job_failed(it, it.fatal)
    return None if failed is None else replace(it.found, state="finished", job_failed_at=failed)


def _job_failed(it: _RankedEvidence, fatal: Sequence[Evidence]) -> float | None:
    """Return when the job of a completed training failed, if the training is not the cause."""
    if it.done is None or any(row.sort != "exit" for row in fatal):
        return None
    return next((row.at for row in fatal), None)


def _died(it: _RankedEvidence) -> Ending | None:
    if not it.fatal:
        return None
    own = any(_is_own(row) and not KINDS[row.failure].planned for row in it.fatal)
    return _crashed(it.rows, it.fatal, it.found) if own or _first(it.rows, "orderly") is None else None


def _all_well(it: _RankedEvidence) -> Ending | None:
    ends = [row for row in it.rows if row.sort == "exit"]
    whole = it.processes is None or it.found.ended >= it.processes or any(row.attempt for row in ends)
    well = _first(it.rows, "orderly") is not None or (bool(ends) and whole)
    return replace(it.found, state="finished") if well else None


def _leaving(it: _RankedEvidence) -> Ending | None:
    leaving = it.done is not None or any(_ended_well(row) or row.sort == "left" for row in it.rows)
    return replace(it.found, state="exiting") if leaving else None


def _first(rows: Sequence[Evidence], *sorts: Sort) -> Evidence | None:
    return next((row for row in rows if row.sort in sorts), None)


def _ended_well(row: Evidence) -> bool:
    return row.sort == "exit" and row.exit_code == 0


def _is_gone(row: Evidence) -> bool:
    """Return True if it shows that a process is gone."""
    if row.sort == "traceback":
        return row.fatal and row.rank is None and row.node is None
    return row.sort in ("exit", "terminated") or row.optional


def _fatal(rows: Sequence[Evidence], *, leaving: bool) -> list[Evidence]:
    """Return the evidence that may have ended the attempt.

    If processes were terminated, any failure counts. While the attempt is exiting, an exception of a helper and the
    loss of a peer that has already left do not count.
    """
    ended = any(row.sort in ("terminated", "left") for row in rows)
    known = [row for row in rows if row.sort in ("failure", "watchdog", "traceback")]
    found = [
        row
        for row in known
        if (row.fatal or ended) and not (leaving and (row.helper or (row.consequence and not row.fatal)))
    ]
    bad = [row for row in rows if row.sort == "exit" and row.exit_code != 0]
    return found + bad


def _holds(row: Evidence) -> bool:
    """Return True if it still indicates an end: a later step shows that a failure was caught."""
    return row.passed_at is None or row.sort in ("finished", "orderly") or _is_proof(row)


_MIN_CAUSE_STRENGTH = 2.5  # minimum strength of a cause
_STRENGTHS: tuple[tuple[Callable[[Evidence, FailureKind], bool], float], ...] = (
    (lambda row, _: row.sort == "exit", 0.0),  # a process ended
    (lambda row, kind: row.consequence and kind.bare, 1.0),  # ... because another one ended
    (lambda row, _: row.consequence, 2.0),  # it lost a peer
    (
        lambda row, _: row.sort == "traceback" and (row.helper or not row.fatal),
        _MIN_CAUSE_STRENGTH,
    ),  # may have been caught
    (lambda row, _: row.sort != "traceback" and not row.fatal, 2.4),  # a line that may not belong to this end
    (lambda row, kind: row.pattern and kind.strength < 4.4, 4.4),  # a pattern of the site
    (lambda row, _: row.failure == "python_exception" and row.raised, 4.4),  # torchrun shows the first rank's message,
    (lambda row, _: row.failure == "python_exception" and row.exit_code is not None, 1.5),  # or only its exit code
    (lambda row, _: row.failure == "unknown" and row.by is not None and row.exit_code is not None, 1.0),
    (lambda row, _: row.failure == "unknown" and row.by is not None, 2.0),
)
"""(condition, strength): the first condition that holds; otherwise the kind's strength (`KINDS`)."""


def strength(row: Evidence) -> float:
    """Return how strongly the evidence explains the end of an attempt."""
    kind = KINDS[row.failure] if row.sort != "exit" else KINDS["unknown"]
    return next((found for holds, found in _STRENGTHS if holds(row, kind)), kind.strength)


def _is_own(row: Evidence) -> bool:
    """Return True if it is a cause, not only an end."""
    return strength(row) >= _MIN_CAUSE_STRENGTH and not row.helper


def _leads(row: Evidence) -> tuple[int, bool, bool]:
    """Return the sort key for the cause among evidence of one moment.

    A cancelled or preempted job ends before its processes, and so does srun after a signal; a job step may be cancelled
    because a process ended. A failure's own line is preferred to its exception.
    """
    cancelled = row.failure == "stopped" and (row.notice == "job_cancelled" or row.by in ("pbs", "lsf", "srun"))
    return _FIRST["preempted" if cancelled else row.failure], row.rank is not None, row.sort != "traceback"


def _cause(rows: Iterable[Evidence]) -> Evidence | None:
    """Return the strongest evidence, completed from weaker evidence."""
    known = [row for row in rows if row.failure and not _ended_well(row)]
    if not known:
        return None
    most = max(strength(row) for row in known)
    equal = [row for row in known if strength(row) == most]
    moment = [row for row in equal if row.at <= equal[0].at + MOMENT]
    return _completed(max(moment, key=_leads), equal, known)


def _completed(cause: Evidence, equal: Sequence[Evidence], known: Sequence[Evidence]) -> Evidence:
    """Add the node that the scheduler names in another line, and the exit code that a launcher reports."""
    if cause.node is None and cause.failure == "node_failure":
        cause = replace(cause, node=next((row.node for row in equal if row.node is not None), None))
    if cause.exit_code is None and cause.sort == "traceback":
        codes = [row.exit_code for row in known if row.sort == "failure" and not row.consequence]
        cause = replace(cause, exit_code=next((code for code in codes if code is not None), None))
    return cause


def _is_proof(row: Evidence) -> bool:
    """Return True if it proves that a process ended: it comes from a launcher or the scheduler, or cannot be caught."""
    if row.sort in ("terminated", "left", "silence"):
        return True
    if row.sort == "exit":
        return row.exit_code != 0
    if not row.fatal or row.optional:
        return False
    if row.sort == "traceback":
        return not row.helper
    caught = KINDS[row.failure].survivable and row.exit_code is None and not row.pattern
    return row.consequence or not caught


def _crashed(rows: Sequence[Evidence], fatal: Sequence[Evidence], found: Ending) -> Ending:
    hinted = [row.at for row in rows if row.sort in ("terminated", "left")]
    since = min([row.at for row in fatal if row.fatal or row.sort == "exit"] or hinted)
    proofs = [row for row in rows if row.passed_at is None and _is_proof(row)]
    seen = [row.at for row in proofs if row.sort != "silence"]
    return replace(
        found,
        state="crashed",
        certain=bool(proofs),
        since=since,
        certain_at=max(since, min(seen)) if seen else None,
        passed_at=max((row.passed_at for row in fatal if row.passed_at is not None), default=None),
    )
