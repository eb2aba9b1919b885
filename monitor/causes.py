"""What is wrong with a run, where, and what to do: short texts for metrics and dashboards.

Law: pure. A text is that of the incident's last message, so a series with it as labels changes no more often than
somebody is told.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from monitor.detectors import DETECTORS
from monitor.detectors.crash import ADVICE
from monitor.incidents import Incident, IncidentBook, Transition
from monitor.run.state import RunState

_NAMED = 4  # ranks and nodes that are named; the others are counted
_LINES = ("line", "failure_line", "last_line")
_NODES = ("node", "nodes", "common_nodes", "watchdog_nodes")
_RANKS = ("rank", "ranks", "watchdog_ranks")  # the one that failed; those that are missing; those that noticed


_STOPPED = frozenset({"hang", "crash", "crash_without_exit"})
"""While one of these stands, every GPU of the run is idle."""


class Cause(NamedTuple):
    """Texts, "" where nothing is known. The fields are the labels of `megatron_incident_info`."""

    incident: str
    severity: str
    phase: str
    failure: str
    rank: str
    node: str
    summary: str
    advice: str
    line: str


def cause_of(told: Transition | Incident) -> Cause:
    """Of what a message says, or of what an incident is by now."""
    evidence = told.evidence
    failure = str(evidence.get("failure") or "")
    advice = ADVICE.get(failure) if told.incident == "crash" else None
    return Cause(
        told.incident,
        told.severity,
        (told.phase or "").replace("_", " "),
        failure,
        _first(evidence, _RANKS),
        _first(evidence, _NODES),
        told.summary,
        advice or DETECTORS[told.incident].advice,
        next((str(evidence[name]) for name in _LINES if evidence.get(name)), ""),
    )


def cost_gpu_hours(incident: str, seconds: float, gpus: int | None, evidence: Mapping[str, Any]) -> float | None:
    """What a stop of so many seconds has cost: GPUs idle since then, and the work that was lost with a crash. None of
    an incident while which training goes on, and where nobody knows how many GPUs the run has.
    """
    if incident not in _STOPPED or gpus is None:
        return None
    lost = evidence.get("lost_seconds")
    return round((max(0.0, seconds) + (lost if isinstance(lost, int | float) else 0.0)) * gpus / 3600, 1)


def causes(book: IncidentBook) -> Iterator[Cause]:
    """One for each open incident, as it was last told."""
    for incident in book.open.values():
        yield cause_of(_told(book, incident) or incident)


def failure_of(state: RunState) -> Cause | None:
    """What a run died of that is crashed now, be it archived; None where it is not, or no line tells."""
    launch = state.launch
    failure = launch.failure
    if failure is None or launch.phase != "crashed":
        return None
    return Cause(
        "crash",
        "",
        "",
        failure.failure,
        _some(failure.rank),
        _some(failure.node or launch.watchdog_nodes),
        failure.message,
        ADVICE.get(failure.failure, ADVICE["unknown"]),
        failure.line,
    )


def _told(book: IncidentBook, incident: Incident) -> Transition | None:
    """The last time that somebody was told of it. A page may say more, for what it shows may change all the time."""
    return next(
        (item for item in reversed(book.history) if item.incident == incident.incident and item.status == "firing"),
        None,
    )


def _first(evidence: Mapping[str, Any], names: Sequence[str]) -> str:
    return next((_some(evidence[name]) for name in names if evidence.get(name) not in (None, [], "")), "")


def _some(value: Any) -> str:
    """`3`, or `3, 7, 8, 9 and 12 more`."""
    if value is None or value == []:
        return ""
    if not isinstance(value, list | tuple):
        return str(value)
    rest = f" and {len(value) - _NAMED} more" if len(value) > _NAMED else ""
    return ", ".join(map(str, value[:_NAMED])) + rest
