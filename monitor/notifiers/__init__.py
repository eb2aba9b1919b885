"""Notifications of transitions. A notifier is one file: a struct of its keys with `send`, and a row in `NOTIFIERS`."""

from megatron_monitor.notifiers.alertmanager import Alertmanager
from megatron_monitor.notifiers.apprise import Apprise
from megatron_monitor.notifiers.command import Command
from megatron_monitor.notifiers.message import DeliveryError, Notifier, payload
from megatron_monitor.notifiers.webhook import Webhook

__all__ = ["NOTIFIERS", "DeliveryError", "Notifier", "payload"]

NOTIFIERS: tuple[type[Notifier], ...] = (Webhook, Alertmanager, Command, Apprise)
"""The configuration takes each class from here: `type:` is its tag."""
