"""The HTTP server: one asyncio thread that owns every connection, a few threads that render.

Comes in: an application (Request -> Reply), perhaps TLS and users. A request costs a thread only once it has arrived
whole, so that silent clients cost a descriptor alone; when there are too many, the connection that has waited longest
is closed. The TLS handshake runs in the connection's task. A body is read where the limits let it have one.
"""

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import h11

from megatron_monitor.serve.auth import Auth, Hosts, TooManyGuessesError
from megatron_monitor.serve.exchange import Application, Limits, Reply, Request, request_of, text_reply, too_large
from megatron_monitor.serve.tls import Tls

_log = logging.getLogger(__name__)
_PIECE = 64 * 1024  # bytes handed to a slow reader's connection at a time
_READ = 4096  # bytes read at a time: so much more than the bound may a head be
_BACKLOG = 256


class _Answer:
    """One that is made or sent."""

    def __init__(self, transport: asyncio.WriteTransport, since: float) -> None:
        self.since = self._moved_at = since  # in the loop's own time
        self._transport = transport
        self._left = 0

    def is_stalled(self, now: float, seconds: float) -> bool:
        """Has the client taken nothing of it for so long?"""
        left = self._transport.get_write_buffer_size()
        if left != self._left or not left:
            self._left, self._moved_at = left, now
        return now - self._moved_at > seconds


