"""Figures that are computed at every iteration: the fast way gives what the plain way gives, bit for bit."""

import statistics
from datetime import UTC, datetime
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.run.log_clock import log_clock
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
