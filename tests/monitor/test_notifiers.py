"""Notifiers: what each sends and how it fails, and the threads that keep slow receivers from everyone else."""

from __future__ import annotations

import dataclasses
import http.server
import json
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.clock import SystemClock
from monitor.config import ConfigError, load
from monitor.core.outbox import Outbox
from monitor.deliveries import Deliveries
from monitor.detectors import DETECTORS
from monitor.detectors.crash import ADVICE
from monitor.incidents import Transition
from monitor.notifiers import DeliveryError, Notifier, payload
from monitor.notifiers.alertmanager import Alertmanager
from monitor.notifiers.apprise import Apprise
from monitor.notifiers.command import Command
from monitor.notifiers.message import message_id
from monitor.notifiers.webhook import Webhook
from monitor.notifiers.words import body, title

PATIENCE = 10.0  # seconds that a test waits before it fails; none waits that long when all is well

HANG = Transition(
    run="tr11-176B",
    incident="hang",
    status="firing",
    severity="critical",
    time=1_700_000_000.0,
    summary="hung in training after iteration 4100",
    iteration=4100,
    onset_iteration=4099,
    phase="training",
    evidence={"silence_seconds": 321.5, "last_line": "iteration 4100/ 115311"},
)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


class Receiver(http.server.ThreadingHTTPServer):
    """A receiver on loopback that keeps what it was sent and answers as scripted; 0 is: not until the test ends."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.answers: list[int] = []
        self.received: list[tuple[str, dict[str, str], Any]] = []
        self.released = threading.Event()

    @property
    def url(self) -> str:
        """The address."""
        return f"http://127.0.0.1:{self.server_address[1]}/hook"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is what some tests are about."""


