"""Which `Host` a request may name: a page on the internet must not read a daemon through its visitor's browser.

Such a page lets its own name point to 127.0.0.1 (DNS rebinding); the browser then asks us under that name. So on a
loopback address only addresses, localhost, the name that is listened on and `web.allowed_hosts` pass. Beyond loopback
every name may be this host's: there all pass until `web.allowed_hosts` says which.
"""

import socket
from collections.abc import Sequence
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv6Address, ip_address


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
    """The names that pass."""

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
