"""What the hang detector says at each limit: a state and the seconds since its progress -> all of the verdict."""

from typing import Any

import pytest
from msgspec.structs import replace

from megatron_monitor.detectors import hang
from megatron_monitor.detectors.base import Finding
from megatron_monitor.detectors.hang import HangSettings, progress_timeout
from megatron_monitor.model.topology import Topology
from megatron_monitor.nodes.collectives import Report
from megatron_monitor.run.ending import RUNNING, Evidence
from megatron_monitor.run.phases import Parts
from megatron_monitor.run.records import AttemptEnd, LatestValues, SlurmJob
from megatron_monitor.run.silence import Coverage, Intervals
from megatron_monitor.run.state import Attempt, RunState

TEN = (10.0, 10.0, 10.0)
TWENTY = (20.0, 20.0, 20.0)
SETTINGS = HangSettings()


def run(
    phase: str = "training", *, window: tuple[float, ...] = (), ratios: tuple[float, ...] = (),
    learned: list[float] | dict[str, list[float]] | None = None,
    forgiven: dict[str, float] | None = None, past: dict[str, Any] | None = None, topology: Topology | None = None,
    at: float | None = 1000.0, **attempt: Any,
) -> RunState:  # fmt: skip
    """A run in that phase: seconds of its iterations, its gaps over what was expected, and what silences taught."""
    state = RunState("run", proven=True, progress_at=at, live=True, iterations_total=9)
    state.attempt = Attempt(phase=phase, topology=topology or Topology(), **attempt)  # type: ignore[arg-type]
    for seconds in window:
        state.attempt.pace.add(seconds, None)
    state.attempt.gap_ratios.values.extend(ratios)
    for kind, values in (learned if isinstance(learned, dict) else {phase: learned or []}).items():
        state.learned.silences.good[kind] = Intervals(values)
    for kind, seconds in (forgiven or {}).items():
        state.learned.silences.forgive(kind, seconds, 900.0)
    for name, value in (past or {}).items():
        setattr(state.learned, name, value)
    return state


def reported(*lines_of: str, lines: int = 0, **printed: float) -> Parts:
    """Parts of a step of which lines told, and what steps printed of them."""
    return Parts(
        list(lines_of), lines=lines, printed={part: Intervals([duration]) for part, duration in printed.items()}
    )


def verdict(state: RunState, silence: float = 60.0) -> Finding:
    """After so many seconds without progress; the run's last was at 1000."""
    return hang.Hang().evaluate(state, 1000.0 + silence, SETTINGS)


def trained(**known: Any) -> RunState:
    """20 s an iteration: late after 40 s, hung after 60; `known` is of the run or of its attempt."""
    state = run(known.pop("phase", "training"), window=TWENTY)
    for name, value in known.items():
        setattr(state if hasattr(state, name) else state.attempt, name, value)
    return state


def test_late_then_hung() -> None:
    """Late is shown, hung is told; nothing before."""
    assert verdict(trained(), 39.9) == Finding("clear", next_check=1040.0)
    late, hung = verdict(trained(), 40.0), verdict(trained(), 60.0)
    assert (late.state, late.severity, late.display_only, late.since) == ("firing", "warning", True, 1000.0)
    assert late.summary == "late in training: no progress for 40.0 s, progress timeout 60.0 s (3 x 20 s expected)"
    assert late.facts == {
        "phase": "training", "silence_seconds": 40.0, "timeout_seconds": 60.0, "timeout_reason": "3 x 20 s expected",
        "last_progress_at": 1000.0, "last_line": "", "expected_gap_seconds": 20.0,
    }  # fmt: skip
    assert verdict(trained(), 59.9).severity == "warning"
    assert (hung.severity, hung.display_only, hung.onset) == ("critical", False, None)
    assert hung.summary == "hung in training: no progress for 60.0 s, progress timeout 60.0 s (3 x 20 s expected)"
    assert verdict(trained(), 61.0).severity == "critical"


ENDED, CUT = replace(RUNNING, ended=1), replace(RUNNING, done_at=990.0, killed_at=1000.0)
STOPPED = [SlurmJob("1", state) for state in ("SUSPENDED", "STOPPED")]


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (trained(coverage=Coverage(until=1030.0)), "unknown"),
        *((trained(job=job), "unknown") for job in STOPPED),
        (trained(live=False), "clear"),
        (trained(proven=False), "clear"),
        (trained(progress_at=None), "clear"),
        (trained(phase="finished"), "clear"),
        (trained(phase="crashed"), "clear"),
        (trained(phase="exiting"), "clear"),
        (trained(phase="exiting", ending=ENDED), "firing"),
        (trained(live=False, ending=CUT), "clear"),
        (trained(ending=CUT), "firing"),
    ],
)
def test_whose_silence_means_anything(state: RunState, status: str) -> None:
    """A run's that is followed, and goes on; of one that is done only if a process was seen to end."""
    assert verdict(state, 1e6).state == status
    at = hang.deadline(state, SETTINGS)
    assert not (hang.watched(state) and state.progress_at is None)
    assert (at is None) == (status == "clear")
    if status != "unknown":
        due = 1000.0 + hang.progress_timeout(state, SETTINGS).late_after if status == "firing" else None
        due = 1001.0 if state.attempt.ending is CUT and state.live else due
        assert [verdict(state, silence).next_check for silence in (0.0, 1e6)] == [due, None]


