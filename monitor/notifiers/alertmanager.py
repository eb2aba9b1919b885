"""The notifier `alertmanager`: posts all open alerts to Alertmanager's API v2, again at each change and each minute.

Input: the open alerts and those that ended lately (monitor/alerts.py). Output: one POST to each Alertmanager.
An alert's labels never change: alertname, cluster, run, incident, severity, event. Texts for people are annotations.
An open alert is valid for twelve hours, so a stopped monitor resolves no alert.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from msgspec import Meta

from megatron_monitor import scalars
from megatron_monitor.alerts import Alert
from megatron_monitor.detectors.base import RANK
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers import texts
from megatron_monitor.notifiers.posting import Posting

_VALID: Final = 12 * 3600.0  # seconds
_TEST: Final = 300.0  # seconds until a test alert ends by itself
_NAMED: Final = 3  # runs that the headline of an event names


class Alertmanager(Posting, frozen=True, kw_only=True, tag_field="type", tag="alertmanager"):
    """All Alertmanagers of a site. Like Prometheus, the monitor posts to each of them, not to a load balancer."""

    urls: Annotated[tuple[scalars.Url, ...], Meta(min_length=1)]
    """Base addresses, for example http://alertmanager:9093."""
    cluster: Annotated[str, Meta(min_length=1)]
    """The label `cluster` that Prometheus gives to this monitor's series."""
    dashboard_url: scalars.PublicUrl | None = None
    """The run dashboard in Grafana, for example https://grafana.example/d/megatron-run."""

    def send(self, message: Transition) -> str:
        """Post one message to each Alertmanager as an alert that ends by itself. Raises DeliveryError."""
        content = self.content([Alert(message, message.time, message.time + _TEST)], message.time)
        return "; ".join(f"{url} {self.post(api(url), content)}" for url in self.urls)

    def content(self, alerts: Sequence[Alert], now: float) -> list[dict[str, Any]]:
        """Return the body of the POST for these alerts at `now`, Unix seconds."""
        wanted = [alert for alert in alerts if self.wants(alert.message)]
        of_event: dict[str, list[Alert]] = defaultdict(list)
        for alert in wanted:
            of_event[alert.message.event].append(alert)
        headlines = {event: _headline(several) for event, several in of_event.items()}
        return [self._alert(alert, now, headlines[alert.message.event]) for alert in wanted]

    def _alert(self, alert: Alert, now: float, headline: str) -> dict[str, Any]:
        message = alert.message
        labels = {
            "alertname": "MegatronIncident", "cluster": self.cluster, "run": message.run, "incident": message.incident,
            "severity": message.severity, "event": message.event,
        }  # fmt: skip
        annotations = {
            "summary": texts.title(message),
            "description": texts.body(message, message.evidence),
            "headline": headline,
            "runbook_url": message.links.get("runbook", ""),
            "page_url": message.links.get("page", ""),
            "dashboard_url": self._dashboard(message),
            "slurm_job": message.job,
        }
        return {
            "labels": labels,
            "annotations": {name: text for name, text in annotations.items() if text},
            "startsAt": _instant(alert.starts_at),
            "endsAt": _instant(now + _VALID if alert.ends_at is None else alert.ends_at),
        }

    def _dashboard(self, message: Transition) -> str:
        if self.dashboard_url is None:
            return ""
        mark = "&" if "?" in self.dashboard_url else "?"
        return f"{self.dashboard_url}{mark}{urlencode({'var-cluster': self.cluster, 'var-run': message.run})}"


def api(url: str) -> str:
    """Return the address to which alerts are posted."""
    return f"{url.rstrip('/')}/api/v2/alerts"


def _headline(alerts: Sequence[Alert]) -> str:
    """Return the headline of an event: the worst alert of one run, or the number and names of several runs."""
    shown = [alert for alert in alerts if alert.ends_at is None] or alerts
    worst = max(shown, key=lambda alert: (RANK[alert.message.severity], -alert.starts_at)).message
    runs = sorted({alert.message.run for alert in shown})
    if len(runs) == 1:
        return texts.title(worst)
    more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    return f"[{worst.severity}] {len(runs)} runs: {worst.incident} ({', '.join(runs[:_NAMED])}{more})"


def _instant(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
