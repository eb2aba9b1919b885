"""An incident, a remediation, what Slurm says of the job and what was done before: what is to be done, and when. Pure.

Whatever is in doubt ends in a reason why nothing is done: the job may not be touched (permission.py), the daemon was
away, the remediation has acted often enough. Node names of the evidence count only if the job's own node list has them.
"""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

from megatron_monitor.config.remediations import RESTARTS, Action, ActionType, Remediation, kinds
from megatron_monitor.detectors.base import RANK, Severity, duration
from megatron_monitor.hands.permission import Facts, may_act
from megatron_monitor.hands.record import Course, Record, Step, shown
from megatron_monitor.incidents import Incident
from megatron_monitor.nodes.hostlist import HostlistError, compress, expand, is_node_name
from megatron_monitor.run.job import OVER
from megatron_monitor.run.nodes import expand_some
from megatron_monitor.run.records import Job
from megatron_monitor.run.state import RunState

OPT_IN: Final = "megatron-monitor"
_DAY: Final = 86400.0
_HOUR: Final = 3600.0
_MOST_NAMED: Final = 2  # nodes: where the evidence names more, none of them is the cause
_RETURNED: Final = 60.0
"""Seconds that a daemon that was away watches before it acts, even where `after` is shorter."""


class Plan(Struct, frozen=True):
    """What to do about an incident. `at`: the instant when it is due; `why_not`: why nothing is done."""

    remediation: Remediation
    incident: Incident
    at: float
    steps: tuple[Step, ...] = ()
    why_not: str = ""
    gave_up: bool = False
    proof: tuple[str, ...] = ()
    """Files that say which job the run is."""


def matches(remediation: Remediation, run: str, incident: Incident, least: Severity = "critical") -> bool:
    """Is the remediation for this incident? An end that somebody planned is `info`: it is left alone."""
    failure = incident.evidence.get("failure")
    return (
        incident.incident in remediation.incidents
        and RANK[incident.severity] >= RANK[least]
        and not incident.quiet
        and (not remediation.failures or incident.incident != "crash" or failure in remediation.failures)
        and (not remediation.runs or any(fnmatchcase(run, pattern) for pattern in remediation.runs))
    )


def plan(
    remediation: Remediation, state: RunState, incident: Incident, facts: Facts, record: Record, since: float,
    watched: float, now: float,
) -> Plan | None:  # fmt: skip
    """What the remediation has to do; None where it was done, or is under way. `since` when the incident is one for
    this remediation, and since when the run has been `watched` without a gap.
    """
    # A dry run hinders nobody.
    same = state.name, remediation.dry_run, remediation.name, incident.incident, incident.opened_at
    if any((one.run, one.dry_run, one.remediation, one.incident, one.opened_at) == same for one in record.courses):
        return None
    returned = watched > incident.opened_at
    at = max(since, watched) + max(remediation.after, _RETURNED if returned else 0.0)
    why_not = _forbidden(remediation, state, incident, facts, record, now)
    if why_not:
        return Plan(remediation, incident, at, why_not=why_not)
    actions, gave_up = choice(remediation, state, record, 0)
    steps: list[Step] = []
    for action in actions:
        step = _step(action, state.job, incident, kinds(actions))
        if isinstance(step, str):
            return Plan(remediation, incident, at, why_not=step)
        nodes = _drained(step)
        if nodes and len(nodes | _drained_lately(record, now, dry_run=remediation.dry_run)) > _MOST_NAMED:
            return Plan(remediation, incident, at, why_not=f"{_MOST_NAMED} nodes were drained within an hour")
        steps.append(step)
    return Plan(remediation, incident, at, tuple(steps), gave_up=gave_up, proof=facts.proof)


def choice(remediation: Remediation, state: RunState, record: Record, before: int) -> tuple[Sequence[Action], bool]:
    """What the remediation is for, and whether it gives up: then without a restart; a job to be requeued is ended.
    `before`: restarts that somebody else is known to have made without a new checkpoint.
    """
    last = state.past.checkpoints.last_iteration
    own = sum(one.restarts and one.checkpoint == last for one in _counting(remediation, state, record))
    if RESTARTS.isdisjoint(kinds(remediation.actions)) or max(before, own) < remediation.attempts:
        return remediation.actions, False
    kept = [action for action in remediation.actions if action.type not in RESTARTS]
    return [*kept, Action(type="cancel")] if "requeue" in kinds(remediation.actions) else kept, True


