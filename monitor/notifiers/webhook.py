"""The notifier `webhook`: posts the JSON object of message.py to an http or https address.

Input: a Transition. Output: one POST; a 2xx answer means delivered. Files with secrets are read at each delivery, so
they may be renewed while the daemon runs.
Rules: only DeliveryError is raised. Redirects are not followed, because a POST may lose its body: the configuration
must name the new address. Error messages contain neither the address nor secret headers.
"""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from megatron_monitor import __version__, scalars
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers.message import DeliveryError, Notifier, from_file, message_id, payload
from megatron_monitor.scalars import FilePath, PositiveSeconds, header_value_of, url_of

_TRANSIENT: Final = (408, 425, 429)  # besides 5xx
_MAX_REFUSAL: Final = 1000  # bytes read of a refusal; its first line is reported
_PRINTED: Final = 80  # characters of the receiver's text in a message


class Posting(Notifier, frozen=True, kw_only=True):
    """Base of notifiers that post JSON: the keys of the request, and which failures are permanent."""

    headers: Mapping[scalars.PlainHeader, scalars.HeaderValue] = msgspec.field(default_factory=scalars.empty)
    header_files: Mapping[scalars.Header, FilePath] = msgspec.field(default_factory=scalars.empty)
    """Header -> file with its value, read at each delivery: for secrets such as Authorization."""
    timeout: PositiveSeconds = 10.0
    """Seconds for each step of a delivery: connect, write, read. A healthy receiver needs less."""

    def problems(self) -> scalars.Problems:
        """Yield what is wrong with the combination of values."""
        for header in {name.lower() for name in self.headers} & {name.lower() for name in self.header_files}:
            yield "header_files", f"{header} is also in headers"

    def post(self, url: str, content: Any, more: Mapping[str, str] = MappingProxyType({})) -> str:
        """Post the content once, with `more` headers, and return the status of the answer.

        Raises DeliveryError with the first line of the receiver's answer. 408, 425, 429, 5xx, a time-out and a failed
        connection are transient.
        """
        body = json.dumps(content, allow_nan=False).encode("ascii")
        try:
            request = urllib.request.Request(url, data=body, headers=self._headers(more), method="POST")  # noqa: S310 - url_of lets http and https pass only
            with _opener().open(request, timeout=self.timeout) as answer:
                status, reason = int(answer.status), str(answer.reason)
                refusal = "" if 200 <= status < 300 else answer.read(_MAX_REFUSAL).decode("utf-8", "replace").strip()
        except OSError as error:
            raise DeliveryError(self._no_answer(error), permanent=False) from error
        except ValueError as error:  # http.client refuses the address or a header; its own message would show them
            raise DeliveryError("the address or a header cannot be sent", permanent=True) from error
        except http.client.HTTPException as error:
            raise DeliveryError(f"no HTTP answer: {type(error).__name__}", permanent=False) from error
        answered = f"answered {status} {_printable(reason)}"
        if not 200 <= status < 300:
            permanent = status < 500 and status not in _TRANSIENT
            hint = "; redirects are not followed" if 300 <= status < 400 else ""
            because = f": {_printable(refusal.splitlines()[0])}" if refusal else ""
            raise DeliveryError(f"{answered}{hint}{because}", permanent)
        return answered

    def _headers(self, more: Mapping[str, str]) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": f"megatron-monitor/{__version__}", **more}
        headers.update(self.headers)
        for header, path in self.header_files.items():
            try:
                headers[header] = header_value_of(_secret(path))
            except ValueError as error:
                raise DeliveryError(f"in {path}: {error}", permanent=True) from error
        return headers

    def _no_answer(self, error: OSError) -> str:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, TimeoutError):
            return f"no answer within {self.timeout:g} s"
        text = cause.strerror if isinstance(cause, OSError) and cause.strerror else type(cause).__name__
        return f"no connection: {text}"


class Webhook(Posting, frozen=True, kw_only=True, tag_field="type", tag="webhook"):
    """An address to which each message is posted as a JSON object."""

    url: scalars.Url | None = None
    url_file: FilePath | None = None
    """A file with the address, read at each delivery: for addresses that are secrets."""

    def problems(self) -> scalars.Problems:
        """Yield what is wrong with the combination of values."""
        if (self.url is None) == (self.url_file is None):
            yield "", "expected exactly one of url, url_file"
        yield from Posting.problems(self)

    def send(self, message: Transition) -> str:
        """Post the message once. Raises DeliveryError."""
        return self.post(self._url(), payload(message), {"Idempotency-Key": message_id(message)})

    def _url(self) -> str:
        if self.url is not None:
            return self.url
        try:
            return url_of(_secret(str(self.url_file)))
        except ValueError as error:
            raise DeliveryError(f"in {self.url_file}: {error}", permanent=True) from error


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for http, https and the environment's proxies: without redirects, file: and ftp:."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(),
        urllib.request.UnknownHandler(),
    ):  # fmt: skip
        opener.add_handler(handler)
    return opener


def _printable(text: str) -> str:
    return "".join(char for char in text[:_PRINTED] if char.isprintable())


def _secret(path: str) -> str:
    """Return the first line of a file with a secret."""
    lines = from_file(path)
    return lines[0].strip() if lines else ""
