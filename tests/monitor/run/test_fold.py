"""Folding events into a run's state: attempts, copies, phases, pure time, ends."""

from typing import get_args

import pytest
from msgspec.structs import replace

from megatron_monitor.parsers.events import (
    ArgumentsDumped,
    CheckpointLoaded,
    CheckpointSaved,
    CheckpointSaveStarted,
    EngineStepLogged,
    EnvironmentVariableSeen,
    Event,
    IterationLogged,
    LogEvent,
    MilestoneReached,
    OverflowSkipped,
    TimersReported,
    TrainerLogged,
    TrainerProgressed,
    TrainerSetting,
    TrainerSummary,
    ValidationLogged,
)
from megatron_monitor.run import derived
from megatron_monitor.run.attempts import OUTCOMES, STATES, Seen
from megatron_monitor.run.fold import fold
from megatron_monitor.run.state import RunState


def iteration(number: int, seconds: float = 10.0, **values: object) -> IterationLogged:
    """An iteration line of a plausible run."""
    fields: dict[str, object] = {
        "iteration": number,
        "train_iterations": 1000,
        "seconds_per_iteration": seconds,
        "global_batch_size": 64,
        "lm_loss": 5.0 - number / 1000,
        "grad_norm": 1.0 + number / 7,
        "format": "microsoft",
    }
    return IterationLogged(**{**fields, **values})  # type: ignore[arg-type]


def feed(state: RunState, *events: Event, at: float | None = None, live: bool = True, source: str = "a") -> RunState:
    """Fold events ten seconds apart, or all at `at`."""
    clock = state.updated_at
    for event in events:
        clock = at if at is not None else clock + 10.0
        fold(state, LogEvent(1, "test", event, f"line of {event.kind}"), source, clock, live)
    return state


@pytest.fixture
def state() -> RunState:
    """A new run."""
    return RunState(name="run")


def test_iterations_move_the_run(state: RunState) -> None:
    """Each line counts once and leads from the first iteration into training."""
    feed(state, MilestoneReached(milestone="before_training_step"))
    assert state.attempt.phase == "first_iteration"
    feed(state, *(iteration(n) for n in range(1, 6)))
    assert (state.attempt.phase, state.iterations_total, state.attempt.latest.iteration) == ("training", 5, 5)
    assert state.attempt.train_iterations == 1000
    assert derived.samples_per_second(state) == 6.4


def test_log_interval_counts_every_iteration(state: RunState) -> None:
    """A line every ten iterations stands for ten, once the interval is known."""
    feed(state, *(iteration(n) for n in (10, 20, 30)))
    assert state.attempt.log_interval == 10
    assert state.iterations_total == 30  # the first line too: it is as far from 0
    assert state.seconds.count == 20


def test_only_a_training_that_began_at_0_has_such_a_first_line(state: RunState) -> None:
    """Of another one only its own iteration is sure, or those since the checkpoint that it says it loaded."""
    feed(state, *(iteration(n) for n in (1010, 1020)))
    assert state.iterations_total == 11
    loaded = RunState(name="run")
    feed(loaded, CheckpointLoaded(iteration=9), *(iteration(n) for n in (10, 20)))
    assert loaded.iterations_total == 11


def test_log_interval_of_the_arguments_counts_the_first_line(state: RunState) -> None:
    """The arguments dump tells how many iterations the first line stands for."""
    feed(state, ArgumentsDumped(values={"log_interval": "10"}), iteration(10), iteration(20))
    assert state.iterations_total == 20


SET_UP = ArgumentsDumped(values={"num_layers": "4"})
LATE = MilestoneReached(milestone="initialized", logged_at="2026-01-01T00:00:00")


def steps(first: int, last: int, seconds: float = 10.0, **values: object) -> list[Event]:
    """The lines of the loop."""
    return [iteration(number, seconds, **values) for number in range(first, last + 1)]


@pytest.mark.parametrize(
    ("said", "counted"),
    [
        # (iterations, restarts, iterations lost)
        ({"log": [iteration(number) for number in (1, 1, 1, 2, 2, 2, 3, 3)]}, (3, 0, 0)),
        ({"main.out": steps(1, 49), "rank63.log": steps(1, 49)}, (49, 0, 0)),
        ({"log": [*steps(1, 100), *steps(81, 120, 10.5)]}, (140, 1, 20)),
        ({"job1.out": steps(1, 100), "job2.out": steps(91, 110, 10.7, lm_loss=4.5)}, (120, 1, 10)),
        ({"log": [SET_UP, *steps(1, 10), SET_UP, *steps(11, 20)]}, (20, 1, 0)),
        ({"log": [SET_UP, *steps(1, 10), SET_UP, *steps(6, 10)]}, (15, 1, 5)),
        ({"rank63.log": steps(1, 10), "rank0.log": [LATE, SET_UP]}, (10, 0, 0)),
        ({"job.out": [SET_UP, *steps(1, 20)], "job.err": [SET_UP, *steps(101, 120)]}, (40, 1, 0)),
        ({"rank0.log": [SET_UP, *steps(1, 20)], "rank1.log": [SET_UP, *steps(21, 40)]}, (40, 0, 0)),
    ],
    ids=[
        "ranks in one file", "a copy of the file", "numbers go back", "numbers go back in another file",
        "a set-up behind steps", "the same steps to the letter behind a set-up", "a rank's set-up in its own file",
        "a set-up, far ahead in another file", "a set-up, right behind in another file",
    ],
)  # fmt: skip
def test_what_begins_an_attempt(state: RunState, said: dict[str, list[Event]], counted: tuple[int, int, int]) -> None:
    """A second set-up of a file that has stepped, numbers that go back; never what another rank has told."""
    for source, lines in said.items():
        feed(state, *lines, source=source)
    assert (state.iterations_total, state.restarts, state.lost_iterations_total) == counted


