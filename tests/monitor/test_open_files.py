"""How many logs are held open: many where the system allows it, few where it does not, and never all that it allows."""

import resource
import subprocess
import sys

import pytest

from monitor.system.open_files import room_for_logs

_ASK = """
import resource
from monitor.system.open_files import room_for_logs
room = room_for_logs()
print(room, *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "room", "then"),
    [(1024, 8192, 512, 8192), (1024, 1024, 64, 1024), (256, 256, 16, 256), (4096, 8192, 512, 8192)],
)
def test_room(soft: int, hard: int, room: int, then: int) -> None:
    """The soft limit is raised as far as the hard one allows, and a part of it is for logs."""
    asked = subprocess.run(
        [sys.executable, "-c", _ASK],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.split() == [str(room), str(then), str(hard)]


def test_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may not raise it makes do with what there is."""

    def refuse(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, -1))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert room_for_logs() == 64
