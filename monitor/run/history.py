"""The past of a run in bounded memory: what the charts draw.

Law: rows come in order and are put together in buckets. When the track is full, neighbours are merged, so that a
bucket stands for twice as many rows: lows and highs survive any number of merges, sums and counts add up. A value that
is absent, NaN or infinite is in no figure; those that were not finite are counted. Everything here can be saved as it
stands: figures are packed as float32, a bucket of one series is (low, high, sum, count).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import add
from typing import Any
from zlib import crc32

BUCKETS = 1024
"""Buckets of a full track: more than a chart has pixels; 147 kB a run with nine series."""
SERIES = (
    "lm_loss",
    "grad_norm",
    "loss_scale",
    "seconds_per_iteration",
    "baseline_seconds",
    "tflops",
    "memory_bytes",
    "learning_rate",
    "global_batch_size",
)
"""What a row of an iteration holds, in its order."""
_PHASES_KEPT = 512
_RESTARTS_KEPT = 256
_DATASETS_KEPT = 16
_VALIDATION = ("loss",)

Row = tuple[int | float | None, ...]
"""(iteration, Unix seconds or None, attempt, *values)."""
_AXIS = struct.Struct("=iiIIdd")  # first and last iteration, attempt, values not finite, first and last time
_AXIS_VALUES = 3  # of a row stand before its values
_QUAD = 16  # bytes of (low, high, sum, count)
_LARGEST = 3.0e38  # float32 holds no more
_pack = struct.Struct("=4f").pack
_ABSENT = _pack(float("inf"), float("-inf"), 0.0, 0.0)
_NAN = float("nan")


@dataclass(slots=True)
class Track:
    """Series over one axis, at most BUCKETS long and one bucket that still fills."""

    width: int = 1
    """Rows of a bucket; fewer where an attempt ended."""
    axis: bytearray = field(default_factory=bytearray)
    series: dict[str, bytearray] = field(default_factory=dict)
    open: list[Row] = field(default_factory=list)

    def __len__(self) -> int:
        """Closed buckets."""
        return len(self.axis) // _AXIS.size

    def add(self, row: Row, names: tuple[str, ...]) -> None:
        """One more row, its values in the order of `names`."""
        rows = self.open
        if rows and (len(rows) >= self.width or rows[-1][2] != row[2]):
            self._close(names)  # empties the same list
        rows.append(row)

    def _close(self, names: tuple[str, ...]) -> None:
        axis, quads = summary(self.open)
        count = len(self)
        for name, quad in zip(names, quads, strict=True):
            column = self.series.get(name)
            if column is None:
                if quad is _ABSENT:
                    continue
                column = self.series[name] = bytearray(_ABSENT * count)
            column += quad
        self.axis += axis
        self.open.clear()
        if count + 1 >= BUCKETS:
            self._halve()

    def _halve(self) -> None:
        self.width *= 2
        self.axis = _halved_axis(self.axis)
        self.series = {name: _halved(column) for name, column in self.series.items()}

    def frozen(self) -> Track:
        """A copy that other threads may read."""
        series = {name: bytearray(column) for name, column in self.series.items()}
        return Track(self.width, bytearray(self.axis), series, list(self.open))


@dataclass(slots=True)
class History:
    """Everything about a run's past that is drawn. Times are of the log's clock; `clock_lag` leads to ours."""

    steps: Track = field(default_factory=Track)
    validations: dict[str, Track] = field(default_factory=dict)
    phases: list[tuple[float | None, int | None, str]] = field(default_factory=list)
    """(time, iteration, phase entered), oldest first."""
    restarts: list[tuple[int, int | None, float | None]] = field(default_factory=list)
    """(first iteration of the launch, last of the one before, time), oldest first."""
    attempt: int = 0
    clock_lag: float | None = None
    """Smallest difference seen between our clock and the log's: whole quarters of an hour of it are its time zone."""

    def add_step(self, row: Row) -> None:
        """One more iteration; a second report of the same one replaces the first."""
        rows = self.steps.open
        if rows and rows[-1][0] == row[0] and rows[-1][2] == row[2]:
            rows[-1] = row
            return
        self.steps.add(row, SERIES)

    def add_validation(self, dataset: str, row: Row) -> None:
        """One more result of a validation set."""
        track = self.validations.get(dataset)
        if track is None:
            if len(self.validations) >= _DATASETS_KEPT:
                return
            track = self.validations[dataset] = Track()
        track.add(row, _VALIDATION)

    def add_phase(self, time: float | None, iteration: int | None, phase: str) -> None:
        """The run entered a phase."""
        self.phases.append((time, iteration, phase))
        del self.phases[:-_PHASES_KEPT]

    def add_restart(self, iteration: int, before: int | None, time: float | None) -> None:
        """A later launch counted its first iteration."""
        self.restarts.append((iteration, before, time))
        del self.restarts[:-_RESTARTS_KEPT]

    @property
    def zone(self) -> float:
        """Seconds to add to the log's times: its zone is not printed, whole quarters of an hour are one."""
        return round((self.clock_lag or 0.0) / 900.0) * 900.0

    def frozen(self) -> History:
        """A copy that other threads may read."""
        return History(
            self.steps.frozen(),
            {name: track.frozen() for name, track in self.validations.items()},
            list(self.phases),
            list(self.restarts),
            self.attempt,
            self.clock_lag,
        )


