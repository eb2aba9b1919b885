"""The base of all notifiers: common keys, the filter for messages, the delivery error and the JSON object.

Rule: a notifier receives a Transition and no other state of a run. `send` returns when the message was accepted and
raises DeliveryError otherwise; `permanent` decides between a retry and giving up.
"""

import hashlib
import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from megatron_monitor.detectors import IncidentKind
from megatron_monitor.detectors.base import RANK, Severity
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers import texts
from megatron_monitor.scalars import Name

PAYLOAD_VERSION: Final = "1"
"""Version of the JSON object. Fields of one version are never renamed or removed."""
_MAX_TEXT: Final = 4000  # characters of one text: the evidence may contain a log line of 64 KiB


class DeliveryError(Exception):
    """The message was not accepted. `permanent`: a retry will not change that. `rest`: further lines of the answer."""

    def __init__(self, message: str, permanent: bool, rest: str = "") -> None:
        super().__init__(message)
        self.permanent, self.rest = permanent, rest


class Notifier(Struct, frozen=True, kw_only=True):
    """One receiver of messages. A subclass adds its configuration keys as fields, and `send`."""

    name: Name
    """The value of the metrics' label `notifier`."""
    minimum_severity: Severity = "warning"
    runs: tuple[str, ...] = ()
    """Globs of run names. Empty: every run."""
    incidents: tuple[IncidentKind, ...] = ()
    """Incident kinds. Empty: every kind."""

    def wants(self, message: Transition) -> bool:
        """Return True if this notifier sends the message. A display-only incident is never sent."""
        if message.display_only or RANK[message.severity] < RANK[self.minimum_severity]:
            return False
        if self.incidents and message.incident not in self.incidents:
            return False
        return not self.runs or any(fnmatchcase(message.run, pattern) for pattern in self.runs)

    def test_message(self, now: float) -> Transition:
        """Return a message that this notifier sends, with the notifier's lowest severity. `now`: Unix seconds."""
        return Transition(
            run="test", incident=(self.incidents or ("hang",))[0], status="firing", severity=self.minimum_severity,
            time=now, occurrence=(0, None, int(now * 1000)), since=now, event="test",
            summary=f"a test of the notifier {self.name}: nothing is wrong",
        )  # fmt: skip

    def send(self, message: Transition) -> str:
        """Deliver one message in bounded time and return the receiver's answer. Raises DeliveryError."""
        raise NotImplementedError


def secret(path: str) -> str:
    """Return the first line of a file with a secret. A missing file is a transient error: it may be under renewal."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise DeliveryError(f"{path} cannot be read: {reason}", permanent=False) from error
    return lines[0].strip() if lines else ""


def message_id(message: Transition) -> str:
    """Return an id that is equal for each retry of a message, also after a lost state: a receiver can drop
    duplicates.
    """
    what = (message.run, message.incident, message.status, message.severity, *map(str, message.occurrence))
    return hashlib.blake2s("\0".join(what).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def payload(message: Transition) -> dict[str, Any]:
    """Return the JSON object of a message: the fields of `replay --json`, version, id, title and facts."""
    known: dict[str, Any] = {"version": PAYLOAD_VERSION, "id": message_id(message), **message.to_json()}
    facts = {name: value for name, value in texts.facts(message).items() if value not in (None, "")}
    found: dict[str, Any] = plain(known | {"title": texts.title(message)} | facts)
    return found


def plain(value: Any) -> Any:
    """Return a copy that JSON can express: without NaN, infinity and lone surrogates, which a log may contain."""
    if isinstance(value, Mapping):
        return {_text(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"  # as Prometheus writes them
    if value is None or isinstance(value, bool | int | float):
        return value
    return _text(str(value))


def _text(value: str) -> str:
    return texts.shortened(value.encode("utf-8", "replace").decode("utf-8"), _MAX_TEXT)
