"""Detects that the time which DeepSpeed's engine does not count became longer: the data loader, or other work of the
loop around the engine between two steps. If only the engine prints steps, no printed figure shows it.

The conditions are stricter than for a shift of the iteration's time, because the time between steps varies more. The
last lines must all be long, more of them than ever in a row and than chance explains, and twice as many after each
episode that ended soon.
"""

import math
from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from megatron_monitor.statistics.median import deviation, median

_MAX_LINES = 96
_MIN_LINES = 24  # lines that must have shown the usual time
_LAST = 6
_MAX_RUN = 48  # maximum lines that must agree
# Probability of so many long lines in a row; they are not independent: with 1e-6 noisy loaders were reported ten times.
_CHANCE = math.log(1e-12)
_RUN_FACTOR = 2  # times as many as ever were in a row
_MIN_DEVIATIONS = 4.0  # deviations of the lines before
_FLAP = 64  # lines; an episode that ended earlier was a flap
StandsFor = Callable[[float], float]


class LongerOutside(Struct):
    """Since iteration `onset` steps take `level` seconds outside the engine's clock. `base` and `step` are the values
    before, outside and in all.
    """

    onset: int
    at: float
    base: float
    level: float
    step: float
    lasts: bool = False
    """True if steps have been longer long enough to be notified."""


class OutsideTime(Struct):
    """Memory of one run."""

    lines: list[tuple[int, float, float]] = field(default_factory=list)
    """(iteration, seconds outside the engine's clock, seconds of the whole step) of the last lines of this attempt."""
    longer: LongerOutside | None = None
    stood: int = 0
    """Lines since it was detected."""
    flaps: int = 0

    def restart(self) -> None:
        """Start again for another attempt."""
        self.lines, self.longer, self.stood = [], None, 0

    def add(
        self, iteration: int, duration: tuple[float, float], at: float, threshold: float, stands_for: StandsFor
    ) -> bool:
        """Add a line. Return True if the finding has changed. `stands_for`: seconds after which a ratio lasts."""
        lines, standing = self.lines, self.longer
        lines.append((iteration, *duration))
        del lines[:-_MAX_LINES]
        count = min(_MAX_RUN, _LAST << self.flaps)
        last = [seconds for _, seconds, _ in lines[-count:]]
        if standing is not None:
            return self._stands(standing, last if len(last) == count else [], iteration, stands_for)
        if len(lines) < _MIN_LINES + count:
            return False
        base = median([seconds for _, seconds, _ in lines[:-count]])
        if last[-1] <= base:  # every second line of a healthy run ends here
            return False
        level, step = median(last), median([whole for _, _, whole in lines[:-count]])
        since = self._since((base + level) / 2)
        before, lasting = [seconds for _, seconds, _ in lines[:since]], len(lines) - since
        if lasting < count or len(before) < _MIN_LINES or _is_usual(before, (base + level) / 2, lasting):
            return False
        if level - base < max(threshold * step, _MIN_DEVIATIONS * deviation(before, base)):
            return False
        self.longer, self.stood = LongerOutside(lines[since][0], at, base, level, step), 0
        self.longer.lasts = _lasts(self.longer, iteration, stands_for)
        return True

    def _stands(self, standing: LongerOutside, last: list[float], iteration: int, stands_for: StandsFor) -> bool:
        """Return True if the finding has lasted from this line on, or has ended. `last` is empty if there are too few
        lines.
        """
        self.stood += 1
        count = min(_MAX_RUN, _LAST << self.flaps)
        if not last or self.stood < count or median(last) >= (standing.base + standing.level) / 2:
            lasted, standing.lasts = standing.lasts, standing.lasts or _lasts(standing, iteration, stands_for)
            return standing.lasts and not lasted
        if self.stood < _FLAP:
            self.flaps += 1
        self.longer, self.stood = None, 0
        return True

    def _since(self, middle: float) -> int:
        """Return the index of the first of the last lines that are all above `middle`."""
        place = len(self.lines)
        while place and self.lines[place - 1][1] > middle:
            place -= 1
        return place


def _lasts(found: LongerOutside, iteration: int, stands_for: StandsFor) -> bool:
    return (iteration - found.onset + 1) * (found.step + found.level - found.base) >= stands_for(ratio(found))


def _is_usual(before: list[float], middle: float, lasting: int) -> bool:
    """Return True if `lasting` lines in a row above `middle` are usual: there were as many before, or so many single
    ones that they may have come together by chance.
    """
    longest = here = above = 0
    for seconds in before:
        here = here + 1 if seconds > middle else 0
        longest, above = max(longest, here), above + (seconds > middle)
    return lasting < _RUN_FACTOR * longest or lasting * math.log((above + 1) / len(before)) > _CHANCE


def ratio(found: LongerOutside) -> float:
    """Return the ratio of a whole step's time to before."""
    return 1 + (found.level - found.base) / found.step


def sentence(found: LongerOutside) -> str:
    """Return what happened and its cost."""
    slow = found.step + found.level - found.base
    return (
        f"steps take {100 * (ratio(found) - 1):.1f} % longer from line to line since iteration {found.onset}: "
        f"{slow:.4g} s instead of {found.step:.4g} s; all of it is outside DeepSpeed's own clock "
        f"({max(0.0, found.base):.3g} s before, now {found.level:.3g} s); check the data loader first, which it does "
        "not time, then garbage collection, logging and other programs on the hosts"
    )


def evidence(found: LongerOutside) -> dict[str, Any]:
    """Return figures for programs."""
    return {
        "cause": "outside_timers",
        "cause_scope": "unknown",
        "reason": "more time between steps",
        "seconds_per_iteration": round(found.step + found.level - found.base, 4),
        "normal_seconds_per_iteration": round(found.step, 4),
        "outside_seconds": round(found.level, 4),
        "normal_outside_seconds": round(found.base, 4),
        "ratio": round(ratio(found), 4),
    }
