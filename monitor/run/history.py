"""The past of a run in bounded memory: what the charts draw.

Law: rows come in order and are put together in buckets. When the track is full, neighbours are merged, so that a
bucket stands for twice as many rows: lows and highs survive any number of merges, sums and counts add up. A value that
is absent, NaN or infinite is in no figure; those that were not finite are counted. Everything here can be saved as it
stands: figures are packed as float32, a bucket of one series is (low, high, sum, count). Rows that came one by one lie
as they are until some dozens are put together or somebody looks: `settle`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import itemgetter
from typing import Any, cast
from zlib import crc32

from monitor.run.buckets import (
    ABSENT,
    AXIS,
    LAST_ITERATION,
    QUAD,
    Column,
    Row,
    axis_of,
    halved,
    halved_axis,
    quads_of,
    rows_of,
    summary,
)

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
_LIE = 64  # rows that may wait to be put together: by columns they take a quarter of the time


@dataclass(slots=True)
class Track:
    """Series over one axis, at most BUCKETS long and one bucket that still fills."""

    width: int = 1
    """Rows of a bucket; fewer where an attempt ended."""
    axis: bytearray = field(default_factory=bytearray)
    series: dict[str, bytearray] = field(default_factory=dict)
    open: list[Row] = field(default_factory=list)
    """Rows of one attempt: of the bucket that fills, before them those of full ones until `settle`."""

    def __len__(self) -> int:
        """Closed buckets."""
        return len(self.axis) // AXIS.size

    def add(self, row: Row, names: tuple[str, ...]) -> None:
        """One more row, its values in the order of `names`."""
        rows = self.open
        if rows and rows[-1][2] != row[2]:
            self.settle(names)
            self._close(names)  # empties the same list
        elif len(rows) >= self.width + _LIE:
            self.settle(names)
        rows.append(row)

    def settle(self, names: tuple[str, ...]) -> None:
        """Put the rows of full buckets together. The last row stays open, and with it those of its bucket."""
        if len(self.open) <= self.width:
            return
        rows = self.open[:]
        self.open.clear()
        numbers, times, attempts, *values = cast("list[list[Any]]", list(map(list, zip(*rows, strict=True))))
        absent = [column.count(None) for column in values]
        plain = all(count in (0, len(rows)) for count in absent) and None not in numbers
        if plain and min(numbers) >= 0 and max(numbers) <= LAST_ITERATION:
            columns = [None if count else column for column, count in zip(values, absent, strict=True)]
            self.add_many(numbers, times.__getitem__, attempts[0], columns, names)
            return
        for row in rows:
            if len(self.open) >= self.width:
                self._close(names)
            self.open.append(row)

    def add_many(
        self,
        iterations: list[int],
        times: Callable[[int], float | None],
        attempt: int,
        columns: Sequence[Column],
        names: tuple[str, ...],
    ) -> None:
        """What `add` of each row leaves; whole buckets go in without a row made. `times` as for `History.add_steps`."""
        self.settle(names)
        rows, at, count = self.open, 0, len(iterations)
        if rows and count:
            if rows[-1][2] == attempt:
                at = min(max(self.width - len(rows), 0), count)
                stays = at == count  # else the bucket closes: only its last row's time is in it
                stamps = map(times, range(at)) if stays else [*repeat(None, at - 1), *map(times, range(at)[-1:])]
                rows.extend(rows_of(iterations, stamps, attempt, columns, 0, at))
                if stays:
                    return
            self._close(names)
        while whole := (count - at - 1) // self.width if count > at else 0:  # the last of all rows stays open
            whole = min(whole, BUCKETS - len(self))
            self._close_many(iterations, times, attempt, columns, names, range(at, at + whole * self.width, self.width))
            at += whole * self.width
            if len(self) >= BUCKETS:
                self._halve()
        rows.extend(rows_of(iterations, map(times, range(at, count)), attempt, columns, at, count))

    def _close_many(
        self,
        iterations: list[int],
        times: Callable[[int], float | None],
        attempt: int,
        columns: Sequence[Column],
        names: tuple[str, ...],
        starts: range,
    ) -> None:
        """Buckets of `width` rows that begin at the row numbers `starts`."""
        before, strange = len(self), [0] * len(starts)
        late: list[tuple[int, str, bytes]] = []
        for name, values in zip(names, columns, strict=True):
            quads, first = quads_of(values, starts, strange)
            if name in self.series:
                self.series[name] += quads
            elif first is not None:
                late.append((first, name, quads))
        for _, name, quads in sorted(late, key=itemgetter(0)):  # in the order in which rows would have made them
            self.series[name] = bytearray(ABSENT * before + quads)
        self.axis += axis_of(iterations, times, attempt, strange, starts)

    def _close(self, names: tuple[str, ...]) -> None:
        axis, quads = summary(self.open)
        count = len(self)
        for name, quad in zip(names, quads, strict=True):
            column = self.series.get(name)
            if column is None:
                if quad is ABSENT:
                    continue
                column = self.series[name] = bytearray(ABSENT * count)
            column += quad
        self.axis += axis
        self.open.clear()
        if count + 1 >= BUCKETS:
            self._halve()

    def _halve(self) -> None:
        self.width *= 2
        self.axis = halved_axis(self.axis)
        self.series = {name: halved(column) for name, column in self.series.items()}

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
    kept: bool = True
    """False where nobody will draw it, as in one reading to the end: then nothing is added."""
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

    def settle(self) -> None:
        """Put together what came one by one: before it is looked at."""
        self.steps.settle(SERIES)
        for track in self.validations.values():
            track.settle(_VALIDATION)

    def frozen(self) -> History:
        """A copy that other threads may read."""
        self.settle()
        return History(
            self.steps.frozen(),
            {name: track.frozen() for name, track in self.validations.items()},
            list(self.phases),
            list(self.restarts),
            self.attempt,
            self.kept,
            self.clock_lag,
        )


# --- reading --------------------------------------------------------------------------------------------------------


def columns(track: Track, names: tuple[str, ...], start: int = 0, zone: float = 0.0) -> dict[str, Any]:
    """The buckets from `start` on as lists, the one that fills last. Low and high only where a bucket has many rows."""
    track.settle(names)
    axis, series = bytes(track.axis), {name: bytes(column) for name, column in track.series.items()}
    closed = len(axis) // AXIS.size
    start = min(max(start, 0), closed)
    if track.open:
        last_axis, quads = summary(track.open)
        axis += last_axis
        for name, quad in zip(names, quads, strict=True):
            if name in series or quad is not ABSENT:
                series[name] = series.get(name, ABSENT * closed) + quad
    records = list(AXIS.iter_unpack(axis[start * AXIS.size :]))
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
            name: _figures(series[name][start * QUAD :], track.width > 1) for name in names if name in series
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
    history.settle()
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
