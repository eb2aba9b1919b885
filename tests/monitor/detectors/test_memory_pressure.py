"""Memory pressure: near the limit, and leaks; silent on plateaus, noise, and sizes that nobody told."""

import math
import random
from collections.abc import Callable

import msgspec
import pytest

from megatron_monitor.detectors.base import RuleSettings
from megatron_monitor.detectors.memory_pressure import MemoryPressure
from megatron_monitor.parsers.events import MemoryReported
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step
from megatron_monitor.statistics.series import Series
from tests.conftest import spread
from tests.monitor.detectors.replaying import Replaying, arguments, line

KIND = "memory_pressure"
A100 = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5c1e)\n"
GIB = 1024.0  # in the MB that the line prints


def report(iteration: int, allocated: float, reserved: float | None = None) -> str:
    """Megatron's line; in MiB."""
    most = allocated + 2048 if reserved is None else reserved
    return (
        f"[Rank 0] (after {iteration} iterations) memory (MB) | allocated: {allocated:.4f} | max allocated: "
        f"{allocated + 1024:.4f} | reserved: {most:.1f} | max reserved: {most:.1f}\n"
    )


def host(percent: float) -> str:
    """DeepSpeed's see_memory_usage."""
    return (
        "[2026-01-01 00:00:00,000] [INFO] [utils.py:806:see_memory_usage] after step\n"
        "[2026-01-01 00:00:00,000] [INFO] [utils.py:807:see_memory_usage] MA 30.0 GB         Max_MA 31.0 GB         "
        "CA 40.0 GB         Max_CA 40 GB \n"
        "[2026-01-01 00:00:00,000] [INFO] [utils.py:815:see_memory_usage] CPU Virtual Memory:  "
        f"used = {percent * 5:.2f} GB, percent = {percent:.1f}%\n"
    )


def trained(
    used: Callable[[float], float],
    seconds: float,
    hours: float,
    name: str = A100,
    text: Callable[[int, float], str] = report,
    total: int = 1_000_000,
) -> tuple[Replaying, float | None]:
    """(the run, hours until it was told aloud) with a report after each iteration; `used` is given the hours."""
    run = Replaying()
    run.say(name + arguments(train_iters=total))
    first = None
    for iteration in range(1, int(hours * 3600 / seconds)):
        elapsed = iteration * seconds / 3600
        run.say(text(iteration, used(elapsed)) + line(iteration, seconds=seconds, total=total), seconds)
        if first is None and run.loud(KIND):
            first = elapsed
    return run, first


def driven(used: Callable[[float], float], seconds: float, hours: float) -> float | None:
    """As `trained` without the text, for long series: hours until it fires aloud."""
    state = RunState(name="run")
    state.attempt.topology.gpu_name = "NVIDIA A100-SXM4-80GB"
    state.attempt.iterations = 1
    settings, rule = RuleSettings(), MemoryPressure()
    for iteration in range(1, int(hours * 3600 / seconds)):
        elapsed = iteration * seconds / 3600
        state.attempt.latest.iteration, state.attempt.latest.seconds_per_iteration = iteration, seconds
        state.attempt.memory.allocated = state.attempt.memory.max_allocated = int(used(elapsed) * 2**20)
        rule.on_event(state, MemoryReported(allocated_bytes=state.attempt.memory.allocated), settings)
        step = Step(iteration=iteration, at=0.0, counted=True, printed_seconds=seconds)
        rule.on_steps(state, [step], settings)
        found = rule.evaluate(state, 0.0, settings)
        if found.state == "firing" and not found.display_only:
            return elapsed
    return None


# --- near the limit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reserved", "fires"), [(77.0, True), (76.0, True), (74.0, False), (53.0, False)])
def test_near_the_device_size(reserved: float, fires: bool) -> None:
    """76 of 80 GB was "too close to OOM"."""
    run = Replaying()
    run.say(A100 + arguments())
    run.say(line(1) + report(1, 40 * GIB, reserved * GIB) + line(2) + line(3))
    assert bool(run.loud(KIND)) is fires
    if fires:
        assert run.loud(KIND)[0].severity == "warning"


