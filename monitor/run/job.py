"""The Slurm job of a run: whether Slurm's answer can be about this run's job, and what it proves. Pure.

The job id comes from a log's path, the log or the environment, and each may mislead: a number in a name may not be a
job, a cluster may restart its ids, a path may be reused. Slurm's answer counts only if the job's times include the
log's and its user owns the log. The same id with another user, name or directory is another job.
"""

from typing import Any, Final

from megatron_monitor.nodes.hostlist import is_node_name
from megatron_monitor.parsers.events import Event, Failure, FailureSeen, LogEvent, ProcessExited, ProcessTerminated
from megatron_monitor.run.ending import BARE
from megatron_monitor.run.records import SlurmJob
from megatron_monitor.run.state import RunState

_BEGIN_SLACK: Final = 60.0
"""Seconds by which a log's last line may precede the job's start: clocks of nodes and file servers differ."""
_END_SLACK: Final = 300.0
"""Seconds by which a log's last line may follow the job's end: buffers are written late."""
_SHARED_OWNERS: Final = frozenset({0, 65534})
"""User ids that prove nothing: root writes for others, 65534 stands for unknown users on NFS."""

RUNNING: Final = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "CONFIGURING", "RESIZING", "SIGNALING"})
"""States in which the job has its nodes and may compute."""
WAITING: Final = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
_FAILURES: Final[dict[str, Failure]] = {
    "CANCELLED": "stopped",
    "REVOKED": "stopped",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node_failure",
    "BOOT_FAIL": "node_failure",
    "OUT_OF_MEMORY": "host_oom",
}
_UNEXPLAINED: Final = BARE | {"requeued"}
"""Causes that do not explain why the attempt ended."""
OVER: Final = frozenset({*_FAILURES, "COMPLETED", "FAILED"})
"""Final states: only a requeue starts the job again."""


def refusal(
    state: RunState, job: SlurmJob, asked: str, owners: frozenset[int], now: float, *, proven: bool
) -> str | None:
    """Return why this cannot be the run's job; None if it can. `owners`: user ids of the run's files. `now`: the
    instant of Slurm's answer to the question about the job `asked`. `proven`: more than a number in a file name shows
    that id.
    """
    known, answer, last = state.job, owners - _SHARED_OWNERS, state.unix(state.updated_at) or 0.0
    if asked not in (job.id, job.array_id):
        return f"Slurm answered with job {job.id}"
    if answer and job.uid is not None and job.uid not in answer:
        return f"the job is {job.user}'s (uid {job.uid}), the log is uid {min(answer)}'s"
    if job.state in OVER and (job.ended_at is None or last > job.ended_at + _END_SLACK):
        return "the job ended before the log's last line"
    if known is not None and known.id == job.id:
        return None if _continues(known, job) else f"the id now belongs to another job: {job.name} of {job.user}"
    return _unproven(state, job, last, now, proven=proven)


def _unproven(state: RunState, job: SlurmJob, last: float, now: float, *, proven: bool) -> str | None:
    """Return why a new job is not accepted as the run's; None if it is. Slurm's clock may differ from ours, so the time
    for which a job has run counts, too.
    """
    if not (proven or _mentioned(state, job)):
        return f"its output is {job.output or 'unknown'}, and no line before the first iteration names it"
    if job.started_at is None or job.state in WAITING:
        return "the job has not begun"
    began = job.started_at
    if job.state == "RUNNING" and job.ran is not None:
        began = min(began, now + state.wall_offset - job.ran)
    return "the job began after the log's last line" if began > last + _BEGIN_SLACK else None


def _continues(known: SlurmJob, job: SlurmJob) -> bool:
    """Return True for the same job, perhaps requeued with a new time of submission."""
    if (known.uid, known.name, known.directory) != (job.uid, job.name, job.directory):
        return False
    if job.restarts == known.restarts and job.state in (*WAITING, "COMPLETING"):
        return True  # Slurm counts a requeue shortly after the new submission
    return job.restarts > known.restarts or (job.restarts == known.restarts and job.submitted_at == known.submitted_at)


