"""What a message says to people: a title for a phone's lock screen, and the facts that a person on call wants first.

Comes in: a Transition. Goes out: which run, what, since when as a clock, the phase, rank and node, what it costs, what
to do, the last line, links. Pure.
"""

from datetime import UTC, datetime
from typing import Any, Final

from monitor.causes import cause_of, cost_gpu_hours
from monitor.detectors.base import duration
from monitor.incidents import Transition

_TITLE: Final = 110  # characters: three lines of a lock screen
_RUN: Final = 48  # characters of a run's name in it; what tells runs apart often stands at both ends
_LINE: Final = 400  # characters of a log line in a text
_SHOWN: Final = frozenset(
    {
        "advice", "failure", "line", "failure_line", "last_line", "node", "nodes", "common_nodes", "watchdog_nodes",
        "rank", "watchdog_ranks", "phase", "lasted_seconds",
    }
)  # fmt: skip
"""Evidence that the facts hold already."""


def title(message: Transition) -> str:
    """`[critical] tr11-176B: hang since 03:12 UTC, saving`; of an end, how long it lasted."""
    resolved = message.status == "resolved"
    text = f"[{'resolved' if resolved else message.severity}] {_short(message.run, _RUN)}: {message.incident}"
    lasted = message.evidence.get("lasted_seconds")
    if resolved and isinstance(lasted, int | float):
        text += f" ended after {duration(lasted)}"
    elif not resolved and message.since is not None:
        text += f" since {_clock(message.since)}"
    place = cause_of(message)
    where = ", ".join(part for part in (place.failure, place.node, place.phase if not resolved else "") if part)
    if not resolved and message.since is not None and where:
        text += f", {where}"
    return text if len(text) <= _TITLE else text[: _TITLE - 3] + "..."


def facts(message: Transition) -> dict[str, Any]:
    """By name; what is not known is left out."""
    cause = cause_of(message)
    known: dict[str, Any] = {
        "since": None if message.since is None else datetime.fromtimestamp(message.since, UTC).isoformat(),
        "failure": cause.failure,
        "rank": cause.rank,
        "node": cause.node,
        "cost_gpu_hours": _cost(message),
        "advice": message.evidence.get("advice") or cause.advice if message.status == "firing" else "",
        "line": cause.line,
        "page_url": message.links.get("page"),
        "runbook_url": message.links.get("runbook"),
    }
    return {name: value for name, value in known.items() if value not in (None, "")}


def body(message: Transition, evidence: dict[str, Any]) -> str:
    """The summary, then one fact a line, the evidence last."""
    known = facts(message)
    lines = [message.summary, ""]
    if message.since is not None:
        day = datetime.fromtimestamp(message.since, UTC)
        stands = duration(max(0.0, message.time - message.since))
        lines.append(f"since: {day:%Y-%m-%d} {_clock(message.since)}, {stands} ago")
    lines += [f"phase: {message.phase}"] if message.phase else []
    lines += [f"{name}: {known[name]}" for name in ("failure", "rank", "node") if name in known]
    if "cost_gpu_hours" in known:
        lines.append(f"cost so far: {known['cost_gpu_hours']} GPU-hours")
    lines += [f"do: {known['advice']}"] if "advice" in known else []
    lines += [f"last line: {known['line'][:_LINE]}"] if "line" in known else []
    lines += [f"{name}: {known[name + '_url']}" for name in ("page", "runbook") if f"{name}_url" in known]
    if message.iteration is not None:
        lines.append(f"iteration: {message.iteration}")
    if message.onset_iteration is not None and message.onset_iteration != message.iteration:
        lines.append(f"since iteration: {message.onset_iteration}")
    lines += [f"{name.replace('_', ' ')}: {value}" for name, value in evidence.items() if name not in _SHOWN]
    return "\n".join(lines)


def _cost(message: Transition) -> float | None:
    """GPU-hours that the stop has cost until now."""
    if message.since is None:
        return None
    return cost_gpu_hours(message.incident, message.time - message.since, message.gpus, message.evidence)


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M} UTC"


def _short(text: str, length: int) -> str:
    half = (length - 3) // 2
    return text if len(text) <= length else f"{text[:half]}...{text[-half:]}"
