"""The settings of a run beside those of other runs and attempts."""

from typing import Any

from megatron_monitor.charts.history import History
from megatron_monitor.serve.settings import attempts_of, settings_of, table
from megatron_monitor.snapshot import RunSnapshot


def run(**settings: Any) -> RunSnapshot:
    """A run with these settings."""
    return RunSnapshot("a", {}, {"run": "a", **settings})


def test_a_difference_is_what_two_logs_state_differently() -> None:
    """A setting that one log lacks differs, a kind of settings that it lacks does not; what all state comes first."""
    one = run(topology={"tp": 8}, arguments={"lr": "1e-4", "seed": "1"}, software={"torch": "2.4"})
    two = run(topology={"tp": 4}, arguments={"lr": "1e-4"})
    rows = [tuple(row) for row in table([settings_of(one.page), settings_of(two.page)])]
    assert rows == [
        ("topology", "tp", ["8", "4"], True),
        ("arguments", "lr", ["1e-4", "1e-4"], False),
        ("arguments", "seed", ["1", "–"], True),
        ("software", "torch", ["2.4", "–"], False),
    ]


def test_the_arguments_of_an_earlier_attempt_are_known_from_what_changed() -> None:
    """Each attempt with other arguments, latest first: changes are taken back one after the other."""
    now = run(arguments={"lr": "3", "new": "1", "same": "x"})
    now.history.changes += [
        (10, None, [("lr", "1", "2"), ("gone", "y", "")]),
        (20, 5.0, [("lr", "2", "3"), ("new", "", "1")]),
    ]
    assert list(attempts_of(now).items()) == [
        ("1", ("the attempt before iteration 20, 1970-01-01 00:00:05 UTC", {"arguments": {"lr": "2", "same": "x"}})),
        ("2", ("the attempt before iteration 10", {"arguments": {"lr": "1", "gone": "y", "same": "x"}})),
    ]
    assert attempts_of(RunSnapshot("b", {}, {"run": "b"}, History())) == {}
