"""Many rows at once leave what the same rows leave one by one, bit for bit, wherever they are cut."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.run import copies as copies_module
from monitor.run import history as history_module
from monitor.run.buckets import ABSENT, Column, quad_of
from monitor.run.copies import Copies
from monitor.run.history import BUCKETS, SERIES, History
from monitor.run.observed import Observed, observe_iteration, observe_many
from monitor.run.pace import Intervals, Pace
from monitor.run.steady import Sample, Steady
from parsers.events import IterationLogged

NAN, INF = float("nan"), float("inf")
ANY = st.one_of(
    st.floats(-1e3, 1e3), st.sampled_from([NAN, INF, -INF, 0.0, -0.0, 1e300, -1e300, 3.0e38, -3.0e38, 3.1e38])
)
LENGTHS = st.integers(1, 90)


@st.composite
def columns_of(draw: st.DrawFn, rows: int) -> list[Column]:
    """One column a series: varying or not, whole numbers or not, mostly tame."""

    def column() -> Column:
        kind = draw(st.sampled_from(["tame", "tame", "wild", "rarely", "whole", "none", "one", "one whole", "level"]))
        if kind == "tame":
            return draw(st.lists(st.floats(-10, 10), min_size=rows, max_size=rows))
        if kind == "wild":
            return draw(st.lists(ANY, min_size=rows, max_size=rows))
        if kind == "rarely":
            values = [1.5] * rows
            values[draw(st.integers(0, rows - 1))] = draw(ANY)
            return values
        if kind == "whole":
            return draw(st.lists(st.integers(-(10**40), 10**40), min_size=rows, max_size=rows))
        if kind == "level":
            return [draw(ANY)] * rows
        return {"none": None, "one": draw(ANY), "one whole": draw(st.integers(0, 10**40))}[kind]

    return [column() for _ in SERIES]


@st.composite
def stretches(draw: st.DrawFn) -> Iterator[tuple[list[int], list[float | None], int, list[Column]]]:
    """Calls of `add_steps`: iterations, times, attempt, columns. Some begin with the iteration before once more."""
    found, last, attempt = [], draw(st.sampled_from([0, -5, 2**31 - 60])), 0
    for _ in range(draw(st.integers(1, 5))):
        rows, step = draw(LENGTHS), draw(st.sampled_from([1, 1, 10]))
        last += draw(st.sampled_from([0, step]))
        attempt += draw(st.sampled_from([0, 0, 0, 1]))
        iterations = list(range(last, last + rows * step, step))
        last = iterations[-1]
        times: list[float | None] = [None if draw(st.booleans()) else at * 1.5 for at in range(rows)]
        found.append((iterations, times, attempt, draw(columns_of(rows))))
    return found  # type: ignore[return-value]


def values_of(columns: list[Column], row: int) -> list[float | int | None]:
    """What one row says."""
    return [column[row] if isinstance(column, list) else column for column in columns]


def settle_row_by_row(history: History) -> None:
    """Without columns: no row counts as plain."""
    with patch.object(history_module, "LAST_ITERATION", -1):
        history.settle()


@given(stretches(), st.sampled_from([2, 4, 8, 16, BUCKETS]))
def test_history(calls: list[tuple[list[int], list[float | None], int, list[Column]]], buckets: int) -> None:
    """Any widths and halvings in between, NaN, values that no float32 holds, columns that come late, new attempts."""
    one, many = History(), History()
    with patch.object(history_module, "BUCKETS", buckets):
        for iterations, times, attempt, columns in calls:
            for row, iteration in enumerate(iterations):
                one.add_step((iteration, times[row], attempt, *values_of(columns, row)))
                settle_row_by_row(one)
            many.add_steps(iterations, times.__getitem__, attempt, columns)
            assert repr(many.frozen()) == repr(one.frozen())


@pytest.mark.parametrize("size", [1, 7, 100, 1000, 9000])
def test_history_of_a_long_run(size: int) -> None:
    """Three halvings at the true number of buckets; times are asked for few rows only."""
    rows = 9000
    iterations = list(range(1, rows + 1))
    varying = [[2.0 + math.sin(row * (1.1 + place)) for row in range(rows)] for place in range(6)]
    columns: list[Column] = [*varying, None, 128, 1.5e-4]
    one, many, asked = History(), History(), 0
    for row, iteration in enumerate(iterations):
        one.add_step((iteration, row * 0.7, 0, *values_of(columns, row)))
        settle_row_by_row(one)

    for start in range(0, rows, size):
        part: list[Column] = [
            values[start : start + size] if isinstance(values, list) else values for values in columns
        ]

        def time(row: int, start: int = start) -> float:
            nonlocal asked
            asked += 1
            return (start + row) * 0.7

        many.add_steps(iterations[start : start + size], time, 0, part)
    assert repr(many.frozen()) == repr(one.frozen())
    assert one.steps.width == 16
    assert size < 1000 or asked < rows / 2


SECONDS = st.one_of(st.floats(1e-3, 2e3), st.sampled_from([0.1, 0.25, 1.0, 1.0, 2.5, 5.0, 1000.0, 1e300, 1e-300]))
SIZES = st.sampled_from([None, 0, 8, 16, 24, 32, 40, 48])


def same(one: object, many: object) -> None:
    """Two objects are the same to the last bit: `repr` of a float gives it back, -0.0 and NaN differ from the rest."""
    assert repr(many) == repr(one)


@given(
    st.lists(
        st.tuples(SIZES, st.sampled_from([1, 1, 1, 10]), st.lists(SECONDS, max_size=40), st.integers(0, 10)), max_size=6
    ),
    st.lists(st.sampled_from([1.0, 2.0, 0.0, -0.0, -1.0, NAN, INF, -INF]), max_size=20),
    st.integers(0, 20),
    st.booleans(),
)
def test_pace(
    calls: list[tuple[int | None, int, list[float], int]], before: list[float], times: int, reset: bool
) -> None:
    """Windows that fill, slide and change; a NaN from before among them; the baseline after each row."""
    one, many = Pace(), Pace()
    size = calls[0][0] if calls else None
    for seconds in before * times:
        one.add(seconds, size)
        many.add(seconds, size)
    for batch_size, iterations, part, repeated in calls:
        column, expected = part * repeated, []
        for seconds in column:
            one.add(seconds, batch_size, iterations)
            expected.append(one.baseline)
        assert repr(many.add_many(column, batch_size, iterations)) == repr(expected)
        same(one, many)
        assert repr(many.predicted()) == repr(one.predicted())
        assert repr(many.band) == repr(one.band)
    if reset:
        one.reset_windows()
        many.reset_windows()
        one.add(1.5, size)
        many.add_many([1.5], size)
        same(one, many)


@given(st.lists(st.lists(st.floats(1.0, 1.1), min_size=1, max_size=400), max_size=4), st.sampled_from([1, 5]))
def test_pace_of_a_calm_run(calls: list[list[float]], iterations: int) -> None:
    """One batch size, long after the window is full."""
    one, many = Pace(), Pace()
    for part in calls:
        column, expected = part * 3, []
        for seconds in column:
            one.add(seconds, 256, iterations)
            expected.append(one.baseline)
        assert many.add_many(column, 256, iterations) == expected
        same(one, many)


def test_pace_back_at_a_full_window() -> None:
    """Two batch sizes in turns, the window of each full."""
    one, many = Pace(), Pace()
    for turn, size in enumerate([8, 16, 8, 16, 8]):
        column = [size + math.sin(100.0 * turn + row) for row in range(70)]
        for seconds in column:
            one.add(seconds, size)
        many.add_many(column, size)
        same(one, many)


@given(st.lists(st.lists(st.floats(0, 1e4), max_size=70), max_size=5))
def test_intervals(calls: list[list[float]]) -> None:
    """The last fifty stay."""
    one, many = Intervals(), Intervals()
    for column in calls:
        for seconds in column:
            one.add(seconds)
        many.add_many(column)
        same(one, many)
        assert many.longest == one.longest


@given(st.lists(st.tuples(st.lists(ANY, max_size=30), st.integers(0, 80)), max_size=8), st.integers(0, 600))
def test_sample(calls: list[tuple[list[float], int]], already: int) -> None:
    """Any number of values, any stride; what is no number is none."""
    one, many = Sample(), Sample()
    if already > 512:  # more than this version keeps, from a file of another
        one.values, many.values = [1.0] * already, [1.0] * already
    for part, times in calls:
        column = part * times
        for value in column:
            one.add(value)
        many.add_many(column)
        same(one, many)


@pytest.mark.parametrize("size", [1, 3, 511, 512, 513, 1000, 20_000])
def test_sample_of_a_long_run(size: int) -> None:
    """Thinned five times and more."""
    values = [math.sin(number) for number in range(20_000)]
    one, many = Sample(), Sample()
    for value in values:
        one.add(value)
    for start in range(0, len(values), size):
        many.add_many(values[start : start + size])
    same(one, many)
    assert one.stride == 64


@given(st.lists(st.tuples(SIZES, st.lists(SECONDS, max_size=40), st.integers(0, 30), st.booleans()), max_size=8))
def test_steady(calls: list[tuple[int | None, list[float], int, bool]]) -> None:
    """More batch sizes than are kept, TFLOPs printed or not."""
    one, many = Steady(), Steady()
    for size, part, times, printed in calls:
        column = part * times
        rates = [INF if value > 1e3 else 40.0 / value for value in column] if printed else None
        for row, seconds in enumerate(column):
            one.add(size, seconds, None if rates is None else rates[row])
        many.add_many(size, column, rates)
        same(one, many)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.lists(st.tuples(st.integers(-30, 30), st.integers(-30, 30)), max_size=40),
            st.integers(0, 3),
            st.booleans(),
        ),
        max_size=8,
    ),
    st.sampled_from([1, 4, 16]),
    st.sampled_from([16, 32]),
)
def test_copies(calls: list[tuple[str, list[tuple[int, int]], int, bool]], alone: int, ring: int) -> None:
    """Rings of any size, fingerprints that come again, sources that come later."""
    one, many = Copies(), Copies()
    with patch.object(copies_module, "_ALONE", alone), patch.object(copies_module, "RING", ring):
        for source, prints, attempt, moved in calls:
            for pair in prints:
                one.remember(pair, source, attempt)
            many.remember_many(prints.__getitem__, len(prints), source, attempt)
            same(one, many)
            if moved:
                one.moved(source, 1, attempt)
                many.moved(source, 1, attempt)
    with patch.object(copies_module, "_ALONE", 1), patch.object(copies_module, "RING", 2):  # a file from larger rings
        many.remember_many(lambda _row: (1000, 1001), 0, "a", 1)
        same(one, many)
        one.remember((1000, 1001), "a", 1)
        many.remember_many(lambda _row: (1000, 1001), 1, "a", 1)
        same(one, many)


def test_copies_of_many_rows() -> None:
    """Of a thousand rows only those that stay are asked for."""
    one, many, asked = Copies(), Copies(), 0

    def prints(row: int) -> tuple[int, int]:
        nonlocal asked
        asked += 1
        return 2 * row, 2 * row + 1

    for row in range(1000):
        one.remember(prints(row), "a", 1)
    asked = 0
    many.remember_many(prints, 1000, "a", 1)
    same(one, many)
    assert asked == 128


@st.composite
def observed(draw: st.DrawFn) -> list[tuple[list[IterationLogged], int, int | None, int | None]]:
    """Calls of `observe_many` as events: samples that grow as they should, mostly; figures printed or not."""
    calls, iteration, samples, attempt = [], 0, 0, 0
    for _ in range(draw(st.integers(1, 5))):
        rows, step = draw(st.integers(0, 12)), draw(st.sampled_from([1, 1, 10, 0]))
        batch = draw(st.sampled_from([8, 8, 8, 16, 0, None]))
        attempt += draw(st.sampled_from([0, 0, 1]))
        wrong = draw(st.sampled_from([None, None, 0, 1, 5, "all", "jump"]))
        counts, rated, computed = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
        events = []
        for row in range(rows):
            iteration += step + (wrong == "jump" and row == 2)
            samples += (batch or 8) * step + (wrong == "all" or wrong == row)
            events.append(
                IterationLogged(
                    iteration=iteration,
                    consumed_samples=samples if counts else None,
                    seconds_per_iteration=draw(st.floats(0.1, 10)),
                    samples_per_second=draw(ANY) if rated else None,
                    tflops=draw(ANY) if computed else None,
                    global_batch_size=batch,
                )
            )
        calls.append((events, attempt, draw(st.sampled_from([batch, 8, None])), draw(st.sampled_from([None, 2048]))))
    return calls


@given(observed())
def test_observed(calls: list[tuple[list[IterationLogged], int, int | None, int | None]]) -> None:
    """Counted samples, rates and TFLOPs of the last lines."""
    one, many = Observed(), Observed()
    for events, attempt, batch_size, tokens in calls:
        for event in events:
            observe_iteration(one, event, attempt, batch_size, tokens)
        samples = [event.consumed_samples for event in events if event.consumed_samples is not None]
        rates = [event.samples_per_second for event in events if event.samples_per_second is not None]
        tflops = [event.tflops for event in events if event.tflops is not None]
        observe_many(
            many,
            attempt,
            [event.iteration for event in events],
            [event.seconds_per_iteration for event in events if event.seconds_per_iteration is not None],
            samples or None,
            rates or None,
            tflops or None,
            events[0].global_batch_size if events else None,
            batch_size,
            tokens,
        )
        same(one, many)


@given(st.lists(st.one_of(st.floats(-10, 10), st.just(NAN)) | ANY, max_size=6), st.integers(0, 4))
@example([1.0, NAN, 2.0], 1)
def test_a_bucket_says_what_it_says_on_paper(part: list[float], times: int) -> None:
    """Low, high, sum and count of what float32 holds; `add_step` and `add_steps` both build on this."""
    values = part * times
    kept = [value for value in values if abs(value) <= 3.0e38]
    quad, strange = quad_of(values)
    assert strange == len(values) - len(kept)
    if not kept:
        assert quad is ABSENT
        return
    total = sum(kept)
    figures = (min(kept), max(kept), math.copysign(3.0e38, total) if abs(total) > 3.0e38 else total, len(kept))
    assert quad == struct.pack("=4f", *figures)