def test_a_rank_with_its_own_clock_is_a_copy(state: RunState) -> None:
    """Another rank that prints the same loss with another time reports the same iteration."""
    for number in range(1, 20):
        feed(state, iteration(number, 10.0), source="rank0")
        feed(state, iteration(number, 10.2), source="rank8")
    assert (state.iterations_total, state.restarts) == (19, 0)


def test_the_table_of_attempts_is_whole() -> None:
    """Whatever is seen in whichever state has an outcome."""
    assert OUTCOMES.keys() == {(state, seen) for state in STATES for seen in get_args(Seen)}


def test_engine_steps_beside_megatron_count_once(state: RunState) -> None:
    """The pipeline engine reports the same step before Megatron does: one iteration."""
    for number in range(1, 6):
        feed(state, EngineStepLogged(form="steps", step=number, loss=5.0), iteration(number))
    assert (state.iterations_total, state.restarts, state.attempt.step_source) == (5, 0, "iteration")


def test_engine_alone_drives_the_run(state: RunState) -> None:
    """DeepSpeed without Megatron: its two lines of one step are one step, skipped steps are cumulative."""
    for step in (10, 20, 30):
        feed(
            state,
            EngineStepLogged(form="step", step=step, skipped_steps=step // 10, learning_rate=1e-5),
            EngineStepLogged(form="throughput", step=step, samples_per_second=172.0, max_allocated_bytes=7),
        )
    assert (state.attempt.latest.iteration, state.skipped_iterations_total) == (30, 3)
    assert state.iterations_total == 30
    assert derived.samples_per_second(state) == 172.0
    assert state.attempt.memory.max_allocated == 7


def test_trainer_bars_of_several_nodes_count_once(state: RunState) -> None:
    """Each node draws its own bar; the run has as many steps as one of them."""
    feed(state, TrainerSetting(name="running_training"), TrainerSetting(name="total optimization steps", value=8.0))
    for step in range(1, 9):
        feed(state, *(TrainerProgressed(step=step, total=8, seconds_per_step=100.0 + i) for i in range(4)))
    feed(state, *(TrainerSummary() for _ in range(4)))
    assert (state.iterations_total, state.attempt.train_iterations, state.attempt.phase) == (8, 8, "finished")


def test_foreign_bars_are_no_training(state: RunState) -> None:
    """A download's bar is no iteration, and proves no training."""
    feed(state, TrainerProgressed(step=3, total=9, description="Loading checkpoint shards"))
    assert not state.proven
    assert state.iterations_total == 0


def test_trainer_dicts_without_a_step_take_the_bars(state: RunState) -> None:
    """A metric dict does not name its step: the bar before it does."""
    for step in (1, 2, 3):
        feed(state, TrainerProgressed(step=step, total=30, seconds_per_step=2.0), TrainerLogged(loss=3.0 - step / 10))
    assert (state.attempt.latest.iteration, state.attempt.train_iterations) == (3, 30)
    assert state.attempt.latest.lm_loss == pytest.approx(2.7)


def test_missing_loss_is_absent(state: RunState) -> None:
    """A NaN loss makes the field vanish: the old value must not stand for it."""
    feed(state, iteration(1), iteration(2, lm_loss=None))
    assert state.attempt.latest.lm_loss is None


def test_phases_follow_the_log(state: RunState) -> None:
    """Evaluation and saving are entered and left by their lines."""
    feed(state, *(iteration(n) for n in range(1, 4)))
    feed(state, ValidationLogged(iteration=3, losses={"lm loss": 2.0}))
    assert state.attempt.phase == "evaluating"
    feed(state, CheckpointSaveStarted(iteration=3))
    assert state.attempt.phase == "saving"
    feed(state, CheckpointSaved(iteration=3))
    assert (state.attempt.phase, state.learned.checkpoints.last_iteration, state.learned.checkpoints.save_seconds) == (
        "training",
        3,
        10.0,
    )
    assert derived.unsaved_progress_seconds(state) == 0.0
    feed(state, iteration(4))
    assert derived.unsaved_progress_seconds(state) == 10.0


def test_evaluation_due_is_expected_silence(state: RunState) -> None:
    """No line announces an evaluation: the interval of the arguments does."""
    feed(state, ArgumentsDumped(values={"eval_interval": "5", "eval_iters": "2"}), *(iteration(n) for n in range(1, 6)))
    assert state.attempt.phase == "evaluating"
    feed(state, iteration(6))
    assert state.attempt.phase == "training"


def test_overhead_is_taken_out_of_the_time(state: RunState) -> None:
    """The microsoft fork counts evaluation and saving into the next line's time: live it is measured and taken out."""
    feed(state, *(iteration(n) for n in range(1, 8)))
    now = state.updated_at
    feed(state, CheckpointSaveStarted(iteration=7), at=now + 0.1)
    feed(state, CheckpointSaved(iteration=7), at=now + 40.1)
    feed(state, iteration(8, 50.2), at=now + 50.2)
    assert state.attempt.pure_seconds == pytest.approx(10.1)
    assert state.attempt.pace.baseline == 10.0


def test_overhead_told_by_a_timer_is_taken_out(state: RunState) -> None:
    """In a finished log the timer of the save tells how much of the next line's time it was."""
    feed(state, *(iteration(n) for n in range(1, 8)), live=False)
    save = TimersReported(speaker="megatron", timers={"save-checkpoint": (39.0, 40.0)})
    feed(state, CheckpointSaveStarted(iteration=7), CheckpointSaved(iteration=7), save, iteration(8, 50.0), live=False)
    assert state.attempt.pure_seconds == pytest.approx(10.0)


def test_unmeasured_overhead_leaves_the_last_time(state: RunState) -> None:
    """An evaluation of unknown length makes the line's time useless: the figure before it stays."""
    feed(state, *(iteration(n) for n in range(1, 8)), live=False)
    feed(state, ValidationLogged(iteration=7, losses={"lm loss": 2.0}), iteration(8, 700.0), live=False)
    assert state.attempt.pure_seconds == 10.0
    assert state.learned.silences.longest("evaluating") == pytest.approx(690.0)


def test_time_stamped_megatron_holds_no_overhead(state: RunState) -> None:
    """NVIDIA's newer loop stops its timer around evaluation: its time stands as printed."""
    lines = [iteration(n, format="megatron-lm", logged_at=f"2026-01-01T00:00:{n:02d}") for n in range(1, 8)]
    slow = replace(lines[-1], iteration=8, seconds_per_iteration=12.0, lm_loss=4.0)
    feed(state, *lines, ValidationLogged(iteration=7, losses={"lm loss": 2.0}), slow)
    assert state.attempt.pure_seconds == 12.0


@pytest.mark.parametrize(("evaluated", "shown"), [(80, 10.0), (99, None)])
def test_few_iterations_behind_an_evaluation_are_no_measure(
    state: RunState, evaluated: int, shown: float | None
) -> None:
    """A line is seen up to half a second late: beside twenty iterations that is lost, beside one it is a slowdown."""
    feed(state, *(iteration(n) for n in (1, 25, 50)), at=1000.0)
    ended = 1000.0 + 10.0 * (evaluated - 50) + 60.0
    feed(state, ValidationLogged(iteration=evaluated, losses={"lm loss": 3.0}), at=ended)
    feed(state, iteration(100, 560 / 50, lm_loss=1.0), at=1560.0)
    assert state.attempt.step_seconds == (pytest.approx(shown) if shown else None)


def test_lines_that_were_written_out_together_teach_no_pace(state: RunState) -> None:
    """A buffer of 4 KiB holds an evaluation and the line after it: between them no time seems to have passed."""
    feed(state, iteration(1), at=100.0)
    feed(state, ValidationLogged(iteration=20, losses={"lm loss": 3.0}), at=339.0)
    feed(state, iteration(21, 12.0), at=340.0)
    assert state.attempt.pace.predicted() is None
    assert state.attempt.pure_seconds == 10.0


def test_last_iteration_leads_to_exiting(state: RunState) -> None:
    """After the last planned iteration only tidying up is left."""
    feed(state, iteration(999), iteration(1000))
    assert state.attempt.phase == "exiting"


def test_overflows_move_the_scale(state: RunState) -> None:
    """DeepSpeed's overflow lines are the truth about the loss scale where Megatron prints -1."""
    feed(state, iteration(1, loss_scale=-1.0), OverflowSkipped(loss_scale=65536.0, new_loss_scale=32768.0))
    assert (state.overflows_total, state.attempt.latest.loss_scale) == (1, 32768.0)


def test_environment_alone_makes_no_run(state: RunState) -> None:
    """A script's environment dump is no training."""
    feed(state, EnvironmentVariableSeen(name="CUDA_LAUNCH_BLOCKING", value="1"))
    assert not state.proven
    assert state.attempt.environment["CUDA_LAUNCH_BLOCKING"] == "1"
