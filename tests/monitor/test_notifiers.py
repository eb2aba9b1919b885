"""Notifiers: what each sends and how it fails, and the queue that keeps slow receivers from everyone else."""

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
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.clock import ManualClock, SystemClock
from monitor.config import ConfigError, load
from monitor.incidents import Transition
from monitor.notifiers import (
    DeliveryError,
    NotificationQueue,
    Notifier,
    Retry,
    payload,
)
from monitor.notifiers.alertmanager import Alertmanager
from monitor.notifiers.apprise import Apprise
from monitor.notifiers.command import Command
from monitor.notifiers.webhook import Webhook

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
    """The object is that of `replay --json` and a version."""
    assert payload(HANG) == {"version": "1", **HANG.to_json()}
    assert {"run", "incident", "status", "severity", "time", "summary", "evidence"} <= payload(HANG).keys()


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


# --- queue ------------------------------------------------------------------------------------------------------------


class Recorder:
    """A receiver in memory: keeps what it is given, fails as scripted, and can be held up."""

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


class Waits:
    """Stands for waiting between tries: notes how long, and takes no time; can wait for the stop instead."""

    def __init__(self, until_stop: bool = False) -> None:
        self.seconds: list[float] = []
        self.until_stop = until_stop
        self.begun = threading.Event()

    def __call__(self, stop: threading.Event, seconds: float) -> None:
        """Waits, or does not."""
        self.seconds.append(seconds)
        self.begun.set()
        if self.until_stop:
            assert stop.wait(PATIENCE)


Make = Callable[..., NotificationQueue]


@pytest.fixture
def queue() -> Iterator[Make]:
    """Makes queues, and stops them at the end."""
    made: list[tuple[NotificationQueue, list[Recorder]]] = []

    def make(*recorders: Recorder, capacity: int = 10, **more: Any) -> NotificationQueue:
        one = NotificationQueue(
            recorders, capacity, clock=SystemClock(), **{"chance": lambda: 0.0, "wait": Waits(), **more}
        )
        made.append((one, list(recorders)))
        return one

    yield make
    for one, recorders in made:
        for recorder in recorders:
            recorder.free.set()
        one.stop(PATIENCE)


def numbered(count: int, **changes: Any) -> list[Transition]:
    """Messages that differ in their iteration."""
    return [dataclasses.replace(HANG, iteration=number, **changes) for number in range(count)]


def outcomes(queue: NotificationQueue, name: str = "a") -> dict[str, int]:
    """What is not zero."""
    return {outcome: count for (notifier, outcome), count in queue.counts().items() if notifier == name and count}


def test_everything_is_sent_in_order(queue: Make) -> None:
    """Messages reach every notifier, in the order in which they were put."""
    a, b = Recorder("a"), Recorder("b")
    one = queue(a, b)
    one.start()
    messages = numbered(5)
    for message in messages:
        one.put(message)
    one.stop(PATIENCE)
    assert a.messages == b.messages == messages
    assert one.counts() == {
        (name, outcome): 5 if outcome == "sent" else 0
        for name in "ab"
        for outcome in ("sent", "retried", "failed", "dropped")
    }


def test_retry_until_it_is_taken(queue: Make) -> None:
    """A failure that may pass is tried again, after pauses that double and are bounded."""
    waits = Waits()
    a = Recorder("a", [DeliveryError("later", permanent=False) for _ in range(4)])
    one = queue(a, wait=waits, retry=Retry(attempts=10, first_delay=1.0, longest_delay=5.0))
    one.start()
    one.put(HANG)
    for _ in range(5):
        assert a.entered.acquire(timeout=PATIENCE)
    one.stop(PATIENCE)
    assert a.messages == [HANG]
    assert outcomes(one) == {"sent": 1, "retried": 4}
    assert waits.seconds == [1.0, 2.0, 4.0, 5.0]


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_delay_is_bounded(attempt: int, chance: float) -> None:
    """No pause is longer than the longest, nor shorter than half the first."""
    assert 0.5 <= Retry().delay(attempt, chance) <= 60.0


