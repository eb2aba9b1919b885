"""The incidents as alerts of Alertmanager: the open ones and the recently resolved ones. Part of the state. Pure.

An alert is one severity of one incident: an incident that becomes worse ends the alert of the lower severity and begins
another. The end of an incident is sent ten seconds later. By then an incident that follows from it, such as a crash
from a hang, has begun, so that their event does not end and begin again. All alerts are sent to Alertmanager again and
again, which is why a lost request and a restart of Alertmanager have no effect. Times are Unix seconds.
"""

import math
from collections.abc import Container
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from megatron_monitor.incidents import Transition

_HANDOVER: Final = 10.0  # seconds: a crash, which ends a hang, is reported four after its line
_ENDED: Final = 4 * 3600.0  # seconds for which an end is sent: longer than a usual silence


class Alert(Struct):
    """One severity of one incident."""

    message: Transition
    """The last notification about it."""
    starts_at: float
    ends_at: float | None = None
    """None: it is open."""
    shown_at: float = 0.0
    """Unix seconds from which the end is sent."""


class Alerts(Struct):
    """The alerts by run and incident."""

    open: dict[str, Alert] = field(default_factory=dict)
    ended: list[Alert] = field(default_factory=list)

    def take(self, message: Transition) -> None:
        """Apply a transition. Display-only findings and information are not alerts."""
        key = f"{message.run}\0{message.incident}"
        known = self.open.get(key)
        same = known is not None and known.message.severity == message.severity
        if known is not None and not (same and message.status == "firing"):
            known.ends_at = message.time
            known.shown_at = message.time + (_HANDOVER if message.status == "resolved" else 0.0)
            self.ended.append(known)
            del self.open[key]
        if message.status == "firing" and message.event and not message.display_only:
            self.open[key] = Alert(message, known.starts_at if known is not None and same else message.time)

    def end_all(self, at: float, besides: Container[str] = ()) -> bool:
        """End the alerts of all runs except `besides`, because they are no longer observed. Return True if
        any ended.
        """
        over = {key: one for key, one in self.open.items() if one.message.run not in besides}
        for key, alert in over.items():
            alert.ends_at = alert.shown_at = at
            self.ended.append(alert)
            del self.open[key]
        return bool(over)

    def shown(self, now: float) -> list[Alert]:
        """Return the alerts to send now. An end is omitted if the same alert is open again."""
        self.ended = [one for one in self.ended if one.ends_at is not None and now - one.ends_at < _ENDED]
        latest = {_identity(one.message): _until(one, now) for one in self.ended}
        return list({**latest, **{_identity(one.message): one for one in self.open.values()}}.values())

    def next_end(self, now: float) -> float:
        """Return when the next end must be sent."""
        return min((one.shown_at for one in self.ended if one.shown_at > now), default=math.inf)


def _until(alert: Alert, now: float) -> Alert:
    return alert if now >= alert.shown_at else replace(alert, ends_at=None)


def _identity(message: Transition) -> tuple[str, ...]:
    return message.run, message.incident, message.severity, message.event
