"""Chat, mail and pagers by Apprise, an optional package that knows some hundred services.

Comes in: a Transition. Goes out: a title and a plain text. Apprise answers without a reason, so a no is tried again.
"""

import importlib
from typing import Any

from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers import texts
from megatron_monitor.notifiers.message import DeliveryError, Notifier, from_file, payload
from megatron_monitor.scalars import FilePath

_KINDS = {"info": "info", "warning": "warning", "critical": "failure"}


class Apprise(Notifier, frozen=True, kw_only=True, tag_field="type", tag="apprise"):
    """Chat, mail and pagers, by the library Apprise (`pip install megatron-monitor[apprise]`)."""

    url_file: FilePath
    """The file that holds Apprise's addresses, one a line: they are secrets."""

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
                raise DeliveryError("Apprise does not know the form of an address", permanent=True)
        kind = "success" if message.status == "resolved" else _KINDS[message.severity]
        text = texts.body(message, payload(message)["evidence"])
        if not service.notify(title=texts.title(message), body=text, notify_type=kind):
            raise DeliveryError("not every address accepted the message", permanent=False)
        return "every address accepted the message"