class _Answer(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((self.path, dict(self.headers.items()), json.loads(body)))
        status = self.server.answers.pop(0) if self.server.answers else 200
        if status == 0:
            self.server.released.wait(PATIENCE)
            return
        if status == 1:
            self.wfile.write(b"no HTTP at all\r\n\r\n")
            return
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", self.server.url)
        self.end_headers()

    def do_GET(self) -> None:
        self.server.received.append((self.path, {}, "a GET"))

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A running receiver."""
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join(PATIENCE)


def webhook(more: str) -> Webhook:
    """The notifier of a configuration text."""
    (configured,) = load(f"notifiers: [{{type: webhook, name: chat, {more}}}]").notifiers
    assert isinstance(configured, Webhook)
    return configured


def built(text: str) -> Notifier:
    """The notifier of a configuration text."""
    (notifier,) = load(f"notifiers: [{{name: x, {text}}}]").notifiers
    assert isinstance(notifier, Notifier)
    return notifier


def failure(notifier: Notifier) -> tuple[str, bool]:
    """How a delivery fails: message and permanence."""
    with pytest.raises(DeliveryError) as caught:
        notifier.send(HANG)
    return str(caught.value), caught.value.permanent


# --- the object that is sent ------------------------------------------------------------------------------------------


def test_payload() -> None:
    """The object is that of `replay --json`, a version, an id that stays the same for each try, and what people want
    to know first.
    """
    words = {
        "title": "[critical] tr11-176B: hang",
        "advice": DETECTORS["hang"].advice,
        "line": "iteration 4100/ 115311",
    }
    assert payload(HANG) == {"version": "1", "id": message_id(HANG), **HANG.to_json(), **words}
    assert len({message_id(HANG), message_id(dataclasses.replace(HANG, time=HANG.time + 1))}) == 2
    assert {"run", "incident", "status", "severity", "time", "summary", "evidence"} <= payload(HANG).keys()


CRASH = dataclasses.replace(
    HANG,
    incident="crash",
    since=HANG.time - 720.0,
    gpus=384,
    evidence={"failure": "ecc", "rank": 96, "node": "n12", "lost_seconds": 3600.0, "line": "CUDA error: ECC"},
    links={"page": "http://login-1:9843/runs/tr11-176B", "runbook": "https://wiki/runbook.md#crash"},
)


def test_what_a_person_on_call_wants_to_know() -> None:
    """Which run, what, since when as a clock, where, what it costs, what to do, the line, where to look."""
    found = payload(CRASH)
    assert found["title"] == "[critical] tr11-176B: crash since 22:01 UTC, ecc, n12, training"
    assert found["cost_gpu_hours"] == 460.8  # 12 minutes idle and an hour lost, of 384
    assert (found["rank"], found["node"], found["since"]) == ("96", "n12", "2023-11-14T22:01:20+00:00")
    assert found["advice"] == ADVICE["ecc"]
    assert body(CRASH, found["evidence"]).splitlines()[:11] == [
        "hung in training after iteration 4100", "", "since: 2023-11-14 22:01 UTC, 12 min ago", "phase: training",
        "failure: ecc", "rank: 96", "node: n12", "cost so far: 460.8 GPU-hours", f"do: {ADVICE['ecc']}",
        "last line: CUDA error: ECC", "page: http://login-1:9843/runs/tr11-176B",
    ]  # fmt: skip


def test_an_end_says_how_long_it_lasted() -> None:
    """In the title; what to do is over."""
    over = dataclasses.replace(CRASH, status="resolved", evidence={**CRASH.evidence, "lasted_seconds": 7800.0})
    assert title(over) == "[resolved] tr11-176B: crash ended after 2.2 h"
    assert "advice" not in payload(over)


def test_a_title_fits_a_lock_screen() -> None:
    """However long names are; both ends of the run's name are kept."""
    long = dataclasses.replace(
        CRASH, run="a" * 40 + "-lr3e-4-seed17", evidence={"node": "node-with-a-very-long-name" * 4, "failure": "ecc"}
    )
    assert len(title(long)) <= 110
    assert title(long).startswith("[critical] aaaaaaaaaaaaaaaaaaaaaa...aaaaaaaa-lr3e-4-seed17: crash since 22:01 UTC")


def test_payload_leaves_absent_values_out() -> None:
    """What is not known is absent, never 0 or null."""
    assert "iteration" not in payload(dataclasses.replace(HANG, iteration=None))


def test_payload_holds_what_json_cannot() -> None:
    """NaN, infinity, halves of characters and endless lines of a log do not make an object that readers refuse."""
    odd = {"loss": float("nan"), "scale": float("inf"), "line": "a\udcffb", "long": "x" * 70_000, "pair": (1, None)}
    evidence = payload(dataclasses.replace(HANG, evidence=odd))["evidence"]
    assert (evidence["loss"], evidence["scale"], evidence["line"]) == ("NaN", "+Inf", "a?b")
    assert len(evidence["long"]) == 4000
    assert evidence["pair"] == [1, None]


@given(st.dictionaries(st.text(), st.recursive(st.none() | st.floats() | st.text(), st.lists), max_size=3))
def test_any_evidence_is_sound_json(evidence: dict[str, Any]) -> None:
    """Whatever the evidence holds, the object is JSON in the strict sense."""
    assert json.dumps(payload(dataclasses.replace(HANG, evidence=evidence)), allow_nan=False).encode()


# --- webhook ----------------------------------------------------------------------------------------------------------


def test_delivery(receiver: Receiver) -> None:
    """One POST carries the object, its type and the configured headers."""
    webhook(f"url: '{receiver.url}?a=b', headers: {{X-Site: cluster-1}}").send(HANG)
    ((path, headers, body),) = receiver.received
    assert path == "/hook?a=b"
    assert body == payload(HANG)
    assert headers["Content-Type"] == "application/json"
    assert headers["User-Agent"].startswith("megatron-monitor/")
    assert headers["X-Site"] == "cluster-1"


def test_repetition_can_be_told(receiver: Receiver) -> None:
    """Two tries of one message carry one key, another message carries another."""
    notifier = webhook(f"url: '{receiver.url}'")
    for message in (HANG, HANG, dataclasses.replace(HANG, status="resolved")):
        notifier.send(message)
    first, second, other = (headers["Idempotency-Key"] for _, headers, _ in receiver.received)
    assert first == second != other


@pytest.mark.parametrize("status", [200, 201, 204])
def test_every_2xx_is_a_delivery(receiver: Receiver, status: int) -> None:
    """A receiver may answer with any status of success."""
    receiver.answers = [status]
    webhook(f"url: '{receiver.url}'").send(HANG)
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    ("status", "permanent"),
    [(400, True), (401, True), (404, True), (410, True), (408, False), (429, False), (500, False), (503, False)],
)
def test_refusal(receiver: Receiver, status: int, permanent: bool) -> None:
    """A 4xx says that the message or the address is wrong; 408, 429 and 5xx may pass."""
    receiver.answers = [status]
    message, found = failure(webhook(f"url: '{receiver.url}'"))
    assert message.startswith(f"answered {status} ")
    assert found is permanent


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed(receiver: Receiver, status: int) -> None:
    """A receiver that moved is a permanent failure: nothing is sent to an address that nobody configured."""
    receiver.answers = [status]
    message, permanent = failure(webhook(f"url: '{receiver.url}'"))
    assert "redirects are not followed" in message
    assert permanent
    assert len(receiver.received) == 1


