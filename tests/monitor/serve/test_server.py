"""The server against clients that are slow, silent, many, huge or rude: a scrape always gets its answer."""

import gc
import gzip
import http.client
import resource
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.config import load
from megatron_monitor.serve.auth import Hosts
from megatron_monitor.serve.exchange import Reply, Request
from megatron_monitor.serve.latest import LatestSnapshot
from megatron_monitor.serve.server import HttpServer
from megatron_monitor.services import Services
from megatron_monitor.snapshot import Snapshot
from megatron_monitor.system.clock import SystemClock
from tests.conftest import examples
from tests.monitor.serve.conftest import Serve, ask
from tests.programs import slack, wait


def seconds(server: HttpServer, path: str = "/") -> float:
    """How long one good request takes."""
    began = time.perf_counter()
    assert ask(server, path).status == 200
    return time.perf_counter() - began


def raw(server: HttpServer, data: bytes, *, over: bool = False) -> bytes:
    """What comes back for these bytes, to the end of the connection: a reset, if not all of them were read.

    `over`: the client ends its half of the connection.
    """
    got = b""
    with socket.create_connection(server.address, timeout=slack(10)) as client, suppress(ConnectionResetError):
        client.sendall(data)
        if over:
            client.shutdown(socket.SHUT_WR)
        while piece := client.recv(65536):
            got += piece
    return got


def many(server: HttpServer, count: int, stack: ExitStack) -> list[socket.socket]:
    """So many silent connections."""
    return [stack.enter_context(socket.create_connection(server.address, timeout=slack(10))) for _ in range(count)]


def test_silent_connections_cost_no_thread_and_the_longest_waiting_goes(serve: Serve) -> None:
    """They are bounded, a scrape beside them is answered at once; the oldest is closed for a new one."""
    server = serve(connections=200)
    before = threading.active_count()
    with ExitStack() as stack:
        silent = many(server, 500, stack)
        assert max(seconds(server) for _ in range(5)) < 1.0
        assert threading.active_count() - before <= 6
        assert len(server.open) <= 201
        assert silent[0].recv(1) == b""


def test_slow_requests_are_cut_off(serve: Serve) -> None:
    """A byte at a time does not extend the time for a request's head."""
    server = serve(head=0.5)
    with socket.create_connection(server.address, timeout=slack(10)) as client:
        client.sendall(b"GET / HT")
        assert client.recv(4096) == b""


def ask_and_read_nothing(server: HttpServer, count: int, stack: ExitStack) -> None:
    """So many clients ask for 8 MiB each and read none of it."""
    for client in many(server, count, stack):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")


