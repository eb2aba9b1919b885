"""May a run's job be touched? Every condition in one place; what is not known forbids it, its reason in words. Pure.

Asked when a remediation plans, and again before each step. What only Slurm can tell - that the job is still in this
launch, that nobody follows it, that a new job would be accepted - the executor asks besides, right before it acts.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from msgspec import Struct

from megatron_monitor.config.inputs import SlurmSettings
from megatron_monitor.core import Core
from megatron_monitor.core.runs import Run
from megatron_monitor.core.sources import TOGETHER, Source, Sources
from megatron_monitor.identity import key_of
from megatron_monitor.incidents import Incident
from megatron_monitor.run.job import OVER
from megatron_monitor.run.phases import ENDED
from megatron_monitor.run.records import Job
from megatron_monitor.run.state import RunState
from megatron_monitor.slurm.client import TIMEOUT

UNREADABLE: Final = "a file of the run cannot be read"
_NOBODY: Final = 65534  # what a file server makes of owners that it does not know
_FRESH: Final = 2.0
"""Intervals between two questions to Slurm, and the time of one call, after which an answer is old."""


class Facts(Struct, frozen=True):
    """What is known of a run's job beside the run's own state."""

    proof: tuple[str, ...] = ()
    """Files with the run's last steps that are the job's output, or that have its id where the operator's pattern finds
    it in the path. That a log prints an id is not enough to act: another job's log may print it, too. Nor is a stream
    that was pushed: senders choose its path.
    """
    owners: frozenset[int | None] = frozenset()
    """User ids of the run's files; None: one whose owner is not told."""
    others: Sequence[RunState] = ()
    """The other runs with a stream of this job, as far as its id is known."""
    undecided: bool = False
    """Of lines of this job it is not known yet which run they are of."""
    beside: str = ""
    """Another running job that writes the same run."""
    own_job: str = ""
    """The job that the monitor itself runs in."""


def facts_of(run: Run, core: Core, own_job: str) -> Facts:
    """What is known of the run's streams, its job and the other runs of that job."""
    job, sources = run.state.job or Job("", ""), _streams(core.sources, [run.log])
    ids = {job.id, job.array_id} - {""}
    pushed = {source.path for source in sources if core.config.is_pushed(source.path)}
    mates = {name for name, other in core.runs.items() if other.state.job is not None and other.state.job.id in ids}
    mates = mates.union(run.identity.get("shares_job_with", ())) - {run.state.name}
    return Facts(
        proof=tuple(sorted(_naming(job, ids, sources, core.config.slurm.job_from) - pushed)),
        owners=frozenset(None if source.path in pushed else source.owner for source in sources),
        others=[core.runs[name].state for name in sorted(mates & core.runs.keys())],
        undecided=any(source.waiting for source in (*sources, *_streams(core.sources, mates))),
        beside=run.state.beside,
        own_job=own_job,
    )


def _naming(job: Job, ids: Collection[str], sources: Sequence[Source], site: str | None) -> set[str]:
    """The files that are the job's output by Slurm's word, or whose path holds one of its `ids` by the pattern `site`.
    Of the files that tell steps, or of all where none does, those count that were written last.
    """
    tell = [source for source in sources if source.has_steps or source.member.steps] or sources
    newest = max((source.mtime for source in tell), default=0.0)
    lately = {source.path for source in tell if newest - source.mtime < TOGETHER}
    outputs = {job.output, job.errors} - {""}
    return {path for path in lately if path in outputs or (site is not None and key_of(path, site).id in ids)}


def _streams(followed: Sources, runs: Iterable[str]) -> list[Source]:
    return [source for run in runs for source in followed.of_run(run)]


def may_act(state: RunState, incident: Incident, facts: Facts) -> str:
    """Why the run's job is left alone; empty: it may be touched."""
    job = state.job
    if state.lost or state.unreadable:
        return UNREADABLE
    if job is None:
        return "the run's Slurm job is not known"
    number, output = job.array_id or job.id, job.output or "not told"
    owners = ", ".join(sorted("unknown" if one is None else f"uid {one}" for one in facts.owners)) or "unknown"
    refused = (
        (job.components, "the job is one of several that run as one"),
        (facts.own_job == job.id, f"the monitor itself runs in job {number}"),
        (not facts.proof, f"job {number} is not proven: its output is {output}, and slurm.job_from finds no id in the "
                           "log's path"),
        (job.uid == _NOBODY or facts.owners != {job.uid} or None in facts.owners,
         f"the log's owner ({owners}) is not known to be that of job {number} (uid {job.uid})"),
        (facts.beside, f"job {facts.beside} writes into this run, too"),
    )  # fmt: skip
    why_not = next((why for wrong, why in refused if wrong), "")
    return why_not or _moves(incident, facts) or _another_launch(state, incident, job, number)


def _moves(incident: Incident, facts: Facts) -> str:
    """What else may go on in the job."""
    if facts.undecided:
        return "it is not known yet which run other lines of the job are of"
    since = incident.since
    for other in facts.others:
        still = other.launch.hung or other.launch.phase in ENDED
        if not still or other.progress_at is None or other.progress_at > since or other.lost or other.unreadable:
            return f"run {other.name} is in the same job, and may go on"
    return ""


def _another_launch(state: RunState, incident: Incident, job: Job, number: str) -> str:
    """Whether the job is in the launch in which the trouble began, and runs, or is over by itself."""
    if incident.evidence.get("attempt", incident.attempt) != state.launch.number:
        return "another launch has begun since"
    if job.state != "RUNNING" and job.state not in OVER:
        return f"job {number} is {job.state}"
    if job.started_at is None:
        return f"Slurm does not tell when job {number} began"
    if job.started_at > incident.since + state.wall_offset:
        return f"job {number} was started anew since the trouble began"
    if job.state in ("CANCELLED", "REVOKED"):
        return f"job {number} was cancelled{f' by {job.cancelled_by}' if job.cancelled_by else ''}"
    if job.state == "COMPLETED" and incident.incident != "crash":
        return f"Slurm says that job {number} has completed"
    return ""


def is_fresh(state: RunState, since: float, now: float, settings: SlurmSettings) -> bool:
    """Has Slurm answered about the job since then, and lately?"""
    most = _FRESH * settings.interval + TIMEOUT
    return state.job is not None and state.job.asked_at >= since and now - state.job.asked_at <= most
