"""Webhooks: what is delivered, refused, and never told of a secret."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from megatron_monitor.notifiers import Notifier, payload
from tests.monitor.notifiers.receiver import HANG, Receiver, built, failure


def webhook(more: str) -> Notifier:
    """The notifier of a configuration text."""
    return built(f"type: webhook, {more}")


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
    for message in (HANG, HANG, replace(HANG, status="resolved")):
        notifier.send(message)
    first, second, other = (headers["Idempotency-Key"] for _, headers, _ in receiver.received)
    assert first == second != other


@pytest.mark.parametrize(
    ("status", "permanent"),
    [(400, True), (404, True), (408, False), (429, False), (503, False)],
)
def test_refusal(receiver: Receiver, status: int, permanent: bool) -> None:
    """A 4xx says that the message or the address is wrong; 408, 429 and 5xx may pass. The first line says why."""
    receiver.answers = [status]
    receiver.says = b"\ninvalid_payload\x1b\nmore"
    message, found = failure(webhook(f"url: '{receiver.url}'"))
    assert message.startswith(f"answered {status} ")
    assert message.endswith(": invalid_payload")
    assert found is permanent


@pytest.mark.parametrize("status", [301, 307])
def test_redirect_is_not_followed(receiver: Receiver, status: int) -> None:
    """A receiver that moved is a permanent failure: nothing is sent to an address that nobody configured."""
    receiver.answers = [status]
    message, permanent = failure(webhook(f"url: '{receiver.url}'"))
    assert "redirects are not followed" in message
    assert permanent
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [(0, "no answer within 0.2 s"), (1, "no HTTP answer: BadStatusLine")],
    ids=["hangs", "is no HTTP"],
)
def test_a_receiver_whose_answer_is_none(receiver: Receiver, answer: int, said: str) -> None:
    """A failure that may pass."""
    receiver.answers = [answer]
    assert failure(webhook(f"url: '{receiver.url}', timeout: 200ms")) == (said, False)


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\nX-A: "], ids=["100 Continue", "a header"])
def test_an_answer_without_end(begin: bytes) -> None:
    """However often something of it comes, the delivery ends with its timeout."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as sender:
        delivery = sender.submit(
            failure, webhook(f"url: 'http://127.0.0.1:{server.getsockname()[1]}/', timeout: 200ms")
        )
        client, _ = server.accept()
        with client, suppress(OSError):
            client.sendall(begin)
            for _ in range(500):
                if delivery.done():
                    break
                client.sendall(b"x" if begin else b"HTTP/1.1 100 Continue\r\n\r\n")
                time.sleep(0.02)
        assert delivery.result() == ("no answer within 0.2 s", False)


def test_nobody_listens() -> None:
    """A refused connection is a failure that may pass."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert failure(webhook(f"url: 'http://127.0.0.1:{port}/'")) == ("no connection: Connection refused", False)


def test_no_tls_at_the_port(receiver: Receiver) -> None:
    """A receiver that speaks no TLS is distinguished from a message that was taken."""
    message, permanent = failure(webhook(f"url: '{receiver.url.replace('http', 'https')}'"))
    assert message.startswith("no connection: ")
    assert not permanent


def test_address_and_header_in_files(receiver: Receiver, tmp_path: Path) -> None:
    """Secrets are read at each delivery, so that renewing them needs no restart. They have priority."""
    url, token = tmp_path / "url", tmp_path / "token"
    notifier = webhook(f"url_file: '{url}', headers: {{authorization: x}}, header_files: {{Authorization: '{token}'}}")
    assert failure(notifier) == (f"{url} cannot be read: No such file or directory", False)
    url.write_text(receiver.url + "\n")
    for secret in ("Bearer one", "Bearer two"):
        token.write_text(secret + "\n")
        notifier.send(HANG)
    assert [headers["Authorization"] for _, headers, _ in receiver.received] == ["Bearer one", "Bearer two"]


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