def test_answers_that_nobody_reads_are_bounded(serve: Serve) -> None:
    """In bytes of all connections; who asks beside them gets a whole answer."""
    server = serve(unread=20 << 20)
    with ExitStack() as stack:
        ask_and_read_nothing(server, 12, stack)
        wait(lambda: len(server.open) <= 2, 10.0, "ten of twelve are dropped")
        assert seconds(server) < slack(1.0)
        assert len(ask(server, "/large").text) == 8 << 20  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_who_reads_late_gets_the_whole_answer(serve: Serve, version: str) -> None:
    """An answer that ends its connection and that the system cannot hold in one piece: every byte comes."""
    for size in range(400_000, 1_200_000, 80_000):
        server = serve(lambda _request, size=size: Reply(200, "text/plain", b"x" * size))
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(server.address)
            client.settimeout(slack(10))
            client.sendall(f"GET / HTTP/{version}\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            time.sleep(0.05)
            got = b"".join(iter(lambda: client.recv(1 << 20), b""))
        assert len(got.partition(b"\r\n\r\n")[2]) == size


@pytest.mark.parametrize(
    ("slow", "others"), [("/", ("/-/healthy", "/metrics", "/-/ready")), ("/-/ready", ("/-/healthy", "/"))]
)
def test_metrics_and_probes_wait_for_no_page_and_health_for_nothing(
    serve: Serve, slow: str, others: tuple[str, ...]
) -> None:
    """Pages that take long hold all of their threads, and more wait; so does readiness, for a loop that is busy."""
    made = threading.Event()

    def app(request: Request) -> Reply:
        if request.path == slow:
            made.wait(slack(10))
        return Reply(200, "text/plain", b"")

    server = serve(app)
    people = [threading.Thread(target=ask, args=(server, slow)) for _ in range(20)]
    for person in people:
        person.start()
    assert max(seconds(server, path) for path in others) < slack(1.0)
    made.set()
    for person in people:
        person.join()


def test_who_waits_for_an_answer_is_not_dropped_for_a_new_connection(serve: Serve) -> None:
    """To render takes long: of the others, the one that is idle for longest goes."""
    made = threading.Event()

    def app(_request: Request) -> Reply:
        made.wait(slack(10))
        return Reply(200, "text/plain", b"")

    server = serve(app, connections=8)
    with ExitStack() as stack, ThreadPoolExecutor(4) as people:
        answers = [people.submit(ask, server) for _ in range(4)]
        wait(lambda: sum(getattr(one, "answers", False) for one in list(server.open)) == 4, 5.0, "four requests")
        silent = many(server, 20, stack)
        assert silent[0].recv(1) == b""
        made.set()
        assert [answer.result().status for answer in answers] == [200] * 4


def test_requests_that_never_come_whole_push_nobody_out(serve: Serve) -> None:
    """Half a body is no request that is being answered: the oldest of them goes, and who is new stays."""
    server = serve(connections=8, body=1000)
    half = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n" + b"x" * 50
    with ExitStack() as stack:
        slow = list[socket.socket]()
        for number in range(1, 9):
            slow += many(server, 1, stack)
            slow[-1].sendall(half)
            wait(lambda: len(server._bodies) == number, 5.0, "its body")  # noqa: B023
        (new,) = many(server, 1, stack)
        assert slow[0].recv(1) == b""
        for number in range(1, 5):
            many(server, 1, stack)[0].sendall(half)
            assert slow[number].recv(1) == b""
        new.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert new.recv(100).startswith(b"HTTP/1.1 200")


def test_who_pipelines_and_never_reads_holds_nobody_up(serve: Serve) -> None:
    """400 such clients: what the daemon is asked by others beside them is answered within a second."""
    page = b"x" * 20_000
    answered: Counter[str] = Counter()

    def app(request: Request) -> Reply:
        answered[request.path] += 1
        until = time.thread_time() + 0.001  # to render it takes a while
        while time.thread_time() < until:
            pass
        return Reply(200, "text/plain", page)

    server = serve(app)
    with ExitStack() as stack:
        for client in many(server, 400, stack):
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.send(b"GET /api HTTP/1.1\r\nHost: x\r\n\r\n" * 500)
        # Until each had its first answer they are 400 clients that ask once: they are served in turn, as anybody is.
        wait(lambda: answered["/api"] >= 400, 30.0, "400 first answers")
        duration = [seconds(server, "/metrics") for _ in range(10)]
        assert max(duration) < slack(1.0)


@pytest.mark.parametrize(("address", "host", "passes"), [
    ("127.0.0.1", "evil.example", False), ("127.0.0.1", "evil.example:9843", False), ("127.0.0.1", None, True),
    ("127.0.0.1", "127.0.0.1.evil.example", False), ("::1", "[::1]:9843", True), ("127.0.0.1", "127.0.0.1:1", True),
    ("127.0.0.1", "localhost:9843", True), ("127.0.0.1", "a.localhost:443", True), ("0.0.0.0", "login1.cluster", True),
    ("127.0.0.1", "a.my.example:443", True), ("127.0.0.1", "a.my.example.evil", False),
    ("127.0.0.1", "LOGIN1.:9843", True),
])  # fmt: skip
def test_a_name_that_is_not_ours_is_not_answered(address: str, host: str | None, passes: bool) -> None:
    """A page that lets its own name point to a loopback daemon reads nothing of it."""
    assert Hosts("login1", address, "A.my.example").allow(host) is passes


def test_a_foreign_name_gets_421_and_an_open_door_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """On loopback only our names; beyond it without a password, a warning in the log and on every page."""
    shown, clock = LatestSnapshot(Snapshot(at=0.0), lambda: None, 0.01), SystemClock()
    for listen, expected in (("127.0.0.1:0", 421), ("0.0.0.0:0", 200)):
        caplog.clear()
        services = Services(load("", [f"listen={listen}"]), shown, clock, clock.monotonic)
        services.start()
        server = services._server
        try:
            assert ask(server, "/", Host="evil.example").status == expected
            page = ask(server, "/").text.decode()  # type: ignore[attr-defined]
            assert ("readable without a password" in page) is (expected == 200)
            assert ("without a password" in caplog.text) is (expected == 200)
        finally:
            services.stop()


RUDE = {
    "line": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"4"),
    "header": (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", b"4"),
    "headers": (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 5000 + b"\r\n", b"4"),
    "body": (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 1000, b"413"),
    "chunked": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\nxx", b"413"),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100, b"400"),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", b"400"),
    "nul": (b"GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n", b"4"),
    "absolute": (b"GET http://elsewhere/abs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"200"),
    "half an address": (b"GET http://[::1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"400"),
    "asterisk": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"200"),
    "dots": (b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"200"),
    "1.0": (b"GET / HTTP/1.0\r\n\r\n", b"200"),
}


@pytest.mark.parametrize(("request_bytes", "status"), RUDE.values(), ids=RUDE)
def test_rude_requests(serve: Serve, request_bytes: bytes, status: bytes) -> None:
    """Huge, malformed and foreign requests get an answer or a closed connection, and cost nobody else anything."""
    server = serve()
    got = raw(server, request_bytes)
    assert got.startswith(b"HTTP/1.1 " + status)
    assert ask(server, "/still").status == 200


def test_keep_alive_head_and_a_page_with_a_bug(serve: Serve) -> None:
    """Several requests on one connection; HEAD has no body; a page that raises is a 500 and the next one answers."""
    server = serve()
    connection = http.client.HTTPConnection(*server.address, timeout=slack(10))
    for method, path, status, body in [
        ("GET", "/a", 200, b"/a"), ("HEAD", "/a", 200, b""), ("GET", "/bug", 500, None), ("GET", "/b", 200, b"/b"),
    ]:  # fmt: skip
        connection.request(method, path)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == status
        assert body is None or text == body
    connection.close()


def test_large_answers_are_packed_for_who_takes_it(serve: Serve) -> None:
    """An ssh tunnel is narrow. Every answer has the headers that keep scripts out."""
    answer = ask(serve(), "/" + "x" * 5000, **{"Accept-Encoding": "gzip"})
    assert gzip.decompress(answer.text) == b"/" + b"x" * 5000  # type: ignore[attr-defined]
    assert (answer.headers["Content-Encoding"], answer.headers["Cache-Control"]) == ("gzip", "no-store")
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in answer.headers["Content-Security-Policy"]


def test_connections_stay_below_the_limit_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `ulimit -n 100` HTTP takes at most a quarter: the logs need theirs."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    server = HttpServer("127.0.0.1", 0, lambda _: Reply(200, "", b""))
    assert server._max_connections == 25
    server.stop()


def test_stop_ends_connections_and_threads(serve: Serve) -> None:
    """After stop nothing listens and every connection is closed."""
    server = serve()
    address = server.address
    with ExitStack() as stack:
        (client,) = many(server, 1, stack)
        client.sendall(b"GET / HT")
        wait(lambda: len(server.open) == 1, 5.0, "the connection")
        server.stop()
        with suppress(ConnectionResetError):
            assert client.recv(100) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=slack(1))


def test_a_connection_that_comes_as_the_server_stops_is_closed(serve: Serve) -> None:
    """Its socket is not left to the garbage collector, which would warn (an error in these tests)."""
    for _ in range(30):
        server, connected = serve(), threading.Event()

        def stop(connected: threading.Event = connected, server: HttpServer = server) -> None:
            connected.wait(5.0)
            server._stop.set()

        server.loop.call_soon_threadsafe(stop)
        with ExitStack() as stack:
            many(server, 3, stack)
            connected.set()
            server.stop()
    gc.collect()


@pytest.fixture(scope="module")
def one_server():
    """For many small requests."""
    server = HttpServer("127.0.0.1", 0, lambda _: Reply(200, "text/plain", b""))
    server.start()
    yield server
    server.stop()


@given(st.binary(max_size=300), st.sampled_from([b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n"]))
@examples(150)
def test_any_bytes(one_server: HttpServer, data: bytes, head: bytes) -> None:
    """Whatever comes, the connection ends with an answer or without one, and the next request is served."""
    got = raw(one_server, head + data, over=True)
    assert not got or got.startswith(b"HTTP/1.1 ")
    assert ask(one_server).status == 200
