"""Plans the steps for an incident by a remediation, the job and the record, or says why nothing is done. Pure.

A node name of the log counts only if the job's own node list contains it.
"""

from collections.abc import Sequence
from typing import Final

from megatron_monitor.advice import Advice, OpenIncident
from megatron_monitor.advice.choice import actions_of, named_nodes
from megatron_monitor.advice.record import Execution, Record, Step
from megatron_monitor.config.remediations import Action, ActionType, Remediation, kinds
from megatron_monitor.nodes.hostlist import HostlistError, expand, joined
from megatron_monitor.run.job import OVER
from megatron_monitor.run.nodes import expand_some
from megatron_monitor.run.records import SlurmJob

OPT_IN: Final = "megatron-monitor"
_DAY: Final = 86400.0
_HOUR: Final = 3600.0
_DRAINS: Final = 2
"""Maximum nodes drained within an hour for all runs together: many logs may name nodes at the same time."""


class RefusedError(Exception):
    """Nothing is done, for the reason in the message."""


def done_before(remediation: Remediation, advice: Advice, incident: OpenIncident, record: Record) -> bool:
    """Return True if the remediation was or is applied to this incident. A dry run does not count as a real one."""
    same = advice.run, remediation.dry_run, remediation.name, incident.id
    return any((one.run, one.dry_run, one.remediation, one.incident_id) == same for one in record.executions)


def forbidden(remediation: Remediation, advice: Advice, incident: OpenIncident, record: Record, now: float) -> str:
    """Return why the record forbids the remediation; empty: it does not. `now`: an instant of the record."""
    if incident.since - record.wall_offset < record.began_at:
        return "the incident is older than the record of executions"
    if any(one.open for one in record.executions if one.run == advice.run):
        return "another remediation is under way"
    # Those that end or restart count together.
    done = [
        one
        for one in _counting(remediation, advice, record)
        if one.remediation == remediation.name or (remediation.acts and one.acts)
    ]
    if sum(now - one.planned_at < _DAY for one in done) >= remediation.per_day:
        return f"remediations have acted {remediation.per_day} times in 24 hours"
    return ""


def plan(
    remediation: Remediation, advice: Advice, incident: OpenIncident, job: SlurmJob, record: Record, now: float
) -> Execution:
    """Return the execution with its steps. `now`: an instant of the record. Raises RefusedError."""
    number, previous = job.number, _counting(remediation, advice, record)
    if remediation.opt_in and OPT_IN not in job.comment.replace(",", " ").split():
        raise RefusedError(f"job {number} has not opted in: sbatch --comment={OPT_IN}")
    for one in previous:
        if one.acts and (one.job, one.was.restarts) == (number, job.restarts):  # one successor for each start of a job
            raise RefusedError(f"remediation {one.remediation} has already acted on job {one.job}")
    restarts = sum(one.restarts and one.checkpoint == advice.checkpoint for one in previous)
    actions, gave_up = actions_of(remediation, restarts)
    return Execution(
        number=record.last + 1,
        run=advice.run,
        remediation=remediation.name,
        incident=incident.incident,
        incident_id=incident.id,
        severity=incident.severity,
        planned_at=now,
        dry_run=remediation.dry_run,
        steps=[_step(action, job, incident, kinds(actions)) for action in actions],
        was=job,
        attempt=advice.attempt,
        checkpoint=advice.checkpoint,
        gave_up=gave_up,
    )


def trials_of(execution: Execution) -> list[list[str]]:
    """Return commands that change nothing and fail if the restart would fail."""
    tests, options = [], execution.was.options
    for step in execution.steps:
        if step.action == "resubmit" and step.commands:
            (command,) = step.commands
            tests.append(["sbatch", "--test-only", *command[3:]])  # without --parsable and --dependency
        elif step.action == "requeue" and len(step.commands) > 1 and options:
            # Test whether enough nodes remain without the excluded ones, by a trial of a similar job.
            excluded = step.commands[1][-1].replace("ExcNodeList=", "--exclude=")
            tests.append(["sbatch", "--test-only", *options, excluded, "--wrap=:"])
    return tests


def drained(step: Step) -> list[str]:
    """Return the nodes that the step drains."""
    lists = (command[2].removeprefix("NodeName=") for command in step.commands if step.action == "drain")
    return [name for nodes in lists for name in expand(nodes)]


