"""What is wrong with a run, where, and what to do: short texts for metrics and dashboards. Pure.

A text is that of the incident's last notification, so that a series with it as a label changes only when a notification
is sent.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from megatron_monitor.breakdown.messages import advice_for
from megatron_monitor.incidents import Incident, IncidentBook, Transition
from megatron_monitor.nodes.hostlist import is_node_name
from megatron_monitor.run.state import RunState

_NAMED = 4  # named ranks and nodes; further ones are counted
_LINE_FIELDS = ("line", "failure_line", "last_line")
_NODES = ("node", "nodes", "common_nodes", "watchdog_nodes")
_RANKS = ("rank", "ranks", "watchdog_ranks")  # the failed rank; the missing ranks; the ranks that noticed
_STOPPED = frozenset({"hang", "crash", "crash_without_exit"})
"""While one of these is open, all GPUs of the run are idle."""
_ENDED_BY_HAND = frozenset({"hang", "crash_without_exit", "nan_loss", "divergence"})
_RESTARTED = frozenset({"crash", "crash_loop"})


class Cause(NamedTuple):
    """Texts, "" if unknown. The fields are the labels of `megatron_incident_info`. `brief`: what and how much, for a
    title. `command`: carries out the advice, with the job's id or pid file. `samples`: the samples to skip.
    """

    incident: str
    severity: str
    phase: str
    cause: str
    rank: str
    node: str
    summary: str
    advice: str
    line: str
    brief: str = ""
    gpus: str = ""
    slurm_job: str = ""
    checkpoint: str = ""
    samples: str = ""
    command: str = ""


def cause_of(subject: Transition | Incident) -> Cause:
    """Return the cause from a notification or from an incident's present state."""
    evidence = subject.evidence
    failure = str(evidence.get("failure") or "")
    of = failure
    if subject.incident == "slowdown":
        of = str(evidence.get("cause"))
    phase, node = (subject.phase or "").replace("_", " "), _first(evidence, _NODES)
    ratio, first, last = (evidence.get(name) for name in ("ratio", "samples_from", "samples_to"))
    much = f"{ratio - 1:+.1%}".replace("%", " %") if isinstance(ratio, float) else ""
    part = "" if evidence.get("cause") in (None, "unknown") else str(evidence["cause"]).replace("_", " ")
    rank, advice = _first(evidence, _RANKS), advice_for(subject.incident, of, evidence.get("message"))
    line = next((str(evidence[name]) for name in _LINE_FIELDS if evidence.get(name)), "")
    brief = ", ".join(text for text in (failure, much, part, node, phase) if text)
    checkpoint = _some(evidence.get("rollback_iteration", subject.checkpoint))
    samples = f"{first} to {last}" if None not in (first, last) else ""
    return Cause(
        subject.incident, subject.severity, phase, failure, rank, node, subject.summary, advice, line, brief,
        _some(subject.gpus), subject.job, checkpoint, samples, _command(subject),
    )  # fmt: skip


def _command(subject: Transition | Incident) -> str:
    """Return the command that carries out the advice if the run is a Slurm job. "": there is none, or the same attempt
    would fail again.
    """
    job, evidence = subject.job, subject.evidence
    if not job:
        return ""
    if subject.incident in _ENDED_BY_HAND:
        stacks = f"srun --jobid={job} --overlap --ntasks-per-node=1 dump-stacks.sh; "
        return f"{stacks if subject.incident in _STOPPED else ''}scancel {job}"
    named = evidence.get("nodes") or evidence.get("common_nodes") or ()
    nodes = [name for name in named if isinstance(name, str) and is_node_name(name)]
    if subject.incident in _RESTARTED and nodes:
        exclude = f"scontrol update JobId={job} ExcNodeList={','.join(nodes)}"
        return f"scontrol requeuehold {job}; {exclude}; scontrol release {job}"
    return ""


def lost_seconds(evidence: Mapping[str, Any]) -> float:
    """Return the seconds of training that an incident lost, or 0 if its evidence does not show them."""
    lost = evidence.get("lost_seconds")
    return float(lost) if isinstance(lost, int | float) else 0.0


def cost_gpu_hours(incident: str, seconds: float, gpus: int | None, evidence: Mapping[str, Any]) -> float | None:
    """Return the cost of a stop of so many seconds: idle GPU hours and lost work. None: training continues, or the
    number of GPUs is unknown.
    """
    if incident not in _STOPPED or gpus is None:
        return None
    return round((max(0.0, seconds) + lost_seconds(evidence)) * gpus / 3600, 1)


def causes(book: IncidentBook) -> Iterator[Cause]:
    """Return one cause per open incident, as last notified."""
    for incident in book.open.values():
        yield cause_of(_last_firing(book, incident) or incident)


def failure_of(state: RunState) -> Cause | None:
    """Return the failure of a crashed run, historical ones included. None: it is not crashed, or no line shows the
    failure.
    """
    attempt = state.attempt
    failure = attempt.failure
    if failure is None or attempt.phase != "crashed":
        return None
    rank, node = _some(failure.rank), _some(failure.node or attempt.watchdog_nodes)
    advice = advice_for("crash", failure.failure, failure.message)
    return Cause("crash", "", "", failure.failure, rank, node, failure.message, advice, failure.line)


def _last_firing(book: IncidentBook, incident: Incident) -> Transition | None:
    """Return the incident as last notified. A page may show more, because its texts may change at any time."""
    return next(
        (item for item in reversed(book.history) if item.incident == incident.incident and item.status == "firing"),
        None,
    )


def _first(evidence: Mapping[str, Any], names: Sequence[str]) -> str:
    return next((_some(evidence[name]) for name in names if evidence.get(name) not in (None, [], "")), "")


def _some(value: Any) -> str:
    """Return `3`, or `3, 7, 8, 9 and 12 more`."""
    if value is None or value == []:
        return ""
    if not isinstance(value, list | tuple):
        return str(value)
    rest = f" and {len(value) - _NAMED} more" if len(value) > _NAMED else ""
    return ", ".join(map(str, value[:_NAMED])) + rest
