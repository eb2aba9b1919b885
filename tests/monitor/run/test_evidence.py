"""What the log tells of an end, kept, weighed and passed by: an event -> its rows, and each limit of what follows."""

from typing import Any

import pytest

from megatron_monitor.parsers.events import (
    Event,
    FailureSeen,
    LogEvent,
    ProcessExited,
)
from megatron_monitor.run.ending import Evidence
from megatron_monitor.run.evidence import confirm, fold_evidence, keep, proves_life
from megatron_monitor.run.records import EventContext
from megatron_monitor.run.state import Attempt, RunState


def run(**attempt: Any) -> RunState:
    """A run whose last progress was at 100."""
    return RunState("run", progress_at=100.0, attempt=Attempt(**{"phase": "training", **attempt}))


def tell(state: RunState, event: Event, at: float = 5.0) -> bool:
    """Fold it; whether it was progress."""
    return fold_evidence(state, event, EventContext("log", at, True, None, LogEvent(1, "test", event, "the line")))


def row(sort: str, failure: str = "", message: str = "", **more: Any) -> Evidence:
    """One that is of the line, told at 5."""
    return Evidence(sort, 5.0, failure, message, "the line", **{"stream": "log", **more})  # type: ignore[arg-type]


def seen(failure: str = "nccl", **more: Any) -> FailureSeen:
    """A line that names a failure."""
    return FailureSeen(failure=failure, message="m", **more)  # type: ignore[arg-type]


OOM, ECC, WELL, BADLY = seen("cuda_oom"), seen("ecc"), ProcessExited(exit_code=0), ProcessExited(exit_code=1)


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_of_equal_rows_the_earliest_stands_for_all() -> None:
    """Whatever their words; another rank, another code is another row."""
    attempt = Attempt()
    first = row("exit", "unknown", "first", exit_code=1, logged_at="a", after=1)
    later = Evidence("exit", 6.0, "unknown", "later", "another", exit_code=1, logged_at="b", after=2, count=2)
    keep(attempt, later)
    keep(attempt, first)
    keep(attempt, row("exit", "unknown", "of that moment", exit_code=1, count=2))
    assert [(one.message, one.count) for one in attempt.evidence] == [("first", 5)]
    for other in ({"exit_code": 2}, {"exit_code": 1, "rank": 3}, {"exit_code": 1, "attempt": True}):
        keep(attempt, row("exit", "unknown", **other))
    keep(attempt, row("failure", "unknown", exit_code=1))
    keep(attempt, row("exit", "killed", exit_code=1))
    assert len(attempt.evidence) == 6


# --- what goes on ---------------------------------------------------------------------------------------------------


def fails(event: Event, **attempt: Any) -> RunState:
    """A run of which this was told at 5."""
    state = run(**attempt)
    tell(state, event)
    return state


@pytest.mark.parametrize(
    ("state", "at", "lives"),
    [
        (run(), 5.0, True),
        (fails(ECC), 7.0, False),
        (fails(ECC), 10.0, False),
        (fails(ECC), 10.1, True),
        (fails(OOM), 5.1, True),
    ],
)
def test_a_set_up_goes_on(state: RunState, at: float, lives: bool) -> None:
    """Behind what may have been caught, or a moment later; then nothing of it is kept."""
    reported = EventContext("log", at, True, None, LogEvent(1, "test", BADLY, "the line"))
    assert proves_life(state, reported) == lives
    assert bool(state.attempt.evidence) != lives


def test_a_failure_is_believed_once() -> None:
    """In silence what may have been caught was not; what is certain needs none, what is no crash has none."""
    for event, rows, failures in ((OOM, 2, {"cuda_oom": 1}), (ECC, 1, {"ecc": 1}), (WELL, 1, {})):
        state = fails(event)
        confirm(state, 60.0)
        confirm(state, 70.0)
        assert (len(state.attempt.evidence), state.failures_total) == (rows, failures)
    state = fails(OOM)
    confirm(state, 60.0)
    assert state.attempt.ending.certain