def course_of(made: Plan, state: RunState, number: int, now: float) -> Course:
    """The plan as it enters the record."""
    job, remediation = state.job, made.remediation
    steps = list(made.steps)
    for step in steps:
        if remediation.dry_run and step.status == "waiting":
            step.status = "dry_run"
    return Course(
        number=number,
        run=state.name,
        remediation=remediation.name,
        incident=made.incident.incident,
        severity=made.incident.severity,
        opened_at=made.incident.opened_at,
        planned_at=now,
        dry_run=remediation.dry_run,
        steps=steps,
        job=_id(job) if job is not None else "",
        job_uid=job.uid if job is not None else None,
        proof=list(made.proof),
        job_started_at=job.started_at if job is not None else None,
        job_restarts=job.restarts if job is not None else 0,
        over=job is not None and job.state in OVER,
        checkpoint=state.past.checkpoints.last_iteration,
        gave_up=made.gave_up,
        launch=state.launch.number,
    )


def _forbidden(
    remediation: Remediation, state: RunState, incident: Incident, facts: Facts, record: Record, now: float
) -> str:
    """Why the remediation does nothing here, whatever its actions are."""
    if record.began_at is None or incident.since < record.began_at:
        return "the trouble is older than the record of what was done"
    if any(course.open for course in record.courses if course.run == state.name):
        return "another remediation is at work"
    own = _counting(remediation, state, record)
    # Who ends or restarts counts with all others that do.
    done = [one for one in own if one.remediation == remediation.name or (remediation.acts and one.acts)]
    if sum(now - one.planned_at < _DAY for one in done) >= remediation.per_day:
        return f"remediations have acted {remediation.per_day} times in 24 hours"
    return may_act(state, incident, facts) or _dealt_with(remediation, state, own)


def _dealt_with(remediation: Remediation, state: RunState, own: Sequence[Course]) -> str:
    """Whether the job does not ask for it, or a remediation has acted in this launch of it."""
    job = state.job
    assert job is not None  # may_act has asked
    if remediation.opt_in and OPT_IN not in job.comment.replace(",", " ").split():
        return f"the comment of job {_id(job)} does not ask for it: sbatch --comment={OPT_IN}"
    same = (one for one in own if one.acts and (one.job, one.job_restarts) == (_id(job), job.restarts))
    dealt = next(same, None)  # one successor a launch, too
    return f"remediation {dealt.remediation} has dealt with job {dealt.job}" if dealt is not None else ""


def _counting(remediation: Remediation, state: RunState, record: Record) -> list[Course]:
    """What was done with the run. For a dry run, dry ones count as if they had been carried out."""
    return [one for one in record.courses if one.run == state.name and (remediation.dry_run or not one.dry_run)]


def _step(action: Action, job: Job | None, incident: Incident, others: Sequence[ActionType]) -> Step | str:
    """The action's commands, or why it cannot be done."""
    assert job is not None  # _forbidden has asked
    if action.type == "resubmit" and job.state not in OVER and "cancel" not in others:
        return f"job {_id(job)} is running: without cancel, resubmit would wait for its end"
    return _STEPS[action.type](action, job, incident)


def _dump_stacks(action: Action, job: Job, _incident: Incident) -> Step | str:
    if job.state in OVER:
        return Step("dump_stacks", status="skipped", outcome="the job has ended")
    try:
        count = len(expand(job.nodes))
    except HostlistError as error:
        return f"the job's node list is not understood: {error}"
    if not count:
        return "Slurm does not tell the job's nodes"
    command = ["srun", "--overlap", f"--jobid={_id(job)}", f"--nodes={count}", f"--ntasks={count}"]
    return Step("dump_stacks", [[*command, "--ntasks-per-node=1", "--label", *action.command]])


def _cancel(_action: Action, job: Job, _incident: Incident) -> Step:
    if job.state in OVER:
        return Step("cancel", status="skipped", outcome="the job has ended")
    return Step("cancel", [["scancel", _id(job)]])


