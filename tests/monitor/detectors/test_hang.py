"""The hang detector: timeouts by phase, late and hung, and everything that must stay silent."""

import re

import pytest

from megatron_monitor.detectors import hang
from megatron_monitor.detectors.hang import HangSettings
from megatron_monitor.parsers.events import (
    CheckpointSaved,
    CheckpointSaveStarted,
    Event,
    IterationLogged,
    LogEvent,
)
from megatron_monitor.run.fold import fold
from megatron_monitor.run.records import SlurmJob
from megatron_monitor.run.state import RunState
from megatron_monitor.simulate import Fault, Scenario
from tests.monitor.playing import play, texts
from tests.simulated import WITH_MEGATRON_SETUP

SETTINGS = HangSettings()


def feed(state: RunState, event: Event, at: float, live: bool = True) -> None:
    """Fold one event at an instant."""
    fold(state, LogEvent(1, "test", event, "the line"), "a", at, live)


def trained(seconds: float = 10.0, count: int = 20, every: int = 1, total: int = 100_000) -> RunState:
    """A run that has logged `count` lines, live, one at each multiple of its time."""
    state = RunState(name="run")
    for index in range(1, count + 1):
        line = IterationLogged(
            iteration=index * every, train_iterations=total, seconds_per_iteration=seconds, lm_loss=2.0 + index / 100
        )
        feed(state, line, index * seconds * every)
    return state


def verdict(state: RunState, silence: float, settings: HangSettings = SETTINGS) -> tuple[str, str]:
    """(status, severity) after so many seconds without progress."""
    assert state.progress_at is not None
    answer = hang.Hang().evaluate(state, state.progress_at + silence, settings)
    return answer.state, answer.severity if answer.state == "firing" else ""


def test_a_time_that_is_none_allows_no_endless_silence() -> None:
    """1e300 s an iteration was printed: a week is the longest that is learned; 1,000 s an iteration are believed."""
    state = RunState(name="run")
    for number in range(1, 4):
        line = IterationLogged(iteration=number, train_iterations=100, seconds_per_iteration=1e300, lm_loss=2.0)
        feed(state, line, number * 10.0)
    assert verdict(state, 7 * 86400.0 - 1)[1] != "critical"
    assert verdict(state, 7 * 86400.0 + 1)[1] == "critical"
    assert verdict(trained(1000.0), 3 * 1000.0 - 1)[1] == "warning"


def test_lines_that_always_come_later_than_they_say() -> None:
    """A time of 0.22 s is printed, a line comes every 28 s: 61 s are a hiccup of two lines, 90 s are not."""
    state = RunState(name="run")
    for index in range(1, 12):
        feed(state, IterationLogged(iteration=index, seconds_per_iteration=0.22, lm_loss=2.0), 28.3 * index)
    assert verdict(state, 61.4) != ("firing", "critical")
    assert verdict(state, 90.0) == ("firing", "critical")


@pytest.mark.parametrize("seconds", [5.0, 20.0, 60.0])
def test_the_trainers_first_step_says_nothing_of_the_next_report(seconds: float) -> None:
    """HF Trainer reports step 1, then every tenth: no false alarm in between, whatever a step takes."""
    scenario = Scenario(format="hf-trainer", iterations=60, seconds_per_iteration=seconds, log_interval=10)
    assert "hang" not in play(texts(scenario)).kinds()


@pytest.mark.parametrize("format_name", sorted(WITH_MEGATRON_SETUP))
@pytest.mark.parametrize(("seconds", "every"), [(20.0, 50), (90.0, 10)])
@pytest.mark.parametrize("first", [1, 1001])
def test_lines_far_apart_wake_nobody(format_name: str, seconds: float, every: int, first: int) -> None:
    """A quarter of an hour between two lines, in a fresh attempt, one that goes on from a checkpoint, and after a
    crash: the first line of an attempt comes after as many iterations as the others.
    """
    faults = (Fault("crash_and_restart", 230),) if first == 1 else ()
    scenario = Scenario(
        format=format_name, iterations=first + 400, first_iteration=first, seconds_per_iteration=seconds,
        log_interval=every, eval_interval=100, faults=faults,
    )  # fmt: skip
    played = play(texts(scenario))
    assert played.of("hang") == []
    assert bool(played.of("crash")) == bool(faults)


