"""Rows -> packed buckets: what history.py keeps of many iterations. Pure; figures are float32.

A bucket of one series is (low, high, sum, count); a value that is absent, NaN or beyond float32 is in none of them.
"""

import struct
from array import array
from collections.abc import Callable, Sequence
from operator import add

Row = tuple[int | float | None, ...]
"""(iteration, Unix seconds or None, attempt, *values)."""
AXIS = struct.Struct("=iiIIdd")  # first and last iteration, attempt, values not finite, first and last time
AXIS_VALUES = 3  # of a row stand before its values
QUAD = 16  # bytes of (low, high, sum, count)
_CROWDED = 4  # buckets a launch, on the average, below which launches are merged
_LAST_ITERATION = 2**31 - 1
_LARGEST = 3.0e38  # float32 holds no more
_pack = struct.Struct("=4f").pack
ABSENT = _pack(float("inf"), float("-inf"), 0.0, 0.0)
_NAN = float("nan")


def packed(rows: Sequence[Row], width: int) -> tuple[bytes, list[bytes]]:
    """(axis records, the quads of each value) of rows in buckets of `width`; the last bucket may hold fewer."""
    starts = range(0, len(rows), width)
    strange = [0] * len(starts)
    series: list[bytes] = []
    for column in list(zip(*rows, strict=True))[AXIS_VALUES:]:
        if column.count(None) == len(column):  # most series of most runs
            series.append(ABSENT * len(starts))
            continue
        quads: list[bytes] = []
        for place, start in enumerate(starts):
            quad, odd = _quad_of(column[start : start + width])
            quads.append(quad)
            strange[place] += odd
        series.append(b"".join(quads))
    lasts = [*rows[width - 1 : -1 : width], rows[-1]]
    axis = b"".join(map(_axis_record, rows[::width], lasts, strange))
    return axis, series


def _axis_record(first: Row, last: Row, strange: int) -> bytes:
    start, end = first[1], last[1]
    return AXIS.pack(
        _bounded(first[0]), _bounded(last[0]), _bounded(last[2]), strange,
        _NAN if start is None else start, _NAN if end is None else end,
    )  # fmt: skip


def _quad_of(values: Sequence[float | None]) -> tuple[bytes, int]:
    """(the quad, how many values were not finite) of one bucket of one series."""
    if len(values) == 1:  # the first thousand rows of every run: worth a shorter way
        value = values[0]
        if value is None:
            return ABSENT, 0
        return (_pack(value, value, value, 1.0), 0) if -_LARGEST <= value <= _LARGEST else (ABSENT, 1)
    present = [value for value in values if value is not None]
    if not present:
        return ABSENT, 0
    low, high, total = min(present), max(present), sum(present)
    kept = present
    if not (low >= -_LARGEST and high <= _LARGEST and total == total):  # a NaN may hide from the first two
        kept = [value for value in present if -_LARGEST <= value <= _LARGEST]
        if not kept:
            return ABSENT, len(present)
        low, high, total = min(kept), max(kept), sum(kept)
    return _pack(low, high, min(max(total, -_LARGEST), _LARGEST), len(kept)), len(present) - len(kept)


def _bounded(number: float | None) -> int:
    return min(max(int(number or 0), 0), _LAST_ITERATION)


def without_partner(axis: bytearray) -> list[int]:
    """Buckets that merge with nothing: the last of each launch that has an odd number of them, for figures of two
    launches have no mean. None of them where launches are so many that hardly anything would merge.
    """
    attempts = [record[2] for record in AXIS.iter_unpack(axis)]
    alone, begun = [], 0
    for place in range(1, len(attempts) + 1):
        if place == len(attempts) or attempts[place] != attempts[place - 1]:
            if (place - begun) % 2:
                alone.append(place - 1)
            begun = place
    return alone if len(alone) <= len(attempts) // _CROWDED else [len(attempts) - 1] * (len(attempts) % 2)


def _even(column: bytearray, size: int, alone: Sequence[int], partner: Callable[[bytes], bytes]) -> bytes:
    """Each of the `alone` records with its `partner` behind it."""
    parts: list[bytes] = []
    begun = 0
    for place in alone:
        end = (place + 1) * size
        parts += [bytes(column[begun:end]), partner(bytes(column[end - size : end]))]
        begun = end
    return b"".join([*parts, column[begun:]])


def _finite(record: bytes) -> bytes:
    """The same record, its values that are not finite counted already."""
    first, last, attempt, _, start, end = AXIS.unpack(record)
    return AXIS.pack(first, last, attempt, 0, start, end)


def halved(column: bytearray, alone: Sequence[int] = ()) -> bytearray:
    """Neighbours as one. An absent quad is the neutral element of all four operations."""
    quads = array("f")
    quads.frombytes(_even(column, QUAD, alone, lambda _: ABSENT))
    out = array("f", bytes(len(quads) * 2))
    joins: tuple[Callable[[float, float], float], ...] = (min, max, add, add)
    for place, join in enumerate(joins):
        out[place::4] = array("f", map(join, quads[place::8], quads[place + 4 :: 8]))
    return bytearray(out.tobytes())


def halved_axis(axis: bytearray, alone: Sequence[int] = ()) -> bytearray:
    """Neighbours as one: the first's beginning, the second's end."""
    out = bytearray()
    records = list(AXIS.iter_unpack(_even(axis, AXIS.size, alone, _finite)))
    for one, two in zip(records[::2], records[1::2], strict=True):
        start = one[4] if one[4] == one[4] else two[4]
        end = two[5] if two[5] == two[5] else one[5]
        out += AXIS.pack(one[0], two[1], two[2], min(one[3] + two[3], 2**32 - 1), start, end)
    return out