def _requeue(_action: Action, job: Job, incident: Incident) -> Step | str:
    if not (job.batch and job.requeue):
        return f"job {_id(job)} was not submitted by sbatch, or with --no-requeue"
    if not (nodes := _left_out(job, incident)):
        return Step("requeue", [["scontrol", "requeue", _id(job)]])
    # Held first: Slurm would start it anew before it knows what to leave out.
    change = ["scontrol", "update", f"JobId={_id(job)}", f"ExcNodeList={nodes}"]
    hold, release = ["scontrol", "requeuehold", _id(job)], ["scontrol", "release", _id(job)]
    # Are there enough nodes without these? One job like it is tried.
    test = ["sbatch", "--test-only", *job.options, f"--exclude={nodes}", "--wrap=:"]
    return Step("requeue", [hold, change, release], tests=[test] if job.options else [])


def _resubmit(action: Action, job: Job, incident: Incident) -> Step:
    """The job's own script is submitted with what Slurm tells of the options that the job has: what stood on sbatch's
    command line is not lost. Of an array its task alone.
    """
    left_out = _left_out(job, incident) or job.excluded
    options = [f"--chdir={job.directory}"] if job.directory.startswith("/") else []
    options += job.options if job.command.split(" ")[0] == action.command[0] else []
    options += [f"--exclude={left_out}"] if left_out else []
    options += [f"--array={job.array_id.partition('_')[2]}"] if job.array_id else []
    rest = [*options, *action.command]
    command = ["sbatch", "--parsable", f"--dependency=afterany:{_id(job)}", *rest]
    return Step("resubmit", [command], tests=[["sbatch", "--test-only", *rest]])


def _drain(_action: Action, job: Job, incident: Incident) -> Step:
    names = named_nodes(incident, set(expand_some(job.nodes)))
    if not names:
        return Step("drain", status="skipped", outcome="no node is named")
    reason = f"megatron-monitor: {incident.incident} of job {_id(job)}"
    return Step("drain", [["scontrol", "update", f"NodeName={compress(names)}", "State=DRAIN", f"Reason={reason}"]])


_STEPS: Final[Mapping[ActionType, Callable[[Action, Job, Incident], Step | str]]] = {
    "dump_stacks": _dump_stacks, "cancel": _cancel, "requeue": _requeue, "resubmit": _resubmit, "drain": _drain
}  # fmt: skip
"""Each action: its commands, or why it cannot be done."""


def _drained(step: Step) -> set[str]:
    """The nodes that the step takes out of use."""
    lists = (command[2].removeprefix("NodeName=") for command in step.commands if step.action == "drain")
    return {name for nodes in lists for name in expand(nodes)}


def _drained_lately(record: Record, now: float, *, dry_run: bool) -> set[str]:
    """For all runs together: what one log says, many may say, and a cluster must not be drained by what jobs print."""
    lately = (one for one in record.courses if one.dry_run == dry_run and now - one.planned_at < _HOUR)
    steps = (step for course in lately for step in course.steps if step.status != "skipped")
    return {name for step in steps for name in _drained(step)}


def _left_out(job: Job, incident: Incident) -> str:
    """The nodes to leave out, those that the job leaves out already among them, as a Slurm list; empty: none new."""
    try:
        own, before = set(expand(job.nodes)), expand(job.excluded)
    except HostlistError:
        return ""
    names = named_nodes(incident, own)
    return compress([*before, *names]) if names else ""


def named_nodes(incident: Incident, own: set[str]) -> set[str]:
    """Those of the run's `own` nodes that the evidence names; none where it names too many."""
    told = incident.evidence.get("nodes")
    named = [*(told if isinstance(told, list) else ()), incident.evidence.get("node")]
    hosts = [name for name in named if isinstance(name, str) and is_node_name(name)]
    # as Slurm calls them: without their domain, if that is how the job's list has them
    names = {name if name in own else name.partition(".")[0] for name in hosts} & own
    return names if len(names) <= _MOST_NAMED else set()


def _id(job: Job) -> str:
    return job.array_id or job.id


def describe(made: Plan, now: float, waits: str = "") -> str:
    """A line for the page and for messages: when, what exactly, or why not. `waits`: for what, once it is due."""
    remediation = made.remediation
    if made.why_not:
        return f"{remediation.name}: does nothing: {made.why_not}"
    commands = "; ".join(shown(step) for step in made.steps if step.status != "skipped")
    left = made.at - now
    when = f"in {duration(left)}" if left > 0 else f"once {waits}" if waits else "now"
    stop = f", no restart after {remediation.attempts} without a new checkpoint" if made.gave_up else ""
    return f"{remediation.name}: {'would run' if remediation.dry_run else 'runs'} {when}{stop}: {commands or 'nothing'}"
