"""Figures that are computed at every iteration: the fast way gives what the plain way gives, bit for bit."""

import statistics
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.config import load
from megatron_monitor.evaluation import Evaluator, MonitoredRun
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.reading import evaluated_reader, own_rules
from megatron_monitor.run.fold import UNREAD
from megatron_monitor.run.log_clock import log_clock
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.pace import HISTOGRAM_BUCKETS, Histogram, Pace

seconds = st.one_of(st.sampled_from([0.1, 2.5, 2.5, 5.0]), st.floats(0.001, 2000.0))


@given(st.lists(st.tuples(seconds, st.sampled_from([None, 0, 16, 32])), max_size=200))
def test_the_median_that_is_kept_is_the_median(steps: list[tuple[float, int | None]]) -> None:
    """Over windows, batch sizes that come back, and a new attempt."""
    pace, seconds, windows = Pace(), Histogram(), dict[int, list[float]]()
    for index, (value, size) in enumerate(steps):
        if index == 120:
            pace = Pace()
            windows.clear()
        pace.add(value, size)
        seconds.add(value, 1)
        window = windows.pop(size or 0, [])
        windows[size or 0] = window = [*window, value][-64:]
        windows = dict(list(windows.items())[-4:])
        assert list(pace.windows.items()) == list(windows.items())
        assert pace.predicted() == max(statistics.median(window), value)
        assert pace.baseline == (statistics.median(window) if len(window) >= 3 else None)
    assert seconds.count == len(steps)
    bounds = [0.0, *HISTOGRAM_BUCKETS, float("inf")]
    spread = [sum(low < value <= high for value, _ in steps) for low, high in pairwise(bounds)]
    assert seconds.buckets == spread


@given(st.datetimes(datetime(2015, 1, 1), datetime(2040, 1, 1)))  # noqa: DTZ001 - logs print no zone
def test_the_clock_of_a_line(moment: datetime) -> None:
    """The minute is remembered; the second is added."""
    text = moment.isoformat(timespec="microseconds")
    for _ in range(2):
        assert log_clock(text) == moment.replace(tzinfo=UTC).timestamp()
    assert log_clock(moment.isoformat(timespec="seconds")) == moment.replace(tzinfo=UTC, microsecond=0).timestamp()


def test_what_is_no_time() -> None:
    """Right length, wrong contents."""
    for text in (
        "2026-03-27T15:42:60.000000",
        "2026-03-27T15:42:1².000000",
        "2026-03-27T15:42:1٣.000000",
        "2026-03-27T25:42:15.545150",
        "x" * 26,
    ):
        assert log_clock(text) is None


_FIELDS_THAT_NOBODY_READS = """\
 iteration {n:8d}/ 400 | consumed samples: {n}{n} | elapsed time per iteration (ms): 51{n}.5 | learning rate: 1.{n}E-04 | global batch size: 8 | lm loss: 2.{n}E+00 | z_loss: 0.{n} | grad norm: 1.{n} |
[2026-05-22 03:45:{n}] [INFO] [timer.py:260:stop] epoch=0/micro_step={n}1/global_step={n}, RunningAvgSamplesPerSec=12.{n}, CurrSamplesPerSec=13.{n}, MemAllocated=2.{n}GB, MaxMemAllocated=3.{n}GB
Train:  25%|##        | {n}/400 [03:{n}<11:{n}, 12.{n}s/it]
{{'loss': 1.{n}, 'grad_norm': 2.{n}, 'learning_rate': 4.{n}e-08, 'token_acc': 0.{n}, 'epoch': 0.{n}}}
"""  # noqa: E501 - as programs print them


def test_what_templates_leave_out_changes_nothing() -> None:
    """Fields of UNREAD are in what `explain` shows, not in what the judgement gets, which knows no difference:
    neither with the loop's own lines nor where the engine or the Trainer counts.
    """
    program = _FIELDS_THAT_NOBODY_READS.splitlines(keepends=True)
    for first in range(3):
        text = "".join(line.format(n=number) for number in range(11, 60) for line in program[first:]).encode()
        everything = SourceReader().feed(text)
        evaluated = evaluated_reader(own_rules(load(""))).feed(text)
        assert _reported(everything)
        assert not _reported(evaluated[-9:])
        one, other = (_folded(events) for events in (everything, evaluated))
        assert one == other


def _reported(events: list[LogEvent]) -> bool:
    """Whether any of the fields that nobody reads holds anything."""
    return any(getattr(entry.event, name) for entry in events for name in UNREAD.get(type(entry.event), ()))


def _folded(events: list[LogEvent]) -> dict[str, Any]:
    run, judge = MonitoredRun(RunState("run")), Evaluator(load(""))
    judge.take(run, events, "log", 1000.0, live=False)
    state = msgspec.to_builtins(run.state)
    assert state["iterations_total"] == 49
    return dict(state)
