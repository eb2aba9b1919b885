"""The core's rooms, each by itself: sources, runs, persistence."""

import msgspec

from megatron_monitor.config import Config
from megatron_monitor.core.logs import Log, Logs
from megatron_monitor.core.runs import Run, Runs
from megatron_monitor.core.saved import LogState, SavedRun, UnclaimedState
from megatron_monitor.run.state import RunState

NOW = 1000.0


def config(**changes: object) -> Config:
    """The defaults, but for some."""
    return msgspec.structs.replace(Config(), **changes)


def ended(runs: Runs, name: str, progress_at: float) -> Run:
    """A finished run."""
    run = runs.begin(Log(name), "", NOW)
    run.state.attempt.phase, run.state.progress_at = "finished", progress_at
    return run


def test_a_run_is_refused_that_died_before_all_that_are_shown() -> None:
    """Which runs of an archive are shown is no matter of the order in which its logs are read, or read again."""
    runs = Runs(config(max_runs=2), Logs(), charts=True)
    ended(runs, "old", 10.0)
    ended(runs, "older", 5.0)
    for at, refused in ((4.0, True), (5.0, False), (7.0, False)):
        assert runs.all_ended_since(at, NOW) is refused
    assert runs.make_room()
    assert runs.all_ended_since(4.0, NOW + 2.0)
    assert runs.all_ended_since(9.0, NOW + 2.0)
    assert not Runs(config(), Logs(), charts=True).all_ended_since(1.0, NOW), "none is dead"


def test_a_claimed_run_goes_on_under_its_present_name() -> None:
    """Unless there is one of that name already; it takes the present offset of the wall clock."""
    runs = Runs(config(), Logs(), charts=True)
    runs.wall_offset = 60.0
    saved = LogState(runs={"old": SavedRun(RunState("old", iterations_total=7), historical=True)})
    runs.claim(UnclaimedState(saved), "old", "new")
    run = runs["new"]
    assert (run.state.name, run.state.iterations_total, run.historical, run.state.wall_offset) == ("new", 7, True, 60.0)
    runs.claim(UnclaimedState(LogState(runs={"old": SavedRun(RunState("old"))})), "old", "new")
    assert runs["new"] is run
