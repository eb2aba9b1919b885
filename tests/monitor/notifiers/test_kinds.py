"""Which messages a notifier wants."""

from typing import Any

import pytest
from msgspec.structs import replace

from megatron_monitor.config import ConfigError, load
from megatron_monitor.notifiers import Notifier
from tests.monitor.notifiers.receiver import HANG, built


@pytest.mark.parametrize(
    ("minimum", "runs", "changes", "wanted"),
    [
        ("warning", (), {}, True),
        ("critical", (), {"severity": "warning"}, False),
        ("warning", (), {"severity": "info"}, False),
        ("info", (), {"severity": "info"}, True),
        ("info", ("tr11-*",), {}, True),
        ("info", ("tr12-*", "*-176B"), {}, True),
        ("info", ("tr12-*",), {}, False),
        ("info", (), {"display_only": True}, False),
        ("critical", (), {"status": "resolved"}, True),
    ],
)
def test_filter(minimum: Any, runs: tuple[str, ...], changes: dict[str, Any], wanted: bool) -> None:
    """Severity and run decide; a quiet message goes to nobody, and who hears of trouble hears of its end."""
    notifier = Notifier(name="a", minimum_severity=minimum, runs=runs)
    assert notifier.wants(replace(HANG, **changes)) is wanted


def test_only_the_kinds_that_are_asked_for() -> None:
    """A kind that does not exist is refused with its path."""
    notifier = built("type: webhook, url: 'http://a', incidents: [hang]")
    assert notifier.wants(HANG)
    assert not notifier.wants(replace(HANG, incident="crash"))
    with pytest.raises(ConfigError, match=r"notifiers\.0\.incidents\.0: expected one of .*hang"):
        load("notifiers: [{type: webhook, name: x, url: 'http://a', incidents: [hangs]}]")