def _mentioned(state: RunState, job: SlurmJob) -> bool:
    """Return True if a file of the run is the job's output; without a path of the output, by the usual file name."""
    paths = {job.output, job.errors} - {""}
    if paths:
        return not paths.isdisjoint(state.sources)
    own = tuple(f"/slurm-{known}." for known in (job.id, job.array_id) if known)
    return any(name in source for name in own for source in state.sources)


def proofs(state: RunState) -> list[LogEvent]:
    """Return events about the end of the attempt that Slurm knows and the log does not show."""
    job = state.job
    if job is None or state.attempt.phase == "finished":
        return []
    crashed = state.attempt.phase == "crashed"
    events: list[Event] = []
    failure, node = _failed(job)
    if failure is not None:
        known = state.attempt.failure
        if not crashed or (known is not None and known.failure in _UNEXPLAINED and failure not in _UNEXPLAINED):
            events = [FailureSeen(failure=failure, message=sentence(job), node=node), ProcessTerminated()]
    elif job.state in ("COMPLETED", "FAILED") and not crashed:
        events = [ProcessExited(exit_code=job.exit_code or 0, ends_attempt=True)]
    return [LogEvent(0, "slurm", event, sentence(job)) for event in events]


def _failed(job: SlurmJob) -> tuple[Failure | None, str | None]:
    """Return (failure, failed node). None: unknown; the node is unknown if the job had several."""
    if not _waits_again(job):
        return _FAILURES.get(job.state), None
    failure = _FAILURES.get(job.ended_as, "requeued")
    return failure, job.ended_on if failure == "node_failure" and is_node_name(job.ended_on) else None


def sentence(job: SlurmJob) -> str:
    """Return Slurm's facts as one line."""
    parts = [f"Slurm: job {job.number} is {job.state}"]
    if job.cancelled_by:
        parts.append(f"by {job.cancelled_by}")
    if job.reason and job.reason != "None":
        parts.append(f"({job.reason})")
    if job.state in OVER and (job.exit_code or job.signal):
        parts.append(f"exit code {job.exit_code}" if not job.signal else f"signal {job.signal}")
    if job.state == "TIMEOUT" and job.time_limit is not None:
        parts.append(f"after its time limit of {job.time_limit / 3600:.3g} h")
    if job.restarts:
        parts.append(f"requeued {job.restarts} time{'s' * (job.restarts > 1)}")
    if _waits_again(job):
        parts.append(f"after {job.ended_as}" if job.ended_as else "(reason unknown: no accounting)")
    return " ".join(parts)


def _waits_again(job: SlurmJob) -> bool:
    """Return True if the job was requeued and waits for nodes."""
    return job.state in WAITING and job.restarts > 0


def evidence(state: RunState) -> dict[str, Any]:
    """Return Slurm's facts for the evidence of an incident; empty without a job."""
    job = state.job
    return {} if job is None else {"slurm": sentence(job), "slurm_job": job.number}


def page(state: RunState) -> dict[str, Any]:
    """Return Slurm's facts for the page and the API; empty without a job."""
    job = state.job
    if job is None:
        return {}
    shown = {
        "id": job.number,
        "state": job.state,
        "reason": job.reason,
        "exit_code": job.exit_code if job.state in OVER else None,
        "signal": job.signal if job.state in OVER else None,
        "cancelled_by": job.cancelled_by,
        "name": job.name,
        "user": job.user,
        "partition": job.partition,
        "nodes": job.nodes,
        "excluded_nodes": job.excluded,
        "requeued": job.restarts,
        "time_limit_seconds": job.time_limit,
        "started_at": job.started_at,
        "ends_at": job.ended_at,
        "asked_at": state.unix(job.asked_at),
    }
    return {name: value for name, value in shown.items() if value not in (None, "")}
