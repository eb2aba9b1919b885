"""Alertmanager by its API v2: an incident is an alert, its kind, run and severity are labels.

Comes in: a Transition. Goes out: one POST of alerts. An alert of a lower severity of the same incident is ended by the
message with the higher one; a resolved incident ends all of them.
"""

from datetime import UTC, datetime
from typing import Any

from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers import words
from megatron_monitor.notifiers.message import SEVERITIES, payload
from megatron_monitor.notifiers.webhook import Webhook
from megatron_monitor.units import PositiveSeconds


class Alertmanager(Webhook, frozen=True, kw_only=True, tag_field="type", tag="alertmanager"):
    """An Alertmanager, by its API; `url` is its root, as in http://alertmanager:9093."""

    keep: PositiveSeconds = 12 * 3600.0
    """An alert that the daemon neither repeats nor resolves ends by itself after this: longer than repeat_interval."""

    def _url(self) -> str:
        return Webhook._url(self).rstrip("/") + "/api/v2/alerts"

    def _content(self, message: Transition) -> Any:
        """One alert a severity: the message's own fires, unless it is resolved; the others have ended."""
        fields = payload(message)
        annotations = {"summary": fields["title"], "description": words.body(message, {})}
        for name in ("iteration", "onset_iteration", "phase", *words.facts(message)):
            if name in fields:
                annotations[name] = str(fields[name])
        annotations |= {f"evidence_{name}": str(value) for name, value in fields["evidence"].items()}
        name = "Megatron" + "".join(part.title() for part in message.incident.split("_"))
        labels = {"alertname": name, "run": fields["run"], "incident": message.incident}
        ends = dict.fromkeys(SEVERITIES, message.time)
        if message.status == "firing":
            ends[message.severity] += self.keep
        return [
            {
                "labels": {**labels, "severity": severity},
                "annotations": annotations,
                "startsAt": _instant(message.time),
                "endsAt": _instant(end),
            }
            for severity, end in ends.items()
        ]


def _instant(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
