"""The past of a run in bounded memory: what the charts draw.

Law: rows come in order and are put together in buckets. When the track is full, neighbours are merged, so that a
bucket stands for twice as many rows: lows and highs survive any number of merges, sums and counts add up. A value that
is absent, NaN or infinite is in no figure; those that were not finite are counted. Everything here can be saved as it
stands: figures are packed as float32, a bucket of one series is (low, high, sum, count). Rows wait in `open` until
some dozens are put together at once or somebody looks (`flush`); when that happens makes no difference to the buckets.
"""

import struct
from collections.abc import Sequence

from msgspec import Struct, field

from megatron_monitor.breakdown.profile import UNTIMED
from megatron_monitor.model.arguments import Changes
from megatron_monitor.parsers.timers import CATEGORIES

Row = tuple[int | float | None, ...]
"""(iteration, Unix seconds or None, attempt, *values)."""
AXIS = struct.Struct("=iiIIdd")  # first and last iteration, attempt, values not finite, first and last time
AXIS_VALUES = 3  # of a row stand before its values
QUAD = struct.Struct("=4f")  # low, high, sum, count
_CROWDED = 4  # buckets an attempt, on the average, below which attempts are merged
_LAST_ITERATION = 2**31 - 1
_LEAST, _LARGEST = -3.0e38, 3.0e38  # float32 holds no more
ABSENT = QUAD.pack(float("inf"), float("-inf"), 0.0, 0.0)
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
        quads = [_quad_of(column[start : start + width]) for start in starts]
        series.append(b"".join([quad for quad, _ in quads]))
        strange = [known + odd for known, (_, odd) in zip(strange, quads, strict=True)]
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
    present = [value for value in values if value is not None]
    if not present:
        return ABSENT, 0
    low, high, total = min(present), max(present), sum(present)
    kept = present
    if not (low >= _LEAST and high <= _LARGEST and total == total):  # a NaN may hide from the first two
        kept = [value for value in present if _LEAST <= value <= _LARGEST]
        if not kept:
            return ABSENT, len(present)
        low, high, total = min(kept), max(kept), sum(kept)
    return QUAD.pack(low, high, min(max(total, _LEAST), _LARGEST), len(kept)), len(present) - len(kept)


def _bounded(number: float | None) -> int:
    return min(max(int(number or 0), 0), _LAST_ITERATION)


def pairs_of(axis: bytes | bytearray) -> list[tuple[int, int | None]]:
    """Which buckets become one. The last of each attempt that has an odd number of them stays alone, for figures of two
    attempts have no mean; not where attempts are so many that hardly anything would merge.
    """
    attempts = [record[2] for record in AXIS.iter_unpack(axis)]
    pairs: list[tuple[int, int | None]] = []
    place = 0
    while place < len(attempts):
        isolated = attempts[place : place + 2] != [attempts[place]] * 2
        pairs.append((place, None if isolated else place + 1))
        place += 1 if isolated else 2
    if sum(two is None for _, two in pairs) <= len(attempts) // _CROWDED:
        return pairs
    return [(one, one + 1 if one + 1 < len(attempts) else None) for one in range(0, len(attempts), 2)]


def halved(column: bytes | bytearray, pairs: Sequence[tuple[int, int | None]]) -> bytearray:
    """Neighbours as one."""
    quads, out = list(QUAD.iter_unpack(column)), bytearray()
    for one, two in pairs:
        low, high, total, count = quads[one]
        if two is not None:
            other = quads[two]
            low, high = min(low, other[0]), max(high, other[1])
            total, count = min(max(total + other[2], _LEAST), _LARGEST), count + other[3]
        out += QUAD.pack(low, high, total, count)
    return out


def halved_axis(axis: bytes | bytearray, pairs: Sequence[tuple[int, int | None]]) -> bytearray:
    """Neighbours as one: the first's beginning, the second's end."""
    records, out = list(AXIS.iter_unpack(axis)), bytearray()
    for one, two in pairs:
        first, last = records[one], records[one if two is None else two]
        strange = first[3] if two is None else min(first[3] + last[3], 2**32 - 1)
        start = first[4] if first[4] == first[4] else last[4]
        end = last[5] if last[5] == last[5] else first[5]
        out += AXIS.pack(first[0], last[1], last[2], strange, start, end)
    return out