def too_many_drained(execution: Execution, record: Record, out_of_use: int, all_nodes: int) -> str:
    """Return why the nodes may not be drained in addition to others; empty: they may.

    `out_of_use`: nodes that remediations have drained and that are not resumed, of `all_nodes` of the cluster.
    """
    nodes = {name for step in execution.steps for name in drained(step)}
    lately = [
        one
        for one in record.executions
        if one.dry_run == execution.dry_run and execution.planned_at - one.planned_at < _HOUR
    ]
    steps = [step for one in lately for step in one.steps if step.status != "skipped"]
    if len(nodes.union(name for step in steps for name in drained(step))) > _DRAINS:
        return f"{_DRAINS} nodes were drained within an hour"
    if out_of_use + len(nodes) > max(1, all_nodes // 50):
        return f"{out_of_use} of {all_nodes} nodes are already drained, and the limit is 2 %"
    return ""


def _counting(remediation: Remediation, advice: Advice, record: Record) -> list[Execution]:
    """Return the run's executions. For a dry run, earlier dry runs count as if they had been real."""
    return [one for one in record.executions if one.run == advice.run and (remediation.dry_run or not one.dry_run)]


def _step(action: Action, job: SlurmJob, incident: OpenIncident, others: Sequence[ActionType]) -> Step:
    """Return the step with the action's commands. Raises RefusedError if the action is impossible."""
    if action.type == "resubmit" and job.state not in OVER and "cancel" not in others:
        raise RefusedError(f"job {job.number} is running: without cancel, resubmit would wait for its end")
    if action.type in ("cancel", "dump_stacks") and job.state in OVER:
        return Step(action.type, status="skipped", outcome="the job has ended")
    match action.type:
        case "dump_stacks":
            return _dump_stacks(action, job)
        case "cancel":
            return Step("cancel", [["scancel", job.number]])
        case "requeue":
            return _requeue(job, incident)
        case "resubmit":
            return _resubmit(action, job, incident)
        case "drain":
            return _drain(job, incident)


def _dump_stacks(action: Action, job: SlurmJob) -> Step:
    try:
        count = len(expand(job.nodes))
    except HostlistError as error:
        raise RefusedError(f"the job's node list cannot be parsed: {error}") from error
    if not count:
        raise RefusedError("Slurm does not show the job's nodes")
    command = ["srun", "--overlap", f"--jobid={job.number}", f"--nodes={count}", f"--ntasks={count}"]
    return Step("dump_stacks", [[*command, "--ntasks-per-node=1", "--label", *action.command]])


def _requeue(job: SlurmJob, incident: OpenIncident) -> Step:
    if not (job.batch and job.requeue):
        raise RefusedError(f"job {job.number} was not submitted by sbatch, or it was submitted with --no-requeue")
    if not (nodes := _excluded(job, incident)):
        return Step("requeue", [["scontrol", "requeue", job.number]])
    # The job is held first: otherwise Slurm may start it again before the exclusion is set.
    change = ["scontrol", "update", f"JobId={job.number}", f"ExcNodeList={nodes}"]
    return Step("requeue", [["scontrol", "requeuehold", job.number], change, ["scontrol", "release", job.number]])


def _resubmit(action: Action, job: SlurmJob, incident: OpenIncident) -> Step:
    """Submit the job's script with the options that Slurm shows; of an array only the task."""
    excluded = _excluded(job, incident) or job.excluded
    options = [f"--chdir={job.directory}"] if job.directory.startswith("/") else []
    options += job.options if job.command.split(" ")[0] == action.command[0] else []
    options += [f"--exclude={excluded}"] if excluded else []
    options += [f"--array={job.array_id.partition('_')[2]}"] if job.array_id else []
    command = ["sbatch", "--parsable", f"--dependency=afterany:{job.number}", *options, *action.command]
    return Step("resubmit", [command])


def _drain(job: SlurmJob, incident: OpenIncident) -> Step:
    names = named_nodes(incident.nodes, set(expand_some(job.nodes)))
    if not names:
        return Step("drain", status="skipped", outcome="no node is named")
    reason = f"megatron-monitor: {incident.incident} of job {job.number}"
    return Step("drain", [["scontrol", "update", f"NodeName={joined(names)}", "State=DRAIN", f"Reason={reason}"]])


def _excluded(job: SlurmJob, incident: OpenIncident) -> str:
    """Return the nodes to exclude, old ones included, as a Slurm node list; empty: no new one."""
    try:
        own, before = set(expand(job.nodes)), expand(job.excluded)
    except HostlistError:
        return ""
    names = named_nodes(incident.nodes, own)
    return joined([*before, *names]) if names else ""
