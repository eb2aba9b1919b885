"""Crashes: one incident with its cause, whoever reported it first; loops; processes that do not end."""

from __future__ import annotations

import pytest

from monitor.simulate import Scenario
from tests.monitor.playing import fault, play, texts


@pytest.mark.parametrize(
    ("kind", "failure", "severity"),
    [
        ("crash_oom", "cuda_oom", "critical"),
        ("crash_nccl", "nccl", "critical"),
        ("crash_ecc", "ecc", "critical"),
        ("crash_python", "python_exception", "critical"),
        ("crash_killed", "killed", "critical"),
        ("node_failure", "node_failure", "critical"),
        ("checkpoint_failed", "disk_full", "critical"),
        ("time_limit", "time_limit", "info"),
        ("preempted", "preempted", "info"),
    ],
)
def test_a_crash_is_told_once_with_its_cause(kind: str, failure: str, severity: str) -> None:
    """However many ranks, launchers and daemons say that something ended."""
    told = fault(kind, after=20.0).firing("crash")
    assert (told.evidence["failure"], told.severity) == (failure, severity)
    assert f"{failure}" in told.summary
    assert told.iteration in (299, 300)


def test_many_watchdogs_are_one_failure() -> None:
    """The ranks are counted, the silence before them was a hang and is closed without a word."""
    played = fault("crash_nccl", after=20.0)
    assert len(played.firing("crash").evidence["watchdog_ranks"]) == 16
    assert played.state.failures_total == {"nccl": 1}


def test_the_traceback_names_the_cause_before_the_launchers_exit_code() -> None:
    """`exits with return code = 1` says nothing that the exception has not said better."""
    assert "exited with return code" not in fault("crash_python", after=20.0).firing("crash").summary


def test_a_crash_is_resolved_by_the_next_launch() -> None:
    """Fires, and ends when the run goes on; the lost work is counted."""
    played = fault("crash_and_restart", iterations=400)
    assert [item.status for item in played.of("crash")] == ["firing", "resolved"]
    assert played.state.lost_iterations_total == 99
    assert played.state.ends[-1].failure == played.of("crash")[0].evidence["failure"]


def test_a_fatal_line_and_then_nothing() -> None:
    """BLOOM's limbo: 3.5 min after the line (two iterations), not before, and with what to do."""
    assert fault("crash_without_exit", after=200.0).of("crash_without_exit") == []
    told = fault("crash_without_exit", after=220.0).firing("crash_without_exit")
    assert told.severity == "critical"
    assert "kill-on-bad-exit" in told.summary


@pytest.mark.parametrize("kind", ["crash_killed", "crash_python", "time_limit", "preempted", "node_failure"])
def test_a_crash_whose_end_was_seen_is_not_without_exit(kind: str) -> None:
    """A launcher or the scheduler reported the end: nobody holds the nodes."""
    assert fault(kind, after=3600.0).of("crash_without_exit") == []


def test_three_crashes_in_a_row_are_a_loop() -> None:
    """The third one tells; a launch that saves a checkpoint ends it."""
    played = fault("crash_loop", iterations=500)
    told = played.firing("crash_loop")
    assert told.evidence["crashes"] == 3
    assert [item.status for item in played.of("crash_loop")] == ["firing", "resolved"]


def test_one_crash_a_week_is_no_loop() -> None:
    """A crash, a restart, on it goes."""
    assert fault("crash_and_restart", iterations=400).of("crash_loop") == []


def test_the_same_node_twice_is_named() -> None:
    """Two launches fail on one node: excluded by name after the second."""
    died = "srun: error: {}: task 7: Killed\n"
    head = list(texts(Scenario(iterations=120)))[:-1]
    again = [(at + 20_000, text) for at, text in texts(Scenario(iterations=105, first_iteration=101))][:-1]
    played = play([*head, (head[-1][0] + 1, died.format("r7i3n2")), *again, (40_000.0, died.format("r7i3n2"))], 20.0)
    told = played.firing("crash_loop")
    assert told.evidence["common_nodes"] == ["r7i3n2"]
    assert "--exclude=r7i3n2" in told.summary
    other = play([*head, (head[-1][0] + 1, died.format("r7i3n2")), *again, (40_000.0, died.format("r1i1n1"))], 20.0)
    assert other.of("crash_loop") == []


def test_what_a_person_cancels_wakes_nobody() -> None:
    """Scancel without a reason is somebody's own doing: told, as a warning."""
    log = [*texts(Scenario(iterations=60))][:-1]
    line = "slurmstepd: error: *** STEP 1809579.0 ON r8i3n1 CANCELLED AT 2026-01-01T08:45:57 ***\n"
    told = play([*log, (log[-1][0] + 1, line)], after=10.0).firing("crash")
    assert (told.severity, told.evidence["failure"]) == ("warning", "killed")


def test_a_fatal_looking_line_that_the_loop_survives_is_not_told() -> None:
    """A batch that did not fit was caught and tried again: the next iteration comes before the cause has settled."""
    log = list(texts(Scenario(iterations=200, seconds_per_iteration=1.0, save_interval=0)))
    place = next(place for place, (_, text) in enumerate(log) if " iteration      100/" in text)
    line = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    played = play([*log[: place + 1], (log[place][0] + 0.1, line), *log[place + 1 :]])
    assert played.kinds() == set()
    assert played.state.phase == "finished"
