"""The notifier `pagerduty`: triggers and resolves incidents by PagerDuty's Events API v2.

Input: a Transition. Output: one POST. All messages of one event have one `dedup_key`, so that PagerDuty keeps one
incident per event: a repetition changes nothing, and the end of the event resolves the incident.
"""

from datetime import UTC, datetime
from typing import Any, Final

from megatron_monitor import scalars
from megatron_monitor.incident_events import UNWATCHED
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers import texts
from megatron_monitor.notifiers.message import secret
from megatron_monitor.notifiers.posting import Posting
from megatron_monitor.scalars import FilePath

_MAX_SUMMARY: Final = 1024  # characters; PagerDuty refuses more


class PagerDuty(Posting, frozen=True, kw_only=True, tag_field="type", tag="pagerduty"):
    """A service of PagerDuty, by its integration "Events API v2"."""

    routing_key_file: FilePath
    """A file with the integration key, read at each delivery."""
    url: scalars.Url = "https://events.pagerduty.com/v2/enqueue"
    """The API's address. In the EU: https://events.eu.pagerduty.com/v2/enqueue."""

    def send(self, message: Transition) -> str:
        """Trigger or resolve the incident. Raises DeliveryError."""
        return self.post(self.url, {"routing_key": secret(self.routing_key_file), **_event(message)})


def _event(message: Transition) -> dict[str, Any]:
    since = message.time if message.since is None else message.since
    own = message.event not in ("", UNWATCHED)  # else each incident is notified and has an id of its own
    return {
        "event_action": "trigger" if message.status == "firing" else "resolve",
        "dedup_key": message.event if own else f"{message.event} {message.run} {message.incident}".strip(),
        "payload": {
            "summary": texts.shortened(f"{texts.title(message)}: {texts.summary(message)}", _MAX_SUMMARY),
            "source": message.run,
            "severity": message.severity,
            "timestamp": datetime.fromtimestamp(since, UTC).isoformat(timespec="milliseconds"),
            "class": message.incident,
            "custom_details": texts.rows(message, message.evidence),
        },
        "links": [{"href": address, "text": name} for name, address in message.links.items()],
        "client": "megatron-monitor",
    }
