"""Finds the moment at which the level of a series has shifted: winsorised CUSUM, verified by a median.

Works on logarithms, so that a shift is a ratio. Clipping at 4 scales makes an outlier of any size harmless. The median
of the last residuals must confirm the sum (docs/development/incident-record.md, "Change detection": measured against
Page-Hinkley, Bayesian change points and the 3-sigma rule).
"""

import math
from bisect import bisect_left, insort
from collections.abc import Sequence

from msgspec import Struct, field

from megatron_monitor.statistics.median import NORMAL_DEVIATIONS, median

WINDOW = 200  # values that make the level: long enough that a shift is found before it is absorbed
RECENT = 16  # residuals for the median check
LEARN = 16  # values after which a level is known
_LEARN_MEANS, _LEARN_ITERATIONS = 8, 256  # or so few values that cover so many iterations: means of many vary less
DRIFT_EVERY = 10  # values between two checks for a drift
DRIFT = 50  # values whose median is compared with the lowest such median
_RENEW = 8  # values between two renewals of level and scale
_CLIP = 4.0  # scales
_SLACK = 1.5  # k of the CUSUM, in scales: a step of two scales is found, autocorrelated noise is not
_MIN_SCALE = 0.0035  # steady runs show 0.35 to 0.4 %, and milliseconds are rounded
MARK_EVERY = 64  # values between two marks of the level
_FINE_UNIT = 0.001  # with a finer printed unit, rounding is lost in the noise
_ROUNDING = 0.5  # scales per printed unit: rounding errs by up to half a unit
_DECIMALS = (2, 3)  # decimals that are checked: no program prints fewer, and more are fine enough
_MISS = 3  # slow values that one normal value cancels


