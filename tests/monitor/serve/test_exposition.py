"""The page against prometheus_client's own, byte for byte, while runs come, change and go."""

import re
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from megatron_monitor.metrics import CATALOGUE, MONITOR_CATALOGUE
from megatron_monitor.prometheus_text import TextFormat
from megatron_monitor.serve.http import Exposition
from megatron_monitor.serve.page import summary
from megatron_monitor.snapshot import HistogramSample, MetricSample, RunSnapshot, Snapshot, clean_label
from tests.clock import ManualClock

VALUES = (
    0.0, 1.0, 0.1 + 0.2, 1e300, -3.5, float("nan"), float("inf"), float("-inf"), 60.0, 999999.0, 1234567.0,
    1772352002.42, 10_000_000.0, -10_000_000.0, 1e16, 1.5e-7, 2.0**53,
)  # fmt: skip
NAMES = ("tr11", 'q"\\', "a # HELP b", "# EOF", "übung", "x" * 400, "tab\there\n", "no text \udcff")


class Library:
    """A collector that hands a snapshot to prometheus_client: what our text must equal."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Every family that has a sample."""
        for row in CATALOGUE:
            family = new_family(row, "run")
            for run in self.snapshot.runs:
                add(family, [clean_label(run.run)], run.samples.get(row.name))
            if family.samples:
                yield family
        for own in MONITOR_CATALOGUE:
            family = new_family(own)
            add(family, [], self.snapshot.monitor.get(own.name))
            if family.samples:
                yield family


def new_family(row: Any, *before: str) -> Metric:
    """Without samples yet."""
    kinds: dict[str, Any] = {
        "counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily
    }  # fmt: skip
    family: Metric = kinds[row.kind](row.name, row.help, labels=[*before, *row.labels])
    return family


def add(family: Any, before: list[str], samples: Any) -> None:
    """Put samples into a family."""
    if isinstance(samples, HistogramSample):
        family.add_metric(before, list(samples.buckets), samples.sum)
        return
    for sample in samples or ():
        family.add_metric([*before, *sample.labels], float(sample.value))


def any_run(name: str, chance: Random) -> RunSnapshot:
    """Samples for some rows of the catalogue."""
    samples: dict[str, Any] = {}
    for row in CATALOGUE:
        if chance.random() < 0.3:
            continue
        value = chance.choice(VALUES)
        if row.kind == "histogram":
            samples[row.name] = HistogramSample((("0.5", 1.0), ("+Inf", 2.0)), value)
        else:
            samples[row.name] = tuple(
                MetricSample(tuple(f'{number}"\\' for _ in row.labels), value)
                for number in range(2 if row.labels else 1)
            )
    return RunSnapshot(name, samples, {})


def test_the_page_is_what_the_library_would_write() -> None:
    """Whatever was kept of the scrape before."""
    chance = Random(5)
    runs = {name: any_run(name, chance) for name in NAMES}
    shown = Snapshot(at=0.0)
    app = Exposition(lambda: shown, ManualClock())
    for turn in range(30):
        name = chance.choice(NAMES)
        if chance.random() < 0.3:
            runs.pop(name, None)
        else:
            runs[name] = any_run(name, chance)
        own = {
            "megatron_monitor_runs": (MetricSample((), float(turn)),),
            "megatron_monitor_events_total": (MetricSample(('a\n"\\',), chance.choice(VALUES)),),
        }
        shown = Snapshot(at=0.0, runs=tuple(runs[name] for name in sorted(runs)), monitor=own)
        body = app.reply().body
        assert body[: body.index(b"# HELP process_")] == generate_latest(Library(shown))  # type: ignore[arg-type]


def test_an_unchanged_run_is_not_formatted_again() -> None:
    """The lines of the same RunSnapshot are kept."""
    samples: dict[str, Any] = {"megatron_iteration": (MetricSample((), 1.0),)}
    runs = [RunSnapshot("a", samples, {}), RunSnapshot("b", dict(samples), {})]
    text = TextFormat()
    text.page(Snapshot(at=0.0, runs=tuple(runs)))
    samples["megatron_iteration"] = (MetricSample((), 2.0),)  # a snapshot never changes: so it shows what was formatted
    runs[1] = RunSnapshot("b", dict(samples), {})
    page = text.page(Snapshot(at=0.0, runs=tuple(runs)))
    assert 'megatron_iteration{run="a"} 1.0\nmegatron_iteration{run="b"} 2.0\n' in page


def test_a_bad_family_costs_that_family() -> None:
    """Of a run or of the daemon: the other runs keep theirs, and others of both stay."""
    one_too_many = (MetricSample(("one too many",), 1.0),)
    good = RunSnapshot("good", {"megatron_iteration": (MetricSample((), 1.0),)}, {})
    bad = RunSnapshot("bad", {"megatron_iteration": one_too_many, "megatron_lm_loss": (MetricSample((), 2.0),)}, {})
    own = {"megatron_monitor_bytes_total": one_too_many, "megatron_monitor_runs": (MetricSample((), 3.0),)}
    page = TextFormat().page(Snapshot(at=0.0, runs=(bad, good), monitor=own))
    assert re.findall(r"(?m)^megatron_\S+ \S+$", page) == [
        'megatron_iteration{run="good"} 1.0', 'megatron_lm_loss{run="bad"} 2.0', "megatron_monitor_runs 3.0",
    ]  # fmt: skip


def test_what_is_shown_ages_until_the_loop_makes_it_anew() -> None:
    """By what the loop was behind with, and by its silence; without a loop nothing is said of an age."""
    clock = ManualClock(wall=1000.0)
    own = {"megatron_monitor_snapshot_age_seconds": (MetricSample((), 2.0),)}
    shown = Snapshot(at=1000.0, monitor=own, behind_seconds=2.0)
    app = Exposition(lambda: shown, clock)
    ages = []
    for seconds in (0.0, 40.0):
        clock.advance(seconds)
        ages.append(re.search(rb"^megatron_monitor_snapshot_age_seconds (.*)$", app.reply().body, re.MULTILINE))
    assert [found and float(found[1]) for found in ages] == [2.0, 42.0]
    assert b"snapshot_age" not in Exposition(lambda: Snapshot(at=0.0), clock).reply().body


@pytest.mark.parametrize(("behind", "said"), [(23.4, True), (4.9, False)])
def test_the_page_says_that_it_is_old(behind: float, said: bool) -> None:
    """From five seconds on."""
    shown = summary(Snapshot(at=0.0, ready=True, behind_seconds=behind))
    assert ("the monitor is 23 s behind the logs" in shown) == said