def test_500_then_200(receiver: Receiver) -> None:
    """The notifier can be asked again after a failure."""
    receiver.answers = [500, 200]
    notifier = webhook(f"url: '{receiver.url}'")
    assert failure(notifier) == ("answered 500 Internal Server Error", False)
    notifier.send(HANG)
    assert len(receiver.received) == 2


def test_receiver_that_hangs(receiver: Receiver) -> None:
    """No answer within the timeout is a failure that may pass."""
    receiver.answers = [0]
    assert failure(webhook(f"url: '{receiver.url}', timeout: 200ms")) == ("no answer within 0.2 s", False)


def test_nobody_listens() -> None:
    """A refused connection is a failure that may pass."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert failure(webhook(f"url: 'http://127.0.0.1:{port}/'")) == ("no connection: Connection refused", False)


def test_answer_that_is_no_http(receiver: Receiver) -> None:
    """Another protocol at the port is a failure that may pass."""
    receiver.answers = [1]
    assert failure(webhook(f"url: '{receiver.url}'")) == ("no HTTP answer: BadStatusLine", False)


def test_no_tls_at_the_port(receiver: Receiver) -> None:
    """A receiver that speaks no TLS is distinguished from a message that was taken."""
    message, permanent = failure(webhook(f"url: '{receiver.url.replace('http', 'https')}'"))
    assert message.startswith("no connection: ")
    assert not permanent


def test_address_and_header_in_files(receiver: Receiver, tmp_path: Path) -> None:
    """Secrets are read at each delivery, so that renewing them needs no restart."""
    url, token = tmp_path / "url", tmp_path / "token"
    notifier = webhook(f"url_file: '{url}', header_files: {{Authorization: '{token}'}}")
    assert failure(notifier) == (f"{url} cannot be read: No such file or directory", False)
    url.write_text(receiver.url + "\n")
    for secret in ("Bearer one", "Bearer two"):
        token.write_text(secret + "\n")
        notifier.send(HANG)
    assert [headers["Authorization"] for _, headers, _ in receiver.received] == ["Bearer one", "Bearer two"]


def test_address_in_the_environment(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address may come from a variable; without it there is nothing to try again."""
    monkeypatch.setenv("CHAT_URL", receiver.url)
    webhook("url_env: CHAT_URL").send(HANG)
    monkeypatch.delenv("CHAT_URL")
    assert len(receiver.received) == 1
    assert failure(webhook("url_env: CHAT_URL")) == ("the environment variable CHAT_URL is not set", True)


@pytest.mark.parametrize("secret", ["hunter2", "file:///hunter2", "http://user:hunter2@127.0.0.1/", "http://h/a b", ""])
def test_useless_secret_is_not_told(tmp_path: Path, secret: str) -> None:
    """A file that holds no address is a permanent failure, and its content stays out of the message."""
    (tmp_path / "url").write_text(secret)
    message, permanent = failure(webhook(f"url_file: '{tmp_path / 'url'}'"))
    assert permanent
    assert "hunter2" not in message


def test_useless_header_is_not_told(receiver: Receiver, tmp_path: Path) -> None:
    """A secret that no header can carry is a permanent failure, and stays out of the message."""
    (tmp_path / "token").write_bytes(b"Bearer hunter2\x7f")
    notifier = webhook(f"url: '{receiver.url}', header_files: {{Authorization: '{tmp_path / 'token'}'}}")
    message, permanent = failure(notifier)
    assert permanent
    assert "hunter2" not in message
    (tmp_path / "token").write_bytes(b"\xff")
    assert failure(notifier) == (f"{tmp_path / 'token'} cannot be read: not UTF-8 text", False)


