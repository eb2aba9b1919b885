"""Notifiers send incidents to people and systems: each is one file with a struct of its keys, listed in NOTIFIERS."""

from megatron_monitor.notifiers.alertmanager import Alertmanager
from megatron_monitor.notifiers.apprise import Apprise
from megatron_monitor.notifiers.command import Command
from megatron_monitor.notifiers.message import DeliveryError, Notifier, payload
from megatron_monitor.notifiers.webhook import Webhook

__all__ = ["NOTIFIERS", "DeliveryError", "Notifier", "payload"]

NOTIFIERS: tuple[type[Notifier], ...] = (Webhook, Alertmanager, Command, Apprise)
"""The classes that the key `notifiers` accepts; `type:` selects one by its tag."""
