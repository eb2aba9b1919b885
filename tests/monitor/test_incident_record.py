"""Incidents of real trainings, line by line as their logs had them, with the instant by which they must be told.

The codes (H1, C3 ...) are those of docs/development/incident-record.md; the lines are written in the same formats.
"""

import math
import random
from collections.abc import Iterator

import pytest

from megatron_monitor.simulate import Scenario
from tests.monitor.playing import Played, play, texts

LINE = (
    " iteration {:8d}/  115311 | consumed samples: {:12d} | consumed tokens: {:16d} | elapsed time per iteration (s): "
    "{:.2f} | learning rate: 5.990E-05 | global batch size:  2048 | lm loss: 2.300000E+00 | grad norm: 0.240 | "
    "num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: 19.400 | "
    "TFLOPs: 149.00 |\n"
)
RULE = "-" * 118 + "\n"
VALID = " valid loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: 1.024809E+01 | \n"
PULSE = (
    "PULSE: tr11-176B-ml is running for 1-{:02d}:27:33 since 2022-04-29T01:18:26 (gpu_p5 on 'jean-zay-iam[01-48]')\n"
)

Timed = list[tuple[float, str]]


def training(first: int, count: int, start: float = 0.0, seconds: float = 105.2) -> Timed:
    """BLOOM's lines, one every 105.2 s at 0.4 %."""
    rng, now, out = random.Random(first), start, []
    for iteration in range(first, first + count):
        duration = seconds * math.exp(rng.gauss(0, 0.004))
        now += duration
        out.append((now, LINE.format(iteration, iteration * 2048, iteration * 2048 * 2048, duration)))
    return out


def evaluation(iteration: int, start: float, sets: int) -> Timed:
    """So many of the 29 sets, 25 s each."""
    return [(start + 25.0 * (n + 1), RULE + VALID.format(iteration, 2.0 + n / 20) + RULE) for n in range(sets)]


def pulses(start: float, hours: int) -> Timed:
    """BigScience's hourly status line, written into the training's own log."""
    return [(start + 3600.0 * (n + 1), PULSE.format(n % 24)) for n in range(hours)]


def healthy_evaluation(start: float, iteration: int) -> Timed:
    """All 29 sets."""
    return evaluation(iteration, start, 29)


@pytest.mark.parametrize("sets", [1, 2])
def test_bloom_2022_04_30_the_evaluation_hangs_behind_a_growing_log(sets: int) -> None:
    """H1: one of 29 sets is done, then only status lines for 18 hours. Told 75 to 90 s after the set, phase named.
    H3, of 2022-05-18: the same, one set later.
    """
    log = training(43_990, 11)
    log += healthy_evaluation(log[-1][0], 44_000)
    log += training(44_001, 1000, log[-1][0])
    log += evaluation(45_000, log[-1][0], sets)
    hung_at = log[-1][0]
    reported = play(log + pulses(hung_at, 18)).firing("hang")
    assert reported.severity == "critical"
    assert reported.evidence["phase"] == "evaluating"
    assert reported.iteration == 45_000
    assert 75 <= reported.time - hung_at <= 90.5
    assert "py-spy" in reported.evidence["advice"]


def test_an_evaluation_of_29_sets_is_no_hang() -> None:
    """Near miss of H1: 12 minutes without an iteration, each with its sets."""
    log = training(1990, 11)
    log += healthy_evaluation(log[-1][0], 2000)
    log += training(2001, 999, log[-1][0])
    log += healthy_evaluation(log[-1][0], 3000)
    log += training(3001, 20, log[-1][0])
    assert play(log).kinds() == set()


def test_prequel_2022_02_it_hangs_after_the_first_iteration() -> None:
    """H4: one line, then nothing. There is no past: five times the first iteration, and the variable that ended it."""
    log = [(at, text) for at, text in texts(Scenario(iterations=9)) if at < 300]
    assert sum(" iteration        1/" in text for _, text in log) == 1
    reported = play(log, after=1800.0).firing("hang")
    assert reported.iteration == 1
    assert 700 <= reported.time - log[-1][0] <= 5 * 160
    assert "CUDA_LAUNCH_BLOCKING" in reported.evidence["advice"]


