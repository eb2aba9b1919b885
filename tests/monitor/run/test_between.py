"""DeepSpeed's engine alone: its clock leaves out the data loader and the saves, the stamps of its lines hold both."""

import random

import pytest

from megatron_monitor.run.steps.timing import Stopwatch
from tests.monitor.playing import Played, fault, play
from tests.simulated import printed

SIZES: dict[str, object] = {
    "format": "deepspeed", "world_size": 16, "tp": 1, "pp": 1, "global_batch_size": 256, "seconds_per_iteration": 0.7,
}  # fmt: skip
LAST = 9


@pytest.mark.parametrize(("interval", "timers"), [(1, ""), (1, "engine"), (10, "")])
def test_a_slow_loader_that_no_figure_of_the_engine_shows(interval: int, timers: str) -> None:
    """5 % more from line to line: seen with its cause by the seventh line; the engine's own figures are as ever."""
    at = 200 * interval  # in its first two minutes an attempt settles
    played = fault("slow_data", at, iterations=3 * at, log_interval=interval, inner=printed(timers), **SIZES)
    reported, shown = played.firing("slowdown"), played.shown("slowdown")
    assert reported.evidence["cause"] == "outside_timers"
    assert reported.evidence["ratio"] == pytest.approx(1.05, abs=0.012)
    assert (shown.onset_iteration, shown.iteration) == (at, at + (60 if interval == 10 else 6))
    assert "the data loader" in reported.summary
    assert played.state.attempt.pure_seconds == pytest.approx(0.69, abs=0.03)


def lines(gaps: list[float], *, saves: dict[int, str] | None = None) -> Played:
    """Steps that take DeepSpeed's clock 1 s, with seconds between them; before some of them another line."""
    config = "[2026-01-01 00:00:00,000] [INFO] [config.py:1007:print]   train_batch_size ............. 64\n"
    out, at = [(0.0, config)], 0.0
    for step, gap in enumerate(gaps, 1):
        at += 1.0 + gap
        stamp = f"[2026-01-01 {int(at) // 3600:02d}:{int(at) // 60 % 60:02d}:{at % 60:06.3f}] [INFO] ".replace(
            ".", ",", 1
        )
        head = stamp + "[logging.py:123:log_dist] [Rank 0] "
        if saves and step in saves:
            out.append((at - gap - 0.9, head + saves[step] + "\n"))
        out.append((at, f"{head}step={step}, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]\n"))
        rate = f"RunningAvgSamplesPerSec=64.0, CurrSamplesPerSec={64.0!r}, MemAllocated=3.96GB, MaxMemAllocated=22.9GB"
        out.append((at, f"{stamp}[timer.py:264:stop] epoch=0/micro_step={step}/global_step={step}, {rate}\n"))
    return play(out)


def test_a_loader_that_takes_most_of_the_step() -> None:
    """The engine's clock is 1 s of 21 s, and of 41 s once the loader is slow: all that is added lies outside it."""
    slow = lines([20.0] * 150 + [40.0] * 30).firing("slowdown")
    assert (slow.evidence["cause"], slow.onset_iteration) == ("outside_timers", 151)


def test_what_lies_between_the_steps_varies() -> None:
    """A loader that stumbles, in bursts of up to four lines, and an evaluation without a word every 50 steps: nothing
    is told. The same with a level that stays is.
    """
    chance = random.Random(4)
    gaps: list[float] = []
    while len(gaps) < 1500:
        burst = chance.choice((1, 1, 2, 4)) if chance.random() < 0.02 else 0
        gaps += [0.02 + chance.expovariate(5.0) for _ in range(burst)] or [0.02 * chance.lognormvariate(0.0, 0.5)]
    gaps[49::50] = [4.0] * len(gaps[49::50])
    assert lines(gaps).kinds() == set()
    slow = lines(gaps + [gap + 0.1 for gap in gaps[:120]])
    shown, reported = slow.shown("slowdown"), slow.firing("slowdown")
    assert shown.iteration is not None
    assert reported.iteration is not None
    assert len(gaps) < shown.iteration <= len(gaps) + 20 < reported.iteration


def test_one_is_told_once_it_has_stood() -> None:
    """Twice as long for 20 s: shown, nobody is woken. For a minute: somebody is, after half a minute."""
    before = [0.02, 0.025, 0.03] * 30
    assert lines([*before, *[1.0] * 10, *before]).kinds() == set()
    reported = lines([*before, *[1.0] * 30]).firing("slowdown")
    assert reported.severity == "critical"
    assert reported.iteration is not None
    assert 105 <= reported.iteration <= 114


def test_a_level_that_comes_and_goes_must_stay_longer_each_time() -> None:
    """Shards of a data set that are slow for a dozen steps each: told twice at most."""
    gaps = [0.15 if step > 100 and step % 100 < 12 else 0.02 + 0.001 * (step % 7) for step in range(1, 3001)]
    assert len([one for one in lines(gaps).of("slowdown") if one.status == "firing"]) <= 2


def test_a_save_without_an_end_is_timed_by_the_step_behind_it() -> None:
    """What is more than a step; the checkpoint counts. With an evaluation beside it nobody knows how long it took."""
    begins = "[Torch] Checkpoint global_step{} is about to be saved!"
    gaps = [0.02] * 60
    gaps[LAST + 1], gaps[29], gaps[49] = 5.02, 7.02, 9.02
    saves = {
        LAST + 2: begins.format(LAST + 1),
        30: begins.format(29),
        50: begins.format(49) + "\nEvaluating iter 10/10",
    }
    state = lines(gaps, saves=saves).state
    assert state.learned.checkpoints.durations == {
        LAST + 1: pytest.approx(5.0, abs=0.01),
        29: pytest.approx(7.0, abs=0.01),
    }
    assert state.learned.checkpoints.last_iteration in (29, 49)
    assert state.learned.checkpoints.saves in (2, 3)
    assert state.attempt.seconds_since_checkpoint < 32


def test_an_evaluation_in_the_middle_is_not_left_out() -> None:
    """Where steps lie before the evaluation, its end is not where the next ones begin."""
    watch = Stopwatch()
    usual = {"disturbed": False, "single": True, "stamped": True}
    assert watch.lap(48, 100.5, **usual) is None
    watch.pause(145.5)
    assert not watch.resume(175.5)
    assert watch.lap(96, 310.5, **usual) == (210.0 / 48, 48)
    watch.pause(310.5)
    assert watch.resume(340.5)
    assert watch.lap(144, 520.5, **usual) == (180.0 / 48, 48)