def summary(rows: list[Row]) -> tuple[bytes, list[bytes]]:
    """(the axis record, a quad for each value) of some rows; `_ABSENT` itself where there is no figure."""
    first, last = rows[0], rows[-1]
    quads: list[bytes] = []
    strange = 0
    if len(rows) == 1:  # the first thousand rows of every run: worth a shorter way
        for value in first[_AXIS_VALUES:]:
            if value is None:
                quads.append(_ABSENT)
            elif -_LARGEST <= value <= _LARGEST:
                quads.append(_pack(value, value, value, 1.0))
            else:
                quads.append(_ABSENT)
                strange += 1
    else:
        for column in list(zip(*rows, strict=True))[_AXIS_VALUES:]:
            present = [value for value in column if value is not None] if None in column else column
            kept = [value for value in present if -_LARGEST <= value <= _LARGEST]
            strange += len(present) - len(kept)
            total = min(max(sum(kept), -_LARGEST), _LARGEST)
            quads.append(_pack(min(kept), max(kept), total, len(kept)) if kept else _ABSENT)
    start, end = first[1], last[1]
    axis = _AXIS.pack(
        _bounded(first[0]), _bounded(last[0]), _bounded(last[2]), strange,
        _NAN if start is None else start, _NAN if end is None else end,
    )  # fmt: skip
    return axis, quads


def _bounded(number: float | None) -> int:
    return min(max(int(number or 0), 0), 2**31 - 1)


def _halved(column: bytearray) -> bytearray:
    """Neighbours as one. An absent quad is the neutral element of all four operations."""
    quads = array("f")
    quads.frombytes(bytes(column))
    out = array("f", bytes(len(column) // 2))
    joins: tuple[Callable[[float, float], float], ...] = (min, max, add, add)
    for place, join in enumerate(joins):
        out[place::4] = array("f", map(join, quads[place::8], quads[place + 4 :: 8]))
    return bytearray(out.tobytes())


def _halved_axis(axis: bytearray) -> bytearray:
    out = bytearray()
    records = list(_AXIS.iter_unpack(axis))
    for one, two in zip(records[::2], records[1::2], strict=True):
        start = one[4] if one[4] == one[4] else two[4]
        end = two[5] if two[5] == two[5] else one[5]
        out += _AXIS.pack(one[0], two[1], two[2], min(one[3] + two[3], 2**32 - 1), start, end)
    return out


# --- reading --------------------------------------------------------------------------------------------------------


def columns(track: Track, names: tuple[str, ...], start: int = 0, zone: float = 0.0) -> dict[str, Any]:
    """The buckets from `start` on as lists, the one that fills last. Low and high only where a bucket has many rows."""
    axis, series = bytes(track.axis), {name: bytes(column) for name, column in track.series.items()}
    closed = len(axis) // _AXIS.size
    start = min(max(start, 0), closed)
    if track.open:
        last_axis, quads = summary(track.open)
        axis += last_axis
        for name, quad in zip(names, quads, strict=True):
            if name in series or quad is not _ABSENT:
                series[name] = series.get(name, _ABSENT * closed) + quad
    records = list(_AXIS.iter_unpack(axis[start * _AXIS.size :]))
    return {
        "width": track.width,
        "start": start,
        "closed": closed,
        "first_iteration": [record[0] for record in records],
        "iteration": [record[1] for record in records],
        "attempt": [record[2] for record in records],
        "not_finite": [record[3] for record in records],
        "time": [round(record[5] + zone, 3) if record[5] == record[5] else None for record in records],
        "series": {
            name: _figures(series[name][start * _QUAD :], track.width > 1) for name in names if name in series
        },
    }  # fmt: skip


def _figures(column: bytes, many: bool) -> dict[str, list[float | None]]:
    quads = array("f")
    quads.frombytes(column)
    counts = quads[3::4]
    out = {"mean": [_short(total / count) if count else None for total, count in zip(quads[2::4], counts, strict=True)]}
    if many:
        out["low"] = [_short(low) if count else None for low, count in zip(quads[0::4], counts, strict=True)]
        out["high"] = [_short(high) if count else None for high, count in zip(quads[1::4], counts, strict=True)]
    return out


def _short(value: float) -> float:
    """float32 has seven digits; the others are noise that costs bytes."""
    return float(f"{value:.7g}")


def history_json(history: History, width: int = 0, start: int = 0, key: str = "") -> dict[str, Any]:
    """What the API gives. With the width and the number of closed buckets that a client has, only the steps that are
    new; with the key of its last answer, no validation, phases and restarts unless they have changed.
    """
    zone = history.zone
    new_only = start if width == history.steps.width and start <= len(history.steps) else 0
    now = _key(history)
    out = {"key": now, "steps": columns(history.steps, SERIES, new_only, zone)}
    if key == now:
        return out
    return {
        **out,
        "validation": {
            name: columns(track, _VALIDATION, 0, zone) for name, track in sorted(history.validations.items())
        },
        "phases": [
            {"time": time + zone, "iteration": iteration, "phase": phase}
            for time, iteration, phase in history.phases
            if time is not None
        ],
        "restarts": [
            {"iteration": iteration, "after_iteration": before, "time": None if time is None else time + zone}
            for iteration, before, time in history.restarts
        ],
    }


def _key(history: History) -> str:
    """Changes with everything but the steps: what seldom changes need not be sent every other second."""
    tracks = history.validations.values()
    rows = sum(len(track) * track.width + len(track.open) for track in tracks)
    ends = (history.phases[-1:], history.restarts[-1:], [track.open[-1:] for track in tracks], history.zone)
    return f"{len(tracks)}.{rows}.{len(history.phases)}.{len(history.restarts)}.{crc32(repr(ends).encode()):x}"
