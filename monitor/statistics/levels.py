"""A level, its noise, and the moment when it has shifted: winsorised CUSUM, verified by a median.

Works on logarithms, so that a shift is a ratio. Clipping at 4 scales makes one outlier harmless whatever its size; the
median of the last residuals must confirm the sum (docs/development/incident-record.md, "Change detection": measured
against Page-Hinkley, Bayesian change points and the 3-sigma rule).
"""

import math
from collections.abc import Sequence

from msgspec import Struct, field

from megatron_monitor.statistics.median import NORMAL_DEVIATIONS, median

WINDOW = 200  # values that make the level: long enough that a shift is found before it is absorbed
RECENT = 16  # residuals for the median check
LEARN = 16  # values before a level is believed,
_FEW, _MANY = 8, 256  # or so few, of so many iterations: means of many vary less
DRIFT_EVERY = 10  # values between two looks at a drift
DRIFT = 50  # values whose median is held against the lowest such median
_RENEW = 8  # steps between two renewals of level and scale
_CLIP = 4.0
_SLACK = 1.5  # k of the CUSUM, in scales: a step of two scales is found, autocorrelated noise is not
_FLOOR = 0.0035  # no scale is smaller: steady runs show 0.35 to 0.4 %, and milliseconds are rounded
MARK_EVERY = 64  # values between two marks of the level
_FINE = 0.001  # printed finer than that, rounding is lost in the noise
_ROUNDING = 0.5  # scales that one printed unit counts for: rounding errs by up to half a unit
_DECIMALS = (2, 3)  # decimals looked for: no program prints fewer, and more are fine enough
_MISS = 3  # a value that is not slow takes back so many that are


