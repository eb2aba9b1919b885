"""A level, its noise, and the moment when it has shifted: winsorised CUSUM, verified by a median.

Works on logarithms, so that a shift is a ratio. Clipping at 4 scales makes one outlier harmless whatever its size; the
median of the last residuals must confirm what the sum suspects (docs/incident-record.md, "Change detection": measured
against Page-Hinkley, Bayesian change points and the 3-sigma rule).
"""

from __future__ import annotations

from bisect import bisect_left, insort

from msgspec import Struct, field

from monitor.statistics.median import NORMAL_DEVIATIONS, median

WINDOW = 200  # values that make the level: long enough that a shift is found before it is absorbed
RECENT = 16  # residuals kept for the median check
LEARN = 16  # values before a level is believed
DRIFT_EVERY = 10  # values between two looks at a drift
RENEW = 8  # steps between two renewals of level and scale
CLIP = 4.0
SLACK = 1.5  # k of the CUSUM, in scales: a step of two scales is found, autocorrelated noise is not
FLOOR = 0.0035  # no scale is smaller: steady runs show 0.35 to 0.4 %, and milliseconds are rounded


class Level(Struct):
    """Logarithms of seconds at one level. `value` is its median, `scale` 1.4826 times the median deviation."""

    values: list[float] = field(default_factory=list)
    ordered: list[float] = field(default_factory=list)
    seen: int = 0
    value: float | None = None
    scale: float = FLOOR
    up: float = 0.0
    down: float = 0.0
    up_since: int | None = None
    """Iteration at which the upward sum last left zero: where a slowdown began."""
    down_since: int | None = None
    recent: list[float] = field(default_factory=list)
    blocks: list[float] = field(default_factory=list)
    """The last 50 logarithms, for the drift of their median."""
    best: float | None = None
    """Lowest median of 50 so far."""

    @property
    def learned(self) -> bool:
        """Whether there is a level to compare with."""
        return self.value is not None

    def add(self, x: float, iteration: int, limit: float) -> None:
        """One more logarithm. `limit`: the sums stop growing there, so that a return is seen as fast as a shift."""
        self.seen = seen = self.seen + 1
        if self.value is not None:
            residual = x - self.value
            z = residual / self.scale
            if not -CLIP < z < CLIP:
                z = min(CLIP, max(-CLIP, z))
            before = self.up
            up = before + z - SLACK
            if up > 0.0:
                if before <= 0.0:
                    self.up_since = iteration
                self.up = up if up < limit else limit
            elif before:
                self.up = 0.0
            before = self.down
            down = before - z - SLACK
            if down > 0.0:
                if before <= 0.0:
                    self.down_since = iteration
                self.down = down if down < limit else limit
            elif before:
                self.down = 0.0
            recent = self.recent
            recent.append(residual)
            if len(recent) > RECENT:
                del recent[0]
        values, ordered, blocks = self.values, self.ordered, self.blocks
        values.append(x)
        insort(ordered, x)
        if len(values) > WINDOW:
            del ordered[bisect_left(ordered, values.pop(0))]
        blocks.append(x)
        if len(blocks) > 50:
            del blocks[0]
        if seen % RENEW == 0 and seen >= LEARN:
            self._renew()

    def _renew(self) -> None:
        old = self.value
        self.value = value = self.ordered[len(self.ordered) // 2]
        self.scale = max(FLOOR, NORMAL_DEVIATIONS * _median_deviation(self.ordered, value))
        if old is not None:
            moved = value - old
            self.recent = [residual - moved for residual in self.recent]

    def confirmed(self, count: int) -> float | None:
        """Median of the last `count` residuals; None while there are fewer."""
        return median(self.recent[-count:]) if len(self.recent) >= count else None

    def drifted(self) -> float | None:
        """How far the median of the last 50 lies above the lowest median of 50; asked every tenth value."""
        if len(self.blocks) < 50 or self.seen % DRIFT_EVERY:
            return None
        middle = median(self.blocks)
        if self.best is None or middle < self.best:
            self.best = middle
        return middle - self.best

    def tail(self, count: int) -> list[float]:
        """The last `count` logarithms, oldest first."""
        return self.values[-count:]


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


def level_of(values: list[float], scale: float) -> Level:
    """A level begun from the few values that follow a shift; the noise is that of before."""
    level = Level(values=list(values), ordered=sorted(values), seen=max(len(values), 1), scale=scale)
    level.blocks = list(values)
    level.value = median(values) if values else None
    return level