def test_notifiers_of_a_configuration() -> None:
    """Each configured notifier has its own filter."""
    text = "notifiers: [{type: webhook, name: a, url: 'http://h/', minimum_severity: info, runs: ['tr*']}]"
    (notifier,) = load(text).notifiers
    assert (notifier.name, notifier.minimum_severity, notifier.runs) == ("a", "info", ("tr*",))


# --- filter -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("minimum", "runs", "changes", "wanted"),
    [
        ("warning", (), {}, True),
        ("critical", (), {"severity": "warning"}, False),
        ("warning", (), {"severity": "info"}, False),
        ("info", (), {"severity": "info"}, True),
        ("info", ("tr11-*",), {}, True),
        ("info", ("tr12-*", "*-176B"), {}, True),
        ("info", ("tr12-*",), {}, False),
        ("info", (), {"quiet": True}, False),
        ("critical", (), {"status": "resolved"}, True),
    ],
)
def test_filter(minimum: Any, runs: tuple[str, ...], changes: dict[str, Any], wanted: bool) -> None:
    """Severity and run decide; a quiet message goes to nobody, and who hears of trouble hears of its end."""
    notifier = Notifier(name="a", minimum_severity=minimum, runs=runs)
    assert notifier.wants(dataclasses.replace(HANG, **changes)) is wanted


# --- delivery ---------------------------------------------------------------------------------------------------------


class Recorder:
    """A receiver in memory: keeps what it is given, fails as scripted, and can be held up."""

    refusal_is_final = False

    def __init__(self, name: str, failures: list[Exception] | None = None) -> None:
        self.name = name
        self.failures = failures or []
        self.messages: list[Transition] = []
        self.entered = threading.Semaphore(0)
        self.free = threading.Event()
        self.free.set()

    def wants(self, message: Transition) -> bool:
        """Whatever is not quiet."""
        return not message.quiet

    def send(self, message: Transition) -> None:
        """Takes the message, or fails as often as scripted."""
        self.entered.release()
        assert self.free.wait(PATIENCE)
        if self.failures:
            raise self.failures.pop(0)
        self.messages.append(message)


class Loop:
    """The daemon's loop, as far as it sends: an outbox, the threads, and a clock of its own."""

    def __init__(self, *recorders: Recorder) -> None:
        self.recorders = recorders
        self.called = threading.Semaphore(0)
        self.deliveries = Deliveries(recorders, SystemClock(), self.called.release, chance=lambda: 0.0)  # type: ignore[arg-type]
        self.outbox = Outbox()
        self.outbox.receivers(one.name for one in recorders)
        self.now = 0.0
        self.deliveries.start()

    def owe(self, *messages: Transition) -> None:
        """As the daemon does, saved at once."""
        for message in messages:
            self.outbox.owe(message, self.deliveries.receivers(message), self.now)
        self.outbox.saved = self.outbox.last

    def turn(self, seconds: float = 0.0, reports: int | None = None) -> None:
        """Hand out what is due, and settle when so many notifiers have reported: all that were handed something."""
        self.now += seconds
        busy = sum(bool(many) for many in self.outbox.owed().values()) if reports is None else reports
        self.deliveries.turn(self.outbox, self.now)
        for _ in range(busy):
            assert self.called.acquire(timeout=PATIENCE)
        self.deliveries._settle(self.outbox, self.now)

    def finish(self, seconds: float = PATIENCE) -> dict[str, int]:
        """End; what is owed then."""
        self.deliveries.finish(self.outbox, self.now, seconds)
        return self.outbox.owed()


@pytest.fixture
def loop() -> Iterator[Callable[..., Loop]]:
    """Makes loops, and lets their receivers go at the end."""
    made: list[Loop] = []

    def make(*recorders: Recorder) -> Loop:
        made.append(Loop(*recorders))
        return made[-1]

    yield make
    for one in made:
        for recorder in one.recorders:
            recorder.free.set()
        one.finish()


