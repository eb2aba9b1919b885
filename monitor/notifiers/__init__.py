"""Notifiers send incidents to people and systems. Each is a struct of its keys, listed in NOTIFIERS."""

from megatron_monitor.notifiers.alertmanager import Alertmanager
from megatron_monitor.notifiers.chat import Discord, Mattermost, Slack, Teams
from megatron_monitor.notifiers.mail import Email
from megatron_monitor.notifiers.message import DeliveryError, Notifier, payload
from megatron_monitor.notifiers.pagerduty import PagerDuty
from megatron_monitor.notifiers.webhook import Webhook

__all__ = ["NOTIFIERS", "DeliveryError", "Notifier", "payload"]

NOTIFIERS: tuple[type[Notifier], ...] = (
    Webhook, Alertmanager, Slack, Teams, Discord, Mattermost, PagerDuty, Email,
)  # fmt: skip
"""The classes that the key `notifiers` accepts; `type:` selects one by its tag."""