class Consumed(Struct):
    """Samples and tokens up to an iteration: as the log prints them, else counted on by batch size and length.

    Counted on means: what was known of the iteration before, and the iterations since then at the batch size of now.
    Before the first iteration that was read, that batch size is taken to have been the same. An attempt that goes back
    takes off again what it will compute anew.
    """

    iteration: int = 0
    samples: int | None = None
    tokens: int | None = None

    def take(
        self, iteration: int, samples: int | None, tokens: int | None, batch: int | None, length: int | None
    ) -> tuple[int | None, int | None]:
        """(samples, tokens) by this iteration; the log prints `samples` and `tokens`, or None."""
        before = self.samples
        if samples is None and batch:
            samples = iteration * batch if before is None else before + (iteration - self.iteration) * batch
        if tokens is None and samples is not None and length:
            if before is None or self.tokens is None:
                tokens = samples * length
            else:
                tokens = self.tokens + (samples - before) * length
        self.iteration, self.samples, self.tokens = iteration, samples, tokens
        return samples, tokens


BUCKETS = 256
"""Buckets of a full track: one for some three pixels of a chart; 49 kB a run with twelve series, in each save of it."""
SERIES = (
    "lm_loss", "grad_norm", "loss_scale", "seconds_per_iteration", "baseline_seconds", "tflops", "memory_bytes",
    "learning_rate", "global_batch_size", "samples", "tokens", "gpu_hours",
)  # fmt: skip
"""What a row of an iteration holds, in its order."""
AXES = SERIES[-3:]
"""Of these what had been used up by the iteration: what charts are drawn against, beside iteration and time."""
_PHASES_KEPT = 512
_RESTARTS_KEPT = 256
_RESTARTS_WITH_CHANGES = 32
_CHANGES_KEPT = 40  # arguments of an attempt
_DATASETS_KEPT = 16
VALIDATION = ("loss",)
PARTS = (*CATEGORIES, UNTIMED)
"""Where an iteration's time went, by the log's timers."""
SPREADS = tuple(f"spread_{name}" for name in CATEGORIES)
"""How much longer the slowest rank took for it than the fastest, where the log prints both."""
_TIMED = PARTS + SPREADS
_WAITING = 64  # rows beyond a bucket that may wait: put together at once they take half the time