def test_jitter_spreads_the_tries(queue: Make) -> None:
    """The chance that is given in shortens a pause by up to half."""
    waits = Waits()
    a = Recorder("a", [DeliveryError("later", permanent=False)])
    one = queue(a, wait=waits, chance=lambda: 0.5)
    one.start()
    one.put(HANG)
    assert a.entered.acquire(timeout=PATIENCE)
    assert a.entered.acquire(timeout=PATIENCE)
    assert waits.seconds == [0.75]


def test_permanent_failure_is_not_tried_again(queue: Make) -> None:
    """What no repetition will change is given up at once, and the next message goes out."""
    a = Recorder("a", [DeliveryError("gone", permanent=True)])
    one = queue(a)
    first, second = numbered(2)
    one.start()
    one.put(first)
    one.put(second)
    one.stop(PATIENCE)
    assert a.messages == [second]
    assert outcomes(one) == {"failed": 1, "sent": 1}


def test_giving_up(queue: Make) -> None:
    """After the last try the message has failed, and the next one gets its chance."""
    a = Recorder("a", [DeliveryError("later", permanent=False) for _ in range(3)])
    one = queue(a, retry=Retry(attempts=3))
    first, second = numbered(2)
    one.start()
    one.put(first)
    for _ in range(3):
        assert a.entered.acquire(timeout=PATIENCE)
    one.put(second)
    assert a.entered.acquire(timeout=PATIENCE)
    one.stop(PATIENCE)
    assert a.messages == [second]
    assert outcomes(one) == {"failed": 1, "retried": 2, "sent": 1}


