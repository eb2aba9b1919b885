"""The base of notifiers that post to an http or https address.

Input: a Transition. Output: one POST; a 2xx answer means delivered. Files with secrets are read at each delivery, so
they may be renewed while the daemon runs.
Rules: only DeliveryError is raised. Redirects are not followed, because a POST may lose its body: the configuration
must name the new address. Error messages contain neither the address nor secret headers.
"""

import http.client
import json
import math
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

import msgspec

from megatron_monitor import __version__, scalars
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers.message import DeliveryError, Notifier, message_id, plain, secret
from megatron_monitor.scalars import FilePath, PositiveSeconds, header_value_of, url_of
from megatron_monitor.system.clock import SystemClock

_TRANSIENT: Final = (408, 425, 429)  # besides 5xx
_MAX_ANSWER: Final = 2000  # bytes read of the answer's body
_PRINTED: Final = 300  # characters of one line of the answer


class Posting(Notifier, frozen=True, kw_only=True):
    """Base of notifiers that post JSON: the keys of the request, and which failures are permanent."""

    headers: Mapping[scalars.Header, scalars.HeaderValue] = msgspec.field(default_factory=dict)
    header_files: Mapping[scalars.Header, FilePath] = msgspec.field(default_factory=dict)
    """Header -> file with its value, read at each delivery: for secrets such as Authorization. It has priority."""
    timeout: PositiveSeconds = 10.0
    """Seconds for each step of a delivery: connect, write, read the answer. A healthy receiver needs less."""

    def post(self, url: str, content: Any, more: Mapping[str, str] = MappingProxyType({})) -> str:
        """Post values of JSON, or a text, once, with `more` headers, and return the status and the body of the answer.

        Raises DeliveryError with the first line of the body. 408, 425, 429, 5xx, a time-out and a failed
        connection are transient.
        """
        text = content if isinstance(content, str) else json.dumps(plain(content), ensure_ascii=False)
        body = text.encode("utf-8", "replace")
        try:
            request = urllib.request.Request(url, data=body, headers=self._headers(more), method="POST")  # noqa: S310 - url_of lets http and https pass only
            with opener().open(request, timeout=self.timeout) as answer:
                status, reason = int(answer.status), str(answer.reason)
                first, *rest = _lines(answer) or [""]
        except OSError as error:
            raise DeliveryError(self._no_answer(error), permanent=False) from error
        except ValueError as error:  # http.client refuses the address or a header; its own message would show them
            raise DeliveryError("the address or a header cannot be sent", permanent=True) from error
        except http.client.HTTPException as error:
            raise DeliveryError(f"no HTTP answer: {type(error).__name__}", permanent=False) from error
        answered, because = f"answered {status} {_printable(reason)}", f": {first}" if first else ""
        if not 200 <= status < 300:
            permanent = status < 500 and status not in _TRANSIENT
            hint = "; redirects are not followed" if 300 <= status < 400 else ""
            raise DeliveryError(f"{answered}{hint}{because}", permanent, "\n".join(rest))
        return "\n".join([f"{answered}{because}", *rest])

    def _headers(self, more: Mapping[str, str]) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": f"megatron-monitor/{__version__}", **more}
        headers.update(self.headers)
        for header, path in self.header_files.items():
            try:
                headers[header] = header_value_of(secret(path))
            except ValueError as error:
                raise DeliveryError(f"in {path}: {error}", permanent=True) from error
        return headers

    def _no_answer(self, error: OSError) -> str:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, TimeoutError):
            return f"no answer within {self.timeout:g} s"
        text = cause.strerror if isinstance(cause, OSError) and cause.strerror else type(cause).__name__
        return f"no connection: {text}"


class Hook(Posting, frozen=True, kw_only=True):
    """Base of notifiers that post each message to one address."""

    url: scalars.Url | None = None
    url_file: FilePath | None = None
    """A file with the address, read at each delivery: for addresses that are secrets."""

    def problems(self) -> scalars.Problems:
        """Yield what is wrong with the combination of values."""
        if (self.url is None) == (self.url_file is None):
            yield "", "expected exactly one of url, url_file"

    def send(self, message: Transition) -> str:
        """Post the message once. Raises DeliveryError."""
        return self.post(self._url(), self.content(message), {"Idempotency-Key": message_id(message)})

    def content(self, message: Transition) -> Any:
        """Return the body of the POST: values of JSON, or a text."""
        raise NotImplementedError

    def _url(self) -> str:
        if self.url is not None:
            return self.url
        try:
            return url_of(secret(str(self.url_file)))
        except ValueError as error:
            raise DeliveryError(f"in {self.url_file}: {error}", permanent=True) from error


class _Answer(http.client.HTTPResponse):
    """An answer that comes within the socket's timeout, or not: a header in each second, or `100 Continue` without end,
    would else be read for ever.
    """

    def __init__(self, sock: socket.socket, *arguments: Any, **names: Any) -> None:
        super().__init__(sock, *arguments, **names)
        raw: Any = self.fp.raw
        read, until = raw.readinto, SystemClock.monotonic() + (sock.gettimeout() or math.inf)

        def read_in_time(buffer: memoryview) -> int | None:
            if (left := until - SystemClock.monotonic()) <= 0.0:
                raise TimeoutError
            sock.settimeout(None if left == math.inf else left)
            return read(buffer)  # type: ignore[no-any-return]

        raw.readinto = read_in_time


class _Handler(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Opens http and https."""

    def do_open(self, http_class: Any, req: urllib.request.Request, **options: Any) -> http.client.HTTPResponse:
        """Return the answer, read in time."""

        def connection(*arguments: Any, **names: Any) -> http.client.HTTPConnection:
            made: http.client.HTTPConnection = http_class(*arguments, **names)
            made.response_class = _Answer
            return made

        return super().do_open(connection, req, **options)


def opener() -> urllib.request.OpenerDirector:
    """Return an opener for http, https and the environment's proxies: without redirects, file: and ftp:."""
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler(), _Handler(), urllib.request.UnknownHandler()):
        opener.add_handler(handler)
    return opener


def _lines(answer: http.client.HTTPResponse) -> list[str]:
    """Return the first lines of the body. An accepted message stays accepted if its body does not arrive."""
    with suppress(OSError, http.client.HTTPException):
        return [_printable(line) for line in answer.read1(_MAX_ANSWER).decode("utf-8", "replace").strip().splitlines()]
    return []


def _printable(text: str) -> str:
    return "".join(char for char in text[:_PRINTED] if char.isprintable())