class Track(Struct):
    """Series over one axis, at most BUCKETS long and one bucket that still fills."""

    width: int = 1
    """Rows of a bucket; fewer where an attempt ended."""
    axis: bytearray = field(default_factory=bytearray)
    series: dict[str, bytearray] = field(default_factory=dict)
    open: list[Row] = field(default_factory=list)
    """Rows of one attempt that are in no bucket yet; after `flush` at most `width`, the last row among them."""

    def __len__(self) -> int:
        """Closed buckets."""
        return len(self.axis) // AXIS.size

    def add(self, row: Row, names: tuple[str, ...]) -> None:
        """One more row, its values in the order of `names`."""
        rows = self.open
        if rows and rows[-1][2] != row[2]:
            self.flush(names)
            self._close(len(rows), names)
        elif len(rows) >= self.width + _WAITING:
            self.flush(names)
        rows.append(row)

    def flush(self, names: tuple[str, ...]) -> None:
        """Put the rows of full buckets together. The last row stays open, and with it those of its bucket."""
        while len(self.open) > self.width:
            buckets = min((len(self.open) - 1) // self.width, BUCKETS - len(self))
            self._close(buckets * self.width, names)

    def _close(self, count: int, names: tuple[str, ...]) -> None:
        """Move the first `count` open rows into buckets of `width`; merge neighbours if the track is full then."""
        before = len(self)
        axis, series = packed(self.open[:count], self.width)
        del self.open[:count]
        self.axis += axis
        absent = ABSENT * (len(axis) // AXIS.size)
        for name, quads in zip(names, series, strict=True):
            column = self.series.get(name)
            if column is not None:
                column += quads
            elif quads != absent:
                self.series[name] = bytearray(ABSENT * before + quads)
        if len(self) >= BUCKETS:
            self._halve()

    def _halve(self) -> None:
        pairs = pairs_of(self.axis)
        self.width, self.axis = self.width * 2, halved_axis(self.axis, pairs)
        self.series = {name: halved(column, pairs) for name, column in self.series.items()}

    def thin(self, buckets: int, names: tuple[str, ...]) -> None:
        """So many at most, nothing left open: no more rows will come."""
        self.flush(names)
        if self.open:
            self._close(len(self.open), names)
        while len(self) > buckets:
            self._halve()

    def frozen(self) -> "Track":
        """A copy that other threads may read."""
        series = {name: bytearray(column) for name, column in self.series.items()}
        return Track(self.width, bytearray(self.axis), series, list(self.open))


class History(Struct):
    """Everything about a run's past that is drawn. Times are of the log's clock; `clock_lag` leads to ours."""

    steps: Track = field(default_factory=Track)
    validations: dict[str, Track] = field(default_factory=dict)
    phases: list[tuple[float | None, int | None, str]] = field(default_factory=list)
    """(time, iteration, phase entered), oldest first."""
    restarts: list[tuple[int, int | None, float | None]] = field(default_factory=list)
    """(first iteration of the attempt, last of the one before, time), oldest first."""
    parts: Track = field(default_factory=Track)
    """Seconds by category of the iterations whose timers the log prints, and their spreads."""
    attempt: int = 0
    kept: bool = True
    """False where nobody will draw it, as in one reading to the end: then nothing is added."""
    clock_lag: float | None = None
    """Smallest difference seen between our clock and the log's: whole quarters of an hour of it are its time zone."""
    consumed: Consumed = field(default_factory=Consumed)
    changes: list[tuple[int, float | None, Changes]] = field(default_factory=list)
    """(first iteration of the attempt, time, arguments that differ from the attempt before), oldest first."""

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
        track.add(row, VALIDATION)

    def add_parts(self, iteration: int, time: float | None, parts: dict[str, float], spreads: dict[str, float]) -> None:
        """Where the time of one more iteration went, and how far the ranks lay apart, both by category."""
        values = (*map(parts.get, PARTS), *map(spreads.get, CATEGORIES))
        self.parts.add((iteration, time, self.attempt, *values), _TIMED)

    def add_phase(self, time: float | None, iteration: int | None, phase: str) -> None:
        """The run entered a phase."""
        self.phases.append((time, iteration, phase))
        del self.phases[:-_PHASES_KEPT]

    def add_restart(self, iteration: int, before: int | None, time: float | None) -> None:
        """A later attempt counted its first iteration."""
        self.restarts.append((iteration, before, time))
        del self.restarts[:-_RESTARTS_KEPT]

    def add_changes(self, iteration: int, time: float | None, changes: Changes) -> None:
        """A later attempt has other arguments."""
        self.changes.append((iteration, time, changes[:_CHANGES_KEPT]))
        del self.changes[:-_RESTARTS_WITH_CHANGES]

    @property
    def zone(self) -> float:
        """Seconds to add to the log's times: its zone is not printed, whole quarters of an hour are one."""
        return round((self.clock_lag or 0.0) / 900.0) * 900.0

    def flush(self) -> None:
        """Put waiting rows together: before a look."""
        self.steps.flush(SERIES)
        self.parts.flush(_TIMED)
        for track in self.validations.values():
            track.flush(VALIDATION)

    def thin(self, buckets: int) -> None:
        """At most so many points a chart: the run is over."""
        self.steps.thin(buckets, SERIES)
        self.parts.thin(buckets, _TIMED)
        for track in self.validations.values():
            track.thin(buckets, VALIDATION)
        del self.phases[:-buckets]

    def frozen(self) -> "History":
        """A copy that other threads may read."""
        self.flush()
        return History(
            self.steps.frozen(),
            {name: track.frozen() for name, track in self.validations.items()},
            list(self.phases),
            list(self.restarts),
            self.parts.frozen(),
            self.attempt,
            self.kept,
            self.clock_lag,
            changes=list(self.changes),
        )
