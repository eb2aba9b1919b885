"""The past of a run in bounded memory, for charts.

Rows come in order and are collected in buckets. When the track is full, neighbours are merged, so that a bucket has
twice as many rows. Minimum and maximum survive any number of merges, sums and counts add up. A value that is absent,
NaN or infinite is in no figure, and values that were not finite are counted. Everything here can be saved as it is:
figures are packed as float32, and a bucket of one series is (low, high, sum, count).
"""

import math
import struct
from collections.abc import Sequence

from msgspec import Struct, field, structs

from megatron_monitor.breakdown.profile import UNTIMED
from megatron_monitor.model.arguments import Changes
from megatron_monitor.parsers.timers import CATEGORIES

Row = tuple[int | float | None, ...]
"""(iteration, Unix seconds or None, attempt, *values)."""
AXIS = struct.Struct("=iiIId")  # first and last iteration, attempt, number of values that were not finite, last time
AXIS_VALUES = 3  # fields of a row before its values
QUAD = struct.Struct("=4f")  # low, high, sum, count
_MIN_BUCKETS_PER_ATTEMPT = 4  # mean number of buckets per attempt below which attempts are merged
_LAST_ITERATION = 2**31 - 1
_SMALLEST, _LARGEST = -3.0e38, 3.0e38  # limits of float32
ABSENT = QUAD.pack(float("inf"), float("-inf"), 0.0, 0.0)
_NAN = float("nan")


def bucket_of(rows: Sequence[Row], names: Sequence[str]) -> tuple[bytes, dict[str, bytes]]:
    """Return (axis record, name -> quad of each value that a row has) of the rows of one bucket."""
    quads, strange = dict[str, bytes](), 0
    for name, column in zip(names, list(zip(*rows, strict=True))[AXIS_VALUES:], strict=True):
        kept = column if None not in column else [value for value in column if value is not None]
        if not kept:
            continue
        low, high, total = (min(kept), max(kept), sum(kept)) if len(kept) > 1 else kept * 3
        if not (_SMALLEST <= low <= high <= _LARGEST and total == total):  # one is NaN or infinite
            known, kept = len(kept), [value for value in kept if _SMALLEST <= value <= _LARGEST]
            strange += known - len(kept)
            if not kept:
                continue
            low, high, total = min(kept), max(kept), sum(kept)
        if not _SMALLEST <= total <= _LARGEST:
            total = math.copysign(_LARGEST, total)
        quads[name] = QUAD.pack(low, high, total, len(kept))
    last = rows[-1]
    time = _NAN if last[1] is None else last[1]
    return AXIS.pack(_bounded(rows[0][0]), _bounded(last[0]), _bounded(last[2]), strange, time), quads


def _bounded(number: float | None) -> int:
    return min(max(int(number or 0), 0), _LAST_ITERATION)


def pairs_of(axis: bytes | bytearray) -> list[tuple[int, int | None]]:
    """Return which buckets are merged. The last bucket of an attempt with an odd number stays alone, because a mean
    over two attempts has no meaning, unless attempts are so many that hardly anything would be merged.
    """
    attempts = [record[2] for record in AXIS.iter_unpack(axis)]
    pairs: list[tuple[int, int | None]] = []
    place = 0
    while place < len(attempts):
        isolated = attempts[place : place + 2] != [attempts[place]] * 2
        pairs.append((place, None if isolated else place + 1))
        place += 1 if isolated else 2
    if sum(two is None for _, two in pairs) <= len(attempts) // _MIN_BUCKETS_PER_ATTEMPT:
        return pairs
    return [(one, one + 1 if one + 1 < len(attempts) else None) for one in range(0, len(attempts), 2)]


def halved(column: bytes | bytearray, pairs: Sequence[tuple[int, int | None]]) -> bytearray:
    """Return neighbours merged."""
    quads, out = list(QUAD.iter_unpack(column)), bytearray()
    for one, two in pairs:
        low, high, total, count = quads[one]
        if two is not None:
            other = quads[two]
            low, high = min(low, other[0]), max(high, other[1])
            total, count = min(max(total + other[2], _SMALLEST), _LARGEST), count + other[3]
        out += QUAD.pack(low, high, total, count)
    return out