def test_bug_in_a_notifier(queue: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Any other exception of a notifier is logged with its trace, counted, and kills nothing."""
    a = Recorder("a", [ZeroDivisionError("a bug")])
    one = queue(a)
    first, second = numbered(2)
    one.start()
    one.put(first)
    one.put(second)
    one.stop(PATIENCE)
    assert a.messages == [second]
    assert outcomes(one) == {"failed": 1, "sent": 1}
    assert "ZeroDivisionError" in caplog.text


def test_slow_notifier_delays_nobody(queue: Make) -> None:
    """While one receiver hangs, another gets its messages and `put` returns."""
    slow, quick = Recorder("slow"), Recorder("quick")
    slow.free.clear()
    one = queue(slow, quick)
    one.start()
    messages = numbered(3)
    for message in messages:
        one.put(message)
    for _ in messages:
        assert quick.entered.acquire(timeout=PATIENCE)
    assert slow.messages == []
    slow.free.set()
    one.stop(PATIENCE)
    assert quick.messages == slow.messages == messages


def test_full_queue_drops_the_oldest_of_the_quietest(queue: Make) -> None:
    """Of more messages than fit the oldest of the lowest severity goes, be it the new one, and is counted."""
    a = Recorder("a")
    one = queue(a, capacity=3)
    loud, other = numbered(2)
    quiet, newer = numbered(2, severity="warning")
    for message in (loud, quiet, newer, other):
        one.put(message)
    one.put(dataclasses.replace(HANG, severity="info"))
    one.start()
    one.stop(PATIENCE)
    assert a.messages == [loud, newer, other]
    assert outcomes(one) == {"sent": 3, "dropped": 2}


def test_full_queue_of_equals_drops_the_oldest(queue: Make) -> None:
    """Among equally loud messages the newest are kept."""
    a = Recorder("a")
    one = queue(a, capacity=2)
    messages = numbered(5)
    for message in messages:
        one.put(message)
    one.start()
    one.stop(PATIENCE)
    assert a.messages == messages[-2:]
    assert outcomes(one) == {"sent": 2, "dropped": 3}


def test_stop_cuts_a_pause_short(queue: Make) -> None:
    """A delivery that waits for its next try gets one last try at the stop."""
    waits = Waits(until_stop=True)
    a = Recorder("a", [DeliveryError("later", permanent=False)])
    one = queue(a, wait=waits)
    one.start()
    one.put(HANG)
    assert waits.begun.wait(PATIENCE)
    one.stop(PATIENCE)
    assert a.messages == [HANG]
    assert outcomes(one) == {"retried": 1, "sent": 1}


def test_stop_tries_each_message_once(queue: Make) -> None:
    """A receiver that is down does not hold up the end: each waiting message gets one try."""
    waits = Waits(until_stop=True)
    a = Recorder("a", [DeliveryError("later", permanent=False) for _ in range(10)])
    one = queue(a, wait=waits)
    one.start()
    for message in numbered(3):
        one.put(message)
    assert waits.begun.wait(PATIENCE)
    one.stop(PATIENCE)
    assert outcomes(one) == {"retried": 1, "failed": 3}
    assert len(a.failures) == 6


def test_stop_leaves_a_hanging_receiver_behind(queue: Make) -> None:
    """The stop ends in its time though a receiver hangs, and what could not be sent is counted as dropped."""
    a = Recorder("a")
    a.free.clear()
    one = queue(a)
    one.start()
    for message in numbered(3):
        one.put(message)
    assert a.entered.acquire(timeout=PATIENCE)
    one.stop(0.0)
    assert outcomes(one) == {"dropped": 2}


def test_put_after_stop(queue: Make) -> None:
    """A message that comes too late is counted as dropped."""
    a = Recorder("a")
    one = queue(a)
    one.start()
    one.stop(PATIENCE)
    one.put(HANG)
    assert a.messages == []
    assert outcomes(one) == {"dropped": 1}


def test_stop_without_start() -> None:
    """A queue whose threads never ran can be stopped, by any clock."""
    one = NotificationQueue([Recorder("a")], 10, clock=ManualClock())
    one.put(HANG)
    one.stop(1.0)
    assert outcomes(one) == {"dropped": 1}


def test_unwanted_message_is_not_counted(queue: Make) -> None:
    """A message that a notifier does not want is no outcome of it."""
    a = Recorder("a")
    one = queue(a)
    one.start()
    one.put(dataclasses.replace(HANG, quiet=True))
    one.stop(PATIENCE)
    assert a.messages == []
    assert outcomes(one) == {}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(["info", "warning", "critical"]), max_size=12),
    st.lists(st.sampled_from([None, False, True]), max_size=20),
    st.integers(1, 4),
)
def test_every_message_ends_once(severities: list[str], failures: list[bool | None], capacity: int) -> None:
    """However deliveries fail, each message is in exactly one of sent, failed and dropped."""
    a = Recorder("a", [])
    faults = [DeliveryError("x", permanent=fault) if fault is not None else None for fault in failures]

    class Faulty(Recorder):
        def send(self, message: Transition) -> None:
            fault = faults.pop(0) if faults else None
            if fault is not None:
                raise fault
            a.send(message)

    one = NotificationQueue([Faulty("a")], capacity, clock=SystemClock(), retry=Retry(attempts=3), wait=Waits())
    one.start()
    for severity in severities:
        one.put(dataclasses.replace(HANG, severity=severity))  # type: ignore[arg-type]
    one.stop(PATIENCE)
    counts = one.counts()
    assert sum(counts["a", outcome] for outcome in ("sent", "failed", "dropped")) == len(severities)
    assert counts["a", "sent"] == len(a.messages)


def test_queue_delivers_to_a_webhook_after_a_500(receiver: Receiver) -> None:
    """All together: a receiver that fails once gets the message at the second try."""
    receiver.answers = [500, 200]
    arrived = threading.Event()
    notifier = webhook(f"url: '{receiver.url}'")

    class Watched(Recorder):
        def send(self, message: Transition) -> None:
            notifier.send(message)
            arrived.set()

    one = NotificationQueue([Watched("chat")], 10, clock=SystemClock(), wait=Waits())
    one.start()
    one.put(HANG)
    assert arrived.wait(PATIENCE)
    one.stop(PATIENCE)
    assert outcomes(one, "chat") == {"sent": 1, "retried": 1}
    assert [body for _, _, body in receiver.received] == [payload(HANG)] * 2


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
        "MEGATRON_SEVERITY": "critical", "MEGATRON_ITERATION": "4100",
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
