"""Slowdowns: found in a few iterations, told once, resolved; nothing of what only looks like one."""

import math
import random
from collections.abc import Iterator

import pytest

from megatron_monitor.simulate import Fault, Scenario, timeline
from tests.conftest import spread
from tests.monitor.detectors.training_log import bloom
from tests.monitor.playing import play
from tests.simulated import WITH_MEGATRON_SETUP


def lines(series: list[tuple[int, float, int]]) -> Iterator[tuple[float, str]]:
    """(iteration, seconds, batch size) as lines at their instants."""
    now = 0.0
    for iteration, seconds, size in series:
        now += seconds
        yield now, bloom(iteration, 2.3, 0.24, size, seconds)


def steady(first: int, count: int, seconds: float = 105.2, seed: int = 1) -> list[tuple[int, float, int]]:
    """A healthy run at 0.4 % noise."""
    rng = random.Random(seed)
    return [(first + i, seconds * math.exp(rng.gauss(0, 0.004)), 2048) for i in range(count)]


def test_blooms_slow_gpu() -> None:
    """2022-04-28: from iteration 42782 on 110 s instead of 105; told at or before 42787, with what it cost."""
    series = steady(42580, 200)
    series += [(42780 + i, seconds, 2048) for i, seconds in enumerate((105.16, 105.17, 106.25, 110.17, 111.14))]
    series += steady(42785, 60, 111.05)
    reported = play(lines(series)).firing("slowdown")
    assert reported.iteration in range(42783, 42788)
    assert reported.severity == "warning"
    assert reported.onset_iteration in (42782, 42783)
    assert reported.evidence["normal_seconds_per_iteration"] == pytest.approx(105.2, rel=0.005)
    assert reported.evidence["seconds_per_iteration"] == pytest.approx(110.5, rel=0.01)
    assert reported.evidence["hours_added"] > 80
    assert "find the slow GPU" in reported.summary


@pytest.mark.parametrize("seed", spread(range(5), 4))
@pytest.mark.parametrize(("factor", "within"), [(1.02, 13), (1.05, 6), (1.10, 4)])
def test_a_step_is_found_in_time(factor: float, within: int, seed: int) -> None:
    """2, 5 and 10 %, at BLOOM's noise."""
    series = steady(1, 250, seed=seed) + steady(251, 60, 105.2 * factor, seed=seed + 100)
    assert play(lines(series)).firing("slowdown").iteration in range(251, 251 + within)


@pytest.mark.parametrize(("factor", "reported"), [(1.017, False), (1.023, True)])
def test_less_than_the_threshold_is_no_slowdown(factor: float, reported: bool) -> None:
    """However sure it is: the threshold is 2 %."""
    rng = random.Random(3)
    series = [(i, 105.2 * (factor if i > 250 else 1) * rng.gauss(1, 0.001), 2048) for i in range(1, 500)]
    assert bool(play(lines(series)).of("slowdown")) is reported


def test_a_second_shift_is_a_second_incident() -> None:
    """Another 6 % on top, long after: told again, with the first normal as the base."""
    series = steady(1, 200) + steady(201, 200, 111.0, seed=2) + steady(401, 60, 118.0, seed=3)
    reported = [item for item in play(lines(series)).of("slowdown") if item.status == "firing"]
    assert [100 * round(item.evidence["ratio"] - 1, 2) for item in reported] == pytest.approx([5, 12], abs=1.01)


@pytest.mark.parametrize(("stretch", "kinds"), [(60, set()), (200, {"slowdown"})])
def test_the_return_from_a_faster_level_is_a_slowdown_once_that_is_normal(stretch: int, kinds: set[str]) -> None:
    """A faster level is not an incident."""
    fast = steady(201, stretch, 98.0, seed=2)
    played = play(lines(steady(1, 200) + fast + steady(201 + stretch, 200, seed=3)))
    assert {item.incident for item in played.reported} == kinds


def test_ramp_up_is_no_slowdown() -> None:
    """The batch size grows by 16 every 30 iterations, the time with it."""
    rng = random.Random(3)
    sizes = [192 + 16 * (i // 30) for i in range(1500)]
    series = [(i + 1, (12 + 0.0465 * b) * math.exp(rng.gauss(0, 0.004)), b) for i, b in enumerate(sizes)]
    assert play(lines(series)).kinds() == set()


def test_single_outliers_and_old_hiccups_are_no_slowdown() -> None:
    """One iteration of 1.5, a hiccup of 30 % every tenth iteration from the beginning: neither is a new level."""
    series = [(i, s * (1.3 if i % 10 == 0 else 1.5 if i == 222 else 1.0), b) for i, s, b in steady(1, 400)]
    assert play(lines(series)).kinds() == set()


@pytest.mark.parametrize(
    ("format_name", "interval"), [(name, every) for name in sorted(WITH_MEGATRON_SETUP) for every in (1, 10)]
)
def test_every_program_that_tells_a_time_is_watched(format_name: str, interval: int) -> None:
    """DeepSpeed's engine tells the time of a step on the line behind it, when the step has been counted already."""
    count, at = 150 * interval, 90 * interval
    wanted = {
        "format": format_name, "iterations": count, "seconds_per_iteration": 5.0, "log_interval": interval, "seed": 4,
        "eval_interval": 0, "save_interval": 0,
    }  # fmt: skip
    slow = Scenario(**wanted, faults=(Fault("slowdown", at, factor=1.08),))
    played = play((emission.at, emission.text) for emission in timeline(slow))
    # A bar shows whole seconds, so that one of its laps is 20 of them: four steps.
    within = 40 if format_name == "hf-trainer" and interval == 1 else 8 * interval
    assert played.shown("slowdown").iteration in range(at, at + within + 1)
    assert played.kinds() == {"slowdown"}
    assert played.state.productive_seconds == pytest.approx(5.0 * at + 5.4 * (count - at), rel=0.01)
    assert play((emission.at, emission.text) for emission in timeline(Scenario(**wanted))).kinds() == set()