def numbered(count: int, **changes: Any) -> list[Transition]:
    """Messages of as many runs."""
    return [dataclasses.replace(HANG, run=f"r{number}", **changes) for number in range(count)]


def outcomes(loop: Loop, name: str = "a") -> dict[str, int]:
    """What is not zero."""
    return {
        what: count for (notifier, what), count in loop.outbox.take_outcomes().items() if notifier == name and count
    }


Make = Callable[..., Loop]


def test_everything_is_sent_in_order(loop: Make) -> None:
    """Messages reach every notifier that wants them, in the order in which they were owed; a quiet one nobody."""
    a, b = Recorder("a"), Recorder("b")
    one, messages = loop(a, b), numbered(5)
    one.owe(*messages, dataclasses.replace(HANG, quiet=True))
    one.turn()
    assert a.messages == b.messages == messages
    assert one.outbox.take_outcomes() == {
        (name, outcome): 5 if outcome == "sent" else 0
        for name in "ab"
        for outcome in ("sent", "retried", "failed", "dropped")
    }


def test_retry_until_it_is_taken(loop: Make) -> None:
    """A failure that may pass is tried again after pauses that double; what is behind waits, and comes after it."""
    a = Recorder("a", [DeliveryError("later", permanent=False) for _ in range(4)])
    one = loop(a)
    one.owe(*numbered(3))
    one.turn()
    for pause in (1.0, 2.0, 4.0):
        one.turn(pause - 0.01, reports=0)
        one.turn(0.01)
    one.turn(8.0)
    assert a.messages == numbered(3)
    assert outcomes(one) == {"sent": 3, "retried": 4}


def test_a_refusal_and_a_bug_hold_nobody_up(loop: Make, caplog: pytest.LogCaptureFixture) -> None:
    """The next message goes out; what was refused is owed. A bug of a notifier is logged with its trace."""
    a = Recorder("a", [DeliveryError("gone", permanent=True), ZeroDivisionError("a bug")])
    one = loop(a)
    one.owe(*numbered(3))
    one.turn()
    assert a.messages == numbered(3)[2:]
    assert one.outbox.owed() == {"a": 2}
    assert "ZeroDivisionError" in caplog.text
    one.turn(300.0)
    assert a.messages == [numbered(3)[2], *numbered(2)]


def test_the_word_of_a_program_is_final(loop: Make) -> None:
    """A program that exits by anything but 0 and 75 has decided: it is not started again."""
    a = Recorder("a", [DeliveryError("exit 3", permanent=True)])
    a.refusal_is_final = Command.refusal_is_final
    one = loop(a)
    one.owe(HANG)
    one.turn()
    assert one.outbox.owed() == {"a": 0}
    assert outcomes(one) == {"failed": 1}


def test_slow_notifier_delays_nobody(loop: Make) -> None:
    """While one receiver hangs, another gets its messages and the loop turns."""
    slow, quick = Recorder("slow"), Recorder("quick")
    slow.free.clear()
    one, messages = loop(slow, quick), numbered(3)
    for message in messages:
        one.owe(message)
        one.turn(reports=1)
    assert quick.messages == messages
    assert slow.messages == []
    slow.free.set()
    assert one.called.acquire(timeout=PATIENCE)
    one.turn()
    assert slow.messages == messages


def test_the_end_tries_each_once(loop: Make) -> None:
    """A pause is cut short by the end: what is taken is delivered, the rest stays owed."""
    later = DeliveryError("later", permanent=False)
    a, b = Recorder("a", [later]), Recorder("b", [later, later])
    one = loop(a, b)
    one.owe(*numbered(2))
    one.turn()
    assert one.finish() == {"a": 0, "b": 2}
    assert a.messages == numbered(2)
    assert len(b.failures) == 0


def test_the_end_leaves_a_hanging_receiver_behind(loop: Make) -> None:
    """It comes in its time though a receiver hangs, and what was handed to that one stays owed."""
    a = Recorder("a")
    a.free.clear()
    one = loop(a)
    one.owe(*numbered(3))
    one.turn(reports=0)
    assert a.entered.acquire(timeout=PATIENCE)
    assert one.finish(0.0) == {"a": 3}