def test_while_it_is_not_observed_it_is_unknown() -> None:
    """Unless it was late before; what was not observed is no silence."""
    stopped = [trained(coverage=Coverage(until=1000.0 + until, missed=5.0)) for until in (44.9, 45.0, 65.0)]
    assert [verdict(one, 1e6).state for one in stopped] == ["unknown", "firing", "firing"]
    found = verdict(trained(coverage=Coverage(missed=5.0)), 65.0)
    assert (found.severity, found.since, found.facts["silence_seconds"]) == ("critical", 1000.0, 60.0)
    assert found.facts["unobserved_seconds"] == 5.0


def test_what_is_known_stands_beside_it() -> None:
    """The iteration, the job; nothing is expected where a default counts."""
    found = verdict(trained(latest=LatestValues(iteration=7), job=SlurmJob("1", "RUNNING")), 40.0)
    assert (found.onset, found.facts["slurm_job"]) == (7, "1")
    assert found.summary.startswith("late in training after iteration 7: ")
    assert "expected_gap_seconds" not in verdict(trained(phase="saving"), 1800.0).facts
    parts = run("rollout", parts=reported("rollout", reward=1.0), window=TEN)
    assert " in rollout (or reward: no line distinguishes them): " in verdict(parts, 1e6).summary
    assert " in rollout: " in verdict(run("rollout", parts=reported(reward=1.0), window=TEN), 1e6).summary
    assert " in saving: " in verdict(run("saving", parts=reported("rollout", reward=1.0)), 1e6).summary


def test_what_the_log_says_of_the_cause() -> None:
    """Watchdogs, the rank that is missing, an exception that ended nothing."""
    dogs = [Evidence("watchdog", 1000.0, "nccl", rank=rank, node=f"n{rank}") for rank in range(9)]
    reports = {str(rank): Report(rank, "0", "DEFAULT", rank, 7, "BROADCAST") for rank in range(10) if rank != 3}
    exception = Evidence("traceback", 1000.0, "python_exception", "m" * 130, "the line", rank=5)
    state = trained(evidence=dogs, collectives=reports, ending=replace(RUNNING, hint=exception))
    found = verdict(state)
    assert "; the watchdogs of 9 ranks timed out on n0, n1, n2, n3, n4, n5, n6, n7; " in found.summary
    assert found.summary.endswith(
        f"; before it python_exception on rank 5: {'m' * 120}; it may have crashed without ending the job"
    )
    assert found.facts["missing"] in found.summary
    assert found.facts["watchdog_nodes"] == [f"n{rank}" for rank in range(9)]
    assert (found.facts["failure"], found.facts["failure_line"]) == ("python_exception", "the line")
    cause = replace(exception, failure="nccl", rank=None)
    found = verdict(
        trained(evidence=[replace(dogs[0], node=None)], ending=replace(RUNNING, cause=cause, hint=exception))
    )
    assert "; the watchdogs of 1 ranks timed out; before it nccl: m" in found.summary
    assert "watchdog_ranks" not in verdict(trained(), 40.0).facts


@pytest.mark.parametrize(
    ("phase", "world", "blocking", "words"),
    [
        ("training", 159, None, ""),
        ("training", 160, None, "the log does not show CUDA_LAUNCH_BLOCKING: "),
        ("training", 160, "0", "CUDA_LAUNCH_BLOCKING=0: "),
        ("training", 160, "1", ""),
        ("rollout", 8, None, "ray summary"),
        ("evaluating", 8, None, "data loader"),
    ],
)
def test_advice(phase: str, world: int, blocking: str | None, words: str) -> None:
    """By phase; blocking launches where they have helped, and are not asked for."""
    environment = {"CUDA_LAUNCH_BLOCKING": blocking} if blocking else {}
    state = trained(phase=phase, environment=environment, topology=Topology(world_size=world))
    advice = verdict(state, 1e6).facts["advice"]
    assert words in advice
    assert [one for one in ("CUDA_LAUNCH_BLOCKING", "ray summary", "data loader") if one in advice] == (
        [one for one in ("CUDA_LAUNCH_BLOCKING", "ray summary", "data loader") if one in words]
    )


@pytest.mark.parametrize(("iterations", "seconds"), [(0, 7200.0), (1, 600.0)])
def test_only_a_launch_that_made_a_step_shows_how_long_a_set_up_takes(iterations: int, seconds: float) -> None:
    """Attempts that died after 20 s teach nothing of the ten minutes that one needs which does not."""
    state = run("starting", number=1, learned=[20.0])
    state.ends = [AttemptEnd(0, "unknown", "", 20.0, 0.0, iterations, iterations or None, None, planned=False)]
    assert progress_timeout(state, HangSettings()).seconds == seconds
