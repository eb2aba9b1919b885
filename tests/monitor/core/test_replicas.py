"""Files of the ranks of one training, each with all that its rank prints: together they are judged as one alone."""

import functools
import random
import re

import pytest

from megatron_monitor.follow.messages import Restarted
from megatron_monitor.simulate import Fault, Scenario
from megatron_monitor.simulate.scenario import PROGRAMS
from tests.monitor.core.following import Following, arguments, step
from tests.monitor.playing import texts

FOLDER = ("runs=[{paths: ['/l/*/*.log'], name_from: '^/l/(?P<run>[^/]+)/'}]", "/l/77/rank-{}.log")
TORCHRUN = ("runs=[{paths: ['/l/**/*.log']}]", "/l/77_k3x9a_1z/attempt_0/{}/stdout.log")
COUNTERS = ("iterations_total", "restarts_total", "lost_iterations_total", "failures_total")


@functools.cache
def printed(format_name: str, fault: str) -> list[tuple[float, str]]:
    """What one rank prints, and when."""
    faults = (Fault(fault, 40),) if fault else ()
    return list(texts(Scenario(format=format_name, iterations=80, seed=3, save_interval=30, faults=faults)))


def by_rank(text: str, rank: int) -> str:
    """The same by a rank whose clock is some seconds ahead, and that takes some more time for an iteration."""
    more = random.Random(rank)

    def stamp(match: re.Match[str]) -> str:
        seconds = sum(int(part) * unit for part, unit in zip(match.groups(), (3600, 60, 1), strict=True)) + rank
        return f"{seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"

    def duration(match: re.Match[str]) -> str:
        return f"{match[1]}{float(match[2]) * (1 + rank * more.uniform(0, 0.002)):.1f}"

    text = re.sub(r"\b(\d\d):(\d\d):(\d\d)\b", stamp, text)
    return re.sub(r"(elapsed time per iteration \(ms\): )([\d.]+)", duration, text)


def evaluated(logs: Following) -> dict[str, object]:
    """What is known in the end, and what was told."""
    runs = logs.core.snapshot(logs.now).runs
    pages = {run: (page["state"], page["iteration"]) for run, page in logs.pages().items()}
    counts = {
        (run.run, name): sum(one.value for one in run.samples.get(f"megatron_{name}", ()))
        for run in runs
        for name in COUNTERS
    }
    reported = {
        (one.run, one.incident, str(one.evidence.get("failure"))) for one in logs.reported if one.status == "firing"
    }
    return {"pages": pages, "counts": counts, "reported": reported}


def read(format_name: str, fault: str, place: tuple[str, str], ranks: list[int]) -> dict[str, object]:
    """All files lie there whole."""
    logs = Following(place[0])
    for rank in ranks:
        text = "".join(text for _, text in printed(format_name, fault))
        logs.open(place[1].format(rank), by_rank(text, rank), age=3600)
    logs.wait(5)
    return evaluated(logs)


def followed(format_name: str, fault: str, place: tuple[str, str], ranks: list[int]) -> dict[str, object]:
    """All are written at the same time, some seconds apart."""
    logs = Following(place[0])
    last = 0.0
    for at, text in printed(format_name, fault):
        for rank in ranks:
            logs.write(place[1].format(rank), by_rank(text, rank))
        logs.wait(min(at - last, 4.0))
        last = at
    logs.wait(60)
    return evaluated(logs)


@pytest.mark.parametrize("fault", ["", "crash_oom", "crash_and_restart"])
@pytest.mark.parametrize("format_name", sorted(PROGRAMS))
def test_read_as_history(format_name: str, fault: str) -> None:
    """In any order, as a launcher names them and as the operator does."""
    for place in (TORCHRUN, FOLDER):
        single = read(format_name, fault, place, [0])
        for order in ([0, 1, 2], [2, 0, 1]):
            assert read(format_name, fault, place, order) == single, (place, order)


@pytest.mark.parametrize("fault", ["", "crash_oom", "crash_and_restart"])
@pytest.mark.parametrize("format_name", ["deepspeed", "hf-trainer", "megatron-lm", "torchtitan"])
def test_followed_live(format_name: str, fault: str) -> None:
    """The set-up of one may come behind the first iteration of another."""
    for place in (TORCHRUN, FOLDER):
        single = followed(format_name, fault, place, [0])
        assert followed(format_name, fault, place, [1, 0, 2]) == single, place


@pytest.mark.parametrize("format_name", ["hf-trainer", "megatron-lm"])
def test_a_killed_daemon_goes_on(format_name: str) -> None:
    """It knows where each stream was, and in which attempt."""
    reported = []
    for ranks in ([0], [1, 0, 2]):
        logs, last = Following(TORCHRUN[0]), 0.0
        for place, (at, text) in enumerate(printed(format_name, "crash_and_restart")):
            for rank in ranks:
                logs.write(TORCHRUN[1].format(rank), by_rank(text, rank))
                if place % 25 == 24 and rank == ranks[0]:
                    logs.killed()
            logs.wait(min(at - last, 4.0))
            last = at
        logs.wait(60)
        reported.append(evaluated(logs))
    assert reported[0] == reported[1]


def test_the_copy_of_a_log_that_was_cut_counts_once() -> None:
    """A pattern may find what copytruncate has copied: no line of it counts again, and no restart is seen."""
    lab = Following("runs=[{paths: ['/l/*']}]")
    lab.open("/l/train.log", arguments(save="/ckpt") + "".join(f"{step(number)}\n" for number in range(1, 41)))
    for number in range(41, 51):
        lab.write("/l/train.log", step(number) + "\n")
        lab.wait(10)
    lab.open("/l/train.log.1", lab.written.pop("/l/train.log").decode())
    lab.core.handle(Restarted("/l/train.log", "truncated", ""), lab.now)
    lab.written["/l/train.log"] = b""
    for number in range(51, 61):
        lab.write("/l/train.log", step(number) + "\n")
        lab.wait(10)
    assert lab.totals() == {"train": 60.0}
    assert lab.totals("megatron_restarts_total") == {"train": 0.0}
    assert not lab.reported
