"""Many rows at once leave what the same rows leave one by one, bit for bit, wherever they are cut."""

from __future__ import annotations

import math
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.run import history as history_module
from monitor.run.buckets import Column
from monitor.run.history import BUCKETS, SERIES, History

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


@given(stretches(), st.sampled_from([2, 4, 8, 16, BUCKETS]))
def test_history(calls: list[tuple[list[int], list[float | None], int, list[Column]]], buckets: int) -> None:
    """Any widths and halvings in between, NaN, values that no float32 holds, columns that come late, new attempts."""
    one, many = History(), History()
    with patch.object(history_module, "BUCKETS", buckets):
        for iterations, times, attempt, columns in calls:
            for row, iteration in enumerate(iterations):
                one.add_step((iteration, times[row], attempt, *values_of(columns, row)))
            many.add_steps(iterations, times.__getitem__, attempt, columns)
            assert repr(many) == repr(one)


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

    for start in range(0, rows, size):
        part: list[Column] = [
            values[start : start + size] if isinstance(values, list) else values for values in columns
        ]

        def time(row: int, start: int = start) -> float:
            nonlocal asked
            asked += 1
            return (start + row) * 0.7

        many.add_steps(iterations[start : start + size], time, 0, part)
    assert repr(many) == repr(one)
    assert one.steps.width == 16
    assert size < 1000 or asked < rows / 2
