"""HTTP of the receiver: which answer a push gets, so that no sender throws away what could be kept."""

import base64
import gzip
import hashlib
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from megatron_monitor.config import load
from megatron_monitor.pushed import PATTERN, REFUSED, AgentReport, run_at
from megatron_monitor.receiver import agents as agents_module
from megatron_monitor.receiver import server as module
from megatron_monitor.receiver.labels import StreamFile
from megatron_monitor.receiver.server import Credentials, Receiver
from megatron_monitor.receiver.spool import QuotaError
from megatron_monitor.system import clock as clock_module
from tests.clock import ManualClock
from tests.monitor.receiver.senders import otlp_push, push_request, snapped
from tests.programs import slack, wait

NS = 1_777_000_000_000_000_000
LABELS = {"run": "gpt", "pod": "gpt-0"}
LOKI = "/loki/api/v1/push"
JSON = {"Content-Type": "application/json"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}


def loki(*texts: str, labels: dict[str, str] = LABELS) -> bytes:
    """A push in JSON; lines have a nanosecond each."""
    values = [[str(NS + index), text] for index, text in enumerate(texts)]
    return json.dumps({"streams": [{"stream": labels, "values": values}]}).encode()


class Running:
    """A receiver, its directory and its clock."""

    def __init__(self, directory: Path, settings: str, clock: ManualClock) -> None:
        config = load(f"receiver:\n  listen: 127.0.0.1:0\n  directory: {directory}\n  {settings}")
        self.directory, self.clock = directory, clock
        self.receiver = Receiver(config, self.clock)

    def send(
        self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, Any]:
        """(status, body, headers) of the answer."""
        connection = HTTPConnection(*self.receiver.server.address, timeout=slack(10))
        connection.request("GET" if body is None else "POST", path, body, headers or JSON)
        answer = connection.getresponse()
        found = answer.status, answer.read(), dict(answer.headers)
        connection.close()
        return found

    def status(self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> int:
        """That of the answer."""
        return self.send(path, body, headers)[0]

    def push(self, *lines: tuple[int | str, str], **labels: str) -> int:
        """The status of a push of these (Unix nanoseconds, text)."""
        values = [[str(at), text] for at, text in lines]
        return self.status(LOKI, json.dumps({"streams": [{"stream": labels, "values": values}]}).encode())

    def lines(self) -> list[str]:
        """What lies in the spool, without the time."""
        return sorted(line[31:] for path in self.directory.rglob("*.log") for line in path.read_text().splitlines())

    def counted(self) -> dict[str, float]:
        """What /metrics shows of the receiver: name and labels -> value."""
        page = self.send("/metrics")[1].decode()
        found = re.findall(r'^megatron_monitor_receiver_(\w+)(?:\{\w+="(\w+)"\})? (\S+)$', page, re.MULTILINE)
        return {" ".join(filter(None, (name, label))): float(value) for name, label, value in found}

    def states(self) -> dict[str, int]:
        """How many agents are active, stale and without heartbeat, by the report that the observer reads."""
        self.receiver.write_report()
        report = msgspec.json.decode((self.directory / "agents.json").read_bytes(), type=AgentReport)
        return dict(report.states(self.clock.wall()).states)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Makes receivers."""
    made: list[Running] = []

    def make(settings: str = "", *, clock: ManualClock | None = None) -> Running:
        made.append(Running(tmp_path / "spool", settings, clock or ManualClock(wall=NS / 1e9 + 60.0)))
        made[-1].receiver.start()
        return made[-1]

    yield make
    for one in made:
        one.receiver.stop(1.0)


def test_each_protocol_and_form(running: Callable[..., Running]) -> None:
    """Loki's push and OTLP, JSON and protobuf, as they are or packed; success is what each protocol calls it."""
    one = running()
    packed = snapped(push_request(LABELS, [(NS, "b")]))
    records = [(NS, 0, "c", {})]
    assert one.send(LOKI, loki("a"))[:2] == (204, b"")
    assert one.status(LOKI, gzip.compress(loki("aa")), JSON | {"Content-Encoding": "gzip"}) == 204
    assert one.send(LOKI, packed, PROTOBUF)[:2] == (204, b"")
    assert one.status(LOKI, packed, PROTOBUF | {"Content-Encoding": "snappy"}) == 204
    for path, text in (("/v1/logs", "c"), ("/otlp/v1/logs", "d")):
        resource = {"run": f"otlp-{text}"}
        assert one.send(path, otlp_push(resource, records, as_json=True))[:2] == (200, b"{}")
        protobuf = gzip.compress(otlp_push(resource, records, as_json=False))
        status, body, headers = one.send(path, protobuf, PROTOBUF | {"Content-Encoding": "gzip"})
        assert (status, body, headers["Content-Type"]) == (200, b"", "application/x-protobuf")
    assert one.lines() == ["[pod/gpt-0/container] a", "[pod/gpt-0/container] aa", "[pod/gpt-0/container] b", "c", "c"]
    counted = one.counted()
    assert (counted["lines_total new"], counted["lines_total duplicate"]) == (5.0, 3.0)


def test_partial_success(running: Callable[..., Running]) -> None:
    """Records that are none are told."""
    records = [{"timeUnixNano": "x", "body": {"stringValue": "a"}}] * 300
    body = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}).encode()
    one = running()
    reported = json.loads(one.send("/v1/logs", body)[1])
    assert reported == {"partialSuccess": {"rejectedLogRecords": "300", "errorMessage": "no dated text"}}
    assert one.counted()["lines_total invalid"] == 300.0


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        (LOKI, b"{", JSON, 400),
        (LOKI, b'{"streams": 5}', JSON, 400),
        (LOKI, b"no snappy", PROTOBUF, 400),
        ("/v1/logs", b"\x0b", PROTOBUF, 400),
        (LOKI, loki("a"), {"Content-Type": "text/plain"}, 415),
        (LOKI, loki("a"), JSON | {"Content-Encoding": "br"}, 400),
        (LOKI, loki("a"), {"Content-Type": "application/octet-stream"}, 415),
        (LOKI, loki("a"), JSON | {"Origin": "https://somewhere"}, 403),
        (LOKI, loki("a"), JSON | {"Host": "rebound.example"}, 421),
        (LOKI, gzip.compress(b" " * (module.MAX_BODY_BYTES + 1)), JSON | {"Content-Encoding": "gzip"}, 413),
        (LOKI, b" " * (module.MAX_BODY_BYTES + 1), JSON, 413),
        (LOKI, loki("\n" * 150_000), JSON, 413),
        (LOKI, loki('{"log": "' + "\\n" * 150_000 + '", "stream": "stdout"}'), JSON, 413),
        ("/loki/api/v1/query", b"{}", JSON, 404),
        (LOKI, None, JSON, 405),
        ("/metrics", loki("a"), JSON, 405),
    ],
)
def test_what_can_never_be_read(
    running: Callable[..., Running], path: str, body: bytes | None, headers: dict[str, str], status: int
) -> None:
    """Only that is refused for good, and nothing of it is kept; a good push after it is taken."""
    one = running()
    assert one.status(path, body, headers) == status
    assert one.lines() == []
    assert one.status(LOKI, loki("a")) == 204


