"""Access control: basic auth with bcrypt hashes, as in Prometheus's web configuration, and allowed `Host` names.

A bcrypt check takes 60 ms or more, so correct passwords are remembered by a keyed digest. An unknown user takes as long
as a wrong password. One password is checked at a time and few may wait, so guessing cannot use up the CPU.
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address, ip_address

import bcrypt

_MAX_WAITING = 32
_BCRYPT_BYTES = 72  # bcrypt ignores the rest of a password


class TooManyGuessesError(Exception):
    """Too many passwords are waiting to be checked."""


class Auth:
    """Basic auth by bcrypt hashes. `allows` is called in one asyncio thread."""

    def __init__(self, users: Mapping[str, str]) -> None:
        """`users`: name -> bcrypt hash."""
        self._users = {user.encode(): digest.encode() for user, digest in users.items()}
        # for unknown users: takes as long to check as a real hash (22 characters of salt, 31 of hash)
        self._dummy_hash = next(iter(self._users.values()), b"$2b$10$")[:7] + b"." * 53
        self._key = secrets.token_bytes(32)
        self._known: set[bytes] = set()
        self._waiting = 0
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="http passwords")

    async def allows(self, header: str | None) -> bool:
        """Return True if the header holds a user with the right password. TooManyGuessesError."""
        scheme, _, token = (header or "").strip().partition(" ")
        try:
            credentials = base64.b64decode(token.strip(), validate=True) if scheme.lower() == "basic" else b""
        except ValueError:  # invalid base64, or not ASCII
            return False
        user, colon, password = credentials.partition(b":")
        if not colon:
            return False
        digest = self._users.get(user, self._dummy_hash)
        password = password[:_BCRYPT_BYTES]
        parts = b"\0".join(hashlib.sha256(part).digest() for part in (user, digest, password))
        mark = hmac.digest(self._key, parts, "sha256")
        if mark in self._known:
            return True
        if self._waiting >= _MAX_WAITING:
            raise TooManyGuessesError
        self._waiting += 1
        try:
            right = await asyncio.get_running_loop().run_in_executor(self._executor, _check, password, digest)
        finally:
            self._waiting -= 1
        if right and user in self._users:
            self._known.add(mark)
            return True
        return False

    def close(self) -> None:
        """End its thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _check(password: bytes, digest: bytes) -> bool:
    try:
        return bcrypt.checkpw(password, digest)
    except ValueError:  # a NUL in the password, or an invalid salt
        return False


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Return True if only this host can reach the address or name."""
    address = _address(host.partition("%")[0])
    return host == "localhost" or (address is not None and address.is_loopback)


class Hosts:
    """The `Host` names that are allowed, as a protection against DNS rebinding.

    In that attack a web page makes its own name point to 127.0.0.1, and its visitor's browser then sends requests under
    that name. A daemon on a loopback address therefore allows only addresses, localhost, its own names and that of
    `external_url`. On another address every name is allowed.
    """

    def __init__(self, listen: str, address: str, public: str | None = None) -> None:
        """`listen` is the configured host, `address` the resolved one, `public` the page's public name."""
        self._any = not is_loopback(address)
        self._names = {"localhost", socket.gethostname().lower(), listen.lower(), (public or "localhost").lower()}

    def allow(self, header: str | None) -> bool:
        """Return True if the `Host` header is allowed. A browser always sends one, so None is allowed."""
        if self._any or header is None:
            return True
        host = _host_of(header)
        return _address(host) is not None or host in self._names or host.endswith(".localhost")


def _host_of(header: str) -> str:
    """Return the host in lower case, without port and final dot."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")
