"""May a run's job be touched? Each condition forbids it with a reason in words; what is unknown forbids it. Pure.

`observed` looks at what the observer says, `of_job` at a fresh answer of Slurm. What can change until the command runs
(the job's state, a successor in the queue) is asked again right before it (commands.py).
"""

from collections.abc import Collection
from typing import Final

from megatron_monitor.advice import Advice, OpenIncident, Stream
from megatron_monitor.identity.job_ids import by_pattern
from megatron_monitor.run.job import OVER
from megatron_monitor.run.records import SlurmJob

_UNKNOWN_OWNER: Final = 65534  # what a file server makes of owners that it does not know
_TOGETHER: Final = 300.0  # seconds: files that were last written within so much are written at the same time


def observed(advice: Advice, incident: OpenIncident) -> str:
    """Why the job is left alone by what the observer knows; empty: it may be touched."""
    if not advice.followed:
        return "a file of the run cannot be read, or is not read to its end"
    if not advice.job:
        return "the run's Slurm job is not known"
    if incident.attempt != advice.attempt:
        return "another attempt has begun since"
    if advice.second_job:
        return f"job {advice.second_job} writes into this run, too"
    if advice.undecided:
        return "it is not known yet which run other lines of the job are of"
    for other in advice.neighbours:
        if not other.still or other.progress_at is None or other.progress_at > incident.since:
            return f"run {other.run} is in the same job, and may continue"
    return ""


def proofs(job: SlurmJob, streams: Collection[Stream], job_from: str | None) -> list[str]:
    """The files that prove that the run is this job: its output by Slurm's word, or a path in which the operator's
    pattern `job_from` finds its id. Of the files with steps, or of all where none has, those count that were written
    last. A printed id proves nothing: another job's log may print it. Nor does a pushed stream: senders choose a path.
    """
    rows = [one for one in streams if one.steps] or list(streams)
    newest = max((one.written_at for one in rows), default=0.0)
    ids, outputs = {job.id, job.array_id} - {""}, {job.output, job.errors} - {""}
    return sorted(
        one.path
        for one in rows
        if newest - one.written_at < _TOGETHER
        and not one.pushed
        and (one.path in outputs or (job_from is not None and by_pattern(one.path, job_from) in ids))
    )


def of_job(advice: Advice, incident: OpenIncident, job: SlurmJob, proof: Collection[str], own_job: str) -> str:
    """Why the job is left alone by what Slurm says of it; empty: it may be touched. `own_job`: the remediator's own."""
    number, output = job.array_id or job.id, job.output or "not told"
    owners = {None if one.pushed else one.owner for one in advice.streams}
    said = ", ".join(sorted("unknown" if one is None else f"uid {one}" for one in owners)) or "unknown"
    by = f" by {job.cancelled_by}" if job.cancelled_by else ""
    refused = (
        (number != advice.job, f"Slurm shows job {number} in place of {advice.job}"),
        (job.components, "the job is one of several that run as one"),
        (own_job == job.id, f"the remediator itself runs in job {number}"),
        (not proof, f"job {number} is not proven: its output is {output}, and slurm.job_from finds no id in the log's "
                    "path"),
        (job.uid in (None, _UNKNOWN_OWNER) or owners != {job.uid},
         f"the log's owner ({said}) is not known to be that of job {number} (uid {job.uid})"),
        (job.state != "RUNNING" and job.state not in OVER, f"job {number} is {job.state}"),
        (job.started_at is None, f"Slurm does not tell when job {number} began"),
        (job.started_at is not None and job.started_at > incident.since,
         f"job {number} was started again since the trouble began"),
        (job.state in ("CANCELLED", "REVOKED"), f"job {number} was cancelled{by}"),
        (job.state == "COMPLETED" and incident.incident != "crash", f"Slurm says that job {number} has completed"),
    )  # fmt: skip
    return next((why for wrong, why in refused if wrong), "")