class Level(Struct):
    """The level of a series of logarithms: `value` is the median, `scale` 1.4826 times the median deviation."""

    values: list[float] = field(default_factory=list)
    """The last values, oldest first."""
    ordered: list[float] = field(default_factory=list)
    """The same in ascending order, because sorting them at each renewal takes longer than all other work of a step. Of
    another length: to be sorted at the next renewal.
    """
    seen: int = 0
    iterations: int = 0
    """Iterations that the values cover."""
    residuals: int = 0
    """Values added since the level is known."""
    value: float | None = None
    scale: float = _MIN_SCALE
    up: float = 0.0
    down: float = 0.0
    up_since: int | None = None
    """Iteration at which the upward sum last left zero: where a slowdown began."""
    down_since: int | None = None
    best: float | None = None
    """Lowest median of 50 values so far."""
    up_from: int = 0
    """`seen` at `up_since`."""
    down_from: int = 0
    unit: float | None = None
    """One unit of the last printed digit, in logarithms: 0.022 for times like 0.45. None while unknown."""

    def add(
        self, x: float, iteration: int, limit: float = math.inf, suspect: float = 0.0, far: float = math.inf,
        stands_for: int = 1,
    ) -> bool:  # fmt: skip
        """Add a logarithm, a mean over `stands_for` iterations. Return True if the caller must check for a shift: a sum
        has reached `suspect`, a residual is above `far` and 6 scales, the level has just been learned, or a check for
        a drift or a mark is due. The sums stop growing at `limit`, so that a return is found as fast as a shift.
        """
        self.seen = seen = self.seen + 1
        self.iterations += stands_for
        self.values.append(x)
        insort(self.ordered, x)
        value, look = self.value, False
        if value is not None:
            self.residuals += 1
            residual, scale = x - value, self.scale
            up, down, z = self.up, self.down, residual / scale
            z = _CLIP if z > _CLIP else -_CLIP if z < -_CLIP else z
            if up or z > _SLACK:
                if not up:
                    self.up_since, self.up_from = iteration, seen
                up = up + z - _SLACK
                self.up = up = 0.0 if up < 0.0 else up if up < limit else limit
            if down or z < -_SLACK:
                if not down:
                    self.down_since, self.down_from = iteration, seen
                down = down - z - _SLACK
                self.down = down = 0.0 if down < 0.0 else down if down < limit else limit
            look = up >= suspect or down >= suspect or (residual > far and residual > 6 * scale)
        if not seen % _RENEW and (seen >= LEARN or (seen >= _LEARN_MEANS and self.iterations >= _LEARN_ITERATIONS)):
            look = self._renew() or look
        return look or not seen % DRIFT_EVERY or not seen % MARK_EVERY

    def _renew(self) -> bool:
        """Compute level and scale anew. Return True if the level has just been learned."""
        if len(self.ordered) != len(self.values):
            self.ordered = sorted(self.values)
        for old in self.values[:-WINDOW]:
            del self.ordered[bisect_left(self.ordered, old)]
        del self.values[:-WINDOW]
        # A level of few values would follow the shift that it should find: the suspect values are left out.
        young = (
            self.up > 0.0 and self.up_from > _LEARN_MEANS and self.seen <= 2 * LEARN
            and self.iterations >= _LEARN_ITERATIONS
        )  # fmt: skip
        learned, ordered = self.value is None, sorted(self.values[: self.up_from - 1]) if young else self.ordered
        self.value = value = ordered[len(ordered) // 2]
        self.scale = max(_MIN_SCALE, NORMAL_DEVIATIONS * _median_deviation(ordered, value))
        if self.unit is None or self.unit > _FINE_UNIT:
            unit = self.see_unit(_RENEW)
            if ordered[0] != ordered[-1]:
                self.scale = max(self.scale, _ROUNDING * unit)
        return learned

    def recent(self, count: int = RECENT) -> list[float]:
        """Return the last residuals, `count` at most, oldest first."""
        count = min(count, self.residuals, RECENT)
        value = self.value
        return [x - value for x in self.values[-count:]] if count and value is not None else []

    def confirmed(self, count: int) -> float | None:
        """Return the median of the last `count` residuals; None while there are fewer."""
        recent = self.recent(count)
        return median(recent) if len(recent) >= count else None

    def drifted(self) -> float | None:
        """Return how far the median of the last 50 values exceeds the lowest one, at each tenth value; else None."""
        if len(self.values) < DRIFT or self.seen % DRIFT_EVERY:
            return None
        middle = median(self.values[-DRIFT:])
        if self.best is None or middle < self.best:
            self.best = max(middle, self.value or middle)  # a short faster stretch is not a standard
        return middle - self.best

    def see_unit(self, count: int) -> float:
        """Update `unit` by the digits of the last `count` values, or of all values the first time."""
        fresh = printed_unit(self.values[-count:] if self.unit is not None else self.values)
        self.unit = fresh if self.unit is None else min(self.unit, fresh)
        return self.unit

    def slow_stretches(self, above: float) -> tuple[int, int, float]:
        """Return (length of the last slow stretch, of the longest earlier one, share of slow values before the last).
        Slow values are more than `above` over the level. A normal value cancels three slow ones.
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
        """Return the level as it was before its last `count` values."""
        return Level(
            values=self.values[:-count], seen=max(self.seen - count, 1), value=self.value, scale=self.scale,
            best=self.best, unit=self.unit,
        )  # fmt: skip


def printed_unit(logs: Sequence[float]) -> float:
    """Return one unit of the last digit, in logarithms, with which these times or their inverses (iterations per
    second) were printed: by the fewest decimals that all of them have. 0 if they have more than three.
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
    """Return `sorted(abs(x - value) for x in ordered)[len(ordered) // 2]` by bisection: the half of sorted values that
    is nearest to `value` is contiguous.
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
    """Return a level that starts with the few values after a shift. The noise is that from before the shift."""
    return Level(
        values=values, seen=max(len(values), 1), value=median(values) if values else None, scale=scale, unit=unit
    )
