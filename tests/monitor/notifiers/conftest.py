"""A running receiver, and no proxy before it."""

import threading
from collections.abc import Iterator

import pytest

from tests.monitor.notifiers.receiver import PATIENCE, Receiver


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A running receiver."""
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join(PATIENCE)