def test_bloom_2022_03_21_a_gpu_crashes_two_iterations_before_the_save() -> None:
    """C1: told with the work that is lost, and how often to save."""
    log = [*texts(Scenario(iterations=198, save_interval=100))][:-1]
    at = log[-1][0]
    log += [(at + 1, "[default3]:terminate called after throwing an instance of 'c10::CUDAError'\n"
                     "[default3]:  what():  CUDA error: unknown error\n"
                     "[default3]:Exception raised from query at aten/src/ATen/cuda/CUDAEvent.h:95\n")]  # fmt: skip
    reported = play(log, after=6.0).firing("crash")
    assert reported.evidence["failure"] == "cuda_error"
    assert reported.evidence["lost_seconds"] == pytest.approx(98 * 105.2, rel=0.02)
    assert reported.time - at <= 6.01


def test_tr1_2021_08_12_the_broken_node_comes_back() -> None:
    """C3: an uncorrectable ECC error; the next job gets the same node and is out of memory at start-up."""
    ecc = "r7i6n5: RuntimeError: transform: failed to synchronize: cudaErrorECCUncorrectable: uncorrectable ECC error\n"
    oom = "r7i6n5: RuntimeError: CUDA error: out of memory\n"
    first = [*texts(Scenario(iterations=120))][:-1]
    again = [(at + 20_000, text) for at, text in texts(Scenario(iterations=121, first_iteration=101))]
    cut = next(place for place, (_, text) in enumerate(again) if "iteration      101/" in text)
    log = [*first, (first[-1][0] + 1, ecc), *again[:cut], (again[cut - 1][0] + 1, oom)]
    played = play(log, after=10.0)
    assert [item.evidence["failure"] for item in played.of("crash") if item.status == "firing"] == ["ecc", "cuda_oom"]
    reported = played.firing("crash_loop")
    assert reported.evidence["common_nodes"] == ["r7i6n5"]


def test_tr1_2021_07_the_data_loader_meets_a_bus_error() -> None:
    """C4: four workers say it, one crash is told, and where to look."""
    log = [*texts(Scenario(iterations=60))][:-1]
    line = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory.\n"
    killed = "RuntimeError: DataLoader worker (pid 30882) is killed by signal: Bus error. It is possible that\n"
    reported = play([*log, (log[-1][0] + 1, 4 * line + killed)], after=10.0).firing("crash")
    assert reported.evidence["failure"] == "bus_error"
    assert "/dev/shm" in reported.summary


def test_tr1_2021_08_08_a_clean_exit_after_20_hours_is_no_incident() -> None:
    """C6, near miss: the loop ends by itself; days of queue are not the run's silence."""
    log = [*texts(Scenario(iterations=60))][:-1]
    log += [(log[-1][0] + 1, "[exiting program after 1190.0357275923093 minutes] datetime: 2021-08-08 07:12:11 \n")]
    assert play(log, after=86_400.0).kinds() == set()


def test_idefics_lines_arrive_in_bursts() -> None:
    """Finding 5, near miss of every hang: a launcher holds lines back for 15 minutes, again and again."""

    def held(log: Timed) -> Iterator[tuple[float, str]]:
        for at, text in log:
            yield at - at % 900.0 + 900.0, text

    played = play([*training(1, 3), *held(training(4, 120, 400.0))])
    assert (
        len([item for item in played.of("hang") if item.status == "firing"]) <= 1
    )  # nothing is known before the first


def told_after_restart(factor: float) -> Played:
    """tr8b, S4: the first lines after a restart take 35 % and 5 % longer."""
    log = training(1000, 100)
    log += [(log[-1][0] + 900 + at, text) for at, text in texts(Scenario(iterations=1, first_iteration=1))][:-2]
    rest = training(1101, 60, log[-1][0])
    slow = [(at + 60, LINE.format(1100 + n, 1, 1, 105.2 * f)) for n, (at, f) in enumerate([(log[-1][0] + 142, factor)])]
    return play([*log, *slow, *[(at + 200, text) for at, text in rest]])


def test_the_first_line_after_a_restart_is_no_slowdown() -> None:
    """S4: 573 s instead of 424, once."""
    assert "slowdown" not in told_after_restart(1.35).kinds()
