"""The notifier `apprise`: chat, mail and pagers by the optional package Apprise, which knows some hundred services.

Input: a Transition. Output: a title and a plain text. Apprise gives no reason for a failure, so each one is retried.
"""

import importlib
from typing import Any

from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers import texts
from megatron_monitor.notifiers.message import DeliveryError, Notifier, from_file, payload
from megatron_monitor.scalars import FilePath

_KINDS = {"info": "info", "warning": "warning", "critical": "failure"}


class Apprise(Notifier, frozen=True, kw_only=True, tag_field="type", tag="apprise"):
    """Services of the library Apprise (`pip install megatron-monitor[apprise]`)."""

    url_file: FilePath
    """A file with one Apprise address per line. The addresses are secrets."""

    def send(self, message: Transition) -> str:
        """Notify every address once. Raises DeliveryError."""
        try:
            library: Any = importlib.import_module("apprise")
        except ImportError as error:
            missing = "the package apprise is missing: pip install megatron-monitor[apprise]"
            raise DeliveryError(missing, permanent=True) from error
        service = library.Apprise()
        for address in (line.strip() for line in from_file(self.url_file)):
            if address and not address.startswith("#") and not service.add(address):
                raise DeliveryError(f"{self.url_file} has an address that Apprise does not know", permanent=True)
        kind = "success" if message.status == "resolved" else _KINDS[message.severity]
        text = texts.body(message, payload(message)["evidence"])
        if not service.notify(title=texts.title(message), body=text, notify_type=kind):
            raise DeliveryError("not every address accepted the message", permanent=False)
        return "every address accepted the message"