def test_another_configuration_sends_nothing_twice(loop: Make) -> None:
    """What the notifier of before is at is reported by it; the new one goes on with the rest."""
    before, after = Recorder("a"), Recorder("a")
    before.free.clear()
    one = loop(before)
    one.owe(HANG)
    one.turn(reports=0)
    assert before.entered.acquire(timeout=PATIENCE)
    one.deliveries.replace([after], PATIENCE)  # type: ignore[list-item]
    one.owe(*numbered(1))
    one.turn(reports=0)
    before.free.set()
    assert one.called.acquire(timeout=PATIENCE)
    one.turn()
    assert (before.messages, after.messages) == ([HANG], numbered(1))
    assert one.finish() == {"a": 0}


def test_delivery_to_a_webhook_after_a_500(loop: Make, receiver: Receiver) -> None:
    """All together: a receiver that fails once gets the message at the second try, under the same key."""
    receiver.answers = [500, 200]
    notifier = webhook(f"url: '{receiver.url}'")

    class Watched(Recorder):
        def send(self, message: Transition) -> None:
            notifier.send(message)

    one = loop(Watched("chat"))
    one.owe(HANG)
    one.turn()
    one.turn(1.0)
    assert outcomes(one, "chat") == {"sent": 1, "retried": 1}
    assert [body for _, _, body in receiver.received] == [payload(HANG)] * 2
    assert len({headers["Idempotency-Key"] for _, headers, _ in receiver.received} | {payload(HANG)["id"]}) == 1


# --- alertmanager ---------------------------------------------------------------------------------------------------


def alerts(message: Transition) -> dict[str, Any]:
    """Severity -> the alert of that severity."""
    notifier = built("type: alertmanager, url: 'http://127.0.0.1:9/', keep: 2h")
    assert isinstance(notifier, Alertmanager)
    assert notifier._url() == "http://127.0.0.1:9/api/v2/alerts"
    return {alert["labels"]["severity"]: alert for alert in notifier._content(message)}


def test_a_firing_incident_fires_at_its_severity_and_ends_the_others() -> None:
    """An incident that grew worse does not leave its milder alert behind."""
    found = alerts(HANG)
    assert found["critical"]["labels"] == {
        "alertname": "MegatronHang", "run": "tr11-176B", "incident": "hang", "severity": "critical",
    }  # fmt: skip
    assert found["critical"]["startsAt"] == "2023-11-14T22:13:20+00:00"
    assert found["critical"]["endsAt"] == "2023-11-15T00:13:20+00:00"
    assert found["warning"]["endsAt"] == found["info"]["endsAt"] == "2023-11-14T22:13:20+00:00"
    assert found["critical"]["annotations"]["summary"] == HANG.summary
    assert found["critical"]["annotations"]["evidence_silence_seconds"] == "321.5"


def test_a_resolved_incident_ends_every_alert() -> None:
    """Nothing goes on firing."""
    found = alerts(dataclasses.replace(HANG, status="resolved"))
    assert {alert["endsAt"] for alert in found.values()} == {"2023-11-14T22:13:20+00:00"}


# --- command --------------------------------------------------------------------------------------------------------


def test_a_program_is_given_the_object_and_the_facts(tmp_path: Path) -> None:
    """JSON on standard input, the main facts in the environment, its arguments as written."""
    out = tmp_path / "out.json"
    code = (
        "import json,os,sys;json.dump({'in':json.load(sys.stdin),'argv':sys.argv[1:],"
        "'env':{k:v for k,v in os.environ.items() if k.startswith('MEGATRON') and '_REQUIRE_' not in k}},"
        f"open({str(out)!r},'w'))"
    )
    notifier = built(f"type: command, command: [{sys.executable}, -c, {json.dumps(code)}, '$(touch x)']")
    assert isinstance(notifier, Command)
    notifier.send(HANG)
    sent = json.loads(out.read_text())
    assert sent["in"]["evidence"]["silence_seconds"] == 321.5
    assert sent["argv"] == ["$(touch x)"]
    assert sent["env"] == {
        "MEGATRON_RUN": "tr11-176B", "MEGATRON_INCIDENT": "hang", "MEGATRON_STATUS": "firing",
        "MEGATRON_SEVERITY": "critical", "MEGATRON_ITERATION": "4100", "MEGATRON_MESSAGE_ID": message_id(HANG),
    }  # fmt: skip


