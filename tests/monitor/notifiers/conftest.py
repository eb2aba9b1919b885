"""A running receiver, and no proxy before it."""

from collections.abc import Iterator

import pytest

from tests.monitor.notifiers.receiver import Receiver
from tests.programs import serving


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A running receiver."""
    with serving(Receiver()) as server:
        yield server
        server.released.set()
