"""Crashes: one incident with its cause, whoever reported it first; loops; processes that do not end."""

import functools
from collections.abc import Callable

import pytest

from megatron_monitor.simulate import Scenario
from tests.monitor.playing import Played, Playing, fault, given, play, texts


def test_a_fatal_line_and_then_nothing() -> None:
    """BLOOM's limbo: 3.5 min after the line (two iterations), not before, and with what to do."""
    assert fault("crash_without_exit", after=200.0).of("crash_without_exit") == []
    reported = fault("crash_without_exit", after=220.0).firing("crash_without_exit")
    assert reported.severity == "critical"
    assert "kill-on-bad-exit" in reported.summary


def test_a_crash_names_the_checkpoint_that_it_may_have_spoilt() -> None:
    """And the work that is lost if nothing else was saved."""
    reported = play(given("saves", "a save that ends its attempt is part of the crash")).of("crash")[0]
    assert reported.evidence["failed_iteration"] == 150
    assert "the checkpoint of iteration 150 may be incomplete; 25 min of work" in reported.summary


ALONE = Scenario(iterations=120, world_size=8, tp=2, pp=1, global_batch_size=64)


@pytest.mark.parametrize(
    ("scenario", "line", "named"),
    [
        (Scenario(iterations=120), "srun: error: n1: task 7: Segmentation fault\n", ["n1"]),
        (ALONE, "srun: error: n1: task 7: Segmentation fault\n", None),
        (ALONE, "srun: error: Node failure on n1\n", ["n1"]),
    ],
)
def test_a_node_is_accused_only_if_the_job_has_others_or_its_hardware_failed(
    scenario: Scenario, line: str, named: list[str] | None
) -> None:
    """In the job of one node each crash is on it. The place is told in any case."""
    head = list(texts(scenario))[:-1]
    ends = [(head[-1][0] + 1.0, line)]
    again = [(at + 20_000.0, text) for at, text in [*head, *ends]]
    played = play([*head, *ends, *again], 400.0)
    told = [item for item in played.of("crash") if item.status == "firing"]
    assert [item.evidence.get("nodes") for item in told] == [named, named]
    assert "n1" in told[0].evidence["message"]
    loop = [item.evidence["common_nodes"] for item in played.of("crash_loop")[:1]]
    assert loop == ([named] if named else [])


CANCELLED = "slurmstepd: error: *** JOB {} ON n{} CANCELLED AT 2026-11-26T23:21:1{} {}***\n"
FAILED, PREEMPTED = "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ", "DUE TO PREEMPTION "


def test_jobs_that_end_in_one_second_are_reported_each() -> None:
    """Five jobs append to one file, none trained. Planned ends are no crash loop."""
    ends = [(3, FAILED), (3, FAILED), (4, PREEMPTED), (4, "DUE TO JOB REQUEUE "), (4, "")]
    lines = [CANCELLED.format(1701 + job, job, *end) for job, end in enumerate(ends)]
    played = play([(0.0, "".join(lines))], 60.0)
    told = [item.evidence["message"].split()[3] for item in played.of("crash") if item.status == "firing"]
    assert (told, played.kinds()) == (["1701", "1702", "1703", "1704", "1705"], {"crash"})


OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
CAUGHT = (
    "WARNING: this batch does not fit, it is split and tried again\n"
    "Traceback (most recent call last):\n"
    '  File "/train/training.py", line 1301, in train_step\n'
    "    losses = forward_backward(batch)\n" + OUT_OF_MEMORY
)
PACES = (2.0, 20.0, 100.0)


def interrupted(seconds: float, after: float, text: str, *, lost: float, log_interval: int = 1) -> Played:
    """A training in which `text` is written `after` iterations' time behind iteration 100; `lost` iterations' time
    later than usual the training goes on.
    """
    kept, rest = hundred(seconds, log_interval)
    playing, every = kept(), seconds * log_interval
    playing.feed([(playing.at + after * every, text)])
    playing.feed((when + lost * every, line) for when, line in rest)
    return playing.end(0.0)


@functools.cache
def hundred(seconds: float, log_interval: int) -> tuple[Callable[[], Playing], list[tuple[float, str]]]:
    """A hundred iterations, played once, and the texts behind them."""
    scenario = Scenario(iterations=140, seconds_per_iteration=seconds, save_interval=0, log_interval=log_interval)
    log = list(texts(scenario))
    place = next(place for place, (_, line) in enumerate(log) if " iteration      100/" in line) + 1
    playing = Playing()
    playing.feed(log[:place])
    return playing.kept(), log[place:]


@pytest.mark.parametrize("seconds", PACES)
@pytest.mark.parametrize("text", [CAUGHT, OUT_OF_MEMORY, "OSError: [Errno 28] No space left on device\n"])
@pytest.mark.parametrize(("after", "lost"), [(0.05, 0.05), (0.5, 0.5), (0.95, 0.95), (0.3, 1.2)])
def test_what_the_loop_catches_is_not_told(seconds: float, text: str, after: float, lost: float) -> None:
    """Whenever in an iteration it came, and the whole iteration is computed again (or nearly twice)."""
    played = interrupted(seconds, after, text, lost=lost)
    assert played.kinds() == set()
    assert played.state.attempt.phase == "finished"
    assert played.state.failures_total == {}


@pytest.mark.parametrize("seconds", [2.0, 10.0])
def test_what_the_loop_catches_is_not_told_where_every_tenth_iteration_is_logged(seconds: float) -> None:
    """The next line is ten iterations away: for a crash without exit too."""
    assert interrupted(seconds, 0.5, CAUGHT, lost=0.5, log_interval=10).kinds() == set()


def test_what_is_caught_twice_is_no_loop() -> None:
    """After two attempts that died, a third that catches what it meets is not the third that died."""
    died = "srun: error: r7i3n2: task 7: Killed\n"
    head = list(texts(Scenario(iterations=120)))[:-1]
    second = [(at + 20_000, text) for at, text in texts(Scenario(iterations=105, first_iteration=101))][:-1]
    third = [(at + 40_000, text) for at, text in texts(Scenario(iterations=110, first_iteration=101))]
    log = [*head, (head[-1][0] + 1, died.replace("r7i3n2", "r1i1n1")), *second, (second[-1][0] + 1, died), *third]
    place = next(place for place, (at, line) in enumerate(log) if at > 40_000 and " iteration      103/" in line) + 1
    played = play([*log[:place], (log[place - 1][0] + 5.0, OUT_OF_MEMORY), *log[place:]])
    assert played.of("crash_loop") == []