@pytest.mark.parametrize(("code", "permanent"), [(3, True), (75, False)])
def test_a_program_says_by_its_exit_whether_to_try_again(code: int, permanent: bool) -> None:
    """75 is sysexits' word for a temporary failure."""
    shell = f"echo no pager >&2; exit {code}"
    assert failure(built(f"type: command, command: [sh, -c, {shell!r}]")) == (f"exit {code}: no pager", permanent)


def test_a_program_that_is_not_there() -> None:
    """Said with its name, tried once."""
    assert failure(built("type: command, command: [/no/such/program]")) == (
        "/no/such/program: No such file or directory", True,
    )  # fmt: skip


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """The timeout ends the whole group: a child that holds the pipe open holds nobody up."""
    pid = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {pid}; wait"
    assert failure(built(f"type: command, timeout: 500ms, command: [sh, -c, {script!r}]")) == (
        "not done within 0.5 s", True,
    )  # fmt: skip
    child = Path("/proc") / pid.read_text().strip()
    assert not child.exists() or "Z" in (child / "stat").read_text().rsplit(")", 1)[1]


# --- apprise --------------------------------------------------------------------------------------------------------


class _Library(types.ModuleType):
    """What of Apprise is used, and what it was sent."""

    def __init__(self, answer: bool) -> None:
        super().__init__("apprise")
        self.sent: list[dict[str, str]] = []
        self.addresses: list[str] = []
        library = self

        class Service:
            def add(self, address: str) -> bool:
                library.addresses.append(address)
                return "://" in address

            def notify(self, **fields: str) -> bool:
                library.sent.append(fields)
                return answer

        self.Apprise = Service


@pytest.mark.parametrize(("status", "kind", "title"), [
    ("firing", "failure", "[critical] tr11-176B: hang"), ("resolved", "success", "[resolved] tr11-176B: hang"),
])  # fmt: skip
def test_apprise_is_told_in_words(
    status: Any, kind: str, title: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A title, and a text of facts that a person can act on; the addresses come from a file."""
    library = _Library(True)
    monkeypatch.setitem(sys.modules, "apprise", library)
    urls = tmp_path / "urls"
    urls.write_text("# chat\nslack://token\n\nmailto://x\n")
    notifier = built(f"type: apprise, url_file: {urls}")
    assert isinstance(notifier, Apprise)
    notifier.send(dataclasses.replace(HANG, status=status))
    assert library.addresses == ["slack://token", "mailto://x"]
    (sent,) = library.sent
    assert (sent["title"], sent["notify_type"]) == (title, kind)
    assert sent["body"].splitlines()[0] == HANG.summary
    assert "since iteration: 4099" in sent["body"]
    assert "silence seconds: 321.5" in sent["body"]


def test_apprise_fails_in_three_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not taken may pass; a form that is not known and a package that is missing do not."""
    monkeypatch.setitem(sys.modules, "apprise", _Library(False))
    notifier = built("type: apprise, url_env: CHAT")
    monkeypatch.setenv("CHAT", "slack://t")
    assert failure(notifier) == ("not every address accepted the message", False)
    monkeypatch.setenv("CHAT", "nonsense")
    assert failure(notifier)[1] is True
    monkeypatch.delenv("CHAT")
    assert failure(notifier)[0] == "the environment variable CHAT is not set"
    monkeypatch.setitem(sys.modules, "apprise", None)
    assert "pip install megatron-monitor[apprise]" in failure(notifier)[0]


# --- what is wanted -------------------------------------------------------------------------------------------------


def test_only_the_kinds_that_are_asked_for() -> None:
    """`incidents:` keeps a stack dump for hangs; a kind that does not exist is refused with its path."""
    notifier = built("type: command, command: [a], incidents: [hang]")
    assert notifier.wants(HANG)
    assert not notifier.wants(dataclasses.replace(HANG, incident="crash"))
    with pytest.raises(ConfigError, match=r"notifiers\.0\.incidents\.0: expected one of .*hang"):
        load("notifiers: [{type: command, name: x, command: [a], incidents: [hangs]}]")
