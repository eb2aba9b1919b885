"""The parts of a step of reinforcement learning: which one hangs, by whose budget, and whose time grew."""

from collections.abc import Iterator

import pytest

from tests.monitor.playing import Played, fault, healthy, play
from tests.simulated import printed

PACE: dict[str, object] = {
    "format": "verl",
    "iterations": 150,
    "seconds_per_iteration": 100.0,
    "inner": printed("verl"),
}
ENGINE = "(vLLMHttpServer pid=6) INFO 11-22 08:00:00 [loggers.py:248] Engine 000: Avg prompt throughput: 9.0 tokens/s, "
NEMO_RL = {
    0.0: "▶ Preparing batch...\n▶ Generating responses for batch of size 512...\n",
    50.0: "▶ Processing rewards...,\n",
    55.0: "▶ Computing logprobs...\n",
    70.0: "▶ Training policy...\n",
    95.0: "\n📊 Training Results:\n  • Loss: 0.1234\n\n⏱️  Timing:\n  • Total step time: 95.00s\n"
    "  • generation: 50.00s (52.6%)\n  • reward_calculation: 5.00s (5.2%)\n"
    "  • policy_and_reference_logprobs: 15.00s (15.8%)\n  • policy_training: 25.00s (26.3%)\n",
}


def test_each_part_is_a_phase_with_a_budget_of_its_own() -> None:
    """A healthy run with rollouts of many lengths is silent; each part has learned what it takes."""
    played = healthy(noise=0.1, seed=3, **PACE)
    state = played.state
    assert played.kinds() == set()
    assert set(state.attempt.parts.reported) == {"rollout", "logprobs", "training", "sync"}
    assert 55 < state.learned.silences.longest("rollout") < 100
    assert state.learned.silences.longest("sync") == pytest.approx(3.0, rel=0.5)
    assert (state.phase_before, state.attempt.phase) == ("exiting", "finished")


def test_a_hang_in_a_rollout_is_told_by_the_rollouts_budget() -> None:
    """After three times the longest rollout, which is less than three steps; a rollout of twice the length is none."""
    hang = fault("hang", 100, after=4000.0, **PACE).firing("hang")
    assert hang.evidence["phase"] == "rollout"
    assert "hung in rollout (or reward: no line distinguishes them) after iteration 99" in hang.summary
    assert 150 < hang.evidence["silence_seconds"] < 190
    assert hang.evidence["silence_seconds"] == pytest.approx(hang.evidence["timeout_seconds"], abs=0.1)
    long = fault("transient_slow", 100, factor=2.0, **PACE)
    assert not long.of("hang")


def test_a_slower_rollout_is_named() -> None:
    """What the steps print of their parts tells which one took the added time."""
    reported = fault("slow_rollout", 100, factor=1.3, noise=0.02, **PACE)
    slow = reported.firing("slowdown")
    assert abs(slow.onset_iteration - 100) <= 2
    assert slow.evidence["cause"] == "rollout"
    assert "of it in generation (rollout)" in slow.summary


def _nemo_rl(steps: int, *, until: float = 95.0) -> Iterator[tuple[float, str]]:
    """Steps of NeMo-RL, the last one until so many seconds in it."""
    for step in range(1, steps + 1):
        yield 100.0 * step, f"\n{'=' * 25} Step {step}/100 {'=' * 25}\n"
        for after, text in NEMO_RL.items():
            if step < steps or after <= until:
                yield 100.0 * step + after, text


@pytest.mark.parametrize(
    ("until", "phase", "budget"), [(0.0, "rollout", 150.0), (50.0, "reward", 142.5), (70.0, "training", 142.5)]
)
def test_the_phase_that_hangs_is_told(until: float, phase: str, budget: float) -> None:
    """NeMo-RL tells all parts but the weight sync: each hangs by 3 x what it took before, but not before 1.5 steps."""
    hang = play(_nemo_rl(20, until=until), after=4000.0).firing("hang")
    assert (hang.evidence["phase"], hang.iteration) == (phase, 19)
    assert hang.evidence["silence_seconds"] == pytest.approx(budget, abs=1.0)


def test_the_first_rollout_may_take_long() -> None:
    """Engines start and compile: half an hour of silence is no hang, two hours are one."""
    assert not play(_nemo_rl(1, until=0.0), after=1700.0).reported
    steps = [*_nemo_rl(1, until=0.0), (2000.0, "▶ Processing rewards...,\n"), (2010.0, "▶ Training policy...\n")]
    assert not play(steps).of("hang")


def test_another_launch_may_start_its_engines_again() -> None:
    """Nine minutes of its first rollout are no hang, though a rollout takes 50 s; ten are one."""
    again = [(2200.0, "\n▶ Setting up compute cluster...\n"), (2260.0, NEMO_RL[0.0])]
    went_on = play([*_nemo_rl(20), *again, (2800.0, "▶ Processing rewards...,\n")])
    assert (went_on.kinds(), went_on.state.restarts) == (set(), 1)
    hang = play([*_nemo_rl(20), *again], after=1800.0).firing("hang")
    assert (hang.evidence["phase"], hang.evidence["silence_seconds"]) == ("rollout", pytest.approx(600.0, abs=1.0))