@pytest.mark.parametrize("format_name", sorted({*WITH_MEGATRON_SETUP} - {"hf-trainer", "deepspeed"}))
@pytest.mark.parametrize(("evaluated", "saved"), [(75, 30), (75, 0), (30, 20)])
def test_evaluations_and_saves_between_lines_are_measured_rightly(format_name: str, evaluated: int, saved: int) -> None:
    """They come amid the fifty iterations of a line: what a line says of one stays what one takes, and an attempt
    that goes on from between two lines is not called hung.
    """
    scenario = Scenario(
        format=format_name, iterations=420, seconds_per_iteration=30.0, log_interval=50, eval_interval=evaluated,
        save_interval=saved, seed=5, faults=(Fault("crash_and_restart", 200),),
    )  # fmt: skip
    played = play(texts(scenario))
    assert played.of("hang") == []
    assert played.of("slowdown") == []
    window = played.state.attempt.pace.windows[played.state.attempt.pace.last_batch_size]
    assert window == pytest.approx([30.0] * len(window), rel=0.03)


@pytest.mark.parametrize(("seconds", "every", "within"), [(90.0, 10, 4000.0), (20.0, 1, 700.0)])
def test_a_hang_after_a_restart_is_told_all_the_same(seconds: float, every: int, within: float) -> None:
    """No line comes after the second attempt's set-up: told within what its iterations take three times over."""
    scenario = Scenario(
        format="megatron-lm", iterations=400, seconds_per_iteration=seconds, log_interval=every,
        faults=(Fault("crash_and_restart", 230),),
    )  # fmt: skip
    log = list(texts(scenario))
    crashed = next(place for place, (_, text) in enumerate(log) if "uncorrectable ECC" in text)
    again = next(place for place in range(crashed, len(log)) if re.search(r"iteration +\d+/", log[place][1]))
    assert play(log[:again], after=within).firing("hang").severity == "critical"


def hung_once(state: RunState, seconds: float) -> None:
    """It stands still, is called a hang, and goes on."""
    state.attempt.hung = True
    number = (state.attempt.last_iteration or 0) + 1
    line = IterationLogged(iteration=number, seconds_per_iteration=10.0, lm_loss=2.0)
    feed(state, line, (state.progress_at or 0.0) + seconds)


def test_one_that_comes_daily_stays_known() -> None:
    """A silence as long as one that was called a hang is remembered from its own end on, though it was none."""
    state = trained()
    for _ in range(4):
        hung_once(state, 600.0)
        state.attempt.gap_ratios.values.clear()
        state.progress_at = (state.progress_at or 0.0) + 80_000.0
        feed(state, IterationLogged(iteration=(state.attempt.last_iteration or 0) + 1), state.progress_at + 610.0)
        state.progress_at += 80_000.0
        assert hang.progress_timeout(state, SETTINGS).seconds == pytest.approx(1220.0)


def test_a_hang_that_ended_raises_the_budget_of_its_phase_alone() -> None:
    """A save that was called a hang and ended without a word: the next one may take as long, an iteration may not."""
    state = trained()
    now = state.progress_at or 0.0
    feed(state, CheckpointSaveStarted(iteration=20), now + 1)
    assert state.attempt.phase == "saving"
    hung_once(state, 1700.0)
    assert hang.progress_timeout(state, SETTINGS).seconds == 60.0
    feed(state, CheckpointSaveStarted(iteration=21), now + 2050)
    assert hang.progress_timeout(state, SETTINGS).seconds == pytest.approx(3400.0)


def test_a_hang_that_a_restart_ended_teaches_nothing() -> None:
    """Two hours in a save until the job was started again: the next save has the budget that it had."""
    state = trained()
    now = state.progress_at or 0.0
    feed(state, CheckpointSaveStarted(iteration=20), now + 1)
    feed(state, CheckpointSaved(iteration=20), now + 41)
    feed(state, IterationLogged(iteration=21, seconds_per_iteration=10.0), now + 51)
    feed(state, CheckpointSaveStarted(iteration=21), now + 52)
    state.attempt.hung = True
    feed(state, IterationLogged(iteration=21, seconds_per_iteration=10.5), now + 7252)
    assert state.restarts == 1
    feed(state, CheckpointSaveStarted(iteration=22), now + 7262)
    assert hang.progress_timeout(state, SETTINGS).seconds == pytest.approx(160.0)


def test_a_suspended_job_teaches_nothing() -> None:
    """Slurm stopped its processes for half an hour: that was no silence of theirs."""
    state = trained(30.0)
    now = state.progress_at or 0.0
    state.job = SlurmJob("1", "RUNNING", suspended_at=now + 1800.0)
    feed(state, IterationLogged(iteration=21, seconds_per_iteration=30.0, lm_loss=2.0), now + 1830.0)
    assert hang.progress_timeout(state, SETTINGS).seconds == pytest.approx(90.0)
