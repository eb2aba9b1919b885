"""How an attempt ended, by its evidence. Pure: what is kept are facts, in whatever order they came; the verdict is
computed.

A ladder, the first that holds:
    1. cut       it was done, and its step stood until its time was over: it hung at exit
    2. finished  its loop ended as meant, and what failed did so behind that; a job that ends badly then is a warning
    3. crashed   something fatal: a failure, a traceback that nobody caught, a process that ended badly
    4. finished  all its processes ended well, or it is done and silent
    5. exiting   its loop is done, some processes ended well, or it takes its leave
    6. running   what is no end is a hint
The cause is what says most of it: `KINDS` has how much each kind says. Of those that say as much the earliest counts;
those of one moment came in any order, and the one that stands first in `KINDS` leads to the others.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

Sort = Literal[
    "failure", "watchdog", "traceback", "exit", "terminated", "left", "done", "finished", "orderly", "silence"
]
"""`done`: the loop says that it is done; `finished`: the program says so; `orderly`: it ended as a signal asked it to;
`left`: its process takes its leave, well or not: what was raised before was not caught;
`terminated`: somebody ended the other processes; `silence`: by now it would have gone on.
"""
State = Literal["running", "exiting", "crashed", "finished"]

MOMENT = 5.0  # seconds in which the lines of ranks, launchers and daemons about one end come in any order
_EXIT_SECONDS = 10.0  # in which processes that are done end: tearing down groups takes seconds


class FailureKind(Struct, frozen=True):
    """A class of failures."""

    strength: float
    """How much it says of why an attempt ended."""
    planned: bool = False
    """No failure: the scheduler's ordinary business, and what a person ended."""
    survivable: bool = False
    """A program may catch it and go on: a batch that does not fit is split, a save is tried again."""
    of_node: bool = False
    """It speaks of the node it happened on."""
    bare: bool = False
    """It says that something ended, hardly why."""


