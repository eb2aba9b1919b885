"""Transitions to people. To add a kind: its keys in monitor/config/schema.py, a file here, a row in `NOTIFIERS`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from monitor.config import (
    AlertmanagerSettings,
    AppriseSettings,
    CommandSettings,
    Config,
    WebhookSettings,
)
from monitor.notifiers.alertmanager import Alertmanager
from monitor.notifiers.apprise import Apprise
from monitor.notifiers.command import Command
from monitor.notifiers.message import DeliveryError, Notifier, Subscriber, payload
from monitor.notifiers.queue import DEFAULT_CAPACITY, OUTCOMES, NotificationQueue, Outcome, Retry
from monitor.notifiers.webhook import Webhook

__all__ = [
    "DEFAULT_CAPACITY",
    "NOTIFIERS",
    "OUTCOMES",
    "Alertmanager",
    "Apprise",
    "Command",
    "DeliveryError",
    "NotificationQueue",
    "Notifier",
    "Outcome",
    "Retry",
    "Subscriber",
    "Webhook",
    "build_notifiers",
    "payload",
]

NOTIFIERS: dict[type, Callable[[Any, Mapping[str, str]], Notifier]] = {
    WebhookSettings: Webhook,
    AlertmanagerSettings: Alertmanager,
    CommandSettings: Command,
    AppriseSettings: Apprise,
}


def build_notifiers(config: Config, environ: Mapping[str, str] = os.environ) -> list[Subscriber]:
    """The notifiers of a configuration, each with what it wants; `environ` holds the variables that `*_env` name."""
    return [
        Subscriber(NOTIFIERS[type(one)](one, environ), one.minimum_severity, one.runs, one.incidents)
        for one in config.notifiers
    ]
