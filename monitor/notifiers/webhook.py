"""A notifier that posts the JSON object of message.py to an http or https address.

Comes in: a Transition. Goes out: one POST; a 2xx answer is a delivery. Secrets in files are read at each delivery, so
that they may be renewed while the daemon runs.
Law: raises nothing but DeliveryError. No redirect is followed (a receiver that moved is a matter for the
configuration, and a POST that is redirected may lose its body); the address and secret headers stand in no message.
The timeout holds for each step: to connect, to send, and to read the head of the answer, however it drips.
"""

import http.client
import io
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from megatron_monitor import __version__, scalars
from megatron_monitor.incidents import Transition
from megatron_monitor.notifiers.message import DeliveryError, Notifier, from_environment, from_file, message_id, payload
from megatron_monitor.scalars import FilePath, header_value_of, url_of
from megatron_monitor.system.clock import SystemClock
from megatron_monitor.units import PositiveSeconds

_TRANSIENT: Final = (408, 425, 429)  # besides 5xx


class Posting(Notifier, frozen=True, kw_only=True):
    """What notifiers share that post JSON: the keys of the request, and how a refusal is told from a bad moment."""

    headers: Mapping[scalars.PlainHeader, scalars.HeaderValue] = msgspec.field(default_factory=scalars.empty)
    header_files: Mapping[scalars.Header, FilePath] = msgspec.field(default_factory=scalars.empty)
    """Header -> the file that holds its value, read at each delivery: for secrets such as Authorization."""
    timeout: PositiveSeconds = 10.0
    """For each step of a delivery: to connect, to write, to read. Longer than a receiver in health ever needs."""

    def problems(self) -> scalars.Problems:
        """What the values together have wrong."""
        for header in {name.lower() for name in self.headers} & {name.lower() for name in self.header_files}:
            yield "header_files", f"{header} stands in headers too"

    def post(self, url: str, content: Any, more: Mapping[str, str] = MappingProxyType({})) -> None:
        """Posts it once, with `more` headers. Raises DeliveryError; 408, 425, 429, 5xx, no answer and no connection
        may pass.
        """
        body = json.dumps(content, allow_nan=False).encode("ascii")
        try:
            request = urllib.request.Request(url, data=body, headers=self._headers(more), method="POST")  # noqa: S310 - url_of lets http and https pass only
            with _opener().open(request, timeout=self.timeout) as answer:
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
    """A JSON object posted to an address for each message."""

    url: scalars.Url | None = None
    url_file: FilePath | None = None
    """The file that holds the address, read at each delivery: for addresses that are secrets."""
    url_env: scalars.Variable | None = None
    """The environment variable that holds the address."""

    def problems(self) -> scalars.Problems:
        """What the values together have wrong."""
        if sum(where is not None for where in (self.url, self.url_file, self.url_env)) != 1:
            yield "", "expected exactly one of url, url_file, url_env"
        yield from Posting.problems(self)

    def send(self, message: Transition) -> None:
        """Posts the message once. Raises DeliveryError."""
        self.post(self._url(), payload(message), {"Idempotency-Key": message_id(message)})

    def _url(self) -> str:
        if self.url is not None:
            return self.url
        try:
            return url_of(from_environment(self.url_env) if self.url_env is not None else _secret(str(self.url_file)))
        except ValueError as error:
            raise DeliveryError(f"in {self.url_env or self.url_file}: {error}", permanent=True) from error


class _Timed(io.RawIOBase):
    """What a socket's stream gives within the socket's timeout in all."""

    def __init__(self, sock: socket.socket, stream: Any) -> None:
        self._sock, self._stream, self._now = sock, stream, SystemClock().monotonic
        self._until = self._now() + (sock.gettimeout() or 0.0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - self._now()
        if left <= 0.0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._stream.raw.readinto(buffer)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def do_open(self, http_class: Any, req: urllib.request.Request, **more: Any) -> http.client.HTTPResponse:
        def answer(sock: socket.socket, *known: Any, **others: Any) -> http.client.HTTPResponse:
            found = http.client.HTTPResponse(sock, *known, **others)
            found.fp = io.BufferedReader(_Timed(sock, found.fp))
            return found

        def connection(*known: Any, **others: Any) -> Any:
            made = http_class(*known, **others)
            made.response_class = answer
            return made

        return super().do_open(connection, req, **more)


def _opener() -> urllib.request.OpenerDirector:
    """These two protocols and the proxies of the environment; no handler for redirects, none for file: or ftp:."""
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler(), _Handler(), urllib.request.UnknownHandler()):
        opener.add_handler(handler)
    return opener


def _secret(path: str) -> str:
    """The first line of a secret's file."""
    lines = from_file(path)
    return lines[0].strip() if lines else ""
