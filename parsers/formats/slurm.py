"""Slurm: time limit, preemption, node failure, cancellation, out of memory, and the ends of tasks.

srun and slurmstepd write them to standard error, in either order, sometimes behind a task label.
"""

from collections.abc import Iterator

from parsers.engine.scan import Line, Rule
from parsers.events import Event, Failure, FailureSeen, ProcessExited, ProcessTerminated
from parsers.formats.exits import ended_by, failed
from parsers.patterns import lazy

# `slurmstepd: error: *** STEP 1999616.0 ON r6i4n5 CANCELLED AT 2021-05-27T21:42:11 DUE TO TIME LIMIT ***`
_CANCELLED = lazy(
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
_TASK = lazy(r"srun: error: ([\w.\[\],-]{1,200}): tasks? ([\d,-]{1,400}): (.{1,120})$")
_EXIT_CODE = lazy(r"Exited with exit code (\d{1,4})")
# what srun says of a task beside the names of signals, and what it means by one of them
_STATES: dict[str, tuple[Failure, bool]] = {
    "Out Of Memory": ("host_oom", False),
    "Terminated": ("stopped", True),
}


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
        by="slurm",
        notice="job_cancelled" if match[1] == "JOB" else "step_cancelled",
        # without a reason it is scancel, or follows from another end: another line may say which
        **{**line.origin, "node": match[3], "logged_at": match[4]},
    )
    yield ProcessTerminated(**line.origin)


def read_task(line: Line) -> Iterator[Event]:
    """Srun saw tasks end badly."""
    match = _TASK.search(line.text)
    if not match:
        return
    node, tasks, how = match[1], match[2], match[3].strip()
    origin = {**line.origin, "node": node}
    code = _EXIT_CODE.search(how)
    if code:
        value = int(code[1])
        if value > 128:
            yield failed(value, f"task {tasks} on {node} exited with code {value}", origin, by="slurm")
        yield ProcessExited(exit_code=value, tasks=tasks, **origin)
        return
    state = how.partition(" (core dumped)")[0]
    if ends := _STATES.get(state) or ended_by(state):
        message = f"task {tasks} on {node}: {state}"
        yield FailureSeen(failure=ends[0], message=message, consequence=ends[1], by="slurm", **origin)
        yield ProcessExited(tasks=tasks, **origin)


RULES: tuple[Rule, ...] = (
    Rule("slurm.cancelled", (b" CANCELLED AT ",), read_cancelled),
    Rule("slurm.task", (b"srun: error: ",), read_task),
)