class HttpServer:
    """Binds at once (OSError if the address is taken), serves from a thread of its own."""

    def __init__(self, host: str, port: int, app: Application, limits: Limits | None = None) -> None:
        self._app = app
        self._limits = limits or Limits()
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = max(8, min(self._limits.connections, soft // 4 if soft > 0 else self._limits.connections))
        self.tls: Tls | None = None
        """May be set while it serves: new connections follow it."""
        self.auth: Auth | None = None
        """As `tls`; it holds from the next request."""
        self.hosts: Hosts | None = None
        """As `auth`."""
        self._held = 0  # bytes of all bodies
        self._look_at = 0.0  # in the loop's own time: when the certificate's files are to be looked at again
        self._listener = _listen(host, port)
        self._waiting: dict[asyncio.Task[None], None] = {}  # connections without a whole request, oldest first
        self._answering: dict[asyncio.Task[None], _Answer] = {}
        self._free = self._limits.answers
        self._turns: tuple[list[asyncio.Future[None]], ...] = ([], [])  # who waits for one; the second: who pipelines
        self._evictor: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], socket.socket | None] = {}  # the socket until its task has begun
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._running = threading.Event()
        self._executor = ThreadPoolExecutor(self._limits.threads, thread_name_prefix="http")
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="http", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; the port is the real one if 0 was asked for."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    @property
    def connections(self) -> int:
        """Open now."""
        return len(self._tasks)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()
        self._running.wait(5.0)

    def stop(self, timeout: float = 2.0) -> None:
        """Close every socket and end the threads."""
        if self._loop is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout)
        self._listener.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    # --- the asyncio thread -----------------------------------------------------------------------------------------

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda _loop, context: _log.debug("http: %s", context.get("message")))
        accepting = asyncio.create_task(self._accept())
        self._running.set()
        await self._stop.wait()
        self._loop.remove_reader(self._listener.fileno())
        for _ in range(3):  # what was accepted in this very turn gets its task, which closes it
            await asyncio.sleep(0)
        for task in (accepting, *self._tasks):
            task.cancel()
        await asyncio.wait([accepting, *self._tasks], timeout=1.0)
        await asyncio.sleep(0)  # the transports close in the loop's next turn

    async def _accept(self) -> None:
        assert self._loop is not None
        while not self._stop.is_set():
            try:
                connection, peer = await self._loop.sock_accept(self._listener)
            except OSError as error:  # no descriptor left, or the client has closed
                _log.debug("http: accept: %s", error)
                self._drop_oldest()
                await asyncio.sleep(0.05)
                continue
            if len(self._tasks) >= self._most:
                self._drop_oldest()
            task = asyncio.create_task(self._connection(connection, str(peer[0])))
            self._tasks[task] = connection
            self._waiting[task] = None
            task.add_done_callback(self._forget)
            await asyncio.sleep(0)

    def _drop_oldest(self) -> None:
        for task in self._waiting or self._answering:
            self._waiting.pop(task, None)
            task.cancel()
            return

    def _forget(self, task: asyncio.Task[None]) -> None:
        if (never_begun := self._tasks.pop(task)) is not None:
            never_begun.close()
        self._waiting.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("http: a connection failed", exc_info=error)

    # --- one connection ---------------------------------------------------------------------------------------------

    async def _connection(self, accepted: socket.socket, peer: str) -> None:
        assert self._loop is not None
        self._tasks[asyncio.current_task()] = None  # type: ignore[index]  # from now on it closes its socket itself
        tls, limits = self.tls, self._limits
        reader = asyncio.StreamReader(limit=_PIECE)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            with contextlib.suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer)
            secure: dict[str, Any] = {}
            if tls is not None:
                if self._loop.time() >= self._look_at:
                    self._look_at = self._loop.time() + limits.certificates
                    await self._loop.run_in_executor(self._executor, tls.refresh)
                secure = {"ssl": tls.context, "ssl_handshake_timeout": limits.handshake, "ssl_shutdown_timeout": 1.0}
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, accepted, **secure)
        except OSError as error:  # no handshake in time, or no common protocol
            _log.debug("http: %s: %s", peer, error)
            accepted.close()
            return
        except asyncio.CancelledError:
            accepted.close()
            raise
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        # `drain` waits for the last byte: what is left of an answer then was not taken. At 0 TLS would wait for ever.
        transport.set_write_buffer_limits(high=1, low=0)
        answered = False
        try:
            await self._requests(reader, writer, peer)
            answered = True
        except (OSError, TimeoutError, h11.LocalProtocolError) as error:
            _log.debug("http: %s: %s", peer, error)
        finally:
            writer.close() if answered else transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes)
        while True:
            self._waiting[task] = None
            pipelined = bool(http.trailing_data[0])
            try:
                head = await self._read(http, reader)
            except h11.RemoteProtocolError as error:
                await self._send(http, writer, text_reply(error.error_status_hint, "not understood\n"), close=True)
                return
            except TimeoutError:
                if http.our_state is h11.IDLE and http.trailing_data[0]:
                    await self._send(http, writer, text_reply(408, "the request took too long\n"), close=True)
                return
            if head is None:
                return
            request = request_of(head)._replace(peer=peer)
            if not self._limits.body:
                whole = http.next_event() is not h11.NEED_DATA and http.their_state in (h11.DONE, h11.MUST_CLOSE)
                refused = await self._refused(request) if whole else too_large(request)
                await self._answer(http, writer, request, refused, pipelined=pipelined, close=not whole)
                if not whole:
                    return
            elif not await self._answer_body(http, reader, writer, request, pipelined=pipelined):
                return
            if http.our_state is not h11.DONE:
                return
            http.start_next_cycle()

    async def _answer_body(
        self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request, *,
        pipelined: bool,
    ) -> bool:  # fmt: skip
        """Read the request's body and answer. False: the connection is of no more use."""
        body = bytearray()
        try:
            refused = await self._refused(request) or await self._read_body(http, reader, writer, body)
            if refused is None:
                await self._answer(http, writer, request._replace(body=bytes(body)), None, pipelined=pipelined)
                return True
        finally:
            self._held -= len(body)
        await self._answer(http, writer, request, refused, pipelined=pipelined, close=True)
        writer.write_eof()
        with contextlib.suppress(TimeoutError):  # who is still sending would else meet a reset, and not see the answer
            async with asyncio.timeout(1.0):
                while await reader.read(_PIECE):
                    pass
        return False

    async def _read_body(
        self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytearray
    ) -> Reply | None:
        """The body behind a request's head, into `body`; what who sends it is told where it is not taken."""
        try:
            async with asyncio.timeout(self._limits.upload):
                while not isinstance(event := http.next_event(), h11.EndOfMessage):
                    if isinstance(event, h11.Data):
                        body += event.data
                        self._held += len(event.data)
                        if len(body) > self._limits.body:
                            return text_reply(413, f"more than {self._limits.body} bytes\n")
                        if self._held > self._limits.bodies:
                            return text_reply(429, "too much is being pushed: try again\n", ("Retry-After", "2"))
                        continue
                    if http.they_are_waiting_for_100_continue:
                        writer.write(http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
                    http.receive_data(await reader.read(_PIECE))
        except h11.RemoteProtocolError as error:
            return text_reply(error.error_status_hint, "not understood\n")
        return None

    async def _answer(
        self, http: h11.Connection, writer: asyncio.StreamWriter, request: Request, reply: Reply | None, *,
        pipelined: bool, close: bool = False,
    ) -> None:  # fmt: skip
        """Wait for a place, have the reply made where there is none yet, and send it."""
        task = asyncio.current_task()
        assert task is not None
        assert self._loop is not None
        self._waiting.pop(task, None)
        await self._take_turn(pipelined)
        self._answering[task] = _Answer(writer.transport, self._loop.time())
        try:
            async with asyncio.timeout(self._limits.answer):
                if reply is None:
                    reply = await self._loop.run_in_executor(self._executor, self._render, request)
                await self._send(http, writer, reply, close=close, body=request.method != "HEAD")
        finally:
            self._answering.pop(task, None)
            self._pass_on()

    async def _read(self, http: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
        """The next request's head; None when the client has closed. TimeoutError, h11.RemoteProtocolError."""
        if not http.trailing_data[0]:
            async with asyncio.timeout(self._limits.idle):
                http.receive_data(await reader.read(_READ))
        async with asyncio.timeout(self._limits.head):
            while True:
                event = http.next_event()
                if isinstance(event, h11.Request):
                    return event
                if event is not h11.NEED_DATA:
                    return None
                http.receive_data(await reader.read(_READ))

    async def _take_turn(self, pipelined: bool) -> None:
        """Wait for one of the few places. Who pipelines waits for all who do not; of these the newest comes first, so
        that a scrape gets its answer beside any number of others.
        """
        assert self._loop is not None
        if self._free > 0:
            self._free -= 1
            return
        turn = self._loop.create_future()
        self._turns[pipelined].append(turn)
        if self._evictor is None or self._evictor.done():
            self._evictor = asyncio.create_task(self._evict())
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._turns[pipelined]:
                self._turns[pipelined].remove(turn)
            else:  # it was given one
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """A place is free."""
        for turns in self._turns:
            while turns:
                turn = turns.pop()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1

    async def _evict(self) -> None:
        """While somebody waits: answers that nobody takes, or that take too long, give way."""
        assert self._loop is not None
        while any(self._turns):
            now = self._loop.time()
            for task, answer in list(self._answering.items()):
                if answer.is_stalled(now, self._limits.stalled) or now - answer.since > self._limits.slow:
                    task.cancel()
            await asyncio.sleep(0.05)

    async def _refused(self, request: Request) -> Reply | None:
        """Why this client gets no page; None if it does. While its password is checked it counts as waiting."""
        if self.hosts is not None and not self.hosts.allow(request.headers.get("host")):
            return text_reply(421, "not asked under a name of this host: see web.allowed_hosts in the configuration\n")
        if self.auth is None:
            return None
        try:
            if await self.auth.allows(request.headers.get("authorization")):
                return None
        except TooManyGuessesError:
            return text_reply(503, "too many passwords are being checked\n")
        ask = ("WWW-Authenticate", 'Basic realm="megatron-monitor", charset="UTF-8"')
        return text_reply(401, "a user and a password, or a token, are needed\n", ask)

    def _render(self, request: Request) -> Reply:
        try:
            return self._app(request)
        except Exception:  # noqa: BLE001 - a page that cannot be rendered costs that page
            _log.exception("http: %s could not be rendered", request.path[:200])
            return text_reply(500, "this page could not be made; see the monitor's log\n")

    async def _send(
        self, http: h11.Connection, writer: asyncio.StreamWriter, reply: Reply, *, close: bool, body: bool = True
    ) -> None:
        headers = [
            ("Content-Type", reply.content_type), ("Content-Length", str(len(reply.body))),
            ("Server", "megatron-monitor"), ("X-Content-Type-Options", "nosniff"), *reply.headers,
        ]  # fmt: skip
        if close:
            headers.append(("Connection", "close"))
        response = h11.Response(status_code=reply.status, headers=headers, reason=HTTPStatus(reply.status).phrase)
        writer.write(http.send(response) or b"")
        for start in range(0, len(reply.body) if body else 0, _PIECE):
            writer.write(http.send(h11.Data(data=reply.body[start : start + _PIECE])) or b"")
            await writer.drain()
        writer.write(http.send(h11.EndOfMessage()) or b"")
        await writer.drain()


def may_listen(host: str, port: int) -> None:
    """Raises OSError if the address is none of this host's, or not for this user. A port in use is another's matter."""
    try:
        _listen(host, port, backlog=None).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise


def _listen(host: str, port: int, backlog: int | None = _BACKLOG) -> socket.socket:
    """A listening socket; OSError if there can be none."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        if backlog is not None:
            listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
