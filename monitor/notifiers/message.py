"""What every notifier shares: its first keys, which messages it wants, how it fails, and the JSON object that is sent.

Law: a notifier sees a Transition and nothing else of a run. `send` returns when the message was accepted and raises
DeliveryError otherwise; `permanent` decides between trying again and giving up.
"""

import hashlib
import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Final, get_args

from msgspec import Struct

from megatron_monitor.detectors import IncidentKind
from megatron_monitor.detectors.base import RANK, Severity
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers import texts
from megatron_monitor.scalars import Name

PAYLOAD_VERSION: Final = "1"
"""Of the JSON object: fields of one version are never renamed or removed."""
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
"""From the quietest to the loudest."""
_LONGEST_TEXT: Final = 4000  # characters of one text: the evidence may hold a log line of 64 KiB


class DeliveryError(Exception):
    """The message was not accepted. `permanent`: no repetition will change that."""

    def __init__(self, message: str, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


class Notifier(Struct, frozen=True, kw_only=True):
    """One receiver: a subclass adds its keys and `send`. Its attributes are the keys of its configuration."""

    name: Name
    """Also the label `notifier` of its metrics."""
    minimum_severity: Severity = "warning"
    runs: tuple[str, ...] = ()
    """Globs over run names; none: every run."""
    incidents: tuple[IncidentKind, ...] = ()
    """Incident kinds; none: every kind."""

    refusal_is_final: ClassVar[bool] = False
    """A permanent failure is the receiver's own word on this message. Otherwise somebody may mend an address or a
    password: the message stays owed for a day, and is tried from time to time.
    """

    def wants(self, message: Transition) -> bool:
        """Whether the message goes to this notifier; a quiet one goes to nobody."""
        if message.display_only or RANK[message.severity] < RANK[self.minimum_severity]:
            return False
        if self.incidents and message.incident not in self.incidents:
            return False
        return not self.runs or any(fnmatchcase(message.run, pattern) for pattern in self.runs)

    def send(self, message: Transition) -> str:
        """Deliver one message, in bounded time; what the receiver answered. Raises DeliveryError."""
        raise NotImplementedError


def from_file(path: str) -> list[str]:
    """The lines of a secret's file. It may be missing for the moment in which it is renewed. Raises DeliveryError."""
    try:
        return Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise DeliveryError(f"{path} cannot be read: {reason}", permanent=False) from error


def message_id(message: Transition) -> str:
    """The same for each try of a message, after a restart too: who answered too late can recognise the repetition."""
    what = (message.run, message.incident, message.status, message.severity, repr(message.time), message.summary)
    return hashlib.blake2s("\0".join(what).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def payload(message: Transition) -> dict[str, Any]:
    """The object of `replay --json`, version, id, and what a person asks first, as every JSON reader takes it."""
    known: dict[str, Any] = {"version": PAYLOAD_VERSION, "id": message_id(message), **message.to_json()}
    found: dict[str, Any] = plain(known | {"title": texts.title(message)} | texts.facts(message))
    return found


def plain(value: Any) -> Any:
    """A value for JSON: that has neither NaN nor infinity nor half of a surrogate pair, and a log may hold them."""
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
    sound = value.encode("utf-8", "replace").decode("utf-8")
    return sound if len(sound) <= _LONGEST_TEXT else sound[: _LONGEST_TEXT - 3] + "..."
