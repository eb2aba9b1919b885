"""An attempt has nothing of the one before it: behind any other it is judged and shown as it is alone."""

import functools
import itertools
from dataclasses import replace

import pytest

from megatron_monitor.incidents import IncidentBook
from megatron_monitor.metrics import CATALOGUE, RunView, samples_of
from megatron_monitor.run import derived
from megatron_monitor.simulate import Fault, Scenario
from megatron_monitor.simulate.scenario import PROGRAMS
from megatron_monitor.snapshot import HistogramSample
from tests.monitor.playing import Played, Playing, play, texts

BEGINS = 6550.0
"""Seconds behind which the second attempt begins: the first of any program has come to its end."""
KINDS = ("none", "crash_oom", "crash_killed", "hang", "nan_loss", "slowdown")
OF_THE_RUN = {
    "megatron_run_state", "megatron_last_progress_timestamp_seconds", "megatron_hang_deadline_timestamp_seconds",
    "megatron_eta_timestamp_seconds", "megatron_goodput_ratio", "megatron_incident",
    "megatron_incident_since_timestamp_seconds", "megatron_advised_save_interval_seconds",
}  # fmt: skip
"""Gauges that are not one attempt's: of the run's whole time, or instants."""


def _scenario(format_name: str, kind: str, number: int) -> Scenario:
    faults = () if kind == "none" else (Fault(kind, 60, factor=1.5),)
    return Scenario(format=format_name, iterations=90 if number else 60, seed=number, save_interval=25, faults=faults)


def _figures(played: Played) -> dict[str, list[tuple[tuple[str, ...], str]]]:
    gauges = {metric.name for metric in CATALOGUE if metric.kind == "gauge"} - OF_THE_RUN
    view = RunView(played.state, IncidentBook(), derived.run_state(played.state, False), None, None)
    return {
        name: [(one.labels, f"{one.value:.4g}") for one in value]
        for name, value in samples_of(view).items()
        if name in gauges and not isinstance(value, HistogramSample)
    }


def _reported(played: Played) -> list[tuple[str, str, str, int | None]]:
    return [
        (item.incident, item.status, item.severity, item.onset_iteration)
        for item in played.reported
        if item.time >= BEGINS
    ]


@functools.cache
def _second(format_name: str, kind: str) -> list[tuple[float, str]]:
    scenario = _scenario(format_name, kind, 1)
    return [(BEGINS + at, text) for at, text in texts(replace(scenario, start_epoch=scenario.start_epoch + BEGINS))]


@functools.cache
def _alone(format_name: str, kind: str) -> tuple[object, object, int]:
    single = play(_second(format_name, kind), after=7300.0)
    return _reported(single), _figures(single), 60 + single.state.iterations_total


NAMES = sorted(PROGRAMS)


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("first", NAMES)
def test_a_launch_behind_another_is_judged_and_shown_as_it_is_alone(first: str, every: int) -> None:
    """All pairs of programs that `simulate` writes, the first of which came to its end; six fates of the second. One
    pair in seven in `make test`, with each program before and behind.
    """
    before = Playing()
    before.feed(texts(_scenario(first, "none", 0)))
    assert before.at < BEGINS
    ended = before.kept()
    for second, kind in list(itertools.product(NAMES, KINDS))[NAMES.index(first) % every :: every]:
        pair = ended()
        pair.feed(_second(second, kind))
        played = pair.end(7300.0)
        found = _reported(played), _figures(played), played.state.iterations_total
        assert found == _alone(second, kind), (second, kind)