def test_without_the_device_size_nothing_is_near() -> None:
    """Megatron does not print the device's name."""
    run = Replaying()
    run.say(arguments() + line(1) + report(1, 78 * GIB, 79.5 * GIB) + line(2) + line(3))
    assert not run.fired(KIND)


# --- leaks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [1.0, 10.0, 60.0, 100.0])
@pytest.mark.parametrize("seed", spread(range(5), 4))
def test_a_gigabyte_a_day_at_every_pace(seconds: float, seed: int) -> None:
    """Each pace and noise of its own."""
    noise = random.Random(seed)
    first = driven(lambda hours: (60 + hours / 24) * GIB + noise.gauss(0, 16), seconds, 6.0)
    assert first is not None


def test_a_fast_leak_is_critical_in_time() -> None:
    """A gigabyte in ten minutes from 70 of 80: told long before it is full."""
    run, first = trained(lambda hours: (70 + 6 * hours) * GIB, 5.0, 1.2)
    assert first is not None
    assert first < 0.6
    assert run.loud(KIND)[-1].severity == "critical"


def test_a_leak_that_outlives_the_run_is_a_hint() -> None:
    """Full in a month, done in a day."""
    run, first = trained(lambda hours: (50 + hours / 24) * GIB, 20.0, 6.0, total=4000)
    assert first is None
    reported = run.firing(KIND)
    assert (reported.severity, reported.display_only) == ("info", True)


def test_a_leak_of_unknown_room_is_a_hint() -> None:
    """The device's size is not told."""
    run, first = trained(lambda hours: (50 + hours) * GIB, 20.0, 5.0, name="")
    assert first is None
    assert run.fired(KIND)


def test_a_host_leak() -> None:
    """IDEFICS: a little host memory a step, dead after days."""
    run, first = trained(lambda hours: 40 + hours, 20.0, 8.0, text=lambda _, percent: host(percent))
    assert first is not None
    assert first < 5.0
    assert "host's memory grows" in run.loud(KIND)[0].summary


@pytest.mark.parametrize("tau", [0.02, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("gained", spread([0.5, 5.0, 12.0], 2))
def test_a_warm_up_plateau_is_silent(tau: float, gained: float) -> None:
    """Caches and fragmentation grow towards a level, over a minute or an hour."""
    for seconds in (10.0, 60.0):
        assert driven(lambda hours: (58 + gained * (1 - math.exp(-hours / tau))) * GIB, seconds, 12.0) is None


@pytest.mark.parametrize("seed", spread(range(5), 4))
def test_noise_is_silent(seed: int) -> None:
    """Reports that vary by a hundred MB, with outliers of gigabytes, for five days."""
    noise = random.Random(seed)

    def used(_: float) -> float:
        return 60 * GIB + noise.gauss(0, 100) + (3000 if noise.random() < 0.02 else 0)

    assert driven(used, 60.0, 5 * 24.0) is None


def test_steps_and_restarts_are_silent() -> None:
    """A level that changes once, and curriculum learning's longer sequences, are no slope."""
    assert driven(lambda hours: (50 if hours < 2 else 58) * GIB, 30.0, 12.0) is None


# --- the series -----------------------------------------------------------------------------------------------------


def test_the_series_is_bounded_and_its_slope_is_robust() -> None:
    """A hundred thousand readings, a tenth of them wild."""
    series, noise = Series(), random.Random(0)
    for at in range(100_000):
        series.add(float(at), 3.0 * at + (1e7 if noise.random() < 0.1 and at < 50 else 0.0) + noise.gauss(0, 50))
    assert len(series.times) <= 256
    assert series.slope() == pytest.approx(3.0, rel=0.01)
    assert series.count == 100_000
    assert (
        msgspec.convert(msgspec.json.decode(msgspec.json.encode(MemoryPressure(device=series))), MemoryPressure).device
        == series
    )
