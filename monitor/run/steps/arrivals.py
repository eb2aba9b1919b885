"""The time of an iteration whose line prints no time at all: by when lines arrive, one by one. Pure.

A line arrives later than it was written: after a look at the file, a flush of a buffer, a file system's cache. So a lap
is long beside what arrivals vary by, and lines that came together, or soon after others that did, are no stamps.
Residual risk: a cache that begins to hold single lines back by less than a step, and always by as much more, looks like
iterations that are slower by that.
"""

from dataclasses import dataclass, field

_LEAST = 20.0  # seconds of a lap: looks at a file are half a second apart, and up to a twentieth of its silence
_TIMES = 20.0  # a lap over what arrivals vary by: it is off by 5 % at the most
_ALONE = 16  # lines that must come one by one before arrivals are believed again, and whose gaps tell how they vary


@dataclass(slots=True)
class Arrivals:
    """Since when the lap runs, and how the last lines came."""

    iteration: int | None = None
    moment: float = 0.0
    last_iteration: int = 0
    last_moment: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Seconds per iteration between the last single lines."""
    together: int = 0
    """Single lines that must come before arrivals are believed: some came together."""

    def lap(self, iteration: int, moment: float | None, *, disturbed: bool) -> tuple[float, int] | None:
        """(seconds per iteration, iterations) of a lap that ends; None while it goes on. `moment`: when the line came
        alone, None where that says nothing. `disturbed`: an evaluation or a save lies between it and the last one.
        """
        if moment is None:
            self.iteration, self.together = None, _ALONE
            return None
        since, began = self.iteration, self.moment
        steps, passed = iteration - self.last_iteration, moment - self.last_moment
        self.last_iteration, self.last_moment = iteration, moment
        self.together = max(0, self.together - 1)
        if since is None or disturbed or steps <= 0 or passed <= 0 or self.together:
            self.iteration, self.moment = iteration, moment
            return None
        self.gaps.append(passed / steps)
        del self.gaps[:-_ALONE]
        took = moment - began
        if took < max(_LEAST, _TIMES * (max(self.gaps) - min(self.gaps))):
            return None
        self.iteration, self.moment = iteration, moment
        return took / (iteration - since), iteration - since

    def stop(self) -> None:
        """A launch has ended."""
        self.iteration, self.together, self.gaps = None, 0, []
