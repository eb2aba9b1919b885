"""What every notifier shares: what it is given, how it fails, who wants what, and the JSON object that is sent.

Law: a notifier sees a Transition and nothing else of a run. `send` returns when the message was taken and raises
DeliveryError otherwise; its one bit decides between trying again and giving up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol, get_args

from monitor.detectors.base import Severity
from monitor.incidents import Transition

PAYLOAD_VERSION: Final = "1"
"""Of the JSON object; receivers may hold on to what a version says."""
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
"""From the quietest to the loudest."""
_LONGEST_TEXT: Final = 4000  # characters of one text: the evidence may hold a log line of 64 KiB


class DeliveryError(Exception):
    """The message was not taken. `permanent`: no repetition will change that."""

    def __init__(self, message: str, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


class Notifier(Protocol):
    """One way to tell people."""

    @property
    def name(self) -> str:
        """The name in the configuration, and the label `notifier`."""
        ...

    def send(self, message: Transition) -> None:
        """Delivers one message, in bounded time. Raises DeliveryError."""
        ...


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A notifier and what it wants to hear of."""

    notifier: Notifier
    minimum_severity: Severity = "warning"
    runs: tuple[str, ...] = ()
    """Globs over run names; none: every run."""
    incidents: tuple[str, ...] = ()
    """Kinds; none: every kind."""

    def wants(self, message: Transition) -> bool:
        """Whether the message goes to this notifier; a quiet one goes to nobody."""
        if message.quiet or loudness(message) < SEVERITIES.index(self.minimum_severity):
            return False
        if self.incidents and message.incident not in self.incidents:
            return False
        return not self.runs or any(fnmatchcase(message.run, pattern) for pattern in self.runs)


def loudness(message: Transition) -> int:
    """The severity as a number."""
    return SEVERITIES.index(message.severity)


def payload(message: Transition) -> dict[str, Any]:
    """The object of `replay --json` and its version, in values that every JSON reader takes."""
    plain: dict[str, Any] = _plain({"version": PAYLOAD_VERSION, **message.to_json()})
    return plain


def headline(message: Transition) -> str:
    """One line for a subject: what, of which run, how bad."""
    state = "resolved" if message.status == "resolved" else message.severity
    return f"[{state}] {message.run}: {message.incident}"


def body_text(message: Transition) -> str:
    """What a person who was woken reads: the sentence, where the run stands, the evidence, one fact a line."""
    lines = [message.summary, ""]
    if message.iteration is not None:
        lines.append(f"iteration: {message.iteration}")
    if message.onset_iteration is not None and message.onset_iteration != message.iteration:
        lines.append(f"since iteration: {message.onset_iteration}")
    for name, value in payload(message)["evidence"].items():
        lines.append(f"{name.replace('_', ' ')}: {value}")
    return "\n".join(lines)


def _plain(value: Any) -> Any:
    """JSON knows neither NaN nor infinity nor half of a surrogate pair, and a log may hold all of them."""
    if isinstance(value, Mapping):
        return {_text(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"  # as Prometheus writes them
    if value is None or isinstance(value, bool | int | float):
        return value
    return _text(str(value))


def _text(value: str) -> str:
    sound = value.encode("utf-8", "replace").decode("utf-8")
    return sound if len(sound) <= _LONGEST_TEXT else sound[: _LONGEST_TEXT - 3] + "..."