def halved_axis(axis: bytes | bytearray, pairs: Sequence[tuple[int, int | None]]) -> bytearray:
    """Return neighbours merged: the first's beginning, the second's end."""
    records, out = list(AXIS.iter_unpack(axis)), bytearray()
    for one, two in pairs:
        first, last = records[one], records[one if two is None else two]
        strange = first[3] if two is None else min(first[3] + last[3], 2**32 - 1)
        time = last[4] if last[4] == last[4] else first[4]
        out += AXIS.pack(first[0], last[1], last[2], strange, time)
    return out


class Consumed(Struct):
    """Samples and tokens up to an iteration, as printed or computed from batch size and length.

    A computed value is that of the iteration before plus the iterations since then at the present batch size. Before
    the first iteration that was read, the batch size is assumed to be the same. An attempt that goes back subtracts
    what it will compute again.
    """

    iteration: int = 0
    samples: int | None = None
    tokens: int | None = None

    def take(
        self, iteration: int, samples: int | None, tokens: int | None, batch: int | None, length: int | None
    ) -> tuple[int | None, int | None]:
        """Return (samples, tokens) by this iteration. `samples` and `tokens` are the printed values or None."""
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
"""Buckets of a full track: one per three pixels of a chart. 49 kB per run with twelve series, in each of its saves."""
SERIES = (
    "lm_loss", "grad_norm", "loss_scale", "seconds_per_iteration", "baseline_seconds", "tflops", "memory_bytes",
    "learning_rate", "global_batch_size", "samples", "tokens", "gpu_hours",
)  # fmt: skip
"""The values of a row of an iteration, in order."""
AXES = SERIES[-3:]
"""Those of them that can be a chart's horizontal axis, besides iteration and time."""
_PHASES_KEPT = 512
_RESTARTS_KEPT = 256
_RESTARTS_WITH_CHANGES = 32
_CHANGES_KEPT = 40  # remembered argument changes
_DATASETS_KEPT = 16
VALIDATION = ("loss",)
PARTS = (*CATEGORIES, UNTIMED)
"""Categories of an iteration's time by the log's timers."""
SPREADS = tuple(f"spread_{name}" for name in CATEGORIES)
"""Seconds from the fastest to the slowest rank, if the log prints both."""
_TIMED = PARTS + SPREADS


class Track(Struct):
    """Series over one axis: at most BUCKETS buckets, and one that is being filled."""

    width: int = 1
    """Rows per bucket. A bucket has fewer at the end of an attempt."""
    axis: bytearray = field(default_factory=bytearray)
    series: dict[str, bytearray] = field(default_factory=dict)
    open: list[Row] = field(default_factory=list)
    """The rows of the next bucket, all of one attempt: at most `width`."""

    def __len__(self) -> int:
        """Number of closed buckets."""
        return len(self.axis) // AXIS.size

    def add(self, row: Row, names: tuple[str, ...]) -> None:
        """Add a row, with its values in the order of `names`."""
        rows = self.open
        if rows and (len(rows) >= self.width or rows[-1][2] != row[2]):
            self._close(names)
        self.open.append(row)

    def _close(self, names: tuple[str, ...]) -> None:
        """Move the open rows into a bucket, and merge neighbours if the track is full."""
        before = len(self)
        axis, quads = bucket_of(self.open, names)
        self.open.clear()
        self.axis += axis
        for name, column in self.series.items():
            column.extend(quads.pop(name, ABSENT))
        for name, quad in quads.items():
            self.series[name] = bytearray(ABSENT * before + quad)
        if len(self) >= BUCKETS:
            self._halve()

    def _halve(self) -> None:
        pairs = pairs_of(self.axis)
        self.width, self.axis = self.width * 2, halved_axis(self.axis, pairs)
        self.series = {name: halved(column, pairs) for name, column in self.series.items()}

    def thin(self, buckets: int, names: tuple[str, ...]) -> None:
        """Reduce to at most so many buckets and close all rows, because no more will come."""
        if self.open:
            self._close(names)
        while len(self) > buckets:
            self._halve()

    def frozen(self) -> "Track":
        """Return a copy that other threads may read."""
        series = {name: bytearray(column) for name, column in self.series.items()}
        return Track(self.width, bytearray(self.axis), series, list(self.open))


