"""The simulator: deterministic, read back exactly, every fault in every format without a malformed line."""

import io
from dataclasses import replace

import pytest

from megatron_monitor.parsers.events import EngineStepLogged, IterationLogged, LogEvent, Malformed, TrainerProgressed
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.simulate import FAULTS, Fault, Scenario, timeline, write
from tests.clock import ManualClock
from tests.commands import command
from tests.simulated import WITH_MEGATRON_SETUP

SMALL = Scenario(iterations=60, save_interval=20, eval_interval=25)


def log_of(scenario: Scenario) -> bytes:
    """The whole log."""
    stream = io.BytesIO()
    write(scenario, stream)
    return stream.getvalue()


def read(scenario: Scenario) -> list[LogEvent]:
    """Its events."""
    reader = SourceReader()
    return reader.feed(log_of(scenario)) + reader.flush()


def test_the_seed_decides() -> None:
    """The same scenario gives the same log, another seed another."""
    assert log_of(SMALL) == log_of(SMALL)
    assert log_of(SMALL) != log_of(replace(SMALL, seed=1))


@pytest.mark.parametrize("format_name", sorted(WITH_MEGATRON_SETUP))
def test_every_format_is_read_back(format_name: str) -> None:
    """Every iteration that was printed is read with its values to print precision."""
    scenario = replace(SMALL, format=format_name)
    truths = [emission.truth for emission in timeline(scenario) if emission.truth and "iteration" in emission.truth]
    entries = read(scenario)
    assert not [entry for entry in entries if isinstance(entry.event, Malformed)]
    lines = [entry.event for entry in entries if isinstance(entry.event, IterationLogged)]
    if format_name == "deepspeed":
        steps = [entry.event for entry in entries if isinstance(entry.event, EngineStepLogged)]
        assert [event.step for event in steps if event.form == "step"] == [truth["iteration"] for truth in truths]
        return
    if format_name == "hf-trainer":
        bars = [entry.event for entry in entries if isinstance(entry.event, TrainerProgressed)]
        assert [event.step for event in bars] == [truth["iteration"] for truth in truths]
        return
    assert len(lines) == len(truths) == 60
    for event, truth in zip(lines, truths, strict=True):
        assert event.iteration == truth["iteration"]
        assert event.seconds_per_iteration == pytest.approx(truth["elapsed"], abs=0.01)
        assert event.lm_loss == pytest.approx(truth["loss"], rel=1e-5)


@pytest.mark.parametrize("fault", sorted(FAULTS))
@pytest.mark.parametrize("format_name", ["bigscience", "megatron-lm", "microsoft"])
def test_every_fault_is_well_formed(format_name: str, fault: str) -> None:
    """A fault changes what is said, never whether it can be read."""
    entries = read(replace(SMALL, format=format_name, faults=(Fault(fault, at=30),)))
    assert entries
    assert not [entry for entry in entries if isinstance(entry.event, Malformed)]


def test_a_restart_goes_back_before_a_fault() -> None:
    """Of a program that saves nothing: a spike has no effect on the iterations before it."""
    faults = (Fault("loss_spike", 20), Fault("crash_and_restart", 25))
    scenario = replace(SMALL, format="verl", iterations=40, faults=faults)
    steps = [entry.event.iteration for entry in read(scenario) if isinstance(entry.event, IterationLogged)]
    assert max(steps) == 40
    assert steps.count(10) == 2


def test_bloom_prints_what_bloom_printed() -> None:
    """BLOOM's sizes and 105.22 s give its printed TFLOPs and samples per second."""
    scenario = Scenario(iterations=3, noise=0.0, seed=3)
    text = next(e.text for e in timeline(scenario) if e.truth and abs(e.truth["elapsed"] - 105.22) < 1e-9)
    assert "TFLOPs: 149.02 |" in text
    assert "samples per second: 19.464 |" in text


def test_overhead_stands_where_the_fork_puts_it() -> None:
    """BigScience counts the save into the next line's time, NVIDIA's loop does not."""
    for format_name, included in (("bigscience", True), ("megatron-lm", False)):
        scenario = replace(SMALL, format=format_name, noise=0.0, eval_interval=0)
        times = {e.truth["iteration"]: e.truth["elapsed"] for e in timeline(scenario) if e.truth}
        assert (times[21] > times[20] + 30) == included


def test_playing_takes_its_time() -> None:
    """Played at twice the speed a log takes half its time, by the clock it is given."""
    clock = ManualClock()
    began = clock.monotonic()
    scenario = replace(SMALL, iterations=5, eval_interval=0)
    write(scenario, io.BytesIO(), speed=2.0, clock=clock)
    last = list(timeline(scenario))[-1].at
    assert clock.monotonic() - began == pytest.approx(last / 2)


def test_an_unknown_fault_is_refused() -> None:
    """The error names what there is."""
    with pytest.raises(ValueError, match="hang_evaluation"):
        Fault("hangs", at=1)


@pytest.mark.parametrize("fault", ["hang@999999", "hang@501", "hang@99999999999999999999", "hang@\u00b2"])
def test_a_fault_beyond_the_end_is_refused(fault: str) -> None:
    """With the number of iterations that there are."""
    done = command("simulate", "--fault", fault, code=2)
    assert "500 iterations" in done.stderr or "is not an iteration" in done.stderr
    command("simulate", "--fault", "hang@20", "--iterations", "20")
