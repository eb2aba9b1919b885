"""Slurm: time limit, preemption, node failure, cancellation, out of memory, and the ends of tasks.

srun and slurmstepd write them to standard error, in either order, sometimes behind a task label.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from parsers.engine.scan import Line, Rule
from parsers.events import Event, Failure, FailureSeen, ProcessExited, ProcessTerminated
from parsers.formats.launchers import failure_of

# `slurmstepd: error: *** STEP 1999616.0 ON r6i4n5 CANCELLED AT 2021-05-27T21:42:11 DUE TO TIME LIMIT ***`
_CANCELLED = re.compile(
    r"\*\*\* (JOB|STEP) (\S{1,40}) ON (\S{1,200}) CANCELLED AT (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)"
    r"(?: DUE TO ([A-Z ]{3,40}))?"
)
_REASONS: tuple[tuple[str, Failure], ...] = (
    ("TIME LIMIT", "time_limit"),
    ("PREEMPTION", "preempted"),
    ("NODE FAILURE", "node_failure"),
    ("REQUEUE", "preempted"),  # the job comes back: by scontrol, by a policy of the site, or after a node's failure
)
_FOLLOWS = "TASK FAILURE"  # of srun -K: the task's own end stands on another line
# `srun: error: nid006913: task 0: Exited with exit code 1`, `srun: error: nid0: tasks 37,39: Killed`
_TASK = re.compile(r"srun: error: ([\w.\[\],-]{1,200}): tasks? ([\d,-]{1,400}): (.{1,120})$")
_EXIT_CODE = re.compile(r"Exited with exit code (\d{1,4})")
_STATES: dict[str, tuple[Failure, bool]] = {
    "Killed": ("killed", False),
    "Segmentation fault": ("segfault", False),
    "Bus error": ("bus_error", False),
    "Out Of Memory": ("host_oom", False),
    "Aborted": ("unknown", True),  # what abort() was called for stands elsewhere
    "Terminated": ("stopped", True),
}
# `slurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup.`, newer `oom_kill event`
_OOM = re.compile(
    r"Detected \d{1,6} oom[-_]kill events?|slurmstepd: error: (?:Exceeded (?:job|step) memory limit"
    r"|(?:Job|Step) \S{1,30} exceeded memory limit)"
)
_NODE = re.compile(r"srun: error: Node failure on (\S{1,200})")
_ENDING = ("srun: Terminating ", "srun: Job step aborted", "srun: Force Terminated", "srun: forcing job termination")


def read_cancelled(line: Line) -> Iterator[Event]:
    """The scheduler ended the job or a step of it."""
    match = _CANCELLED.search(line.text)
    if not match:
        return
    reason = match[5] or ""
    failure: Failure = next((name for words, name in _REASONS if words in reason), "killed" if reason else "stopped")
    why = f" due to {reason.strip().lower()}" if reason else ""
    yield FailureSeen(
        failure=failure,
        message=f"Slurm cancelled {match[1].lower()} {match[2]}{why}",
        consequence=_FOLLOWS in reason,
        # without a reason it is scancel, or follows from another end: another line may say which
        **{**line.origin, "node": match[3], "logged_at": match[4]},
    )
    yield ProcessTerminated(**line.origin)


def read_task(line: Line) -> Iterator[Event]:
    """Srun saw tasks end badly."""
    if match := _NODE.search(line.text):
        origin = {**line.origin, "node": match[1]}
        yield FailureSeen(failure="node_failure", message=f"Slurm: node failure on {match[1]}", **origin)
        yield ProcessTerminated(**line.origin)
        return
    match = _TASK.search(line.text)
    if not match:
        return
    node, tasks, how = match[1], match[2], match[3].strip()
    origin = {**line.origin, "node": node}
    code = _EXIT_CODE.search(how)
    if code:
        value = int(code[1])
        if value > 128:
            message = f"task {tasks} on {node} exited with code {value}"
            yield FailureSeen(
                failure=failure_of(value), message=message, exit_code=value, consequence=value == 143, **origin
            )
        yield ProcessExited(exit_code=value, tasks=tasks, **origin)
        return
    for state, (kind, consequence) in _STATES.items():
        if how.startswith(state):
            yield FailureSeen(
                failure=kind, message=f"task {tasks} on {node}: {state}", consequence=consequence, **origin
            )
            yield ProcessExited(tasks=tasks, **origin)
            return


def read_oom(line: Line) -> Iterator[Event]:
    """The cgroup's memory was used up."""
    if _OOM.search(line.text):
        node = line.prefix.node  # `slurmstepd-node04: error: Detected ...` where the step has a node of its own
        origin = {**line.origin, "node": node.removeprefix("slurmstepd-") if node else None}
        yield FailureSeen(failure="host_oom", message=line.text.strip()[:300], **origin)


def read_ending(line: Line) -> Iterator[Event]:
    """Srun ends the other tasks."""
    if any(words in line.text for words in _ENDING):
        yield ProcessTerminated(**line.origin)


RULES: tuple[Rule, ...] = (
    Rule("slurm.cancelled", (b" CANCELLED AT ",), read_cancelled),
    Rule("slurm.task", (b"srun: error: ",), read_task),
    Rule("slurm.oom", (b" oom-kill event", b" oom_kill event", b"xceeded memory limit", b"memory limit"), read_oom),
    Rule("slurm.ending", (b"srun: Terminating", b"srun: Job step", b"srun: Force", b"srun: forcing"), read_ending),
)
