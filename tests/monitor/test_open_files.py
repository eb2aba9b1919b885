"""How many logs are held open: many where the system allows it, few where it does not, and never all that it allows."""

import resource

import pytest

from megatron_monitor.live import room_for_logs


@pytest.mark.parametrize(("soft", "room"), [(256, 32), (1024, 128), (65_536, 8192), (1 << 20, 8192), (-1, 8192)])
def test_room(monkeypatch: pytest.MonkeyPatch, soft: int, room: int) -> None:
    """By the soft limit; -1 is none."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, -1))
    assert room_for_logs() == room
