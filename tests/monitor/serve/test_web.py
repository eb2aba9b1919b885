"""TLS and basic auth: who gets in, who does not, what it costs, and certificates that change."""

import base64
import hashlib
import http.client
import socket
import ssl
import struct
import time
from contextlib import ExitStack
from pathlib import Path

import bcrypt
import pytest

from megatron_monitor.config.schema import TlsServer
from megatron_monitor.serve.auth import Auth
from megatron_monitor.serve.server import HttpServer
from megatron_monitor.serve.tls import Tls, TlsError
from tests.monitor.serve.conftest import Certificates, Serve, ask
from tests.programs import slack, wait

HASH = bcrypt.hashpw(b"correct horse", bcrypt.gensalt(10)).decode().replace("$2b$", "$2y$")


def basic(user: str, password: str) -> dict[str, str]:
    """The header."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def tls_server(certificates: Certificates, **settings: str) -> TlsServer:
    """The configuration of the certificates."""
    return TlsServer(cert_file=str(certificates.cert), key_file=str(certificates.key), **settings)  # type: ignore[arg-type]


def client(certificates: Certificates, **versions: ssl.TLSVersion) -> ssl.SSLContext:
    """A client that trusts our authority."""
    context = ssl.create_default_context(cafile=str(certificates.ca))
    for name, version in versions.items():
        setattr(context, name, version)
    return context


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (basic("prometheus", "correct horse"), 200),
        (basic("prometheus", "wrong horse"), 401),
        (basic("prometheus", ""), 401),
        (basic("prometheus", "correct horse\0"), 401),
        (basic("nobody", "correct horse"), 401),
        (basic("", ""), 401),
        ({}, 401),
        ({"Authorization": "Basic ====="}, 401),
        ({"Authorization": "Basic " + base64.b64encode(b"\xff\xfe").decode()}, 401),
        ({"Authorization": "Bearer correct horse"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Basic"}, 401),
    ],
)
def test_who_is_let_in(serve: Serve, headers: dict[str, str], status: int) -> None:
    """The right user with the right password, and nobody else."""
    server = serve()
    server.auth = Auth({"prometheus": HASH}).allows
    assert ask(server, **headers).status == status
    assert ask(server, **headers).status == status  # by memory


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The hashes that bcrypt was asked about."""
    hashes: list[bytes] = []
    real = bcrypt.checkpw

    def check(password: bytes, digest: bytes) -> bool:
        hashes.append(digest)
        return real(password, digest)

    monkeypatch.setattr(bcrypt, "checkpw", check)
    return hashes


def test_a_scrape_pays_for_bcrypt_once(serve: Serve, checked: list[bytes]) -> None:
    """The first request costs what bcrypt costs, the others nothing; a wrong password costs each time."""
    server = serve()
    server.auth = Auth({"prometheus": HASH}).allows
    for _ in range(5):
        assert ask(server, **basic("prometheus", "correct horse")).status == 200
        assert ask(server, **basic("prometheus", "wrong horse")).status == 401
    assert len(checked) == 1 + 5


def test_an_unknown_user_costs_what_a_wrong_password_costs(serve: Serve, checked: list[bytes]) -> None:
    """Bcrypt runs for both, with the same cost: the time does not reveal which users exist."""
    server = serve()
    server.auth = Auth({"prometheus": bcrypt.hashpw(b"pass", bcrypt.gensalt(5)).decode()}).allows
    assert ask(server, **basic("prometheus", "guess")).status == 401
    assert ask(server, **basic("nobody", "guess")).status == 401
    assert [digest[:7] for digest in checked] == [b"$2b$05$", b"$2b$05$"]
    assert bcrypt.checkpw(b"guess", checked[1]) is False  # a hash as long as a real one


