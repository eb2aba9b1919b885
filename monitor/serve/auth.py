"""Who may ask: basic auth against bcrypt hashes, as Prometheus's web configuration has them; and under which `Host`.

A check of a password costs what bcrypt costs (60 ms and more, on purpose), so right ones are remembered by a keyed
digest: a scrape pays once. A user that does not exist costs the same as a wrong password. One password is checked at a
time, and few may wait: guessing cannot take the machine.
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Protocol

import bcrypt

_WAITING = 32
_LONGEST = 72  # bytes that bcrypt looks at


class TooManyGuessesError(Exception):
    """More passwords wait to be checked than may."""


class Authority(Protocol):
    """Knows who may ask."""

    async def allows(self, header: str | None) -> bool:
        """By the header `Authorization`. TooManyGuessesError."""
        ...

    def close(self) -> None:
        """End its threads."""
        ...


class Auth:
    """Users, by the hashes of their passwords. `allows` is called in one asyncio thread."""

    def __init__(self, users: Mapping[str, str]) -> None:
        """`users`: name -> bcrypt hash."""
        self._users = {user.encode(): digest.encode() for user, digest in users.items()}
        some = next(iter(self._users.values()), b"$2b$10$")
        # Costs as much to check as a real one: 22 characters of salt, 31 of hash.
        self._dummy_hash = some[:7] + b"." * 53
        self._key = secrets.token_bytes(32)
        self._known: set[bytes] = set()
        self._waiting = 0
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="http passwords")

    async def allows(self, header: str | None) -> bool:
        """Whether `Authorization` holds a user with the right password. TooManyGuessesError."""
        scheme, _, token = (header or "").strip().partition(" ")
        try:
            credentials = base64.b64decode(token.strip(), validate=True) if scheme.lower() == "basic" else b""
        except ValueError:  # no base64, or no ASCII
            return False
        user, colon, password = credentials.partition(b":")
        if not colon:
            return False
        digest = self._users.get(user, self._dummy_hash)
        password = password[:_LONGEST]
        parts = b"\0".join(hashlib.sha256(part).digest() for part in (user, digest, password))
        mark = hmac.digest(self._key, parts, "sha256")
        if mark in self._known:
            return True
        if self._waiting >= _WAITING:
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
    except ValueError:  # a NUL in the password, or a salt that is none
        return False


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Does this address, or the name of one, let nobody in but this host's own users?"""
    address = _address(host.partition("%")[0])
    return host == "localhost" or (address is not None and address.is_loopback)


class Hosts:
    """The names that a request may be for: a page on the internet must not read a daemon through its visitor's browser.

    Such a page lets its own name point to 127.0.0.1 (DNS rebinding); the browser then asks us under that name. So on a
    loopback address only addresses, localhost, the name that is listened on and `web.allowed_hosts` pass. Beyond
    loopback every name may be this host's: there all pass until `web.allowed_hosts` says which.
    """

    def __init__(self, listen: str, address: str, allowed: Sequence[str] = (), public: str | None = None) -> None:
        """`listen`: the host as configured, `address`: the one that is listened on, `allowed`: globs over names,
        `public`: the name under which people reach the page.
        """
        self._any = not allowed and not is_loopback(address)
        self._names = ["localhost", "*.localhost", socket.gethostname().lower()]
        self._names += [name.lower() for name in (listen, public, *allowed) if name]

    def allow(self, header: str | None) -> bool:
        """Whether the request may be answered. Who sends no Host is no browser."""
        if self._any or header is None:
            return True
        host = _host_of(header)
        return _address(host) is not None or any(fnmatchcase(host, name) for name in self._names)


def _host_of(header: str) -> str:
    """Without the port, in lower case, without the dot that may end a name."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")
