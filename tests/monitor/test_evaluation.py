"""The judge gives its detectors steps one by one while a log is followed, and many at a time in a backlog."""

from typing import Any

import msgspec
import pytest

from megatron_monitor.config import Config
from megatron_monitor.evaluation import Evaluator, MonitoredRun
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.run.records import SlurmJob
from megatron_monitor.run.state import RunState
from megatron_monitor.simulate import FAULTS, Fault, Scenario, timeline
from tests.conftest import spread
from tests.monitor.playing import Playing, texts
from tests.simulated import WITH_MEGATRON_SETUP

_AT_THE_END = {"configuration", "launch_blocking"}
"""They look at the run once for all the steps of a batch: at what they find, not at when they found it."""


def events(scenario: Scenario) -> list[LogEvent]:
    """Of a simulated log."""
    reader = SourceReader()
    text = b"".join(emission.text.encode() for emission in timeline(scenario))
    return [*reader.feed(text), *reader.flush()]


def memories(entries: list[LogEvent], size: int) -> dict[str, Any]:
    """What the detectors remember of a backlog that is read `size` events at a time."""
    judge, run = Evaluator(Config()), MonitoredRun(RunState(name="run"))
    for begin in range(0, len(entries), size):
        judge.take(run, entries[begin : begin + size], "a.log", 1000.0, False)
    return {name: msgspec.to_builtins(kept) for name, kept in run.state.memory_of.items() if name not in _AT_THE_END}


@pytest.mark.parametrize(("seed", "kind"), spread(list(enumerate(sorted(FAULTS))), 3))
def test_a_batch_of_any_size_gives_the_same(seed: int, kind: str) -> None:
    """Restarts, spikes, saves and overflows between the steps of a batch."""
    programs = sorted(WITH_MEGATRON_SETUP)
    scenario = Scenario(
        format=programs[seed % len(programs)], fp16=bool(seed % 2), seed=seed, iterations=250, save_interval=60,
        eval_interval=70, faults=(Fault(kind, 150, factor=1.1),),
    )  # fmt: skip
    entries = events(scenario)
    expected = memories(entries, 1)
    for size in (7, len(entries)):
        found = memories(entries, size)
        assert {name for name in expected if found[name] != expected[name]} == set()


@pytest.mark.parametrize("kind", ["hang_evaluation", "hang_saving", "hang_starting", "crash_oom", "crash_without_exit"])
def test_no_deadline_comes_in_a_calm(kind: str) -> None:
    """A replay does not ask for deadlines before `calm_until`: none may lie there, in any phase, failed or not."""
    judge = Evaluator(Config(), repeats=False)
    run = MonitoredRun(RunState(name="run", live=True))
    scenario = Scenario(eval_interval=50, iterations=420, faults=(Fault(kind, 250, factor=1.1),))
    calm = 0
    for at, entry in enumerate(events(scenario)):
        judge.take(run, [entry], "a.log", float(at), True)
        deadline = judge.deadline(run, float(at))
        assert deadline is None or deadline >= judge.idle_until(run)
        calm += judge.idle_until(run) > at
    assert calm


def test_two_running_jobs_of_one_run_are_named() -> None:
    """As Slurm tells them; when the second one has ended, so has the incident."""
    lines, playing = list(texts(Scenario(format="megatron-lm", seed=1, iterations=60))), Playing()
    third = len(lines) // 3
    playing.feed(lines[:third])
    for part, second in ((1, "13"), (2, "")):
        playing.run.state.job, playing.run.state.second_job = SlurmJob(id="12", state="RUNNING"), second
        playing.reported += playing.judge.judge(playing.run, playing.at)  # the core does so after an answer
        playing.feed(lines[part * third : (part + 1) * third])
    played = playing.end(0.0)
    assert [one.status for one in played.of("mixed_log")] == ["firing", "resolved"]
    assert played.firing("mixed_log").summary.startswith("jobs 12 and 13 both run and write into one log")