def test_a_flood_of_guesses_is_bounded(serve: Serve) -> None:
    """Of many guesses at once few wait; known users get in meanwhile."""
    server = serve()
    server.auth = Auth({"prometheus": bcrypt.hashpw(b"pass", bcrypt.gensalt(12)).decode()}).allows
    assert ask(server, **basic("prometheus", "pass")).status == 200
    with ExitStack() as stack:
        for number in range(100):
            guess = stack.enter_context(socket.create_connection(server.address, timeout=slack(10)))
            header = basic("prometheus", f"guess {number}")["Authorization"]
            guess.sendall(f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: {header}\r\n\r\n".encode())
        began = time.perf_counter()
        assert ask(server, **basic("prometheus", "pass")).status == 200
        assert time.perf_counter() - began < slack(5.0)


def test_who_leaves_while_the_password_is_checked(serve: Serve) -> None:
    """Leaves nothing behind, though the password was right."""
    server = serve()
    auth = Auth({"prometheus": bcrypt.hashpw(b"pass", bcrypt.gensalt(12)).decode()})
    server.auth = auth.allows
    header = basic("prometheus", "pass")["Authorization"]
    for _ in range(3):
        with socket.create_connection(server.address, timeout=10) as leaving:
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # by a reset
            leaving.sendall(f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: {header}\r\n\r\n".encode())
            wait(lambda: len(server.open) == 1, 2.0, "the request is there")
    wait(lambda: bool(auth._known), 10.0, "the password is checked")
    wait(lambda: len(server.open) == 0, 2.0, "no connection is left")


def test_a_long_password_and_a_hash_of_the_old_prefix(serve: Serve) -> None:
    """Bcrypt looks at 72 bytes; a longer password is no error. $2a$ and $2y$ are the same hash."""
    password = "p" * 100
    server = serve()
    server.auth = Auth({"u": bcrypt.hashpw(b"p" * 72, bcrypt.gensalt(4, b"2a")).decode()}).allows
    assert ask(server, **basic("u", password)).status == 200


def test_tls_versions(serve: Serve, certificates: Certificates) -> None:
    """TLS 1.2 and 1.3, nothing older."""
    server = serve()
    server.tls = Tls(tls_server(certificates))
    assert ask(server, tls=client(certificates)).status == 200
    assert ask(server, tls=client(certificates, maximum_version=ssl.TLSVersion.TLSv1_2)).status == 200
    assert Tls(tls_server(certificates)).context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_silent_tls_clients_block_nobody(serve: Serve, certificates: Certificates) -> None:
    """100 clients that never shake hands: a scrape is answered at once, and they are dropped."""
    server = serve(handshake=1.0)
    server.tls = Tls(tls_server(certificates))
    context = client(certificates)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(server.address, timeout=slack(10))) for _ in range(100)]
        began = time.perf_counter()
        assert ask(server, tls=context).status == 200
        assert time.perf_counter() - began < slack(1.0)
        assert silent[0].recv(10) == b""


def test_plain_http_on_the_tls_port_is_refused(serve: Serve, certificates: Certificates) -> None:
    """And the next TLS client is served."""
    server = serve()
    server.tls = Tls(tls_server(certificates))
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(server)
    assert ask(server, tls=client(certificates)).status == 200


def test_client_certificates(serve: Serve, certificates: Certificates, tmp_path: Path) -> None:
    """With `client_ca_file` only who shows a certificate of our authority gets in."""
    mine = certificates.authority.issue_cert("client")
    mine.private_key_pem.write_to_path(str(tmp_path / "client.key"))
    mine.cert_chain_pems[0].write_to_path(str(tmp_path / "client.crt"))
    known = client(certificates)
    known.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
    server = serve()
    server.tls = Tls(tls_server(certificates, client_ca_file=str(certificates.ca)))
    assert ask(server, tls=known).status == 200
    with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
        ask(server, tls=client(certificates))


def served_certificate(server: HttpServer) -> str:
    """The digest of what a client is shown."""
    shown = ssl.get_server_certificate(server.address)
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(shown)).hexdigest()


def test_certificates_are_read_again(serve: Serve, certificates: Certificates) -> None:
    """A renewed certificate is served within a second; one that is broken leaves the old one in place."""
    server = serve(certificates=0.1)
    server.tls = Tls(tls_server(certificates))
    first = served_certificate(server)
    renewed = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificates.renew().decode())).hexdigest()
    until = time.perf_counter() + 5
    while served_certificate(server) == first and time.perf_counter() < until:
        time.sleep(0.02)
    assert served_certificate(server) == renewed != first
    certificates.cert.write_text("no certificate")
    time.sleep(0.5)
    assert served_certificate(server) == renewed
    certificates.cert.unlink()
    time.sleep(0.3)
    assert served_certificate(server) == renewed


def test_certificates_that_cannot_be_used(certificates: Certificates, tmp_path: Path) -> None:
    """The error names the file."""
    certificates.key.write_text("no key")
    with pytest.raises(TlsError, match=r"tls\.key"):
        Tls(tls_server(certificates))
    with pytest.raises(TlsError, match="No such file"):
        Tls(TlsServer(cert_file=str(tmp_path / "none"), key_file=str(tmp_path / "none")))