def test_what_is_to_be_tried_again(running: Callable[..., Running], monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full, where our own code fails, and when nothing more has room until it is read: never 500, for
    senders throw that away.
    """
    one = running()
    for error in (OSError(28, "no space left"), RuntimeError("a bug"), QuotaError("no room", 5.0)):
        with monkeypatch.context() as patch:

            def fail(*_: object, error: Exception = error) -> None:
                raise error

            patch.setattr(module.Spool, "append", fail)
            status, _, headers = one.send(LOKI, loki("a"))
            assert (status, headers["Retry-After"]) == (429 if isinstance(error, QuotaError) else 503, "5")
    assert one.status(LOKI, loki("a")) == 204


def tenants(*names: str) -> str:
    """The setting by which each has its own name as a token."""
    pairs = (f"{name}: [{hashlib.sha256(name.encode()).hexdigest()}]" for name in names)
    return f"tenants: {{{', '.join(pairs)}}}"


def bearer(token: str) -> dict[str, str]:
    """Headers of a push with that token."""
    return JSON | {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("header", "tenant"),
    [
        ("Bearer one", "a"),
        ("bearer  two ", "a"),
        ("Bearer three", "b"),
        ("Bearer threex", None),
        ("Bearer", None),
        ("Basic " + base64.b64encode(b"any:three").decode(), "b"),
        ("Basic " + base64.b64encode(b"three:").decode(), None),
        ("Basic =====", None),
        ("Basic " + base64.b64encode(b"\xff\xfe").decode(), None),
        ("three", None),
        ("", None),
        (None, None),
    ],
)
def test_a_token_is_that_of_a_tenant(header: str | None, tenant: str | None) -> None:
    """As a bearer token, or as a password."""
    one, two, three = (hashlib.sha256(token).hexdigest() for token in (b"one", b"two", b"three"))
    assert Credentials({"a": (one, two), "b": (three,)}).tenant(header) == tenant


def test_a_tenant_has_its_quota(running: Callable[..., Running]) -> None:
    """Beyond its bytes, streams or runs it is told to try later; the other tenants are taken."""
    one = running(f"max_bytes_per_second: 100B\n  max_runs: 2\n  {tenants('flood', 'calm', 'small')}")
    flooded = [one.send(LOKI, loki("a" * 500, str(number)), bearer("flood")) for number in range(4)]
    assert [status for status, _, _ in flooded] == [204, 204, 429, 429]
    assert int(flooded[-1][2]["Retry-After"]) >= 1
    assert one.status(LOKI, loki("a" * 500), bearer("calm")) == 204
    one.clock.advance(60.0)
    assert one.status(LOKI, loki("a" * 500, "later"), bearer("flood")) == 204
    one.clock.advance(60.0)
    streams = [{"run": "x", "pod": str(pod)} for pod in range(20)]  # ten a run
    labels = [streams[0], {"run": "y"}, {"run": "z"}, *streams[1:]]
    answers = []
    for some in labels:
        one.clock.advance(1.0)
        answers.append(one.status(LOKI, loki("a", labels=some), bearer("small")))
    assert answers == [204, 204, 400, *[204] * 18, 400]
    assert one.status(LOKI, loki("b", labels=labels[0]), bearer("small")) == 204
    one.clock.advance(3601.0)  # pods come and go: those that write no more have no share
    assert [one.status(LOKI, loki("c", labels=some), bearer("small")) for some in (labels[2], streams[-1])] == [204] * 2


class Counted(dict[str, float]):
    """Counts the names that are looked through."""

    looked = 0

    def __iter__(self) -> Iterator[str]:
        """Each name once."""
        for name in super().__iter__():
            self.looked += 1
            yield name


def test_a_refused_stream_costs_no_search_of_the_others() -> None:
    """The oldest is looked at: thousands of streams in one body would each look through thousands."""
    quota, tenant = load("receiver: {listen: 127.0.0.1:1, max_runs: 10}").receiver, module._Tenant()
    tenant.streams, tenant.runs = streams, runs = Counted(), Counted()
    answers = [tenant.is_within_quota(StreamFile(f"{n % 3}", str(n), ""), quota, 0.0) for n in range(200)]
    assert (sum(answers), streams.looked, runs.looked) == (100, 100, 0)
    assert tenant.is_within_quota(StreamFile("0", "5", ""), quota, 3000.0)
    assert tenant.is_within_quota(StreamFile("0", "new", ""), quota, 3601.0)
    assert list(streams) == ["5", "new"]


def test_a_tenant_leaves_threads_to_others(running: Callable[..., Running], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests that take long hold half of them; the further ones come again, and those of another are taken."""
    one, waiting, append = running(tenants("slow", "calm")), threading.Event(), module.Spool.append

    def late(spool: module.Spool, stream: StreamFile, *arguments: Any) -> tuple[int, int]:
        if stream.run.startswith("slow"):
            waiting.wait(slack(20))
        return append(spool, stream, *arguments)

    monkeypatch.setattr(module.Spool, "append", late)
    with ThreadPoolExecutor(12) as senders:
        pushes = [senders.submit(one.status, LOKI, loki("x"), bearer("slow")) for _ in range(12)]
        wait(lambda: sum(push.done() for push in pushes) == 8, 10.0, "the refusals")
        assert one.status(LOKI, loki("x"), bearer("calm")) == 204
        waiting.set()
    assert sorted(push.result() for push in pushes) == [204] * 4 + [429] * 8
    assert one.status(LOKI, loki("x"), bearer("slow")) == 204


def test_a_quota_is_of_unpacked_bytes(running: Callable[..., Running]) -> None:
    """A body of a hundred bytes that unpacks to a hundred thousand uses it up."""
    one = running("max_bytes_per_second: 1kB")
    body = gzip.compress(loki("a" * 100_000))
    packed = JSON | {"Content-Encoding": "gzip"}
    assert [one.status(LOKI, body, packed) for _ in range(2)] == [204, 429]


def test_a_credential_is_bound_to_a_tenant(running: Callable[..., Running]) -> None:
    """Whatever labels and headers say, its lines and heartbeats are those of its tenant. The password of a user is as
    good as a token; without one there is no answer but to probes and Prometheus.
    """
    one = running(tenants("a", "b"))
    assert one.status(LOKI, loki("x")) == 401
    assert one.status(LOKI, loki("x"), bearer("c")) == 401
    assert one.status("/-/ready") == one.status("/metrics") == one.status("/-/healthy") == 200
    one.clock.advance(31.0)
    assert one.status("/-/healthy") == 503, "nothing writes the report"
    user = JSON | {"Authorization": "Basic " + base64.b64encode(b"node7:a").decode()}
    assert one.status(LOKI, loki("of a"), user) == 204
    for labels in ({"run": "a/gpt"}, {"run": "../a/gpt"}, {"tenant": "a", "run": "gpt"}):
        assert one.status(LOKI, loki("of b", labels=labels), bearer("b") | {"X-Scope-OrgID": "a"}) == 204
    paths = [str(path) for path in one.directory.glob(PATTERN)]
    assert sorted(map(run_at, paths)) == ["a/gpt", "b/../a/gpt", "b/a/gpt", "b/gpt"]
    for token in "ab":
        assert one.status(LOKI, loki("alive", labels={"agent": "a/n1", "heartbeat": "x"}), bearer(token)) == 204
    assert one.states()["active"] == 2


def test_without_credentials_there_is_one_tenant(running: Callable[..., Running]) -> None:
    """Nobody has a run of their own by saying who they are."""
    one = running("max_runs: 1")
    for tenant in ("a", "b", ""):
        assert one.status(LOKI, loki("x"), JSON | {"X-Scope-OrgID": tenant}) == 204
    assert [run_at(str(path)) for path in one.directory.glob(PATTERN)] == ["gpt"]
    assert one.status(LOKI, loki("x", labels={"run": "other"}), JSON | {"X-Scope-OrgID": "c"}) == 400


@pytest.mark.parametrize("path", [LOKI, "/v1/logs", "protobuf"])
def test_a_run_above_the_limit_is_refused_alone(running: Callable[..., Running], path: str) -> None:
    """The other lines of its batch are stored, the sender is told which run was refused and need not send it again."""
    one, runs = running("max_runs: 2"), ("a", "b", "c", "a")
    streams = [{"stream": {"run": run}, "values": [[str(NS + at), f"{run}{at}"]]} for at, run in enumerate(runs)]
    body, headers = json.dumps({"streams": streams}).encode(), JSON
    if path != LOKI:
        as_json = path == "/v1/logs"
        records = [(run, [(NS + at, 0, f"{run}{at}", {})]) for at, run in enumerate(runs)]
        pieces = [otlp_push({"run": run}, some, as_json=as_json) for run, some in records]
        logs = [json.loads(piece)["resourceLogs"][0] for piece in pieces] if as_json else []
        body, headers = (json.dumps({"resourceLogs": logs}).encode(), JSON) if as_json else (b"".join(pieces), PROTOBUF)
    status, answer, _ = one.send(LOKI if path == LOKI else "/v1/logs", body, headers)
    assert status == (400 if path == LOKI else 200)
    assert b"refused: the run c is above the quota of its tenant (receiver.max_runs is 2" in answer
    if path == "protobuf":
        assert answer[:5] == bytes([10, len(answer) - 3, 1, 8, 1])
    assert sorted(one.lines()) == ["a0", "a3", "b1"]
    assert one.counted()["lines_total refused"] == 1.0


def test_lines_that_name_no_run(running: Callable[..., Running], caplog: pytest.LogCaptureFixture) -> None:
    """They are taken, counted and logged with their labels; a heartbeat is none of them, and they are no heartbeats."""
    one = running()
    assert one.status(LOKI, loki("a", "b", labels={"app": "web"})) == 204
    assert "app=web" in caplog.text
    assert one.status(LOKI, loki("c", labels={"agent": "node6", "app": "dns"})) == 204
    for beat in ({"heartbeat": "fluent-bit"}, {"container": "heartbeat", "run": "agents"}):
        assert one.status(LOKI, loki("alive", labels={"agent": f"node{len(beat)}", **beat})) == 204
    assert one.counted()["lines_total unnamed"] == 3.0
    assert one.states() == {"active": 2, "stale": 0, "refused": 0}
    assert one.lines() == []


def test_a_forwarder_whose_lines_are_refused(running: Callable[..., Running]) -> None:
    """It is alive, and its streams are not observed until its lines are accepted."""
    one = running()

    def beat(kind: str) -> tuple[int, int]:
        one.clock.advance(5.0)
        assert one.push((int(one.clock.wall() * 1e9), "alive"), agent="n7", heartbeat=kind) == 204
        states = one.states()
        return states["stale"], states["refused"]

    assert [beat(kind) for kind in ("forward", REFUSED, REFUSED, REFUSED)] == [(0, 0), (0, 0), (0, 1), (0, 1)]
    one.clock.advance(8.0)
    states = one.states()
    assert (states["stale"], states["refused"]) == (1, 0)
    assert beat("forward") == (0, 0)


def test_a_line_dated_an_hour_ahead(running: Callable[..., Running]) -> None:
    """Is as old as its arrival, and counted; an agent whose heartbeats say how far its clock is ahead is believed."""
    one = running()
    ahead = round((one.clock.wall() + 3600.0) * 1e9)
    assert one.push((ahead, "x"), run="gpt") == 204
    assert one.counted()["lines_total ahead"] == 1.0
    for _ in range(3):
        assert one.push((ahead, "alive"), agent="n7", heartbeat="x") == 204
        ahead += 5 * 10**9
        one.clock.advance(5.0)
    assert one.push((ahead, "y"), run="gpt", agent="n7") == 204
    assert one.counted()["lines_total ahead"] == 1.0
    stamps = [line[:16] for path in one.directory.rglob("*.log") for line in path.read_text().splitlines()]
    assert sorted(stamps) == ["2026-04-24T03:07", "2026-04-24T04:07"]


@pytest.mark.parametrize("rebooted", [False, True])
@pytest.mark.parametrize("agent", ["n7", ""])
def test_the_clock_is_set_back_while_the_receiver_is_away(
    running: Callable[..., Running], monkeypatch: pytest.MonkeyPatch, agent: str, rebooted: bool
) -> None:
    """By an hour. Its monotonic clock shows it: lines are dated as before, and none counts twice. After a boot of the
    host it is unknown until a heartbeat comes: then no line without a date, and none that seems to be ahead, gets an
    earlier date than those before it.
    """
    one = running()
    at, labels = round(one.clock.wall() * 1e9), {"run": "gpt", "agent": agent}

    def push(*lines: tuple[float, str], **labels: str) -> None:
        assert one.push(*((at + round(seconds * 1e9), text) for seconds, text in lines), **labels) == 204

    for second in (0, 5, 10) if agent else ():
        push((second, "alive"), heartbeat="x", agent=agent)
        one.clock.advance(5.0)
    push((11, "a"), **labels)
    one.receiver.write_report()
    one.receiver.stop(1.0)
    if rebooted:
        monkeypatch.setattr(clock_module, "_boot_id", lambda: "another")
    one.clock.advance(20.0 - (one.clock.wall() - at / 1e9))
    one.clock.set_wall(one.clock.wall() - 3600.0)
    one = running(clock=one.clock)
    push(*[(11, "a")][rebooted:], (12, "b"), **labels)
    push((7200, "ahead"), (13, "c"), **labels)
    otlp = otlp_push(labels, [(0, 0, "d", {}), (0, 0, "d", {})], as_json=True)
    assert one.status("/v1/logs", otlp) == 200
    lines = [line for path in one.directory.rglob("*.log") for line in path.read_text().splitlines()]
    found = [(line.split()[-1], line[14:29]) for line in lines]
    known = "07:51.000000000 07:52.000000000 08:00.000000000 07:53.000000000 08:00.000000001 08:00.000000002"
    unknown = " ".join(f"07:51.00000000{number}" for number in range(6))
    assert found == list(zip(["a", "b", "ahead", "c", "d", "d"], (unknown if rebooted else known).split(), strict=True))
    assert one.counted()["lines_total ahead"] == (3.0 if rebooted else 1.0)
    assert ("lines_total duplicate" in one.counted()) is not rebooted


def test_a_stream_that_moves_ahead_with_each_push(running: Callable[..., Running]) -> None:
    """Five minutes from their arrival are the most, however many pushes came before."""
    one = running()
    at = round(one.clock.wall() * 1e9)
    for number in range(1, 11):
        assert one.push((at + number * 240 * 10**9, str(number)), **LABELS) == 204
    stamps = sorted(line[:19] for path in one.directory.rglob("*.log") for line in path.read_text().splitlines())
    assert (stamps[-1], one.counted()["lines_total ahead"]) == ("2026-04-24T03:11:40", 9.0)


def test_times_that_are_none(running: Callable[..., Running]) -> None:
    """In lines and heartbeats: what has no date of its own is as old as its arrival, and no body is refused."""
    one = running()
    for at in ("9" * 400, str(10**21), "-5", str(-(10**30))):
        for labels in ({"agent": "n7", "heartbeat": "x"}, {"agent": "n7", "run": "gpt"}):
            for text in "abc":
                assert one.push((at, text + at[:9]), **labels) == 204
        one.clock.advance(5.0)
    assert len(one.lines()) == 12


def test_many_new_agents_at_once(running: Callable[..., Running], monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of two thousand heartbeats is one of others: nothing is done for each of the agents at each of them."""
    one, done = running(), Counter[str]()
    for name in ("Agent", "tenant_of"):
        call = getattr(agents_module, name)
        monkeypatch.setattr(agents_module, name, lambda *some, n=name, c=call: done.update([n]) or c(*some))
    beats = [{"stream": {"agent": f"n{n}", "heartbeat": "x"}, "values": [[str(NS), "x"]]} for n in range(2000)]
    assert one.status(LOKI, json.dumps({"streams": beats}).encode()) == 204
    assert done == {"Agent": 2000, "tenant_of": 2000}
    assert one.states()["active"] == 2000


def test_a_body_that_is_announced_too_large(running: Callable[..., Running]) -> None:
    """Is refused before a byte of it has come, however large; so is an address that is none."""
    one = running()
    for size in (module.MAX_BODY_BYTES + 1, 10**19):
        with socket.create_connection(one.receiver.server.address, timeout=slack(5)) as client:
            head = f"POST {LOKI} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: {size}\r\n\r\n".encode())
            assert client.recv(1000).startswith(b"HTTP/1.1 413")
    with socket.create_connection(one.receiver.server.address, timeout=slack(5)) as client:
        client.sendall(b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 400")


def test_a_client_that_asks_before_it_sends(running: Callable[..., Running]) -> None:
    """`Expect: 100-continue`, as libcurl does for large bodies; a body in chunks, but not in chunks of a byte; one that
    stops halfway is no push.
    """
    one = running()
    body = loki("a")
    with socket.create_connection(one.receiver.server.address, timeout=slack(5)) as client:
        head = f"POST {LOKI} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 100")
        client.sendall(body)
        assert client.recv(1000).startswith(b"HTTP/1.1 204")
        body = loki("b")
        client.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 204")
        client.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + b"1\r\n \r\n" * 10_001)
        assert client.recv(1000).startswith(b"HTTP/1.1 400")
    with socket.create_connection(one.receiver.server.address, timeout=slack(5)) as client:
        client.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1000) == b""
    assert [line[-1] for line in one.lines()] == ["a", "b"]


def test_there_is_no_room_for_more_bodies(running: Callable[..., Running]) -> None:
    """Senders are told to try again while too much is on its way."""
    one = running()
    one.receiver.server.limits = replace(one.receiver.server.limits, bodies=100)
    assert one.send(LOKI, loki("a" * 200))[0] == 429
    assert one.status(LOKI, loki("a")) == 204


def test_slow_bodies_of_a_tenant_leave_room_to_others(running: Callable[..., Running]) -> None:
    """Who holds most is cut off, the oldest of his bodies first, for a body of another; his own next one is refused."""
    one = running(tenants("slow", "calm"))
    one.receiver.server.limits = replace(one.receiver.server.limits, bodies=1000)
    head = f"POST {LOKI} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 900\r\n"
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(one.receiver.server.address)) for _ in range(3)]
        for held, client in enumerate(slow):
            client.settimeout(slack(10))
            client.sendall(f"{head}Authorization: Bearer slow\r\n\r\n{'x' * 300}".encode())
            wait(lambda: one.receiver.server._held_bytes == 300 * (held + 1), 5.0, "its bytes")  # noqa: B023
        assert one.status(LOKI, loki("a" * 200), bearer("slow")) == 429
        assert one.status(LOKI, loki("a" * 200), bearer("calm")) == 204
        assert slow[0].recv(1) == b""
        slow[2].setblocking(False)
        with pytest.raises(BlockingIOError):
            slow[2].recv(1)
        wait(lambda: one.receiver.server._held_bytes == 600, 5.0, "the end of the others")


def test_many_new_streams_come_in_several_tries(running: Callable[..., Running]) -> None:
    """Each try stores some of them, none twice, so that no request takes long."""
    one = running()
    streams = [{"stream": {"run": "gpt", "pod": f"p{pod}"}, "values": [[str(NS), "x"]]} for pod in range(700)]
    body = json.dumps({"streams": streams}).encode()
    assert [one.status(LOKI, body) for _ in range(3)] == [429, 204, 204]
    assert one.counted()["lines_total new"] == 700.0
