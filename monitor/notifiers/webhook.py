"""A notifier that posts the JSON object of message.py to an http or https address.

Comes in: a Transition. Goes out: one POST; a 2xx answer is a delivery.
Law: raises nothing but DeliveryError. No redirect is followed (a receiver that moved is a matter for the
configuration, and a POST that is redirected may lose its body); the address and secret headers stand in no message.
Risk left: the timeout holds for each step (connect, send, each read of the answer), so a receiver that sends its
answer byte by byte holds up this notifier's own thread, and no other.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from monitor import __version__
from monitor.config import WebhookSettings
from monitor.config.scalars import header_value_of, url_of
from monitor.incidents import Transition
from monitor.notifiers.message import DeliveryError, payload

_TRANSIENT: Final = (408, 425, 429)  # besides 5xx: the receiver itself says "not now"


class Webhook:
    """One receiver. Secrets in files are read at each delivery, so that they may be renewed under the daemon."""

    def __init__(self, settings: WebhookSettings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ
        # Only these two protocols, and the proxies of the environment; no handler for redirects, none for file: or ftp:
        self._opener = urllib.request.OpenerDirector()
        protocols = (urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(), urllib.request.UnknownHandler())
        for handler in (urllib.request.ProxyHandler(), *protocols):
            self._opener.add_handler(handler)

    @property
    def name(self) -> str:
        """The name in the configuration."""
        return self._settings.name

    def send(self, message: Transition) -> None:
        """Posts the message once. Raises DeliveryError; 408, 425, 429, 5xx, no answer and no connection may pass."""
        body = json.dumps(self._content(message), allow_nan=False).encode("ascii")
        try:
            request = urllib.request.Request(self._url(), data=body, headers=self._headers(body), method="POST")  # noqa: S310 - url_of lets http and https pass only
            with self._opener.open(request, timeout=self._settings.timeout) as answer:
                status, reason = int(answer.status), str(answer.reason)
        except OSError as error:
            raise DeliveryError(self._no_answer(error), permanent=False) from error
        except ValueError as error:  # http.client refuses the address or a header; its own message would show them
            raise DeliveryError("the address or a header cannot be sent", permanent=True) from error
        except http.client.HTTPException as error:
            raise DeliveryError(f"no HTTP answer: {type(error).__name__}", permanent=False) from error
        if not 200 <= status < 300:
            permanent = status < 500 and status not in _TRANSIENT
            hint = "; redirects are not followed" if 300 <= status < 400 else ""
            printable = "".join(c for c in reason[:80] if c.isprintable())
            raise DeliveryError(f"answered {status} {printable}{hint}", permanent)

    def _content(self, message: Transition) -> Any:
        """What is posted, as JSON values."""
        return payload(message)

    def _url(self) -> str:
        where = self._settings
        if where.url is not None:
            return where.url
        if where.url_env is not None:
            text = self._environ.get(where.url_env)
            if text is None:
                raise DeliveryError(f"the environment variable {where.url_env} is not set", permanent=True)
        else:
            text = _secret(str(where.url_file))
        try:
            return url_of(text)
        except ValueError as error:
            raise DeliveryError(f"in {where.url_env or where.url_file}: {error}", permanent=True) from error

    def _headers(self, body: bytes) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"megatron-monitor/{__version__}",
            # The same for each try of one message: a receiver that answered too late can tell the repetition.
            "Idempotency-Key": hashlib.blake2s(body, digest_size=16).hexdigest(),
        }
        headers.update(self._settings.headers)
        for header, path in self._settings.header_files.items():
            try:
                headers[header] = header_value_of(_secret(path))
            except ValueError as error:
                raise DeliveryError(f"in {path}: {error}", permanent=True) from error
        return headers

    def _no_answer(self, error: OSError) -> str:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, TimeoutError):
            return f"no answer within {self._settings.timeout:g} s"
        text = cause.strerror if isinstance(cause, OSError) and cause.strerror else type(cause).__name__
        return f"no connection: {text}"


def _secret(path: str) -> str:
    """The first line of a secret's file. It may be missing for the moment in which it is renewed."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise DeliveryError(f"{path} cannot be read: {reason}", permanent=False) from error
    return lines[0].strip() if lines else ""
