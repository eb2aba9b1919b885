"""The HTTP server: uvicorn's HTTP/1.1 in one asyncio thread, a few render threads, and limits against hostile clients.

Only a complete request occupies a thread. If there are too many connections, the one idle for longest is closed. This
module adds the limits that uvicorn lacks: time for a request's head, time for a TLS handshake, number of connections.
"""

import asyncio
import contextlib
import logging
import resource
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from megatron_monitor.serve.auth import Hosts, TooManyGuessesError
from megatron_monitor.serve.exchange import (
    Application,
    Limits,
    Reply,
    Request,
    packed,
    request_of,
    text_reply,
)
from megatron_monitor.serve.tls import Tls

_log = logging.getLogger(__name__)
_HEAD_CHUNK = 4096  # bytes that are parsed together: a head may exceed its limit by this much
_MAX_CHUNKS = 10_000  # of a body: to parse one takes 4 us; clients send 4 KiB and more in each
_BACKLOG = 256
_SEND_BUFFER = 256 * 1024  # bytes of an answer that the system holds for a client that does not read
_DRAIN_SECONDS = 1.0  # to read the rest of a refused body: a connection reset would destroy the answer
_QUICK = frozenset({"/metrics", "/-/ready", "/ready"})
_HEADERS = [
    (b"Server", b"megatron-monitor"),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Referrer-Policy", b"no-referrer"),
    (
        b"Content-Security-Policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
]
"""Headers of every answer."""
_Message = dict[str, Any]


class _Connection(h11.Connection):
    """The HTTP/1.1 state of a connection, with a limit on the chunks of a body."""

    _chunks = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event. RemoteProtocolError if the client breaks the protocol or the limit."""
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            if self._chunks > _MAX_CHUNKS:
                raise h11.RemoteProtocolError("too many chunks")
        elif isinstance(event, h11.Request):
            self._chunks = 0
        return event


class _Protocol(H11Protocol):
    """A connection of uvicorn with time limits before a request."""

    def __init__(self, server: "HttpServer") -> None:
        super().__init__(server.config, server.state, {"connection": self}, server.loop)
        self.conn = _Connection(h11.SERVER, server.limits.head_bytes)
        self._server = server
        self._head: asyncio.TimerHandle | None = None

    @property
    def answers(self) -> bool:
        """True while a request that has come is being answered."""
        arriving = self.conn.their_state is h11.SEND_BODY
        return self.cycle is not None and not self.cycle.response_complete and not arriving

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Apply the idle limit to the first request, too."""
        super().connection_made(transport)
        self._server.touch(self)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection and stop its timers."""
        super().connection_lost(exc)
        self._server.open.pop(self, None)
        self._unset_keepalive_if_required()
        self.head_complete()

    def data_received(self, data: bytes) -> None:
        """Start the head's time limit, and feed a head in chunks: h11 checks the size only of an incomplete head.

        A connection on which the next request comes before the answer is closed after that answer.
        """
        step = len(data)
        if self.conn.their_state is h11.IDLE:
            step = _HEAD_CHUNK
            self._head = self._head or self.loop.call_later(self._server.limits.head, self.transport.abort)
        for start in range(0, len(data), step):
            if not self.transport.is_closing():
                super().data_received(data[start : start + step])
        if self.answers and self.conn.their_state is h11.DONE and self.conn.trailing_data[0]:
            self.cycle.keep_alive = False

    def head_complete(self) -> None:
        """End the time limit of a request's head."""
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._server.touch(self)
        super().on_response_complete()

    def cancel(self) -> None:
        """Close the connection immediately."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        self._server.open.pop(self, None)
        self.transport.abort()


class HttpServer:
    """The server. It binds when it is made (OSError if the address is taken) and serves from its own thread."""

    def __init__(self, host: str, port: int, app: Application, limits: Limits | None = None) -> None:
        self._app = app
        self.limits = limits or Limits()
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._max_connections = max(8, min(self.limits.connections, soft // 4 if soft > 0 else self.limits.connections))
        self.tls: Tls | None = None
        """May change while the server runs; new connections use it."""
        self.auth: Callable[[str | None], Awaitable[bool]] | None = None
        """Returns True if the `Authorization` header is accepted, or raises TooManyGuessesError. May change while the
        server runs; the next request uses it, as for `hosts`.
        """
        self.hosts: Hosts | None = None
        self.public: frozenset[str] = frozenset()
        """Paths that need no credentials."""
        self.config = Config(
            self._asgi, interface="asgi3", lifespan="off", ws="none", log_config=None, log_level="error",
            access_log=False, proxy_headers=False, workers=1, h11_max_incomplete_event_size=self.limits.head_bytes,
            timeout_keep_alive=self.limits.idle,  # type: ignore[arg-type]
        )  # fmt: skip
        self.state = ServerState()
        self.state.default_headers = _HEADERS
        self.open: dict[_Protocol | asyncio.Task[None], None] = {}
        """Connections and TLS handshakes, the one idle for longest first."""
        self.owner_of: Callable[[str | None], str | None] = lambda _: None
        """Returns whose bodies come with this `Authorization` header; None: those of the client's address."""
        self._bodies: dict[_Protocol, tuple[str, bytearray]] = {}  # and their owners, the oldest first
        self._held_bytes = 0  # of all bodies
        self._next_certificate_check = 0.0  # in the loop's time
        self._listener = _bound(host, port)
        self._stop = asyncio.Event()
        self._running = threading.Event()
        threads = {"page": self.limits.threads, "metrics": 2}
        self._executors = {kind: ThreadPoolExecutor(many, f"http {kind}") for kind, many in threads.items()}
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="http", daemon=True)
        self.loop: asyncio.AbstractEventLoop

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that the server listens on; the real port if it was configured as 0."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def start(self) -> None:
        """Start the server's thread."""
        self._thread.start()
        self._running.wait(5.0)

    def stop(self, timeout: float = 2.0) -> None:
        """Close all sockets and end the threads."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout)
        self._listener.close()
        for executor in self._executors.values():
            executor.shutdown(wait=False, cancel_futures=True)

    # --- the asyncio thread -----------------------------------------------------------------------------------------

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(lambda _loop, context: _log.debug("http: %s", context.get("message")))
        self._listen()
        self._running.set()
        await self._stop.wait()
        self.loop.remove_reader(self._listener)
        for _ in range(3):  # a transport closes one turn after it is dropped
            while self.open:
                self._drop_oldest()
            await asyncio.sleep(0)

    def _listen(self) -> None:
        if not self._stop.is_set():
            self.loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Accept one connection. The loop calls this again for the next one, so others come in between."""
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:  # the client has gone
            return
        except OSError as error:  # no descriptor left
            _log.debug("http: accept: %s", error)
            self._drop_oldest()
            self.loop.remove_reader(self._listener)
            self.loop.call_later(0.05, self._listen)
            return
        if len(self.open) >= self._max_connections:
            self._drop_oldest()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        task = self.loop.create_task(self._connect(accepted))
        self.open[task] = None
        task.add_done_callback(partial(self._connected, accepted))

    async def _connect(self, accepted: socket.socket) -> None:
        secure: dict[str, Any] = {}
        if (tls := self.tls) is not None:
            if self.loop.time() >= self._next_certificate_check:
                self._next_certificate_check = self.loop.time() + self.limits.certificates
                await self.loop.run_in_executor(self._executors["page"], tls.refresh)
            secure = {"ssl": tls.context, "ssl_handshake_timeout": self.limits.handshake, "ssl_shutdown_timeout": 1.0}
        await self.loop.connect_accepted_socket(lambda: _Protocol(self), accepted, **secure)

    def _connected(self, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self.open.pop(task, None)
        if task.cancelled() or task.exception() is not None:
            accepted.close()

    def _drop_oldest(self) -> None:
        """Close the connection that is idle for longest; one that is being answered only if there is no other."""
        if self.open:
            oldest = min(self.open, key=lambda one: isinstance(one, _Protocol) and one.answers)
            del self.open[oldest]
            oldest.cancel()

    def touch(self, connection: _Protocol) -> None:
        """Make the connection the last to be dropped."""
        self.open.pop(connection, None)
        self.open[connection] = None

    # --- one request ------------------------------------------------------------------------------------------------

    async def _asgi(
        self, scope: _Message, receive: Callable[[], Awaitable[_Message]], send: Callable[[_Message], Awaitable[None]]
    ) -> None:
        connection: _Protocol = scope["state"]["connection"]
        connection.head_complete()
        request, body = request_of(scope), bytearray()
        unread = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
        try:
            if connection.transport.get_write_buffer_size():
                raise ConnectionAbortedError("the client does not read")
            reply = await self._refused(request)
            if reply is None and unread:
                async with asyncio.timeout(self.limits.upload):
                    owner = self.owner_of(request.headers.get("authorization")) or request.peer
                    self._bodies[connection] = owner, body
                    reply = await self._read(receive, request, connection)
            if reply is None:
                unread = False
                self.touch(connection)
                reply = await self._answer(connection, request._replace(body=bytes(body)))
            await send(_start(reply, close=unread))
            await send({"type": "http.response.body", "body": reply.body, "more_body": unread})
            if unread:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_DRAIN_SECONDS):
                        while (await receive()).get("more_body"):
                            pass
                await send({"type": "http.response.body"})
            if connection.transport.get_write_buffer_size():
                self._bound_unread()
        except (OSError, asyncio.CancelledError) as error:  # a TimeoutError is an OSError
            _log.debug("http: %s: %s", request.peer, error)
            connection.cancel()
        finally:
            self._release(connection)

    async def _read(
        self, receive: Callable[[], Awaitable[_Message]], request: Request, connection: _Protocol
    ) -> Reply | None:
        """Read a request's body; return a refusal or None. ConnectionError if the client has gone."""
        owner, body = self._bodies[connection]
        if int(request.headers.get("content-length", "0")) > self.limits.body:
            return text_reply(413, f"the body has more than {self.limits.body} bytes\n")
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise ConnectionAbortedError
            body += message["body"]
            self._held_bytes += len(message["body"])
            more = message["more_body"]
            if len(body) > self.limits.body:
                return text_reply(413, f"the body has more than {self.limits.body} bytes\n")
            if self._held_bytes > self.limits.bodies and not self._has_room(owner):
                return text_reply(429, "too much is being pushed: try again\n", ("Retry-After", "2"))
        return None

    def _has_room(self, owner: str) -> bool:
        """Abort bodies that have not come whole, the oldest first, of the owner that holds most, until the rest is
        within the limit. False: the limit is exceeded and this `owner` holds most, or these bodies were not enough.
        """
        held = Counter[str]()
        for other, body in self._bodies.values():
            held[other] += len(body)
        if held[most := max(held, key=lambda one: held[one])] == held[owner]:
            return False
        for connection in [one for one, (other, _) in self._bodies.items() if other == most and not one.answers]:
            if self._held_bytes > self.limits.bodies:
                self._release(connection)
                connection.cancel()
        return self._held_bytes <= self.limits.bodies

    def _release(self, connection: _Protocol) -> None:
        self._held_bytes -= len(self._bodies.pop(connection, ("", b""))[1])

    async def _answer(self, connection: _Protocol, request: Request) -> Reply:
        """Render the answer. Metrics and readiness have threads of their own, so that they never wait for pages. Health
        is answered at once: it reads two clocks, and readiness waits for the loop.
        """
        if connection.cycle.disconnected:
            raise ConnectionAbortedError
        if request.path == "/-/healthy":
            return self._render(request)
        executor = self._executors["metrics" if request.path in _QUICK else "page"]
        return await self.loop.run_in_executor(executor, self._render, request)

    def _bound_unread(self) -> None:
        """Abort the connections with the longest unread answers until the rest is within the limit."""
        sizes = {one: one.transport.get_write_buffer_size() for one in self.open if isinstance(one, _Protocol)}
        while sum(sizes.values()) > self.limits.unread:
            longest = max(sizes, key=lambda connection: sizes[connection])
            del sizes[longest]
            longest.cancel()

    async def _refused(self, request: Request) -> Reply | None:
        """Return a refusal by host name or credentials, None if the request is allowed."""
        if not request.path:
            return text_reply(400, "not understood\n")
        if self.hosts is not None and not self.hosts.allow(request.headers.get("host")):
            return text_reply(421, "this Host name is not allowed: set external_url in the configuration\n")
        if self.auth is None or request.path in self.public:
            return None
        try:
            if await self.auth(request.headers.get("authorization")):
                return None
        except TooManyGuessesError:
            return text_reply(503, "too many passwords are being checked\n")
        ask = ("WWW-Authenticate", 'Basic realm="megatron-monitor", charset="UTF-8"')
        return text_reply(401, "a user and a password, or a token, are needed\n", ask)

    def _render(self, request: Request) -> Reply:
        try:
            return packed(self._app(request), request)
        except Exception:  # noqa: BLE001 - a page that cannot be rendered costs that page
            _log.exception("http: %s could not be rendered", request.path[:200])
            return text_reply(500, "this page could not be made; see the monitor's log\n")


def _start(reply: Reply, *, close: bool) -> _Message:
    headers = [("Content-Type", reply.content_type), ("Content-Length", str(len(reply.body))), *reply.headers]
    if "Cache-Control" not in dict(reply.headers):
        headers.append(("Cache-Control", "no-store"))
    if close:
        headers.append(("connection", "close"))
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return {"type": "http.response.start", "status": reply.status, "headers": encoded}


def _bound(host: str, port: int) -> socket.socket:
    """Return a listening socket; raises OSError."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, address = found[0]
    both = family is socket.AF_INET6
    listener = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    listener.setblocking(False)
    return listener
