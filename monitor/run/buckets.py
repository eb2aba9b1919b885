"""Rows -> packed buckets: what a track of history.py keeps of many iterations. Pure; figures are float32.

A bucket of one series is (low, high, sum, count); a value that is absent, NaN or beyond float32 is in none of them.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import add

Row = tuple[int | float | None, ...]
"""(iteration, Unix seconds or None, attempt, *values)."""
Column = list[float] | list[int] | int | float | None
"""Values of one series in many rows: one a row and none absent, or the same (or None) in all rows."""
AXIS = struct.Struct("=iiIIdd")  # first and last iteration, attempt, values not finite, first and last time
_AXIS_VALUES = 3  # of a row stand before its values
QUAD = 16  # bytes of (low, high, sum, count)
LAST_ITERATION = 2**31 - 1
_LARGEST = 3.0e38  # float32 holds no more
_pack = struct.Struct("=4f").pack
ABSENT = _pack(float("inf"), float("-inf"), 0.0, 0.0)
_NAN = float("nan")


def summary(rows: list[Row]) -> tuple[bytes, list[bytes]]:
    """(the axis record, a quad for each value) of some rows; `ABSENT` itself where there is no figure."""
    first, last = rows[0], rows[-1]
    quads: list[bytes] = []
    strange = 0
    if len(rows) == 1:  # the first thousand rows of every run: worth a shorter way
        for value in first[_AXIS_VALUES:]:
            if value is None:
                quads.append(ABSENT)
            elif -_LARGEST <= value <= _LARGEST:
                quads.append(_pack(value, value, value, 1.0))
            else:
                quads.append(ABSENT)
                strange += 1
    else:
        for column in list(zip(*rows, strict=True))[_AXIS_VALUES:]:
            present = [value for value in column if value is not None] if None in column else column
            quad, odd = quad_of(present)
            quads.append(quad)
            strange += odd
    return axis_record(first[0], last[0], last[2], strange, first[1], last[1]), quads


def axis_record(
    first: float | None, last: float | None, attempt: float | None, strange: int, start: float | None, end: float | None
) -> bytes:
    """What a bucket says of its rows: first and last iteration, attempt, values not finite, first and last time."""
    return AXIS.pack(
        _bounded(first), _bounded(last), _bounded(attempt), strange,
        _NAN if start is None else start, _NAN if end is None else end,
    )  # fmt: skip


def axis_of(
    iterations: list[int], times: Callable[[int], float | None], attempt: int, strange: list[int], starts: range
) -> bytes:
    """The records of whole buckets that begin at these row numbers, `starts.step` rows each. Iterations rise."""
    width = starts.step
    ends = slice(starts.start + width - 1, starts.stop, width)
    firsts, lasts = iterations[starts.start : starts.stop : width], iterations[ends]
    if not 0 <= firsts[0] <= lasts[-1] <= LAST_ITERATION:
        firsts, lasts = list(map(_bounded, firsts)), list(map(_bounded, lasts))
    begun = [_NAN if time is None else time for time in map(times, starts)]
    ended = begun
    if width > 1:
        ended = [_NAN if time is None else time for time in map(times, range(ends.start, ends.stop, width))]
    return b"".join(map(AXIS.pack, firsts, lasts, repeat(_bounded(attempt)), strange, begun, ended))


def quad_of(present: Sequence[int | float]) -> tuple[bytes, int]:
    """(a quad, how many were not finite) of the values of several rows."""
    if present:
        low, high = min(present), max(present)
        if low >= -_LARGEST and high <= _LARGEST:  # a NaN may hide from these two, not from the sum
            total = sum(present)
            if total == total:
                return _pack(low, high, min(max(total, -_LARGEST), _LARGEST), len(present)), 0
    kept = [value for value in present if -_LARGEST <= value <= _LARGEST]
    if not kept:
        return ABSENT, len(present)
    total = min(max(sum(kept), -_LARGEST), _LARGEST)
    return _pack(min(kept), max(kept), total, len(kept)), len(present) - len(kept)


def _quad_of_one(value: float) -> tuple[bytes, int]:
    return (_pack(value, value, value, 1.0), 0) if -_LARGEST <= value <= _LARGEST else (ABSENT, 1)


def quads_of(column: Column, starts: range, strange: list[int]) -> tuple[bytes, int | None]:
    """(the quads of whole buckets of one series, the place of the first that holds a figure). The buckets begin at
    these row numbers and have `starts.step` rows each; to `strange` is added what was not finite.
    """
    width, count = starts.step, len(starts)
    if column is None:
        return ABSENT * count, None
    pairs: list[tuple[bytes, int]]
    if not isinstance(column, list):
        pairs = [_quad_of_one(column) if width == 1 else quad_of([column] * width)] * count
    else:
        parts = [column[start : start + width] for start in starts] if width > 1 else []
        lows = list(map(min, parts)) if parts else column[starts.start : starts.stop]
        highs = list(map(max, parts)) if parts else lows
        totals = list(map(sum, parts)) if parts else lows
        calm = sum(totals) == sum(totals) and min(lows) >= -_LARGEST and max(highs) <= _LARGEST  # a NaN is in the sum
        if calm and min(totals) >= -_LARGEST and max(totals) <= _LARGEST:
            quads = array("f", bytes(QUAD * count))
            for place, figures in enumerate((lows, highs, totals, [width] * count)):
                quads[place::4] = array("f", figures)
            return quads.tobytes(), 0
        pairs = list(map(quad_of, parts)) if parts else list(map(_quad_of_one, lows))
    strange[:] = map(add, strange, [odd for _, odd in pairs])
    first = next((place for place, (quad, _) in enumerate(pairs) if quad is not ABSENT), None)
    return b"".join([quad for quad, _ in pairs]), first


def rows_of(
    iterations: list[int],
    stamps: Iterable[float | None],
    attempt: int,
    columns: Sequence[Column],
    start: int,
    end: int,
) -> Iterator[Row]:
    """The rows from number `start` up to `end`, with these times."""
    values = [column[start:end] if isinstance(column, list) else repeat(column) for column in columns]
    return zip(iterations[start:end], stamps, repeat(attempt), *values)


def _bounded(number: float | None) -> int:
    return min(max(int(number or 0), 0), LAST_ITERATION)


def halved(column: bytearray) -> bytearray:
    """Neighbours as one. An absent quad is the neutral element of all four operations."""
    quads = array("f")
    quads.frombytes(bytes(column))
    out = array("f", bytes(len(column) // 2))
    joins: tuple[Callable[[float, float], float], ...] = (min, max, add, add)
    for place, join in enumerate(joins):
        out[place::4] = array("f", map(join, quads[place::8], quads[place + 4 :: 8]))
    return bytearray(out.tobytes())


def halved_axis(axis: bytearray) -> bytearray:
    """Neighbours as one: the first's beginning, the second's end."""
    out = bytearray()
    records = list(AXIS.iter_unpack(axis))
    for one, two in zip(records[::2], records[1::2], strict=True):
        start = one[4] if one[4] == one[4] else two[4]
        end = two[5] if two[5] == two[5] else one[5]
        out += AXIS.pack(one[0], two[1], two[2], min(one[3] + two[3], 2**32 - 1), start, end)
    return out