class History(Struct):
    """A run's past for charts. Times are those of the log's clock. `clock_lag` converts them to ours."""

    steps: Track = field(default_factory=Track)
    validations: dict[str, Track] = field(default_factory=dict)
    phases: list[tuple[float | None, int | None, str]] = field(default_factory=list)
    """(time, iteration, phase entered), oldest first."""
    restarts: list[tuple[int, int | None, float | None]] = field(default_factory=list)
    """(first iteration of the attempt, last iteration of the one before, time), oldest first."""
    parts: Track = field(default_factory=Track)
    """Seconds by category of the iterations with timers, and their spreads."""
    attempt: int = 0
    kept: bool = True
    """False if nothing draws it, as for a single read of a finished log. Then nothing is added."""
    clock_lag: float | None = None
    """Smallest difference between our clock and the log's: its whole quarters of an hour are the time zone."""
    consumed: Consumed = field(default_factory=Consumed)
    changes: list[tuple[int, float | None, Changes]] = field(default_factory=list)
    """(first iteration of the attempt, time, arguments that differ from the attempt before), oldest first."""

    def add_step(self, row: Row) -> None:
        """Add an iteration. A second report of the same one replaces the first."""
        rows = self.steps.open
        if rows and rows[-1][0] == row[0] and rows[-1][2] == row[2]:
            rows[-1] = row
            return
        self.steps.add(row, SERIES)

    def add_validation(self, dataset: str, row: Row) -> None:
        """Add a result of a validation set."""
        track = self.validations.get(dataset)
        if track is None:
            if len(self.validations) >= _DATASETS_KEPT:
                return
            track = self.validations[dataset] = Track()
        track.add(row, VALIDATION)

    def add_parts(self, iteration: int, time: float | None, parts: dict[str, float], spreads: dict[str, float]) -> None:
        """Add the time of an iteration and the spread over the ranks, both by category."""
        values = (*map(parts.get, PARTS), *map(spreads.get, CATEGORIES))
        self.parts.add((iteration, time, self.attempt, *values), _TIMED)

    def add_phase(self, time: float | None, iteration: int | None, phase: str) -> None:
        """Note that the run entered a phase."""
        self.phases.append((time, iteration, phase))
        del self.phases[:-_PHASES_KEPT]

    def add_restart(self, iteration: int, before: int | None, time: float | None) -> None:
        """Note that a later attempt counted its first iteration."""
        self.restarts.append((iteration, before, time))
        del self.restarts[:-_RESTARTS_KEPT]

    def add_changes(self, iteration: int, time: float | None, changes: Changes) -> None:
        """Note that a later attempt has other arguments."""
        self.changes.append((iteration, time, changes[:_CHANGES_KEPT]))
        del self.changes[:-_RESTARTS_WITH_CHANGES]

    @property
    def zone(self) -> float:
        """Return the seconds to add to the log's times: its time zone is not printed and is in whole quarters of an
        hour.
        """
        return round((self.clock_lag or 0.0) / 900.0) * 900.0

    def thin(self, buckets: int) -> None:
        """Reduce to at most so many points per chart, because the run has ended."""
        self.steps.thin(buckets, SERIES)
        self.parts.thin(buckets, _TIMED)
        for track in self.validations.values():
            track.thin(buckets, VALIDATION)
        del self.phases[:-buckets]

    def frozen(self) -> "History":
        """Return a copy that other threads may read."""
        validations = {name: track.frozen() for name, track in self.validations.items()}
        return structs.replace(
            self, steps=self.steps.frozen(), validations=validations, phases=list(self.phases),
            restarts=list(self.restarts), parts=self.parts.frozen(), changes=list(self.changes),
        )  # fmt: skip
