"""Notifications of transitions. A notifier is one file: a struct of its keys with `send`, and a row in `NOTIFIERS`."""

from monitor.notifiers.alertmanager import Alertmanager
from monitor.notifiers.apprise import Apprise
from monitor.notifiers.command import Command
from monitor.notifiers.message import DeliveryError, Notifier, payload
from monitor.notifiers.webhook import Webhook

__all__ = ["NOTIFIERS", "DeliveryError", "Notifier", "payload"]

NOTIFIERS: tuple[type[Notifier], ...] = (Webhook, Alertmanager, Command, Apprise)
"""The configuration takes each class from here: `type:` is its tag."""
