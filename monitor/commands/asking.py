"""A client of the daemon's HTTP API, for commands."""

import base64
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit, urlunsplit

DEFAULT = "http://127.0.0.1:9843"
_TIMEOUT = 5.0
_LARGEST_ANSWER = 64 * 1024 * 1024


class DaemonError(Exception):
    """The daemon gave no usable answer; the message names the reason and what to do."""


def ask(address: str, path: str, remedy: str = "") -> dict[str, Any]:
    """Return the JSON answer of the daemon at `address`: a URL or HOST:PORT, possibly with user:password@.

    Raises DaemonError; if the daemon cannot be reached, its message ends with `remedy`.
    """
    parts = urlsplit(address if "://" in address else f"http://{address}")
    bare = without_password(urlunsplit(parts._replace(query="", fragment="")))
    request = urllib.request.Request(bare.rstrip("/") + path)  # noqa: S310 - only http and https come here
    if parts.username:
        secret = f"{parts.username}:{parts.password or ''}".encode()
        request.add_header("Authorization", f"Basic {base64.b64encode(secret).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310 - as above
            value = json.loads(answer.read(_LARGEST_ANSWER))
    except urllib.error.HTTPError as error:
        raise DaemonError(f"{bare} answers {error.code} {error.reason}") from error
    except (OSError, ValueError) as error:
        raise DaemonError(f"no monitor at {bare}: {getattr(error, 'reason', error)}{remedy}") from error
    if not isinstance(value, dict):
        raise DaemonError(f"{bare} is not a megatron-monitor of this version")
    return value


def without_password(address: str) -> str:
    """Return the address without user and password, for display."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
