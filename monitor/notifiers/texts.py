"""The text of a message: a title for a phone's lock screen, and the facts that a person on call needs first. Pure.

Input: a Transition. Output: run, incident, since when, phase, rank and node, cost, advice, last line, links.
"""

import re
from datetime import UTC, datetime
from typing import Any, Final

from megatron_monitor.causes import cause_of, cost_gpu_hours
from megatron_monitor.detectors.base import duration
from megatron_monitor.incidents import Transition

_TITLE: Final = 110  # characters: three lines of a lock screen
_RUN: Final = 48  # characters of a run's name in the title; names often differ at both ends
_LINE: Final = 400  # characters of a log line in the body
_SHOWN: Final = frozenset(
    {
        "advice", "failure", "line", "failure_line", "last_line", "node", "nodes", "common_nodes", "watchdog_nodes",
        "rank", "watchdog_ranks", "phase", "lasted_seconds", "slurm_job", "samples_from", "samples_to",
        "rollback_iteration", "last_checkpoint_iteration", "ratio",
    }
)  # fmt: skip
"""Evidence that `facts` contains already."""
_FACTS: Final = {
    "cause": "cause", "rank": "rank", "node": "node", "gpus": "GPUs", "slurm_job": "Slurm job",
    "cost_gpu_hours": "cost so far", "checkpoint_iteration": "last checkpoint", "samples": "samples to skip",
    "advice": "do", "command": "command",
}  # fmt: skip
_MENTION_OR_LINK: Final = re.compile(r"(<(?=\S)|\](?=\()|(?<!\w)@(?=(?:channel|here|everyone|all)\b))")
_ADDRESS: Final = re.compile(r"\b(https?):(?=//)", re.IGNORECASE)


def title(message: Transition) -> str:
    """Return the title, such as `[critical] tr11-176B: hang since 03:12 UTC, saving`; at its end with the duration."""
    resolved = message.status == "resolved"
    text = f"[{'resolved' if resolved else message.severity}] {_short(message.run, _RUN)}: {message.incident}"
    lasted = message.evidence.get("lasted_seconds")
    if resolved and isinstance(lasted, int | float):
        text += f" ended after {duration(lasted)}"
    elif not resolved and message.since is not None:
        text += f" since {_clock(message.since)}"
        brief = cause_of(message).brief
        text += f", {brief}" if brief else ""
    return shortened(_harmless(text), _TITLE)


def facts(message: Transition) -> dict[str, Any]:
    """Return the facts by name. An unknown one is None or empty."""
    cause = cause_of(message)
    return {
        "since": None if message.since is None else datetime.fromtimestamp(message.since, UTC).isoformat(),
        "cause": cause.cause,
        "rank": cause.rank,
        "node": cause.node,
        "cost_gpu_hours": _cost(message),
        "advice": message.evidence.get("advice") or cause.advice if message.status == "firing" else "",
        "command": cause.command if message.status == "firing" else "",
        "checkpoint_iteration": message.evidence.get("rollback_iteration", message.checkpoint),
        "samples": cause.samples,
        "gpus": message.gpus,
        "slurm_job": message.job,
        "line": cause.line,
        "page_url": message.links.get("page"),
        "runbook_url": message.links.get("runbook"),
    }


def body(message: Transition, evidence: dict[str, Any]) -> str:
    """Return the summary, then one row per line."""
    lines = [summary(message), "", *(f"{label}: {value}" for label, value in rows(message, evidence).items())]
    return "\n".join(lines)


def summary(message: Transition) -> str:
    """Return the summary, harmless for chats."""
    return _harmless(_without_addresses(message.summary))


def rows(message: Transition, evidence: dict[str, Any]) -> dict[str, str]:
    """Return label -> text of the facts, then of the evidence, without unknown ones, harmless for chats."""
    known = facts(message)
    found: dict[str, Any] = {"since": None, "phase": message.phase}
    if message.since is not None:
        ago = duration(max(0.0, message.time - message.since))
        found["since"] = f"{datetime.fromtimestamp(message.since, UTC):%Y-%m-%d} {_clock(message.since)}, {ago} ago"
    found |= {label: known[name] for name, label in _FACTS.items()}
    if (cost := known["cost_gpu_hours"]) is not None:
        found["cost so far"] = f"{cost} GPU-hours"
    found |= {"last line": _without_addresses(known["line"][:_LINE]), "page": known["page_url"]}
    found |= {"runbook": known["runbook_url"], "iteration": message.iteration}
    if message.status == "firing":  # the message of the end does not repeat the evidence
        if message.onset_iteration != message.iteration:
            found["since iteration"] = message.onset_iteration
        rest = {name: value for name, value in evidence.items() if name not in _SHOWN}
        for name, value in rest.items():
            found.setdefault(_without_addresses(name.replace("_", " ")), _without_addresses(str(value)))
    return {_harmless(label): _harmless(str(value)) for label, value in found.items() if value not in (None, "")}


def shortened(text: str, length: int) -> str:
    """Return the text with at most `length` characters, and three dots at its end if some are missing."""
    return text if len(text) <= length else text[: length - 3] + "..."


def _harmless(text: str) -> str:
    """Return the text without mentions, hidden links and control characters: a log line must not notify a channel.

    A space breaks what chats read as a mention (`<!channel>`, `@here`) or as a link (`<http://...|x>`, `[x](...)`).
    """
    return "".join(char if char.isprintable() else " " for char in _MENTION_OR_LINK.sub(r"\1 ", text))


def _without_addresses(text: str) -> str:
    """Return the text with addresses broken by a space, so that chats do not link them."""
    return _ADDRESS.sub(r"\1: ", text)


def _cost(message: Transition) -> float | None:
    """Return the GPU-hours that the incident has cost until now; None if unknown."""
    if message.since is None:
        return None
    return cost_gpu_hours(message.incident, message.time - message.since, message.gpus, message.evidence)


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M} UTC"


def _short(text: str, length: int) -> str:
    half = (length - 3) // 2
    return text if len(text) <= length else f"{text[:half]}...{text[-half:]}"