def test_engines_that_generate_are_progress_of_a_rollout_alone() -> None:
    """Their lines keep a long rollout alive; standing still they do not, nor do they hide a training that hangs."""

    def generating(rate: float, until: float) -> Played:
        steps = list(_nemo_rl(20, until=until))
        last = steps[-1][0]
        line = f"{ENGINE}Avg generation throughput: {rate} tokens/s, Running: 8 reqs, Waiting: 0 reqs\n"
        return play([*steps, *((last + 10.0 * n, line) for n in range(1, 60))])

    assert not generating(5120.4, 0.0).of("hang")
    assert generating(0.0, 0.0).firing("hang").evidence["phase"] == "rollout"
    assert generating(5120.4, 70.0).firing("hang").evidence["phase"] == "training"


def test_without_lines_of_parts_the_whole_step_is_training() -> None:
    """Verl without its debug lines: one phase, one budget."""
    display_only = (
        (100.0 * step, f"(TaskRunner pid=4) step:{step} - actor/pg_loss:0.1 - timing_s/gen:60 - timing_s/step:100.0\n")
        for step in range(1, 20)
    )
    hang = play(display_only, after=4000.0).firing("hang")
    assert (hang.evidence["phase"], round(hang.evidence["silence_seconds"])) == ("training", 300)


def test_a_validation_within_a_step_is_neither_a_hang_nor_in_its_time() -> None:
    """The validation of verl comes before its step's line, which prints how long it took: twenty minutes are told of
    nobody, and the step is as long as the others.
    """

    def steps() -> Iterator[tuple[float, str]]:
        at = 0.0
        for step in range(1, 61):
            at += 100.0 + step % 7  # rollouts differ
            testing = ""
            if step % 10 == 0:
                yield at, "(TaskRunner pid=4) test_gen_batch meta info: {'validate': True}\n"
                at += 1200.0
                yield at, "(TaskRunner pid=4) validation generation end\n"
                testing = "timing_s/testing:1200.0 - "
            duration = f"timing_s/gen:60 - {testing}timing_s/step:{100.0 + step % 7 + (1200.0 if testing else 0.0)}"
            yield at, f"(TaskRunner pid=4) step:{step} - actor/pg_loss:0.1 - {duration}\n"

    played = play(steps())
    assert played.kinds() == set()
    assert (played.state.attempt.step_seconds, played.state.attempt.phase) == (104.0, "training")


def _slime(steps: int, until: float = 110.0) -> Iterator[tuple[float, str]]:
    """Steps of slime, whose weights are handed over right behind the step's line; the last until so many seconds in it.
    A bar moves with each answer.
    """
    reported = {
        62.0: "timer.py:24 - Timer log_probs start",
        70.0: "timer.py:24 - Timer actor_train start",
        95.0: "model.py:918 - step {0}: {{'train/loss': 0.01, 'train/step': {0}}}",
        95.1: "train_metric_utils.py:401 - perf {0}: {{'perf/actor_train_time': 25.0, 'perf/log_probs_time': 8.0}}",
        95.5: "timer.py:24 - Timer update_weights start",
        100.0: "timer.py:32 - Timer update_weights end (elapsed: 4.5s)",
    }
    bars = {
        6.0 * done: f"Rollout generation:  {done}0%|#  | {done}/10 [00:01<00:09,  1.0s/it]" for done in range(1, 10)
    }
    bars[60.0] = "rollout.py:1193 - perf {0}: {{'rollout/response_len/mean': 2.5, 'perf/rollout_time': 60.0}}"
    for step in range(steps):
        for after, text in sorted({**bars, **reported}.items()):
            if step < steps - 1 or after <= until:
                minute, second = divmod(int(100 * step + after), 60)
                stamp = "" if "%|" in text else f"[2025-11-22 {8 + minute // 60:02}:{minute % 60:02}:{second:02}] "
                yield 100.0 * step + after, f"(Actor pid=4) {stamp}{text.format(step)}\n"


@pytest.mark.parametrize(
    ("until", "phase", "budget"), [(30.0, "rollout", 90.0), (70.0, "training", 150.0), (95.5, "sync", 150.0)]
)
def test_bars_prove_the_part_and_a_line_behind_the_steps_need_not_be_late(
    until: float, phase: str, budget: float
) -> None:
    """Of a rollout whose bar moves the rollout's own time counts; of what one line tells the step's."""
    assert play(_slime(30)).kinds() == set()
    hang = play(_slime(30, until), after=4000.0).firing("hang")
    assert (hang.evidence["phase"], hang.evidence["silence_seconds"]) == (phase, pytest.approx(budget, abs=2.0))
