"""Decides whether a run's job may be touched. Each refusal has a reason, and an unknown fact is one. Pure.

`observed` checks the observer's facts, `of_job` a fresh answer of Slurm. What can change before the command runs (the
job's state, a successor in the queue) is checked again right before it (commands.py).
"""

from collections.abc import Collection
from typing import Final

from megatron_monitor.advice import Advice, OpenIncident, Stream
from megatron_monitor.identity.job_ids import by_pattern
from megatron_monitor.run.job import OVER
from megatron_monitor.run.records import SlurmJob

_UNKNOWN_OWNER: Final = 65534  # user id that NFS shows for an unknown owner
_TOGETHER: Final = 300.0  # seconds between the last writes of files that count as written at the same time


def observed(advice: Advice, incident: OpenIncident) -> str:
    """Return why the observer's facts forbid an action; empty: they do not."""
    if not advice.followed:
        return "a file of the run is unreadable or not read to its end"
    if not advice.job:
        return "the run's Slurm job is not known"
    if incident.attempt != advice.attempt:
        return "another attempt has begun since"
    if advice.second_job:
        return f"job {advice.second_job} also writes into this run"
    if advice.undecided:
        return "the run of other lines of the job is not known yet"
    for other in advice.neighbours:
        if not other.still or other.progress_at is None or other.progress_at > incident.since:
            return f"run {other.run} is in the same job, and may continue"
    return ""


def proofs(job: SlurmJob, streams: Collection[Stream], job_from: str | None) -> list[str]:
    """Return the paths that prove that the run belongs to this job.

    A path proves it if Slurm names it as the job's output, or if the operator's pattern `job_from` finds the job's id
    in the path. Only the files written last count, those with steps if there are any. An id in a log's text proves
    nothing, because another job may print it; nor does a pushed stream, because the sender chooses its path.
    """
    rows = [one for one in streams if one.steps] or list(streams)
    newest = max((one.written_at for one in rows), default=0.0)
    ids, outputs = {job.id, job.array_id} - {""}, {job.output, job.errors}
    return sorted(
        one.path
        for one in rows
        if newest - one.written_at < _TOGETHER
        and not one.pushed
        and (one.path in outputs or (job_from is not None and by_pattern(one.path, job_from) in ids))
    )


def of_job(
    advice: Advice, incident: OpenIncident, job: SlurmJob, proof: Collection[str], own_job: str, now: float
) -> str:
    """Return why Slurm's facts forbid an action; empty: they do not. `own_job`: the remediator's own job. `now`: Unix
    seconds.
    """
    number, output = job.number, job.output or "unknown"
    owners = {None if one.pushed else one.owner for one in advice.streams}
    shown = ", ".join(sorted("unknown" if one is None else f"uid {one}" for one in owners)) or "unknown"
    by = f" by {job.cancelled_by}" if job.cancelled_by else ""
    refused = (
        (number != advice.job, f"Slurm shows job {number} in place of {advice.job}"),
        (job.components, "the job is a part of a heterogeneous job"),
        (own_job == job.id, f"the remediator itself runs in job {number}"),
        (not proof, f"job {number} is not proven: its output is {output}, and slurm.job_from finds no id in the log's "
                    "path"),
        (job.uid in (None, _UNKNOWN_OWNER) or owners != {job.uid},
         f"the log's owner ({shown}) is not known to be that of job {number} (uid {job.uid})"),
        (job.state != "RUNNING" and job.state not in OVER, f"job {number} is {job.state}"),
        (job.started_at is None, f"Slurm does not show when job {number} began"),
        (_began_after(incident, job, now), f"job {number} was restarted after the incident began"),
        (job.state in ("CANCELLED", "REVOKED"), f"job {number} was cancelled{by}"),
        (job.state == "COMPLETED" and incident.incident != "crash", f"Slurm reports job {number} as COMPLETED"),
    )  # fmt: skip
    return next((why for wrong, why in refused if wrong), "")


def _began_after(incident: OpenIncident, job: SlurmJob, now: float) -> bool:
    """Return True if the job was started after the incident began. Slurm's clock may differ from the observer's, so the
    start of a running job is told by how long it has run.
    """
    if job.state == "RUNNING" and job.ran is not None:
        return job.ran < now - incident.since
    return job.started_at is not None and job.started_at > incident.since
