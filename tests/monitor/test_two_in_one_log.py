"""Two trainings that write into one log at once, as `srun a & srun b` does: one is followed, and that is said."""

import heapq
from collections.abc import Iterable

import pytest

from megatron_monitor.run.records import SlurmJob
from megatron_monitor.simulate import Fault, Scenario
from tests.monitor.playing import Played, Playing, play, texts


def training(
    seed: int,
    format_name: str = "megatron-lm",
    *,
    pace: float = 1.0,
    shift: float = 0.0,
    prefix: str = "",
    die: int = 0,
) -> Iterable[tuple[float, str]]:
    """Of 60 iterations, begun `shift` seconds later than others; it dies at iteration `die`."""
    faults = (Fault("crash_oom", die),) if die else ()
    for at, text in texts(Scenario(format=format_name, seed=seed, iterations=60, faults=faults)):
        yield at * pace + shift, "".join(prefix + line for line in text.splitlines(keepends=True)) if prefix else text


def together(*trainings: Iterable[tuple[float, str]]) -> Played:
    """In one log, each line when it is written."""
    return play(heapq.merge(*trainings, key=lambda line: line[0]))


@pytest.mark.parametrize(("first", "second"), [("", ""), ("0: ", "1: "), ("[pod/t-0/main] ", "[pod/t-1/main] ")])
@pytest.mark.parametrize(("pace", "shift"), [(1.0, 3.0), (1.0, 500.0), (0.99, 50.0)])
def test_two_trainings_in_one_log_are_told(first: str, second: str, pace: float, shift: float) -> None:
    """Abreast, one long before the other, or one that overtakes the other; labelled by task, by pod or not at all: one
    warning, and the training that is ahead goes on.
    """
    played = together(training(1, prefix=first), training(2, pace=pace, shift=shift, prefix=second))
    assert played.firing("mixed_log").severity == "warning"
    assert played.kinds() == {"mixed_log"}
    assert played.state.restarts <= 2
    assert 60 <= played.state.iterations_total <= 61


@pytest.mark.parametrize("pair", [("deepspeed", "microsoft"), ("hf-trainer", "megatron-lm")])
def test_nor_where_their_programs_differ(pair: tuple[str, str]) -> None:
    """Of two sources of steps the one that tells more counts."""
    state = together(training(1, pair[0]), training(2, pair[1], shift=50.0)).state
    assert (state.restarts, state.lost_iterations_total, state.iterations_total) == (0, 0, 60)


def test_the_other_goes_on_as_a_launch_when_the_one_ahead_has_died() -> None:
    """It has lost nothing of what the other had computed."""
    played = together(training(1, die=40), training(2, pace=1.3, shift=50.0))
    state = played.state
    assert (state.restarts, state.attempt.phase) == (2, "finished")
    assert played.firing("crash").status == "firing"


def test_a_restart_is_a_restart() -> None:
    """One after the other: the second attempt computes again what the first had done."""
    first = [line for line in training(1) if line[0] < 3000.0]
    played = together(first, training(2, shift=first[-1][0] + 600.0))
    assert (played.state.restarts, played.state.lost_iterations_total > 10) == (1, True)
    assert not played.of("mixed_log", display_only=True)


def test_two_running_jobs_of_one_run_are_named() -> None:
    """As Slurm tells them; when the second one has ended, so has the incident."""
    lines, playing = list(training(1)), Playing()
    third = len(lines) // 3
    playing.feed(lines[:third])
    for part, second in ((1, "13"), (2, "")):
        playing.run.state.job, playing.run.state.second_job = SlurmJob(id="12", state="RUNNING"), second
        playing.reported += playing.judge.judge(playing.run, playing.at)  # the core does so after an answer
        playing.feed(lines[part * third : (part + 1) * third])
    played = playing.end(0.0)
    assert [one.status for one in played.of("mixed_log")] == ["firing", "resolved"]
    assert played.firing("mixed_log").summary.startswith("jobs 12 and 13 both run and write into one log")
