"""What commands ask a daemon: JSON of its API over HTTP."""

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
    """Nothing can be shown; the message names the reason and a remedy."""


def ask(address: str, path: str, remedy: str = "") -> dict[str, Any]:
    """The answer of the daemon at `address` (a URL, or HOST:PORT), where a user and a password may stand in it.

    Raises DaemonError, with the `remedy` where nobody answers.
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
        raise DaemonError(f"{bare} is no megatron-monitor of this version")
    return value


def without_password(address: str) -> str:
    """The address as it may be shown."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
