"""What the log tells of an end, kept, weighed and passed by: an event -> its rows, and each limit of what follows."""

from typing import Any

import pytest
from msgspec.structs import replace

from megatron_monitor.model.topology import Topology
from megatron_monitor.nodes.collectives import Report
from megatron_monitor.parsers.events import (
    Event,
    FailureSeen,
    LogEvent,
    ProcessExited,
    ProcessTerminated,
    ProgramExited,
    TrainerSummary,
)
from megatron_monitor.run.coverage import Coverage
from megatron_monitor.run.ending import Evidence
from megatron_monitor.run.evidence import believe, fold_done, fold_evidence, goes_on, keep, pass_by, settle
from megatron_monitor.run.fold import fold
from megatron_monitor.run.records import Latest, Told
from megatron_monitor.run.state import Launch, RunState


def run(**launch: Any) -> RunState:
    """A run whose last progress was at 100."""
    return RunState("run", progress_at=100.0, launch=Launch(**{"phase": "training", **launch}))


def tell(state: RunState, event: Event, at: float = 5.0) -> bool:
    """Fold it; whether it was progress."""
    return fold_evidence(state, event, Told("log", at, True, None, LogEvent(1, "test", event, "the line")))


def row(sort: str, failure: str = "", message: str = "", **more: Any) -> Evidence:
    """One that is of the line, told at 5."""
    return Evidence(sort, 5.0, failure, message, "the line", **{"stream": "log", **more})  # type: ignore[arg-type]


def seen(failure: str = "nccl", **more: Any) -> FailureSeen:
    """A line that names a failure."""
    return FailureSeen(failure=failure, message="m", **more)  # type: ignore[arg-type]


OOM, ECC, WELL, BADLY = seen("cuda_oom"), seen("ecc"), ProcessExited(exit_code=0), ProcessExited(exit_code=1)


@pytest.mark.parametrize(
    ("events", "progress"),
    [
        ([ProgramExited(reason="iterations")], [True]),
        ([ECC, ProgramExited(reason="signal")], [False, False]),
        ([WELL], [True]),
        ([BADLY], [False]),
        ([WELL, ProcessExited(exit_code=0, node="n1")], [True, False]),
        ([ECC, WELL], [False, False]),
        ([TrainerSummary(), BADLY, ProcessExited(exit_code=2)], [True, True, False]),
        ([ProcessTerminated()], [False]),
    ],
)
def test_which_ends_are_progress(events: list[Event], progress: list[bool]) -> None:
    """Those of a training that ends as it should, and what is new of one that is done."""
    state = run()
    assert [tell(state, event) for event in events] == progress


def test_ends_that_are_none() -> None:
    """A bad one of a step that was cut at exit, and a good one of a launch that is in doubt."""
    state = run()
    fold_done(state, 5.0, "log")
    tell(state, seen("time_limit", notice="step_cancelled"), 50.0)
    assert not tell(state, BADLY, 51.0)
    state = fails(ECC)
    pass_by(state.launch, 6.0, "log", step=True)
    state.launch.phase = "training"
    assert not tell(state, WELL, 7.0)


@pytest.mark.parametrize(
    ("topology", "launchers", "processes"),
    [
        (Topology(world_size=8, processes_per_node=4), 0, 8),
        (Topology(world_size=8, processes_per_node=4), 1, 4),
        (Topology(world_size=16, processes_per_node=4), 2, 8),
        (Topology(world_size=8), 1, 8),
        (Topology(processes_per_node=4), 0, 4),
        (Topology(), 0, 1),
    ],
)
def test_how_many_ends_the_log_will_tell(topology: Topology, launchers: int, processes: int) -> None:
    """Those of the launchers that write to it, else all; with the last of them it is finished, with none before."""
    marks = {f"launcher n{number}": "" for number in range(launchers)} | {"arguments": ""}
    state = run(topology=topology, boundaries=marks)
    for number in range(processes):
        assert state.launch.phase == ("exiting" if number else "training")
        tell(state, WELL)
    assert state.launch.phase == "finished"


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_of_equal_rows_the_earliest_stands_for_all() -> None:
    """Whatever their words; another rank, another code is another row."""
    launch = Launch()
    first = row("exit", "unknown", "first", exit_code=1, logged_at="a", after=1)
    later = Evidence("exit", 6.0, "unknown", "later", "another", exit_code=1, logged_at="b", after=2, count=2)
    keep(launch, later)
    keep(launch, first)
    keep(launch, row("exit", "unknown", "of that moment", exit_code=1, count=2))
    assert [(one.message, one.count) for one in launch.evidence] == [("first", 5)]
    for other in ({"exit_code": 2}, {"exit_code": 1, "rank": 3}, {"exit_code": 1, "launch": True}):
        keep(launch, row("exit", "unknown", **other))
    keep(launch, row("failure", "unknown", exit_code=1))
    keep(launch, row("exit", "killed", exit_code=1))
    assert len(launch.evidence) == 6


@pytest.mark.parametrize("sort", ["failure", "watchdog"])
def test_sixty_four_are_kept(sort: str) -> None:
    """Of too many the one that says least goes, of those that say as much the latest; rows of another sort stay."""
    launch = Launch()
    others = [row("terminated"), row("watchdog" if sort == "failure" else "failure", "nccl", fatal=True)]
    for one in others:
        keep(launch, one)
    for number in range(64):
        keep(launch, Evidence(sort, float(number), "nccl", rank=number, fatal=True))  # type: ignore[arg-type]
    assert len(launch.evidence) == 66
    keep(launch, Evidence(sort, 200.0, "ecc", fatal=True))  # type: ignore[arg-type]
    keep(launch, Evidence(sort, 1.5, "nccl", rank=64, fatal=True))  # type: ignore[arg-type]
    keep(launch, Evidence(sort, 0.0, "unknown", fatal=True))  # type: ignore[arg-type]
    assert launch.evidence[:2] == others
    ranks = [one.rank for one in launch.evidence if one.sort == sort]
    assert ranks == [*range(62), None, 64]