class Level(Struct):
    """Logarithms of seconds at one level. `value` is its median, `scale` 1.4826 times the median deviation."""

    values: list[float] = field(default_factory=list)
    """The last ones, oldest first."""
    seen: int = 0
    iterations: int = 0
    """Those that the values stand for."""
    residuals: int = 0
    """Values since the level is known."""
    value: float | None = None
    scale: float = _FLOOR
    up: float = 0.0
    down: float = 0.0
    up_since: int | None = None
    """Iteration at which the upward sum last left zero: where a slowdown began."""
    down_since: int | None = None
    best: float | None = None
    """Lowest median of 50 so far."""
    up_from: int = 0
    """`seen` at `up_since`."""
    down_from: int = 0
    unit: float | None = None
    """What the last printed digit is worth, in logarithms: 0.022 for times like 0.45; None while unknown."""

    def add(
        self, x: float, iteration: int, limit: float = math.inf, suspect: float = 0.0, far: float = math.inf,
        stands_for: int = 1,
    ) -> bool:  # fmt: skip
        """Take in a logarithm, a mean over `stands_for` iterations. Whether the caller must look: a sum has reached
        `suspect`, a residual is above `far` and 6 scales, the level has just been learned, or it is time for a look at
        a drift or for a mark. The sums stop growing at `limit`, so that a return is seen as fast as a shift.
        """
        self.seen = seen = self.seen + 1
        self.iterations += stands_for
        self.values.append(x)
        value, look = self.value, False
        if value is not None:
            self.residuals += 1
            scale = self.scale
            residual = x - value
            z = min(max(residual / scale, -_CLIP), _CLIP)
            if self.up or z > _SLACK:
                if self.up <= 0.0:
                    self.up_since, self.up_from = iteration, seen
                self.up = min(max(self.up + z - _SLACK, 0.0), limit)
            if self.down or z < -_SLACK:
                if self.down <= 0.0:
                    self.down_since, self.down_from = iteration, seen
                self.down = min(max(self.down - z - _SLACK, 0.0), limit)
            look = self.up >= suspect or self.down >= suspect or residual > max(far, 6 * scale)
        if not seen % _RENEW and (seen >= LEARN or (seen >= _FEW and self.iterations >= _MANY)):
            look = self._renew() or look
        return look or not seen % DRIFT_EVERY or not seen % MARK_EVERY

    def _renew(self) -> bool:
        """Level and scale of the values that are known now. Whether the level has just been learned."""
        del self.values[:-WINDOW]
        # A level of few values would follow what it is to find: it stays what it was before the suspect ones.
        young = self.up > 0.0 and self.up_from > _FEW and self.seen <= 2 * LEARN and self.iterations >= _MANY
        learned, ordered = self.value is None, sorted(self.values[: self.up_from - 1] if young else self.values)
        self.value = value = ordered[len(ordered) // 2]
        self.scale = max(_FLOOR, NORMAL_DEVIATIONS * _median_deviation(ordered, value))
        if self.unit is None or self.unit > _FINE:
            unit = self.see_unit(_RENEW)
            if ordered[0] != ordered[-1]:
                self.scale = max(self.scale, _ROUNDING * unit)
        return learned

    def recent(self, count: int = RECENT) -> list[float]:
        """The last residuals, `count` at most, oldest first."""
        count = min(count, self.residuals, RECENT)
        value = self.value
        return [x - value for x in self.values[-count:]] if count and value is not None else []

    def confirmed(self, count: int) -> float | None:
        """Median of the last `count` residuals; None while there are fewer."""
        recent = self.recent(count)
        return median(recent) if len(recent) >= count else None

    def drifted(self) -> float | None:
        """How far the median of the last 50 lies above the lowest median of 50; asked every tenth value."""
        if len(self.values) < DRIFT or self.seen % DRIFT_EVERY:
            return None
        middle = median(self.values[-DRIFT:])
        if self.best is None or middle < self.best:
            self.best = middle
        return middle - self.best

    def see_unit(self, count: int) -> float:
        """Look at the last `count` values for the digits that they were printed with; all where none were seen yet."""
        fresh = printed_unit(self.values[-count:] if self.unit is not None else self.values)
        self.unit = fresh if self.unit is None else min(self.unit, fresh)
        return self.unit

    def slow_stretches(self, above: float) -> tuple[int, int, float]:
        """(how long the last values have been more than `above` over the level, the longest earlier such stretch, the
        share of slow values before the last ones): a value that is not slow takes back three that are.
        """
        value = self.value or 0.0
        score, longest, peak, slow, slow_before, begun = 0, 0, 0, 0, 0, 0
        for place, x in enumerate(self.values):
            if x - value > above:
                if not score:
                    longest, peak, slow_before, begun = max(longest, peak), 0, slow, place
                slow += 1
                score += 1
                peak = max(peak, score)
            elif score:
                score = max(0, score - _MISS)
        if not score:
            longest, slow_before, begun = max(longest, peak), slow, len(self.values)
        return score, longest, slow_before / begun if begun else 0.0

    def before(self, count: int) -> "Level":
        """The level as it was before its last `count` values."""
        return Level(
            values=self.values[:-count], seen=max(self.seen - count, 1), value=self.value, scale=self.scale,
            best=self.best, unit=self.unit,
        )  # fmt: skip


def printed_unit(logs: Sequence[float]) -> float:
    """What the last digit is worth that these times, or their inverses (iterations per second), were printed with, in
    logarithms: the coarsest decimals that all of them have. 0 where they have more than anybody reads.
    """
    times = [math.exp(x) for x in logs]
    for decimals in _DECIMALS:
        if all(_has_decimals(x, decimals) for x in times):
            return 10.0**-decimals / min(times)
        if all(_has_decimals(1 / x, decimals) for x in times):
            return 10.0**-decimals * max(times)
    return 0.0


def _has_decimals(x: float, decimals: int) -> bool:
    shifted = x * 10.0**decimals
    return 0.5 < shifted < 1e9 and abs(shifted - round(shifted)) < 1e-6


def _median_deviation(ordered: list[float], value: float) -> float:
    """`sorted(abs(x - value) for x in ordered)[len(ordered) // 2]`, found by halving: the nearest half of sorted values
    stands together.
    """
    count = len(ordered) // 2 + 1
    low, high = 0, len(ordered) - count
    while low < high:
        middle = (low + high) // 2
        if value - ordered[middle] > ordered[middle + count - 1] - value:
            low = middle + 1
        else:
            high = middle
    starts = (low - 1, low) if low else (low,)
    return min(max(value - ordered[at], ordered[at + count - 1] - value) for at in starts)


def level_of(values: list[float], scale: float, unit: float | None) -> Level:
    """A level begun from the few values that follow a shift; the noise is that of before."""
    return Level(
        values=values, seen=max(len(values), 1), value=median(values) if values else None, scale=scale, unit=unit
    )
