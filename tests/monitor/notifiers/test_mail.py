"""Mail: what an SMTP server is told, and what its answers mean."""

import base64
import email
import email.policy
import socketserver
import ssl
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path

import pytest
import trustme
from msgspec.structs import replace

from megatron_monitor.config import ConfigError, load
from megatron_monitor.notifiers import mail
from tests.monitor.notifiers.receiver import HANG, built, failure
from tests.programs import serving


class Server(socketserver.ThreadingTCPServer):
    """An SMTP server of one mail per connection. `answers`: the start of a command to the answer of it."""

    daemon_threads = True
    context: ssl.SSLContext | None = None
    """With a certificate: it offers STARTTLS, and AUTH afterwards."""
    at_once = False
    """Whether it speaks TLS from the beginning."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.host = f"127.0.0.1:{self.server_address[1]}"
        """HOST:PORT."""
        self.answers: dict[str, str] = {}
        self.told: list[str] = []
        self.mails: list[EmailMessage] = []


class _Session(socketserver.StreamRequestHandler):
    server: Server

    def encrypt(self) -> None:
        assert self.server.context is not None
        self.connection = self.server.context.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", buffering=0)

    def handle(self) -> None:
        encrypted = self.server.at_once
        if encrypted:
            self.encrypt()
        self.say("220 ready")
        while command := self.rfile.readline().decode().strip():
            verb, _, rest = command.partition(" ")
            verb, command = verb.upper(), f"{verb.upper()} {rest}"
            self.server.told.append(command)
            scripted = next((text for start, text in self.server.answers.items() if command.startswith(start)), None)
            if verb == "EHLO":
                offers = "AUTH PLAIN" if encrypted else "STARTTLS" if self.server.context else "8BITMIME"
                self.say(f"250-hello\r\n250 {offers}")
            elif scripted or verb == "QUIT":
                self.say(scripted or "221 bye")
            elif verb == "STARTTLS":
                self.say("220 go")
                self.encrypt()
                encrypted = True
            elif verb == "DATA":
                self.say("354 go")
                lines = iter(self.rfile.readline, b".\r\n")
                self.server.mails.append(email.message_from_bytes(b"".join(lines), policy=email.policy.default))
                self.say("250 2.0.0 queued as 4711")
            else:
                self.say("235 yes" if verb == "AUTH" else "250 ok")

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@pytest.fixture
def server() -> Iterator[Server]:
    """A running server."""
    with serving(Server()) as started:
        yield started


@pytest.fixture
def secure(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    """One with a certificate that this process trusts, and the password in a file."""
    authority = trustme.CA()
    server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server.context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    (tmp_path / "password").write_text("hunter2\n")
    return server


def text_of(server: Server, more: str = "", to: str = "on-call@example.org") -> str:
    """The configuration of the notifier."""
    return f"type: email, host: '{server.host}', from: monitor@example.org, to: [{to}]{more}"


def test_a_mail(server: Server) -> None:
    """Title, text, one identity for each try, and no answer by a program wanted."""
    notifier = built(text_of(server, to="a@example.org, b@example.org"))
    message = replace(HANG, run="tr11-ü", summary="hung \udcff 火", evidence={"last_line": "x" * 70_000})
    assert [notifier.send(message), notifier.send(message)] == ["accepted"] * 2
    first, second = server.mails
    assert first["Subject"] == "[critical] tr11-ü: hang"
    assert (first["From"], first["To"]) == ("monitor@example.org", "a@example.org, b@example.org")
    assert first["Message-ID"] == second["Message-ID"]
    assert first["Auto-Submitted"] == "auto-generated"
    assert first.get_content().splitlines()[:3] == ["hung   火", "", "phase: training"]
    assert server.told.count("RCPT TO:<b@example.org>") == 2
    assert not any(line.startswith(("AUTH", "STARTTLS")) for line in server.told)


@pytest.mark.parametrize("at_once", [False, True], ids=["STARTTLS", "port 465"])
def test_a_password_is_sent_encrypted(
    at_once: bool, secure: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After STARTTLS, or on a connection that is encrypted from the beginning."""
    if at_once:
        secure.at_once = True
        monkeypatch.setattr(mail, "_TLS_PORT", secure.server_address[1])
    built(text_of(secure, f", user: me, password_file: '{tmp_path / 'password'}'")).send(HANG)
    (auth,) = [line for line in secure.told if line.startswith("AUTH")]
    assert base64.b64decode(auth.split()[-1]) == b"\0me\0hunter2"
    assert ("STARTTLS " in secure.told) != at_once


@pytest.mark.parametrize("fault", ["no STARTTLS", "unknown authority"])
def test_a_password_is_never_sent_in_clear(
    fault: str, secure: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither to a server without encryption nor to one whose certificate nobody vouches for."""
    if fault == "no STARTTLS":
        secure.context = None
    else:
        monkeypatch.delenv("SSL_CERT_FILE")
    said, permanent = failure(built(text_of(secure, f", user: me, password_file: '{tmp_path / 'password'}'")))
    assert ("STARTTLS extension not supported" if secure.context is None else "CERTIFICATE_VERIFY_FAILED") in said
    assert permanent == (secure.context is None)
    assert not any(line.startswith("AUTH") for line in secure.told)


@pytest.mark.parametrize(
    ("command", "answer", "permanent"),
    [
        ("MAIL FROM", "550 5.7.1 sender is unknown", True),
        ("RCPT TO", "550 5.1.1 no such user", True),
        ("RCPT TO", "450 4.2.1 greylisted", False),
        ("DATA", "554 5.7.1 no", True),
        ("DATA", "421 4.3.2 restart", False),
    ],
)
def test_a_refusal(server: Server, command: str, answer: str, permanent: bool) -> None:
    """The server's own words; 5xx does not pass by itself."""
    server.answers = {command: answer}
    assert failure(built(text_of(server))) == (answer, permanent)


def test_one_wrong_address_does_not_hold_up_the_others(server: Server) -> None:
    """The mail is sent, and the refused address reported."""
    server.answers = {"RCPT TO:<gone": "550 no such user"}
    answer = built(text_of(server, to="gone@example.org, on-call@example.org")).send(HANG)
    assert answer == "accepted\nrefused gone@example.org: 550 no such user"
    assert len(server.mails) == 1


def test_an_accepted_mail_stays_accepted(server: Server) -> None:
    """A failure after it, at QUIT, does not send the mail again."""
    server.answers = {"QUIT": "500 what"}
    assert "accepted" in built(text_of(server)).send(HANG)


def test_nobody_listens() -> None:
    """It may pass."""
    with Server() as closed:
        text = text_of(closed)
    assert failure(built(text)) == (f"no answer of {closed.host}: Connection refused", False)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("to: [on-call]", "notifiers.0.to.0: expected a mail address such as on-call@example.org, got 'on-call'"),
        ("to: ['a@b\\nBcc: x@y']", "notifiers.0.to.0: expected a mail address"),
        ("to: [a@b], user: me", "notifiers.0: user and password_file belong together"),
    ],
)
def test_a_mistake_in_the_configuration(more: str, problem: str) -> None:
    """It is refused at the start."""
    with pytest.raises(ConfigError) as caught:
        load(f"notifiers: [{{type: email, name: x, host: 'h:25', from: a@b, {more}}}]")
    assert problem in str(caught.value)