# --- what goes on ---------------------------------------------------------------------------------------------------


def fails(event: Event, **launch: Any) -> RunState:
    """A run of which this was told at 5."""
    state = run(**launch)
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
    told = Told("log", at, True, None, LogEvent(1, "test", BADLY, "the line"))
    assert goes_on(state, told) == lives
    assert bool(state.launch.evidence) != lives


def test_a_failure_is_believed_once() -> None:
    """In silence what may have been caught was not; what is certain needs none, what is no crash has none."""
    for event, rows, failures in ((OOM, 2, {"cuda_oom": 1}), (ECC, 1, {"ecc": 1}), (WELL, 1, {})):
        state = fails(event)
        believe(state, 60.0)
        believe(state, 70.0)
        assert (len(state.launch.evidence), state.failures_total) == (rows, failures)
    state = fails(OOM)
    believe(state, 60.0)
    assert state.launch.ending.certain


DONE: dict[str, Any] = {"topology": Topology(world_size=8)}


@pytest.mark.parametrize(
    ("told", "changed", "now", "settled"),
    [
        ([], {}, 699.9, False),
        ([], {}, 700.0, True),
        ([], {}, 701.0, True),
        ([], {"coverage": Coverage(missed=5.0)}, 704.9, False),
        ([], {"coverage": Coverage(missed=5.0)}, 705.0, True),
        ([], {"progress_at": None}, 700.0, False),
        ([WELL], {}, 700.0, False),
        ([WELL, seen("time_limit", notice="step_cancelled")], {}, 700.0, True),
    ],
)
def test_what_is_done_and_silent_has_finished(
    told: list[Event], changed: dict[str, Any], now: float, settled: bool
) -> None:
    """After ten minutes, unless a process was seen to end and others were not."""
    state = run(**DONE)
    fold_done(state, 5.0, "log")
    for event in told:
        tell(state, event, 50.0)
    for name, value in changed.items():
        setattr(state, name, value)
    assert settle(state, now, 600.0) == settled
    assert state.launch.phase == ("finished" if settled else "exiting")
    assert not settle(run(), 1e6, 600.0)


def paced(seconds: float | None, *rows: Evidence, **launch: Any) -> RunState:
    """A launch of that pace, of which these rows are kept."""
    state = run(evidence=list(rows), collectives={"0": Report(0)}, **launch)
    if seconds is not None:
        state.launch.pace.add(seconds, None)
    return state


ROW, PASSED = row("failure", "nccl", fatal=True), row("failure", "nccl", fatal=True, passed_at=6.0)


@pytest.mark.parametrize(
    ("state", "at", "step", "left"),
    [
        (paced(2.0, ROW), 7.0, True, [7.0]),
        (paced(2.0, ROW), 7.1, True, []),
        (paced(2.0, ROW, log_interval=10), 25.0, True, [25.0]),
        (paced(2.0, ROW, log_interval=10), 25.1, True, []),
        (paced(None, ROW), 1e6, True, [1e6]),
        (paced(2.0, PASSED), 7.0, True, []),
        (paced(2.0, PASSED), 7.0, False, [7.0]),
        (paced(2.0, ROW, row("silence")), 7.0, True, [7.0]),
        (paced(2.0), 7.0, True, []),
    ],
)
def test_a_step_passes_it_by(state: RunState, at: float, step: bool, left: list[float]) -> None:
    """Within the usual interval it may have been on its way, once; else nothing that was told ended the loop."""
    pass_by(state.launch, at, "log", step=step)
    assert [one.passed_at for one in state.launch.evidence] == left
    assert bool(state.launch.collectives) == bool(left)
    assert state.launch.ending.state == ("crashed" if left else "running")


def test_a_step_passes_ends_of_processes_by() -> None:
    """How many there are, and whether all is done, counts as before."""
    ended = row("exit", "unknown", exit_code=1, count=8)
    helper = row("traceback", "python_exception", fatal=True, helper=True)
    state = paced(2.0, ended, train_iterations=9, latest=Latest(iteration=9))
    state.launch.evidence.append(helper)
    pass_by(state.launch, 6.0, "log", step=True)
    assert state.launch.ending.since == 5.0
    state = paced(2.0, helper, train_iterations=9, latest=Latest(iteration=9))
    pass_by(state.launch, 6.0, "log", step=True)
    assert state.launch.ending.state == "running"


# --- whose end it is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stamp", "launch", "kept"),
    [
        ("08:09:59", {}, False),
        ("08:00:01", {}, False),
        ("08:00:00", {}, True),
        ("08:10:00", {}, True),
        ("08:11:00", {}, True),
        ("08:09:00", {"iterations": 1}, True),
        ("08:09:00", {"number": 0}, True),
        ("08:09:00", {"launched_clock": None}, True),
        (None, {}, True),
    ],
)
def test_what_a_launcher_held_back_is_of_the_launch_before(
    stamp: str | None, launch: dict[str, Any], kept: bool
) -> None:
    """The launch began at 08:10; what failed in the ten minutes before it is not its end, while it has not moved."""
    state = run(**{"number": 1, "launched_clock": 1_772_352_600.0, **launch})
    for event in (ECC, BADLY):
        told = replace(event, logged_at=f"2026-03-01 {stamp}" if stamp else None)
        fold(state, LogEvent(1, "test", told, "the line"), "log", 5.0, True)
    assert len(state.launch.evidence) == (2 if kept else 0)