KINDS: dict[str, FailureKind] = {
    "ecc": FailureKind(5.0, of_node=True),
    "nan_loss": FailureKind(5.0, survivable=True),
    "disk_full": FailureKind(5.0, survivable=True),
    "host_oom": FailureKind(5.0, of_node=True),
    "cuda_oom": FailureKind(5.0, survivable=True),
    "node_failure": FailureKind(5.0, of_node=True),
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
"""What broke a rank, a node or a disk says more than what the others died of. The order counts."""
_FIRST = {name: place for place, name in enumerate(reversed(KINDS))}
PLANNED = frozenset(name for name, kind in KINDS.items() if kind.planned)
BARE = frozenset(name for name, kind in KINDS.items() if kind.bare)
NODE_FAULTS = frozenset(name for name, kind in KINDS.items() if kind.of_node)


class Evidence(Struct, frozen=True):
    """One fact about an attempt's end. Of equal ones the earliest is kept, with their number."""

    sort: Sort
    at: float
    """When it was told, an instant."""
    failure: str = ""
    """One of `KINDS`."""
    message: str = ""
    line: str = ""
    fatal: bool = False
    """Its process ended of it, if it is of the training; a traceback: nobody has caught it."""
    consequence: bool = False
    """Another process had ended before."""
    rank: int | None = None
    node: str | None = None
    logged_at: str | None = None
    exit_code: int | None = None
    by: str | None = None
    """Who tells it, where it is not the program itself."""
    notice: str | None = None
    pattern: bool = False
    """A site's own words."""
    raised: bool = False
    """It holds the exception's own words."""
    helper: bool = False
    """Another program of the job told it, or nobody knows which."""
    optional: bool = False
    """It is of an import, before the first iteration: a training may do without it."""
    attempt: bool = False
    """The whole attempt has ended."""
    output_follows: bool = False
    """What its program wrote before comes behind it."""
    after: int = 0
    """Iterations of the attempt when it was told."""
    count: int = 1
    passed_at: float | None = None
    """When a step was reported behind it that may have been on its way."""
    stream: str = ""
    """Where it stands: the order of lines is known within one."""


class Ending(Struct, frozen=True):
    """What the evidence comes to."""

    state: State = "running"
    cause: Evidence | None = None
    """What it died of; of one that runs, what it would have died of if it ended now."""
    certain: bool = False
    """It cannot have been caught."""
    since: float | None = None
    """When it failed."""
    certain_at: float | None = None
    """When something told so; None where only silence does."""
    passed_at: float | None = None
    """When a step was reported behind what it died of."""
    done_at: float | None = None
    """When the loop said that it is done."""
    job_failed_at: float | None = None
    """When, after that, its job ended badly: the training's work is whole."""
    killed_at: float | None = None
    """When its processes, which should have ended since, were ended by force."""
    ended: int = 0
    """Processes that were seen to end."""
    gone: bool = False
    """A process was seen to end, or to be ended: nobody waits for it."""
    hint: Evidence | None = None
    """Of one that runs: the same, with what was told before a step that may have been on its way."""


RUNNING = Ending()


class _RankedEvidence(NamedTuple):
    """The evidence in its order, and what the rungs of the ladder ask of it."""

    in_order: list[Evidence]
    rows: list[Evidence]
    """Those that still speak of an end."""
    fatal: list[Evidence]
    done: Evidence | None
    over: Evidence | None
    """Its program, or a silence behind its end, says that it is over."""
    silence: Evidence | None
    processes: int | None
    found: Ending
    """What holds whatever the state is."""


def ending(evidence: Sequence[Evidence], *, all_done: bool = False, processes: int | None = None) -> Ending:
    """The ending that the evidence proves. `all_done`: the last iteration that was asked for is done; `processes`: of
    how many the log would tell the end.
    """
    if not evidence:
        return RUNNING
    weighed = _weighed(evidence, all_done, processes)
    for rung in (_killed_at_exit, _over, _job_failed_behind, _died, _all_well, _leaving):
        verdict = rung(weighed)
        if verdict is not None:
            return verdict
    return replace(weighed.found, hint=_cause(weighed.in_order))


def _weighed(evidence: Sequence[Evidence], all_done: bool, processes: int | None) -> _RankedEvidence:
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
    """The training had said that it was done, and its processes were still there as their time was over."""
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
        failed = _failed_behind(it, over.at, own)
    return replace(it.found, state="finished", job_failed_at=failed)


def _failed_behind(it: _RankedEvidence, over: float, own: Sequence[Evidence]) -> float | None:
    """When something failed behind the program's end, by its own cause or another script's: it cost no iteration."""
    causes = [*own, *(row for row in it.rows if row.sort == "traceback" and row.fatal)]
    return min((row.at for row in causes if row.at >= over), default=None)


def _job_failed_behind(it: _RankedEvidence) -> Ending | None:
    failed = _job_failed(it, it.fatal)
    return None if failed is None else replace(it.found, state="finished", job_failed_at=failed)


def _job_failed(it: _RankedEvidence, fatal: Sequence[Evidence]) -> float | None:
    """When the job of a training that is done ended badly, for no cause of the training's own."""
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
    """Whether it shows that a process is gone: one that writes this log alone takes the log with it."""
    if row.sort == "traceback":
        return row.fatal and row.rank is None and row.node is None
    return row.sort in ("exit", "terminated")


def _fatal(rows: Sequence[Evidence], *, leaving: bool) -> list[Evidence]:
    """What the attempt may have died of. One that was ended died of what was told, be it no end by itself; where it is
    on its way out a helper's exception is none, nor is the loss of a peer that has left already.
    """
    ended = any(row.sort in ("terminated", "left") for row in rows)
    known = [row for row in rows if row.sort in ("failure", "watchdog", "traceback")]
    found = [row for row in known if (row.fatal or ended) and not (leaving and _is_harmless(row))]
    bad = [row for row in rows if row.sort == "exit" and row.exit_code != 0]
    return found + bad


def _is_harmless(row: Evidence) -> bool:
    return row.helper or (row.consequence and not row.fatal)


def _holds(row: Evidence) -> bool:
    """Whether it still speaks of an end: behind what may be caught, a step says that it was."""
    return row.passed_at is None or row.sort in ("finished", "orderly") or _is_proof(row)


_OWN = 2.5  # from here on it is a cause
_SAYS: tuple[tuple[Callable[[Evidence, FailureKind], bool], float], ...] = (
    (lambda row, _: row.sort == "exit", 0.0),  # a process has ended
    (lambda row, kind: row.consequence and kind.bare, 1.0),  # ... because another had
    (lambda row, _: row.consequence, 2.0),  # it lost another one
    (lambda row, _: row.sort == "traceback" and (row.helper or not row.fatal), _OWN),  # that may have been caught
    (lambda row, _: row.sort != "traceback" and not row.fatal, 2.4),  # a line that need not be of this end
    (lambda row, kind: row.pattern and kind.strength < 4.4, 4.4),  # a site's own words
    (lambda row, _: row.failure == "python_exception" and row.raised, 4.4),  # torchrun names the first of its ranks,
    (lambda row, _: row.failure == "python_exception" and row.exit_code is not None, 1.5),  # or only its code
    (lambda row, _: row.failure == "unknown" and row.by is not None and row.exit_code is not None, 1.0),
    (lambda row, _: row.failure == "unknown" and row.by is not None, 2.0),
)
"""What a row says of why an attempt ended, the first line that holds; else what its kind says (`KINDS`)."""


def strength(row: Evidence) -> float:
    """How much it says of why an attempt ended."""
    kind = KINDS[row.failure] if row.sort != "exit" else KINDS["unknown"]
    return next((says for holds, says in _SAYS if holds(row, kind)), kind.strength)


def _is_own(row: Evidence) -> bool:
    """Whether it names a cause, and not only an end."""
    return strength(row) >= _OWN and not row.helper


def _leads(row: Evidence) -> tuple[int, bool, bool]:
    """Which of one moment leads to the others: by the table. A job that somebody cancelled was ended before its
    processes were, as one that is preempted is; a step may be cancelled because one of them had ended. A failure's own
    line says more than the exception that it is.
    """
    cancelled = row.failure == "stopped" and (row.notice == "job_cancelled" or row.by in ("pbs", "lsf"))
    return _FIRST["preempted" if cancelled else row.failure], row.rank is not None, row.sort != "traceback"


def _cause(rows: Iterable[Evidence]) -> Evidence | None:
    """What says most; what the others know of it beside."""
    known = [row for row in rows if row.failure and not _ended_well(row)]
    if not known:
        return None
    most = max(strength(row) for row in known)
    equal = [row for row in known if strength(row) == most]
    moment = [row for row in equal if row.at <= equal[0].at + MOMENT]
    return _completed(max(moment, key=_leads), equal, known)


def _completed(cause: Evidence, equal: Sequence[Evidence], known: Sequence[Evidence]) -> Evidence:
    """With the node that the scheduler names in another line, and the code that a launcher saw."""
    if cause.node is None and cause.failure == "node_failure":
        cause = replace(cause, node=next((row.node for row in equal if row.node is not None), None))
    if cause.exit_code is None and cause.sort == "traceback":
        codes = [row.exit_code for row in known if row.sort == "failure" and not row.consequence]
        cause = replace(cause, exit_code=next((code for code in codes if code is not None), None))
    return cause


def _is_proof(row: Evidence) -> bool:
    """Whether it proves that a process has ended: a launcher or the scheduler saw it, nobody can have caught it."""
    if row.sort in ("terminated", "left", "silence"):
        return True
    if row.sort == "exit":
        return row.exit_code != 0
    if not row.fatal:
        return False
    if row.sort == "traceback":
        return not (row.helper or row.optional)
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
