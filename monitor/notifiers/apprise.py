"""Chat, mail and pagers by Apprise, an optional package: what it knows of some hundred services need not stand here.

Comes in: a Transition. Goes out: a title and a plain text. Apprise says yes or no without a reason: no may pass.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monitor.config import AppriseSettings
from monitor.incidents import Transition
from monitor.notifiers.message import DeliveryError, body_text, headline

_KINDS = {"info": "info", "warning": "warning", "critical": "failure"}


class Apprise:
    """All addresses of one file or variable, told together."""

    def __init__(self, settings: AppriseSettings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ

    @property
    def name(self) -> str:
        """The name in the configuration."""
        return self._settings.name

    def send(self, message: Transition) -> None:
        """Tells every address once. Raises DeliveryError."""
        try:
            library: Any = importlib.import_module("apprise")
        except ImportError as error:
            missing = "the package apprise is missing: pip install megatron-monitor[apprise]"
            raise DeliveryError(missing, permanent=True) from error
        service = library.Apprise()
        for address in self._addresses():
            if not service.add(address):
                raise DeliveryError("Apprise does not know the form of an address", permanent=True)
        kind = "success" if message.status == "resolved" else _KINDS[message.severity]
        if not service.notify(title=headline(message), body=body_text(message), notify_type=kind):
            raise DeliveryError("not every address took the message", permanent=False)

    def _addresses(self) -> list[str]:
        where = self._settings
        if where.url_env is not None:
            text = self._environ.get(where.url_env, "")
            if not text.strip():
                raise DeliveryError(f"the environment variable {where.url_env} is not set", permanent=True)
            return text.split()
        try:
            lines = Path(str(where.url_file)).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DeliveryError(f"{where.url_file} cannot be read", permanent=False) from error
        return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
