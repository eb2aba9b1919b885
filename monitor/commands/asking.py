"""A client of the daemon's HTTP API, for commands."""

import base64
import json
import re
import socket
from collections.abc import Collection
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

DEFAULT = "http://127.0.0.1:9843"
_TIMEOUT = 5.0
_LARGEST_ANSWER = 64 * 1024 * 1024
_ROW = re.compile(r"\s*\d+: \S+:(\w+) \S+:(\w+) 01 \S+ \S+ \S+ +(\d+) ", re.ASCII)
"""Of an established connection in /proc/net/tcp: its own port, the other port, the user id of its process."""


class DaemonError(Exception):
    """The daemon gave no usable answer; the message names the reason and what to do."""


def ask(address: str, path: str, owners: Collection[int] = ()) -> dict[str, Any]:
    """Return the JSON answer of the daemon at `address`: a URL or HOST:PORT, possibly with user:password@.

    `owners`: user ids, one of which must run the daemon if it is on this host. Empty: any user may. Raises DaemonError.
    """
    parts = urlsplit(address if "://" in address else f"http://{address}")
    bare = without_password(urlunsplit(parts._replace(query="", fragment="")))
    headers = {}
    if parts.username:
        secret = f"{parts.username}:{parts.password or ''}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(secret).decode()}"
    try:
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        with closing(kind(parts.hostname or "", parts.port, timeout=_TIMEOUT)) as connection:
            connection.connect()
            peer = connection.sock.getpeername()[0]
            is_local = peer == connection.sock.getsockname()[0] or ip_address(peer).is_loopback
            connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
            answer = connection.getresponse()
            body = answer.read(_LARGEST_ANSWER)
            if owners and is_local and (others := owners_of_peer(connection.sock) - {*owners}):
                raise DaemonError(f"{bare} is answered by uid {others.pop()}, who does not own the monitor's state_dir")
        if answer.status != 200:
            raise DaemonError(f"{bare} answers {answer.status} {answer.reason}")
        value = json.loads(body)
    except (OSError, ValueError, HTTPException) as error:
        raise DaemonError(f"no monitor at {bare}: {error}; name the URL of a monitor") from error
    if not isinstance(value, dict):
        raise DaemonError(f"{bare} is not a megatron-monitor of this version")
    return value


def owners_of_peer(connection: socket.socket | None) -> set[int]:
    """Return the user ids of the processes at the other end of a connection within this host; {-1} if unknown.

    The connection must still be established and accepted: the system shows others as root's.
    """
    if connection is None:
        return {-1}
    own, other = (f"{name[1]:04X}" for name in (connection.getsockname(), connection.getpeername()))
    text = "".join(Path(f"/proc/net/{table}").read_text("ascii") for table in ("tcp", "tcp6"))
    found = {int(row[3]) for row in map(_ROW.match, text.splitlines()) if row and (row[1], row[2]) == (other, own)}
    return found or {-1}


def without_password(address: str) -> str:
    """Return the address without user and password, for display."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
